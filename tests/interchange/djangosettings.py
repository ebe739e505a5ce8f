"""The Django project of the tests; ``MOVING_DATABASE`` is its file."""

from __future__ import annotations

import os

INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["MOVING_DATABASE"]}}
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
SECRET_KEY = "of no use"
# The tables at once, instead of through the years of their history.
MIGRATION_MODULES = {"django_celery_beat": None}
