"""What keeps users from changing an entry, which would change nothing that is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from .fields import DEFINITION_FIELDS

#: What is set when an entry is made, and never again.
_WRITTEN = frozenset((*DEFINITION_FIELDS, "name"))

#: What the package itself sets in an entry once it is made.
_KEPT = frozenset(("state", "due", "owner", "frozen_until", "last_change", "unstored")) | frozenset(
    ("written", "app", "read_rows", "_rule")
)


class Frozen:
    """An entry of which no attribute can be set; it says what to call instead."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _KEPT and (name not in _WRITTEN or name in self.__dict__):
            self._refuse(name if name in _WRITTEN else "field")
        self.__dict__[name] = value

    if TYPE_CHECKING:  # None cannot be called; after what never returns, type checkers look at nothing
        save: None
        delete: None
        update: None
    else:

        def save(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Raise an ``AttributeError`` that says what to call: :class:`Schedules` alone changes what is stored."""
            self._refuse("field")

        delete = update = save

    def _refuse(self, field: str) -> NoReturn:
        name = self.__dict__.get("name")
        raise AttributeError(
            f"entry {name!r} is frozen: to change what is stored, schedules.update({name!r}, {field}=...) or "
            f"schedules.remove({name!r}); for another one like it, entry.replace({field}=...)"
        )

    def _put(self, **fields: Any) -> None:
        """Set fields past all that, for the package itself; the values are as the entry would hold them."""
        self.__dict__.update(fields)
        if "schedule" in fields or "calendar" in fields:
            self.__dict__["_rule"] = None  # which was made of these
