"""A beat that is told to stop while Celery makes its scheduler, in a finalizer, where Python ignores that."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

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
