"""An app that is configured as in a Django project: upper-case names in a namespace; ``DJANGO_CONF`` holds them."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

from celery import Celery

app = Celery("djangoproj")
app.config_from_object(SimpleNamespace(**json.loads(os.environ["DJANGO_CONF"])), namespace="CELERY")
