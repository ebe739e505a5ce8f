"""A Django project; importing it makes its Celery app the current one."""

from .celery import app

__all__ = ["app"]
