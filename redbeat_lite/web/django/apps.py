"""The page as an app of Django."""

from __future__ import annotations

from django.apps import AppConfig


class Page(AppConfig):  # type: ignore[misc]  # Django ships no types
    """Configuration of the app. The names of the permissions begin with its label."""

    name = "redbeat_lite.web.django"
    label = "redbeat_lite"
    verbose_name = "Celery beat"
    default_auto_field = "django.db.models.BigAutoField"
