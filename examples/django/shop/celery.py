"""The Celery app, as Celery's documentation has it."""

import os

from celery import Celery

from redbeat_lite import install

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
install(app)  # so that workers let retries run, release once-locks, and record runs
