"""Values that are made when they are first asked for: by an object, and of an app in a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_T = TypeVar("_T")


class lazy(Generic[_T]):
    """A method that is called once for each object, and whose result takes its place in the object's ``__dict__``.

    In place of :class:`functools.cached_property`, which before Python 3.12 holds a lock while it makes the value, one
    lock for all objects of the class. If a thread holds it when the process forks, it is held in the child for ever.
    Here nothing is held: two threads may come at once and make a value each, and both are given the one that was there
    first. So the making must have no effect that somebody has to undo.

    ``__dict__.pop(name, None)`` forgets the value, and the next one who asks has a new one made.
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
    """What ``make`` has made of an app in this process; a forked child gets one of its own.

    Two threads may come here at once; ``setdefault`` is atomic and lets one of them win. A lock could be held by
    another thread at a fork, and would then never be released in the child.
    """
    name = f"_redbeat_lite_{make.__name__}_{os.getpid()}"
    made: _T = app.__dict__[name] if name in app.__dict__ else app.__dict__.setdefault(name, make(app))
    return made
