"""Fields of an entry that cannot stand beside each other."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidEntry
from ..expect import Expect
from ..schedules import Manual
from ..schedules.misfire import Misfire

#: What goes by occurrences, of which `manual()` has none, with what each is where nobody has asked for anything.
_UNSET: dict[str, Any] = {"misfire": Misfire.of("coalesce"), "jitter": 0.0, "remove_when_done": False}
_UNSET |= dict.fromkeys(("start_at", "end_at", "max_runs", "on_failure"))


def check_together(entry: Any) -> None:
    """Refuse fields that are right by themselves, and cannot be kept together; raises InvalidEntry, which names one."""
    if entry.start_at and entry.end_at and entry.end_at < entry.start_at:
        raise InvalidEntry("end_at", f"an instant not before start_at ({entry.start_at.isoformat()})", entry.end_at)
    for field in ("expect", "on_failure"):
        if (value := getattr(entry, field)) and entry.remove_when_done:
            raise InvalidEntry(field, "none beside remove_when_done: it is looked at later", value)
        if value and entry.history == 0:
            raise InvalidEntry("history", f"at least 1 beside {field}, which goes by what is recorded", 0)
    if isinstance(entry.schedule, Manual):
        _check_manual(entry)


def _check_manual(entry: Any) -> None:
    for field, unset in _UNSET.items():
        if (value := getattr(entry, field)) != unset:
            raise InvalidEntry(field, f"no {field} beside manual(), which is never due", value)
    if entry.expect and entry.expect != Expect(failures=entry.expect.failures):
        raise InvalidEntry("expect", "failures alone beside manual(), which is never due", entry.expect)
