"""Waits for the next due time. A message on the wake channel ends a wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError

from .._base.clock import elapsed
from .._base.text import text_of
from ..store.connections import FAULTS, Backend

logger = get_logger(f"celery.{__name__}")

#: Messages that wake a stand-by, too: the leader has released its lease, or the freeze has changed.
#: A stand-by remembers the freeze: a flush may remove it together with the leader's lease, and the
#: next leader has to restore it.
_FOR_STANDBYS = {b"vacant", b"freeze"}

#: Seconds between two checks of the condition ``until``. A stop is noticed after at most this time.
_SLICE = 0.1

#: Maximum number of messages that are read as one wake-up. Anybody can publish any number of
#: messages, and due entries must not wait until the channel is quiet.
_MAX_MESSAGES = 100

#: Maximum number of seconds to wait until the server confirms a subscription.
_CONFIRM = 5.0


@dataclass(eq=False)
class Wakeup:
    """Subscription to the wake channel. It stays open between waits, so that no message is lost."""

    backend: Backend
    channel: str

    def __post_init__(self) -> None:
        #: Subscription of redis-py; ``None`` before :meth:`listen`, and after a failure.
        self._pubsub: Any = None
        #: Whether the server's ACL forbids the channel. If so, :meth:`wait` only sleeps.
        self._is_forbidden = False

    def listen(self) -> None:
        """Subscribe, unless subscribed already, and wait until the server has confirmed it.

        The caller must call this before it reads the schedule. Then :meth:`wait` receives a message
        about every later change.
        """
        if self._pubsub is not None or self._is_forbidden:
            return
        client: Any = self.backend.client
        pubsub = client.pubsub()
        try:
            pubsub.subscribe(self.channel)
            # The first message confirms the subscription.
            confirmation = pubsub.get_message(timeout=_CONFIRM)
        except NoPermissionError as exc:
            # The server would refuse further attempts, too, so make none.
            self._is_forbidden = True
            pubsub.close()
            logger.warning(
                "beat: may not subscribe to %s, so changes are noticed late: %s",
                self.channel,
                text_of(exc),
            )
            return
        except Exception:
            pubsub.close()
            raise
        if confirmation is None:
            pubsub.close()
            raise TimeoutError("the server did not confirm the subscription to the wake channel")
        self._pubsub = pubsub

    def wait(self, seconds: float, until: Callable[[], bool], *, leads: bool) -> None:
        """Wait until ``seconds`` have passed, a message ends the wait, or ``until`` returns true.

        Parameters:
            leads: whether this beat leads. Messages about changed entries do not wake a stand-by.
        """
        deadline = elapsed() + seconds
        while (left := deadline - elapsed()) > 0 and not until():
            if self._await_message(min(left, _SLICE), leads):
                return

    def _await_message(self, seconds: float, leads: bool) -> bool:
        """Wait for a message for at most ``seconds``. Return whether one ends the wait."""
        if self._pubsub is None:
            # The server forbids the subscription, or the connection was lost.
            time.sleep(seconds)
            return False
        is_woken = False
        try:
            for _ in range(_MAX_MESSAGES):
                message = self._pubsub.get_message(timeout=seconds)
                if message is None:
                    break
                # Any message wakes a leader. A message of another type confirms that redis-py has
                # subscribed again after a lost connection, and messages may have been missed.
                if leads or message["type"] != "message" or message["data"] in _FOR_STANDBYS:
                    is_woken = True
                # Read the other messages that have come, so that all of them cause one wake-up.
                seconds = 0
        except FAULTS:
            # End the wait. The next command will probably fail, too, and its caller handles that.
            self.close()
            return True
        return is_woken

    def close(self) -> None:
        """Close the subscription. :meth:`listen` makes a new one."""
        pubsub = self._pubsub
        self._pubsub = None
        if pubsub is not None:
            with suppress(*FAULTS):
                pubsub.close()
