"""JSON text of an entry's definition, as Redis holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._base.errors import InvalidEntry
from ..store.json_values import MAX_BYTES, dumps
from ..store.keys import FORMAT
from .model import FIELDS
from .unstored import readable_text

if TYPE_CHECKING:
    from .entry import Entry

#: Fields of a config entry that may hold a value that cannot be stored.
MAY_BE_UNSTORED = ("schedule", "args", "kwargs", "options")


def encode(entry: Entry, *, placeholders: bool = False) -> str:
    """Return the JSON text of an entry's definition, without the fields that have their default.

    Parameters:
        placeholders: write a readable text in place of a schedule or arguments that cannot be
            stored.

    Raises:
        InvalidEntry: a field cannot be stored, or the whole text is over 64 KiB.
    """
    stored: dict[str, Any] = {"v": FORMAT, **_stored_fields(entry, placeholders)}
    if entry.owner is not None:
        stored["owner"] = entry.owner
    text = dumps(stored)
    size = len(text.encode())
    if size > MAX_BYTES:
        raise InvalidEntry(
            "entry", f"a definition of at most {MAX_BYTES} bytes", size, entry=entry.name
        )
    return text


def _stored_fields(entry: Entry, placeholders: bool) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    unstored = dict(entry.unstored)
    for name, field in FIELDS.items():
        value = getattr(entry, name)
        if name in unstored or value == field.default:
            continue
        try:
            stored[name] = field.store(value)
        except InvalidEntry as exc:
            if not (placeholders and name in MAY_BE_UNSTORED):
                raise exc.of(entry.name) from None
            unstored[name] = readable_text(exc.value)
    if unstored:
        stored["unstored"] = unstored
    return stored
