"""How the beats and the schedule fare, for those who operate them.

The names are handed on lazily, so that the health probe loads nothing of the doctor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..beat.status import Status, status
    from .doctor import examine
    from .doctor.finding import Finding

_HOME = {"Finding": ".doctor.finding", "Status": "..beat.status", "examine": ".doctor", "status": "..beat.status"}

__all__ = ["Finding", "Status", "examine", "status"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
