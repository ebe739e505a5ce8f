"""Histories of an entry that runs at three each night, for ``why``: what is known of it, and the whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery

from redbeat_lite import Entry, cron
from redbeat_lite._base.times import in_zone, to_ms
from redbeat_lite.beat.status import LeaderStatus, Status
from redbeat_lite.entries.changes import Change
from redbeat_lite.entries.model import UnstoredSchedule
from redbeat_lite.entries.run import Run
from redbeat_lite.entries.state import EntryState, task_id
from redbeat_lite.operate.why import explain
from redbeat_lite.operate.why_case import Case
from redbeat_lite.store.records import Refused

BERLIN = ZoneInfo("Europe/Berlin")
#: App of the entries, with the time zone of Berlin.
BERLIN_APP = Celery("histories", set_as_current=False)
BERLIN_APP.conf.timezone = "Europe/Berlin"
NOW = datetime(2026, 3, 2, 13, 7, tzinfo=BERLIN)


def t(day: int, hour: int, minute: int = 0, second: int = 0, month: int = 3, year: int = 2026) -> datetime:
    """An instant in Berlin."""
    return datetime(year, month, day, hour, minute, second, tzinfo=BERLIN)


NIGHT = t(2, 3)
LEADS = LeaderStatus("beat-1", 812, "proj", since=t(1, 0), term=3)


def status(**given: Any) -> Status:
    known = {"leader": LEADS, "last_tick": NOW, "lag": 0.0, "overdue": 0, **given}
    rest = {"standbys": (), "entries": 1, "quarantined": 0, "clocks": {}, "refused": Refused()}
    return Status(now=NOW, **known, **rest)


def change(at: datetime, action: str, *fields: tuple[str, str | None, str | None], note: str = "") -> Change:
    return Change(at, action, "alice@desk", "cli", ("nightly",), 1, fields, note)


def run(at: datetime, outcome: Any, **more: Any) -> Run:
    task = None if outcome in ("skipped", "left out") else "t"
    begun = outcome in ("running", "retrying", "succeeded", "failed", "lost") or "began_at" in more
    return Run("nightly", at.astimezone(UTC), outcome, **{"task_id": task, "attempts": int(begun), **more})


def sent(at: datetime) -> Run:
    """A run of which the entry itself tells."""
    return run(at, "waiting", task_id=task_id("nightly", "g", to_ms(at)), source="schedule")


RAN = run(t(1, 3), "succeeded", began_at=t(1, 3, 0, 1), seconds=62.0, attempts=1, worker="w1@a")
ADDED = change(t(1, 1, month=2), "added")


@dataclass(frozen=True)
class History:
    """What happened, and what is said of it.

    Parameters:
        says: the verdict and the reasons, a line each.
        at: what is asked about.
        fields: of the entry, unlike those of one that runs at three.
        state: of the entry, unlike that of one that was sent at three and waits for the next night.
        known: the evidence, unlike that of an entry of February with a beat that leads and no run that is recorded.
        stored: whether the entry is.
        elsewhere: whether only its app knows its schedule.
    """

    says: str
    at: datetime | None = NIGHT
    fields: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    stored: bool = True
    elsewhere: bool = False
    now: datetime = NOW

    def entry(self) -> Entry | None:
        if not self.stored:
            return None
        fields = {"schedule": cron("0 3 * * *", tz="Europe/Berlin"), **self.fields}
        entry = Entry("nightly", "reports.build", app=BERLIN_APP, **fields)
        if self.elsewhere:
            entry._put(schedule=UnstoredSchedule("<Own>"), unstored={"schedule": "<Own>"})
        state = {"version": 1, "generation": "g", "nominal": t(3, 3), "last": t(2, 3), "count": 9, **self.state}
        due = state.pop("due", state["nominal"])
        state |= {key: None if state[key] is None else to_ms(state[key]) for key in ("nominal", "last")}
        entry.state = EntryState(**state)
        entry.due = None if due is None or entry.state.paused or not entry.enabled else to_ms(due)
        return entry

    def told(self) -> Sequence[str]:
        known = {"changes": (ADDED,), "status": status(), **self.known}
        beats = {field: known.pop(field) for field in ("refused", "freeze", "queues") if field in known}
        known["status"] = replace(known["status"], **beats)
        case = Case("nightly", self.entry(), self.now, BERLIN, **known)
        found = explain(case, self.at)
        events = [f"{in_zone(event.at, BERLIN)} {event.text}" for event in found.timeline]
        assert sorted(events) == events, "in order of time"
        return [found.verdict, *found.causes, *events, *filter(None, [found.next_run])]


MISSED: dict[str, Any] = {"nominal": t(2, 3), "last": t(1, 3)}
OFF = ("enabled", None, "false")


def term(ended: datetime, begun: datetime) -> Change:
    """The line of a beat that leads after a time without a leader."""
    fields = (("ticked", str(to_ms(ended)), None),)
    return Change(begun, "term begun", "beat of beat-2", "beat", (), 0, fields, "")


GAP = term(t(2, 2, 50), t(2, 4, 10))
