"""What is public says so itself: in tracebacks, in pickles and in ``help()``."""

from __future__ import annotations

from typing import TypeVar, get_type_hints

_Class = TypeVar("_Class", bound=type)


def public(cls: _Class) -> _Class:
    """Let a class go by the name under which users import it, wherever it is written.

    Type hints are looked up in the module that a class goes by. So those of its attributes are looked up before.
    """
    if own := vars(cls).get("__annotations__"):
        hints = get_type_hints(cls, include_extras=True)
        cls.__annotations__ = {name: hints[name] for name in own}
    cls.__module__ = __package__
    return cls
