"""One task of a key at a time, and one run for every task id.

The names are handed on lazily: importing this package opens no connection and loads nothing of a Celery worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import LockLost, LockUnavailable, OnceRejected, OnceSkipped
    from .policy import Once

_HOME = {
    "LockLost": ".errors",
    "LockUnavailable": ".errors",
    "Once": ".policy",
    "OnceRejected": ".errors",
    "OnceSkipped": ".errors",
}

__all__ = ["LockLost", "LockUnavailable", "Once", "OnceRejected", "OnceSkipped"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
