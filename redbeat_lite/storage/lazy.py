"""A value that an object makes when it is first asked for."""

from __future__ import annotations

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
