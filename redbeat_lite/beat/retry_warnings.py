"""Warnings about entries whose retries a worker without ``install()`` discards."""

from __future__ import annotations

from celery import Celery
from celery.utils.log import get_logger

from ..entries.entry import Entry
from ..entries.message import may_lose_retries
from .dispatch.deadlines import Deadlines

logger = get_logger(f"celery.{__name__}")


class RetryWarnings:
    """Warns once per entry, while no worker with ``install()`` reports."""

    def __init__(self, app: Celery, deadlines: Deadlines) -> None:
        self._app = app
        self._deadlines = deadlines
        self._warned = set[str]()

    def look_at(self, entry: Entry) -> None:
        """Warn of an entry that is sent, unless it was warned of before or a worker reports."""
        if self._deadlines.recorded or entry.name in self._warned:
            return
        if may_lose_retries(entry, self._app.tasks.get(entry.task)):
            self._warned.add(entry.name)
            logger.warning(
                "beat: no worker with install() reports, so a retry of %r is discarded if it is due after the next "
                "run; call redbeat_lite.install(app), or set expires=None",
                entry.name,
            )
