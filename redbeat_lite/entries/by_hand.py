"""What makes no sense beside `manual()`: all that goes by occurrences, of which it has none."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidEntry
from ..expect import Expect
from ..schedules import Manual
from ..schedules.misfire import Misfire

#: Such fields, with what each is where nobody has asked for anything.
_UNSET: dict[str, Any] = {"misfire": Misfire.of("coalesce"), "jitter": 0.0, "remove_when_done": False}
_UNSET |= dict.fromkeys(("start_at", "end_at", "max_runs"))


def check_manual(entry: Any) -> None:
    """Refuse what an entry that is run by hand only cannot keep.

    Raises:
        InvalidEntry: names the field.
    """
    if not isinstance(entry.schedule, Manual):
        return
    for field, unset in _UNSET.items():
        if (value := getattr(entry, field)) != unset:
            raise InvalidEntry(field, f"no {field} beside manual(), which is never due", value)
    if entry.expect and entry.expect != Expect(failures=entry.expect.failures):
        raise InvalidEntry("expect", "failures alone beside manual(), which is never due", entry.expect)
