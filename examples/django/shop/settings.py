"""The settings that matter to Celery and to redbeat_lite; a real project has many more."""

import os

from celery.schedules import crontab

SECRET_KEY = "for this example only"
INSTALLED_APPS = ["shop"]
TIME_ZONE = "Europe/Berlin"
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
CELERY_TIMEZONE = TIME_ZONE

CELERY_BEAT_SCHEDULER = "redbeat_lite.Scheduler"
CELERY_REDBEAT_LITE_KEY_PREFIX = "shop"
CELERY_BEAT_SCHEDULE = {
    "cleanup": {"task": "shop.tasks.cleanup", "schedule": crontab(hour=3, minute=0)},
    "stock": {"task": "shop.tasks.count_stock", "schedule": 10, "misfire": "skip"},
}
