"""Loading of an app's tasks, which its modules register when they are imported."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery import Celery


def load_tasks(app: Celery) -> None:
    """Import the modules of the app, as a worker does at its start, and have it register its tasks.

    Raises whatever a module raises.
    """
    app.loader.import_default_modules()
    app.finalize()


def is_importing() -> bool:
    """Return whether a module is being imported; it may define more tasks further down."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _is_unfinished(frame.f_globals.get("__spec__")):
            return True
        frame = frame.f_back
    return False


def _is_unfinished(spec: object) -> bool:
    return bool(getattr(spec, "_initializing", False))
