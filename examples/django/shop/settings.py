"""The settings that matter to Celery and to redbeat_lite, and those of Django's admin; a real project has more."""

import os
from pathlib import Path

from celery.schedules import crontab

SECRET_KEY = "for this example only"
DEBUG = True
TIME_ZONE = "Europe/Berlin"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "redbeat_lite.web.django",  # the permissions
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.request",
            ]
        },
    }
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parent.parent / "db.sqlite3"},
}
ROOT_URLCONF = "shop.urls"
STATIC_URL = "static/"

CELERY_BROKER_URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
CELERY_TIMEZONE = TIME_ZONE

CELERY_BEAT_SCHEDULER = "redbeat_lite.Scheduler"
CELERY_REDBEAT_LITE_KEY_PREFIX = "shop"
CELERY_BEAT_SCHEDULE = {
    "cleanup": {"task": "shop.tasks.cleanup", "schedule": crontab(hour=3, minute=0)},
    "stock": {"task": "shop.tasks.count_stock", "schedule": 10, "misfire": "skip"},
}
