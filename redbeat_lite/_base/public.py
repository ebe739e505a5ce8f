"""Public names, which are imported at first use and belong to the module that users import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

_Public = TypeVar("_Public", bound=Callable[..., Any])


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package, which imports each name at its first use.

    Parameters:
        homes: name -> module, relative to the package, such as ``".api.schedules"``.
    """

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    return import_name


def public_in(home: str) -> Callable[[_Public], _Public]:
    """Return a decorator for a class or a function that users import from the module ``home``.

    It sets ``__module__``, so that tracebacks, pickles and ``help()`` show that module.
    """

    def rename(public_object: _Public) -> _Public:
        if isinstance(public_object, type):
            _resolve_type_hints(public_object)
        public_object.__module__ = home
        return public_object

    return rename


def _resolve_type_hints(public_class: type) -> None:
    """Replace the annotations of a class by types, because its new module lacks their names."""
    annotations = vars(public_class).get("__annotations__")
    if annotations:
        hints = get_type_hints(public_class, include_extras=True)
        public_class.__annotations__ = {name: hints[name] for name in annotations}


public = public_in("redbeat_lite")
