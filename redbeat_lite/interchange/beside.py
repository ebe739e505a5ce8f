"""What a backup holds beside entries: the freezes that hold, and the backfills that have not ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from ..entries.fields import is_name
from ..entries.freezes import Freeze
from ..entries.schedule_text import instant_from
from ..entries.selection import Selection
from ..errors import InvalidEntry, storable
from ..storage.backfills import Backfill

_T = TypeVar("_T", Freeze, Backfill)

_INSTANT = "instant"

#: The fields that a file has of each. What a backfill waits for is none: its ends may be lost by the time it is back.
_FIELDS: dict[type, dict[str, Any]] = {
    Freeze: {"until": _INSTANT, "since": _INSTANT, "tag": str | None, **dict.fromkeys(("task", "mode"), str)},
    Backfill: {
        **dict.fromkeys(("start", "end", "at"), _INSTANT),
        **dict.fromkeys(("again", "number", "total", "sent", "cursor"), int),
        "max_active": int | None,
        "rate": int | float,
        "generation": str,
        "skip": list | tuple,
        "paused": bool,
    },
}
_BOTH = dict.fromkeys(("id", "name", "note", "actor"), str)


def fields_of(item: Freeze | Backfill) -> dict[str, Any]:
    """A freeze or a backfill as JSON values."""
    values = {field: getattr(item, field) for field in (*_BOTH, *_FIELDS[type(item)])}
    return {field: each.isoformat() if isinstance(each, datetime) else each for field, each in values.items()}


def items_from(cls: type[_T], place: str, found: Any) -> tuple[_T, ...]:
    """What :func:`fields_of` made of some; raises InvalidEntry, which names the path of what is wrong."""
    _check(place, "a list", found, isinstance(found, list))
    return tuple(_item(cls, f"{place}[{number}]", fields) for number, fields in enumerate(found))


def _item(cls: type[_T], place: str, fields: Any) -> _T:
    _check(place, "an object", fields, isinstance(fields, dict))
    found: dict[str, Any] = {}
    for field, kind in (_BOTH | _FIELDS[cls]).items():
        where, value = f"{place}.{field}", fields.get(field)
        if kind is _INSTANT:
            found[field] = instant_from(where, value)
            continue
        is_right = isinstance(value, kind) and (kind is not str or storable(value) == value)
        _check(where, getattr(kind, "__name__", str(kind)), value, is_right)
        found[field] = value
    _check(f"{place}.id", "a name", found["id"], is_name(found["id"]))
    if cls is Freeze:
        _check(f"{place}.mode", '"hold" or "skip"', found["mode"], found["mode"] in ("hold", "skip"))
        found |= Selection.of(found["name"], found["tag"], found["task"])._asdict()
    else:
        _check(f"{place}.skip", "pairs of epoch milliseconds", found["skip"], all(map(_is_range, found["skip"])))
        _check(f"{place}.name", "a name", found["name"], is_name(found["name"]))
    return cls(**found)


def _is_range(span: Any) -> bool:
    return isinstance(span, list) and len(span) == 2 and all(type(ms) is int for ms in span)


def _check(field: str, expected: str, value: object, is_right: bool) -> None:
    if not is_right:
        raise InvalidEntry(field, expected, value)
