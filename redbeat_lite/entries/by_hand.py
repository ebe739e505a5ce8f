"""What makes no sense beside `manual()`: all that goes by occurrences, of which it has none."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidEntry
from ..schedules import Manual
from ..schedules.misfire import Misfire

#: Such fields, with what each is where nobody has asked for anything; and those of an expectation.
_UNSET: dict[str, Any] = {"misfire": Misfire.of("coalesce"), "jitter": 0.0, "remove_when_done": False}
_UNSET |= dict.fromkeys(("start_at", "end_at", "max_runs"))
_EXPECTED = ("start_within", "finish_within", "succeed_every")


def check_manual(entry: Any) -> None:
    """Refuse what an entry that is run by hand only cannot keep.

    Raises:
        InvalidEntry: names the field.
    """
    if not isinstance(entry.schedule, Manual):
        return
    given = {field: getattr(entry, field) for field in _UNSET if getattr(entry, field) != _UNSET[field]}
    if entry.expect:
        given |= {
            f"expect.{field}": value for field in _EXPECTED if (value := getattr(entry.expect, field)) is not None
        }
    for field, value in given.items():
        raise InvalidEntry(field, f"no {field} beside manual(), which is never due", value)
