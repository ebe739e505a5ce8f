"""A Celery beat scheduler that keeps its schedule in Redis."""
