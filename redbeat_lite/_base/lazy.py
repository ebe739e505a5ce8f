"""Values that are computed at their first use: of an object, and of an app in a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_T = TypeVar("_T")


class lazy(Generic[_T]):
    """Property that is computed at its first use and then kept in the object's ``__dict__``.

    Before Python 3.12, :class:`functools.cached_property` holds a lock while it computes the
    value. If another thread holds the lock when the process forks, the child waits for it for
    ever. This class holds no lock. If two threads come at once, both compute a value and get the
    one that was kept first. So the computation must have no effect that has to be undone.

    ``__dict__.pop(name, None)`` forgets the value, and the next use computes it again.
    """

    def __init__(self, make: Callable[[Any], _T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | _T:
        if instance is None:
            return self
        made: _T = instance.__dict__.setdefault(self._name, self._make(instance))
        return made


def of_process(app: Any, make: Callable[[Any], _T]) -> _T:
    """Return what ``make`` has made of an app in this process. A forked child makes its own.

    If two threads come at once, ``setdefault`` lets one of them win. There is no lock, because
    another thread could hold it at a fork, and nobody would release it in the child.
    """
    name = f"_redbeat_lite_{make.__name__}_{os.getpid()}"
    if name not in app.__dict__:
        app.__dict__.setdefault(name, make(app))
    made: _T = app.__dict__[name]
    return made
