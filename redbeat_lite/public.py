"""What is public says so itself, in tracebacks, in pickles and in ``help()``, and is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

_Thing = TypeVar("_Thing", bound=Callable[..., Any])


def handed_on(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports a name at its first use; ``homes`` has the module of each, from the
    package on."""

    def hand_on(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    return hand_on


def public_in(home: str) -> Callable[[_Thing], _Thing]:
    """Let a class or a function go by the module from which users import it, wherever it is written.

    Type hints of a class are looked up in the module that it goes by. So those of its attributes are looked up before.
    """

    def rename(thing: _Thing) -> _Thing:
        if isinstance(thing, type) and (own := vars(thing).get("__annotations__")):
            hints = get_type_hints(thing, include_extras=True)
            thing.__annotations__ = {name: hints[name] for name in own}
        thing.__module__ = home
        return thing

    return rename


public = public_in("redbeat_lite")
