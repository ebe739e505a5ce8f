"""Waits for the next due time, which end early when the wake channel reports a change."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError

from .._base.clock import elapsed
from .._base.text import text_of
from ..store.connections import FAULTS, Backend

logger = get_logger(f"celery.{__name__}")

#: Messages that also wake a stand-by: the leader has released its lease, or the freezes have
#: changed. A stand-by knows the freezes in order to restore them, because a flush may remove them
#: together with the leader's lease.
_FOR_ALL = {b"vacant", b"freezes"}

#: Seconds between two checks of the caller's condition. A stop is delayed by as much at most.
_SLICE = 0.1

#: Most messages that are read as one wake-up. Anybody may publish, and due entries must not wait
#: until the channel is quiet.
_AT_ONCE = 100

#: Seconds that a subscription may take to be confirmed.
_CONFIRM = 5.0


class Wakeup:
    """Subscription to the wake channel; it stays open between turns, so that no message is lost."""

    def __init__(self, backend: Backend, channel: str) -> None:
        self._backend = backend
        self._channel = channel
        self._pubsub: Any = None
        self._is_forbidden = False

    def listen(self) -> None:
        """Subscribe, if not subscribed already, and wait until the server has confirmed it.

        Called before the schedule is read, so that :meth:`wait` hears of every change after that.
        """
        if self._pubsub is not None or self._is_forbidden:
            return
        client: Any = self._backend.client
        pubsub = client.pubsub()
        try:
            pubsub.subscribe(self._channel)
            _await_confirmation(pubsub)
            self._pubsub = pubsub
        except NoPermissionError as exc:
            self._is_forbidden = True
            pubsub.close()
            reason = text_of(exc)
            logger.warning(
                "beat: may not subscribe to %s, so changes are noticed late: %s",
                self._channel,
                reason,
            )
        except Exception:
            pubsub.close()
            raise

    def wait(self, seconds: float, until: Callable[[], bool], *, leads: bool = True) -> None:
        """Wait for ``seconds``, for a message, or until the condition holds; whichever comes first.

        Parameters:
            leads: whether this beat leads. Changes of entries do not wake a stand-by.
        """
        deadline = elapsed() + seconds
        while (left := deadline - elapsed()) > 0 and not until():
            if self._is_woken(min(left, _SLICE), leads):
                return

    def _is_woken(self, seconds: float, leads: bool) -> bool:
        """Wait for a message for so many seconds; return whether one ends the wait."""
        if self._pubsub is None:
            time.sleep(seconds)
            return False
        is_woken = False
        try:
            message = self._pubsub.get_message(timeout=seconds)
            for _ in range(_AT_ONCE):  # Many changes are one wake-up.
                if message is None:
                    break
                # A message of another type confirms a new subscription. Messages may have been lost
                # before it.
                is_confirmation = message["type"] != "message"
                is_woken = is_woken or leads or is_confirmation or message["data"] in _FOR_ALL
                message = self._pubsub.get_message(timeout=0)
        except FAULTS:
            # The next command fails in the same way, and its error is handled.
            self.close()
            return True
        return is_woken

    def close(self) -> None:
        """Drop the subscription; :meth:`listen` makes a new one."""
        pubsub = self._pubsub
        self._pubsub = None
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
