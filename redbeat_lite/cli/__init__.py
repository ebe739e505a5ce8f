"""``celery -A proj redbeat …``: the command line.

Celery loads its plugins whenever any of its commands starts, so this package hands on the group alone, and the group
loads the module of a command when that command is called.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "redbeat":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .group import redbeat

    return redbeat
