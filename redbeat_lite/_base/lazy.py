"""Values that are computed at their first use: attributes of an object, and parts of an app."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

_T = TypeVar("_T")

if TYPE_CHECKING:
    from functools import cached_property

    lazy = cached_property
else:

    class lazy:
        """Property that is computed at its first use, and then stored in the object's ``__dict__``.

        Before Python 3.12, :class:`functools.cached_property` holds a lock while it computes the
        value. If another thread holds that lock when the process forks, the child waits for it for
        ever. This class has no lock. If two threads use it at the same time, both compute a value,
        and both get the one that was stored first. So the computation must have no side effect.

        After ``__dict__.pop(name, None)``, the next use computes the value again.
        """

        def __init__(self, make):
            self._make = make
            self.__doc__ = make.__doc__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._make.__name__, self._make(instance))


def of_process(app: Any, make: Callable[[Any], _T]) -> _T:
    """Return ``make(app)``, computed once per process. A forked child computes its own.

    If two threads call this at the same time, both get the value that was stored first. There is no
    lock, because another thread could hold it at a fork, and no thread of the child would release
    it.
    """
    name = f"_redbeat_lite_{make.__name__}_{os.getpid()}"
    if name not in app.__dict__:
        app.__dict__.setdefault(name, make(app))
    made: _T = app.__dict__[name]
    return made
