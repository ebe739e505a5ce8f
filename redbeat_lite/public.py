"""What is public says so itself, in tracebacks, in pickles and in ``help()``, and is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

_Class = TypeVar("_Class", bound=type)


def handed_on(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports a name at its first use.

    Parameters:
        package: its name.
        homes: name -> the module that holds it, from the package on.
    """

    def hand_on(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    return hand_on


def public(cls: _Class) -> _Class:
    """Let a class go by the name under which users import it, wherever it is written.

    Type hints are looked up in the module that a class goes by. So those of its attributes are looked up before.
    """
    if own := vars(cls).get("__annotations__"):
        hints = get_type_hints(cls, include_extras=True)
        cls.__annotations__ = {name: hints[name] for name in own}
    cls.__module__ = __package__
    return cls
