"""Waiting for the next deadline, or for word on the wake channel that something changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError

from ..clock import elapsed
from ..errors import text_of
from ..storage.connections import FAULTS, Backend

logger = get_logger(f"celery.{__name__}")

#: What those that stand by heed: a leader gives its lease back, or the freezes have changed, which somebody has to know
#: where a flush takes them away with the leader.
_FOR_ALL = {b"vacant", b"freezes"}

#: Seconds between two checks of the caller's condition, which delay a stop by as much at most.
_SLICE = 0.1

#: Messages that are one wake-up. Anybody may publish more than can be read, and what is due has to go out.
_AT_ONCE = 100

#: Seconds that a subscription may take to be confirmed.
_CONFIRM = 5.0


class Wakeup:
    """A subscription to the wake channel that lasts over ticks, so that no message falls between two of them."""

    def __init__(self, backend: Backend, channel: str) -> None:
        self._backend = backend
        self._channel = channel
        self._pubsub: Any = None
        self._deaf = False

    def listen(self) -> None:
        """Subscribe, if not subscribed already, and wait until the server has confirmed it.

        Call it before looking at the schedule: a change made after the look is then heard by :meth:`wait`.
        """
        if self._pubsub is not None or self._deaf:
            return
        pubsub: Any = self._backend.client.pubsub()  # type: ignore[no-untyped-call]  # untyped in redis-py
        try:
            pubsub.subscribe(self._channel)
            _await_confirmation(pubsub)
            self._pubsub = pubsub
        except NoPermissionError as exc:
            self._deaf = True
            pubsub.close()
            logger.warning(
                "beat: may not subscribe to %s, so changes are noticed late: %s", self._channel, text_of(exc)
            )
        except Exception:
            pubsub.close()
            raise

    def wait(self, seconds: float, until: Callable[[], bool], *, leads: bool = True) -> None:
        """Wait for ``seconds``, for a message, or until the condition holds; whichever comes first.

        A beat that does not lead has nothing to do because entries changed.
        """
        deadline = elapsed() + seconds
        while (left := deadline - elapsed()) > 0 and not until():
            if self._heard(min(left, _SLICE), leads):
                return

    def _heard(self, seconds: float, leads: bool) -> bool:
        if self._pubsub is None:
            time.sleep(seconds)
            return False
        called = False
        try:
            message = self._pubsub.get_message(timeout=seconds)
            for _ in range(_AT_ONCE):  # many changes are one wake-up
                if message is None:
                    break
                # A new confirmation means that the connection was lost and made again: what was said meanwhile is gone.
                called = called or leads or message["type"] != "message" or message["data"] in _FOR_ALL
                message = self._pubsub.get_message(timeout=0)
        except FAULTS:
            # Whoever sends the next command learns more, and handles it.
            self.close()
            return True
        return called

    def close(self) -> None:
        """Drop the subscription; :meth:`listen` makes a new one."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(*FAULTS):
                pubsub.close()


def _await_confirmation(pubsub: Any) -> None:
    deadline = elapsed() + _CONFIRM
    while elapsed() < deadline:
        message = pubsub.get_message(timeout=_CONFIRM)
        if message and message["type"] == "subscribe":
            return
    raise TimeoutError("the server did not confirm the subscription to the wake channel")
