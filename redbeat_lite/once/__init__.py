"""One task of a key at a time, and one run for every task id.

The names are handed on lazily: importing this package opens no connection and loads nothing of a Celery worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import lock
    from .errors import LockLost, LockUnavailable, OnceRejected, OnceSkipped
    from .hooks import install
    from .listing import locks
    from .policy import Once
    from .task import Task

_HOME = {
    "LockLost": ".errors",
    "LockUnavailable": ".errors",
    "Once": ".policy",
    "OnceRejected": ".errors",
    "OnceSkipped": ".errors",
    "Task": ".task",
    "install": ".hooks",
    "lock": ".context",
    "locks": ".listing",
}

__all__ = ["LockLost", "LockUnavailable", "Once", "OnceRejected", "OnceSkipped", "Task", "install", "lock", "locks"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
