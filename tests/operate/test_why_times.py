"""``why``, held against histories: what a schedule says of a time, and what is with the next."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta

from celery.schedules import schedule

from redbeat_lite import Calendar, Entry, at, cron, every, manual, rrule
from redbeat_lite._base.times import from_ms, to_ms
from redbeat_lite.entries.state import EntryState
from redbeat_lite.operate.why import _nearest_occurrences, explain
from redbeat_lite.operate.why_case import Case
from redbeat_lite.store.records import Refused
from tests.operate.histories import ADDED, BERLIN, BERLIN_APP, MISSED, NIGHT, NOW, RAN, History, change, run, status, t
from tests.support.cases import together

BY_HAND = {"fields": {"schedule": manual()}, "state": {"nominal": None, "last": None, "count": 0}}

HISTORIES = {
    "it is run by hand only, and nobody has told of a run": History(
        "'nightly' has had no occurrence yet.\nIt has no next run, because it is manual.",
        at=None,
        **BY_HAND,
    ),
    "it is run by hand only, and was": History(
        "'nightly' ran for 2026-03-01 03:00:00+01:00, and succeeded.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "It has no next run, because it is manual.",
        at=None,
        known={"runs": (RAN,)},
        **BY_HAND,
    ),
    "it is run by hand only, and was not at that time": History(
        "'nightly' had no occurrence at 2026-03-02 03:00:00+01:00.\n"
        "Its schedule is manual(); the nearest occurrences: none.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t",
        known={"runs": (RAN,)},
        **BY_HAND,
    ),
    "its schedule has no such time": History(
        "'nightly' had no occurrence at 2026-03-02 04:00:00+01:00.\n"
        "Its schedule is cron('0 3 * * *', tz='Europe/Berlin'); the nearest occurrences: 2026-03-02 "
        "03:00:00+01:00 and 2026-03-03 03:00:00+01:00.",
        at=t(2, 4),
    ),
    "the clocks skip the time, and it ran after": History(
        "'nightly' ran for 2026-03-29 03:00:00+02:00, and succeeded.\n"
        "Of 2026-03-29 03:00:00+02:00: runs in place of 02:30: the clocks skip 02:00 to 03:00.\n"
        "2026-03-29 03:00:00+02:00 run: succeeded, task t",
        at=t(29, 2, 30),
        fields={"schedule": cron("30 2 * * *", tz="Europe/Berlin")},
        now=t(29, 12),
        state={"nominal": t(30, 2, 30), "last": t(29, 3)},
        known={"runs": (run(t(29, 3), "succeeded", seconds=5.0),)},
    ),
    "the clocks skip the time of one that runs all day": History(
        "'nightly' ran for 2026-03-29 03:00:00+02:00, and succeeded.\n"
        "Of 2026-03-29 03:00:00+02:00: no run for 02:00, 02:30: the clocks skip 02:00 to 03:00.\n"
        "2026-03-29 03:00:00+02:00 run: succeeded, task t",
        at=t(29, 2, 30),
        fields={"schedule": cron("*/30 * * * *", tz="Europe/Berlin")},
        now=t(29, 12),
        state={"nominal": t(29, 12, 30), "last": t(29, 12)},
        known={"runs": (run(t(29, 3), "succeeded", seconds=5.0),)},
    ),
    "the clocks skip a time that its schedule never had": History(
        "'nightly' ran for 2026-03-29 03:00:00+02:00, and succeeded.\n2026-03-29 03:00:00+02:00 run: succeeded, task t",
        at=t(29, 2, 30),
        now=t(29, 12),
        state={"nominal": t(30, 3), "last": t(29, 3)},
        known={"runs": (run(t(29, 3), "succeeded", seconds=5.0),)},
    ),
    "the clocks show the time twice, and it is the second": History(
        "'nightly' had no occurrence at 2026-10-25 02:30:00+01:00.\n"
        "Of 2026-10-25 02:30:00+02:00: 02:30 comes twice; it runs the first time.\n"
        "Its schedule is cron('30 2 * * *', tz='Europe/Berlin'); the nearest occurrences: 2026-10-25 "
        "02:30:00+02:00 and 2026-10-26 02:30:00+01:00.",
        at=t(25, 2, 30, month=10).replace(fold=1),
        fields={"schedule": cron("30 2 * * *", tz="Europe/Berlin")},
        now=t(25, 12, month=10),
        state={"nominal": t(26, 2, 30, month=10), "last": t(25, 2, 30, month=10)},
    ),
    "the clocks show the time twice, and it ran the first": History(
        "'nightly' ran for 2026-10-25 02:30:00+02:00, and succeeded.\n"
        "Of 2026-10-25 02:30:00+02:00: 02:30 comes twice; it runs the first time.\n"
        "2026-10-25 02:30:00+02:00 run: succeeded, task t",
        at=t(25, 2, 30, month=10),
        fields={"schedule": cron("30 2 * * *", tz="Europe/Berlin")},
        now=t(25, 12, month=10),
        state={"nominal": t(26, 2, 30, month=10), "last": t(25, 2, 30, month=10)},
        known={"runs": (run(t(25, 2, 30, month=10), "succeeded", seconds=5.0),)},
    ),
    "it was added anew since, with runs at other times": History(
        "'nightly' had no occurrence at 2026-03-02 03:01:08+01:00 by its schedule of today.\n"
        "Its schedule is every('1m30s'); the nearest occurrences: 2026-03-02 03:01:07+01:00 and 2026-03-02 "
        "03:02:37+01:00.\n"
        "2026-03-02 08:00:00+01:00 removed nightly by alice@desk (cli)\n"
        "2026-03-02 09:00:00+01:00 added nightly by alice@desk (cli)",
        at=t(2, 3, 1, 8),
        fields={"schedule": every(90)},
        state={"nominal": t(2, 13, 7, 7), "last": None},
        known={"changes": (change(t(2, 9), "added"), change(t(2, 8), "removed"), ADDED)},
    ),
    "its start_at is later": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: its start_at is 2026-03-02 12:00:00+01:00.",
        fields={"start_at": t(2, 12)},
        state={"last": None},
    ),
    "its end_at was earlier": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: its end_at is 2026-03-01 12:00:00+01:00.",
        fields={"end_at": t(1, 12)},
        state={"nominal": None, "last": t(1, 3)},
    ),
    "it ran once, for good": History(
        "'nightly' had no occurrence at 2026-03-02 04:00:00+01:00.\n"
        "Its schedule is at('2026-03-02T02:00:00+00:00'); the nearest occurrences: 2026-03-02 03:00:00+01:00.",
        at=t(2, 4),
        fields={"schedule": at(NIGHT)},
        state={"nominal": None},
    ),
    "the last one is not that of run_now": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, task t\n"
        "2026-03-02 09:12:03+01:00 run: failed, OSError, task t\n"
        "It is next due at 2026-03-03 03:00:00+01:00.",
        at=None,
        known={"runs": (run(t(2, 9, 12, 3), "failed", error="OSError"), run(NIGHT, "succeeded", seconds=62.0))},
    ),
    "its max_runs were used up": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: its max_runs of 9 was reached at 2026-03-01 "
        "03:00:00+01:00.",
        fields={"max_runs": 9},
        state={"nominal": None, "last": t(1, 3)},
    ),
    "it is still to come": History(
        "'nightly' has not run at 2026-03-04 03:00:00+01:00: that is still to come.\n"
        "The beat refuses the definition in beat_schedule: expire: expected a known field, got 60",
        at=t(4, 3),
        known={"refused": Refused(errors={"nightly": "expire: expected a known field, got 60"})},
    ),
    "its end_at will be earlier": History(
        "'nightly' has not run at 2026-03-04 03:00:00+01:00: its end_at is 2026-03-03 12:00:00+01:00.",
        at=t(4, 3),
        fields={"end_at": t(3, 12)},
    ),
    "the last one ran, and the next is due": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, task t\n"
        "It is next due at 2026-03-03 03:00:00+01:00.",
        at=None,
        known={"runs": (run(NIGHT, "succeeded", seconds=62.0), RAN)},
    ),
    "the last one ran, and it is finished": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, task t\n"
        "It has no next run, because it is finished.",
        at=None,
        fields={"max_runs": 9},
        state={"nominal": None},
        known={"runs": (run(NIGHT, "succeeded", seconds=62.0), RAN)},
    ),
    "the last one ran before its end_at": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: its end_at is 2026-03-01 12:00:00+01:00.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, task t\n"
        "It has no next run, because it is finished.",
        at=None,
        fields={"end_at": t(1, 12)},
        state={"nominal": None, "last": t(1, 3)},
        known={"runs": (run(t(1, 3), "succeeded", seconds=62.0),)},
    ),
    "the last one waits, as it is paused": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is paused.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-01 12:00:00+01:00 paused nightly by alice@desk (cli)\n"
        "It has no next run, because it is paused.",
        at=None,
        state={**MISSED, "paused": True},
        known={"runs": (RAN,), "changes": (change(t(1, 12), "paused"), ADDED)},
    ),
    "the last one waits, as nobody leads": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "Nobody leads now; the last sign of life of a leader: 2026-03-01 22:00:00+01:00.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "It is next due at 2026-03-02 03:00:00+01:00.",
        at=None,
        state=MISSED,
        known={"runs": (RAN,), "status": status(leader=None, last_tick=t(1, 22))},
    ),
    "the next one will wait, as it is disabled": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, task t\n"
        "It has no next run, because it is disabled.",
        at=None,
        fields={"enabled": False},
        known={"runs": (run(NIGHT, "succeeded", seconds=62.0), RAN)},
    ),
    "an edit made occurrences for the past, which never were": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, task t\n"
        "2026-03-02 10:00:00+01:00 edited nightly by alice@desk (cli): schedule\n"
        "It is next due at 2026-03-03 09:00:00+01:00.",
        at=None,
        fields={"schedule": cron("0 9 * * *", tz="Europe/Berlin")},
        state={"nominal": t(3, 9)},
        known={
            "runs": (run(NIGHT, "succeeded", seconds=62.0), RAN),
            "changes": (change(t(2, 10), "edited", ("schedule", None, None)), ADDED),
        },
    ),
    "it has had no occurrence yet": History(
        "'nightly' has had no occurrence yet.\nIt is next due at 2026-03-03 03:00:00+01:00.",
        at=None,
        state={"last": None, "count": 0},
        known={"changes": (change(t(2, 9), "added"),)},
    ),
    "an interval keeps its phase": History(
        "'nightly' ran for 2026-03-02 03:01:07+01:00, and succeeded.\n2026-03-02 03:01:07+01:00 run: succeeded, task t",
        at=t(2, 3, 1),
        fields={"schedule": every(90)},
        state={"nominal": t(2, 13, 7, 7), "last": t(2, 13, 5, 37)},
        known={"runs": (run(t(2, 3, 1, 7), "succeeded", seconds=5.0),)},
    ),
    "an interval has no such second": History(
        "'nightly' had no occurrence at 2026-03-02 03:01:08+01:00.\n"
        "Its schedule is every('1m30s'); the nearest occurrences: 2026-03-02 03:01:07+01:00 and "
        "2026-03-02 03:02:37+01:00.",
        at=t(2, 3, 1, 8),
        fields={"schedule": every(90)},
        state={"nominal": t(2, 13, 7, 7), "last": t(2, 13, 5, 37)},
    ),
    "nobody can tell what a rounded interval had": History(
        "'nightly' may have run at 2026-03-01 03:00:00+01:00; that is not recorded any more.",
        at=t(1, 3),
        fields={"schedule": schedule(86400, relative=True)},
    ),
    "one that only its app knows": History(
        "'nightly' may have run at 2026-03-01 03:00:00+01:00; that is not recorded any more.",
        at=t(1, 3),
        fields={"schedule": schedule(86400)},
        elsewhere=True,
    ),
}


@together("name", HISTORIES)
def test_times(name: str) -> None:
    assert "\n".join(HISTORIES[name].told()) == HISTORIES[name].says


RULES = {
    "cron": cron("*/20 1-4 * * *", tz="Europe/Berlin"),
    "rare": cron("0 0 29 2 *"),
    "rrule": rrule("FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9", tz="Europe/Berlin"),
    "ended": rrule("FREQ=DAILY;COUNT=5", start=t(27, 2, 30), tz="Europe/Berlin"),
    "aligned": every(7200, align=True),
    "once": at(t(29, 3)),
}


@together("name", RULES)
def test_the_occurrences_around_a_time_are_those_that_the_rule_names_in_turn(name: str) -> None:
    entry = Entry("nightly", "reports.build", RULES[name], app=BERLIN_APP)
    entry.state = EntryState.new(None)
    found: list[int | None] = [to_ms(t(20, 0, year=2016))]
    while found[-1] is not None and len(found) < 100:
        found.append(entry.rule.next_ms(found[-1]))
    turns = [from_ms(ms) for ms in found[1:] if ms is not None]
    assert turns

    def around(instant: datetime) -> list[datetime]:
        return _nearest_occurrences(Case("nightly", entry, NOW, BERLIN, status=status()), instant)

    minute = timedelta(minutes=1)
    for before, at_, after in zip(turns, turns[1:], [*turns[2:], None], strict=False):
        assert around(at_) == [before, at_]
        assert around(at_ - minute) == [before, at_]
        if after is not None:
            assert around(at_ + minute / 2) == [at_, after]
    last = turns[-1]
    following = entry.rule.next_ms(to_ms(last))
    coming = [] if following is None else [from_ms(following)]
    assert around(last + minute / 2) == [last, *coming]


@together("last", [None, t(1, 23, 59)])
def test_a_calendar_that_leaves_out_today_is_named_without_an_instant(last: datetime | None) -> None:
    history = History(
        "",
        fields={"schedule": cron("* * * * *", tz="Europe/Berlin")},
        state={"nominal": t(3, 0), "last": last},
    )
    entry = history.entry()
    assert entry is not None
    closed = replace(Calendar({date(2026, 3, 2)}, until=date(2026, 4, 1)), name="closed", revision=1)
    entry._put(calendar=closed)
    added = change(t(2, 9), "added")
    case = Case("nightly", entry, NOW, BERLIN, status=status(), changes=(added,))
    explanation = explain(case, None)
    if last is None:
        assert explanation.verdict == "'nightly' has had no occurrence yet."
    assert "Its calendar closed@1 leaves out 2026-03-02." in explanation.causes
    assert explanation.next_run == "It is next due at 2026-03-03 00:00:00+01:00."
