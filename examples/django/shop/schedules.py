"""Changing the schedule from Django's own processes."""

from datetime import timedelta

from django.utils import timezone

from redbeat_lite import Schedules, at

from .celery import app

schedules = Schedules(app)


def remind(order: int, seconds: float) -> None:
    """Send one reminder; asked for again, it moves. Inside a transaction, call it with ``transaction.on_commit``."""
    when = timezone.now() + timedelta(seconds=seconds)
    schedules.add(
        f"reminder:{order}", "shop.tasks.send_reminder", at(when), args=(order,), replace=True, remove_when_done=True
    )
