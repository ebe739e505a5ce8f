"""How many objects a beat holds: all that can be reached from its scheduler, but for what all beats share."""

from __future__ import annotations

import gc
from functools import cache
from types import FrameType, FunctionType, ModuleType
from typing import Any

from celery import Celery

#: Kinds of objects that belong to the code, to the app or to the interpreter.
_SHARED = (type, ModuleType, FunctionType, FrameType, Celery)


def count_objects(owner: object) -> int:
    """Return how many objects can be reached from this one."""
    # Kombu makes a class for each connection, so no answer may be kept for ever.
    is_shared = cache(_is_shared)
    seen = {id(owner)}
    waiting: list[Any] = [owner]
    while waiting:
        for held in gc.get_referents(waiting.pop()):
            if id(held) not in seen and not is_shared(type(held)):
                seen.add(id(held))
                waiting.append(held)
    return len(seen)


def _is_shared(kind: type) -> bool:
    return issubclass(kind, _SHARED) or kind.__module__.startswith("tests.")
