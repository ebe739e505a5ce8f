"""The page as an app of Django."""

from __future__ import annotations

from django.apps import AppConfig


class Page(AppConfig):  # type: ignore[misc]  # Django ships no types
    """Under the label that the permissions are named for."""

    name, label = "redbeat_lite.web.django", "redbeat_lite"
    verbose_name = "Celery beat"
    default_auto_field = "django.db.models.BigAutoField"
