"""What several tests share: a server of their own, real celery processes, waiting for conditions."""
