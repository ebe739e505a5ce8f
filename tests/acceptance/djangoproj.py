"""An app that is configured by Django: ``DJANGO_CONF`` holds its settings, ``DJANGO_NAMESPACE`` their namespace."""

from __future__ import annotations

import json
import os

from celery import Celery
from django.conf import settings

settings.configure(**json.loads(os.environ["DJANGO_CONF"]))
app = Celery("djangoproj")
app.config_from_object("django.conf:settings", namespace=os.environ.get("DJANGO_NAMESPACE", "CELERY") or None)
