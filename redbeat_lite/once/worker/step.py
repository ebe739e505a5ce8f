"""The step of a worker's consumer: prepares its tasks for the once-locks, and starts what keeps them."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger

from ...errors import ConfigurationError, text_of
from ...storage.server_check import check_driver
from ..adoption import adopt
from ..runtime import Runtime
from .keeper import Keeper
from .request import with_mixin

logger = get_logger(f"celery.{__name__}")


class OnceStep(bootsteps.StartStopStep):  # type: ignore[misc] # Celery has no types
    """Starts with every connection of the consumer; its threads live until the worker has stopped.

    They go on during a warm shutdown, when tasks may run for hours after the consumer has stopped.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._keeper: Keeper | None = None
        try:
            check_driver(consumer.app)
        except ConfigurationError as exc:
            raise SystemExit(str(exc)) from None
        # Before the strategies and the tracers are built, which look up each task's request class and hooks.
        # Celery's own tasks may be entries, too, for example celery.backend_cleanup.
        for task in consumer.app.tasks.values():
            type(task).Request = with_mixin(symbol_by_name(task.Request))
            if not getattr(task, "guarded", False):
                adopt(task)

    def start(self, consumer: Any) -> None:
        try:
            self._keeper = self._keeper or Keeper(Runtime.of(consumer.app), str(consumer.hostname))
        except ConfigurationError as exc:
            logger.error("Once-locks, the guard and the visibility heartbeat are off: %s", text_of(exc))
            return
        self._keeper.connect(consumer)

    def stop(self, consumer: Any) -> None:
        """Note that the consumer stops, for good or until it has a new connection."""
        if self._keeper is not None:
            self._keeper.disconnect()

    def shutdown(self, consumer: Any) -> None:
        """The whole worker has stopped, its pool too. The process may outlive it, as one that runs tests does."""
        if self._keeper is not None:
            self._keeper.stop()
