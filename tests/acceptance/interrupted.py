"""Beats that are told to stop at bad moments: while Celery makes the scheduler, in a finalizer, where Python ignores
that; and in a subscription that holds its own lock.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from redis.client import PubSub

import redbeat_lite


class _Interrupting:
    def __del__(self) -> None:
        signal.raise_signal(int(os.environ.pop("INTERRUPTED_BY")))


class Interrupted(redbeat_lite.Scheduler):
    def __init__(self, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        if not lazy and "INTERRUPTED_BY" in os.environ:
            sys.unraisablehook = lambda ignored: None
            _Interrupting()
        super().__init__(*args, lazy=lazy, **kwargs)


class InSubscription(redbeat_lite.Scheduler):
    def __init__(self, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        if "INTERRUPTED_IN" in os.environ:
            name = os.environ.pop("INTERRUPTED_IN")
            function = getattr(PubSub, name)

            def interrupted(pubsub: PubSub, *args: Any) -> None:
                setattr(PubSub, name, function)
                pubsub.subscribed_event._cond.acquire()  # type: ignore[attr-defined]  # as its set() and clear() do
                signal.raise_signal(signal.SIGTERM)

            setattr(PubSub, name, interrupted)
        super().__init__(*args, lazy=lazy, **kwargs)
