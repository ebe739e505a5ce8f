"""Values that are computed at their first use: attributes of an object, and parts of an app."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_T = TypeVar("_T")


class lazy(Generic[_T]):
    """Property that is computed at its first use, and then stored in the object's ``__dict__``.

    Before Python 3.12, :class:`functools.cached_property` holds a lock while it computes the value.
    If another thread holds that lock when the process forks, the child waits for it for ever. This
    class has no lock. If two threads use it at the same time, both compute a value, and both get
    the one that was stored first. So the computation must have no side effect.

    After ``__dict__.pop(name, None)``, the next use computes the value again.
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
