"""``why``, held against histories: what was, or is, frozen or paused for a time; and what is recorded of that."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from celery import Celery

from redbeat_lite import Freeze, Schedules, every
from redbeat_lite._base.times import in_zone, to_ms
from redbeat_lite.entries.changes import Change
from redbeat_lite.operate.why import explain
from redbeat_lite.operate.why_case import gather
from redbeat_lite.store.redis_values import server_ms
from tests.operate.histories import ADDED, MISSED, NIGHT, NOW, RAN, History, run, t
from tests.support.cases import together
from tests.support.waiting import eventually

NIGHTLY = Freeze(t(2, 2), t(2, 6), "deploy", "ada@desk")


def frozen(until: datetime) -> Change:
    fields = (("until", None, until.astimezone(UTC).isoformat()),)
    return Change(t(2, 2), "frozen", "ada@desk", "cli", (), 0, fields, "deploy")


THAWED = Change(t(2, 5), "thawed", "ada@desk", "cli")
PAUSED = replace(frozen(t(2, 6)), action="paused", names=("nightly",), count=1, note="")

HISTORIES = {
    "it was held, and its policy left it out": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'skip' an occurrence may be 5 s late, or a quarter of the time to the next.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy\n"
        "2026-03-02 03:00:00+01:00 run: skipped",
        fields={"misfire": "skip"},
        known={"runs": (run(NIGHT, "skipped"), RAN), "record": (frozen(t(2, 6)),)},
    ),
    "it was held, and ran after the thaw": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 2 h, task t\n"
        "2026-03-02 05:00:00+01:00 thawed by ada@desk (cli)",
        known={
            "runs": (run(NIGHT, "succeeded", began_at=t(2, 5, 0, 1)),),
            "record": (THAWED, frozen(t(2, 6))),
        },
    ),
    "it was held, and ran at the end by the leader's clock": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 2 h 59 min, task t",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 5, 59, 59)),), "record": (frozen(t(2, 6)),)},
    ),
    "it ran late, but that was not for the freeze": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 2 h, task t",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 5, 0, 1)),), "record": (frozen(t(2, 6)),)},
    ),
    "it is frozen, and waits": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is frozen until 2026-03-02 "
        "06:00:00+01:00.\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy",
        state=MISSED,
        now=t(2, 5),
        known={"freeze": NIGHTLY, "record": (frozen(t(2, 6)),)},
    ),
    "it is frozen, and that is not recorded": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is frozen until 2026-03-02 06:00:00+01:00.",
        state=MISSED,
        now=t(2, 5),
        known={"freeze": NIGHTLY},
    ),
    "it is frozen, and was due before": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is frozen until 2026-03-02 "
        "06:00:00+01:00.\n"
        "All entries are frozen until 2026-03-02 06:00:00+01:00.\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy\n"
        "It is next due at 2026-03-02 06:00:00+01:00, if its misfire policy sends a run so late.",
        at=None,
        state=MISSED,
        now=t(2, 5),
        known={"freeze": NIGHTLY, "record": (frozen(t(2, 6)),)},
    ),
    "it was frozen twice, the second time for longer": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'skip' an occurrence may be 5 s late, or a quarter of the time to the next.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy\n"
        "2026-03-02 03:00:00+01:00 run: skipped\n"
        "2026-03-02 04:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 08:00:00+01:00; deploy",
        fields={"misfire": "skip"},
        known={
            "runs": (run(NIGHT, "skipped"), RAN),
            "record": (replace(frozen(t(2, 8)), at=t(2, 4)), frozen(t(2, 6))),
        },
    ),
    "it was frozen, and no run is recorded": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-02 02:00:00+01:00 frozen by ada@desk (cli): until 2026-03-02 06:00:00+01:00; deploy",
        state={"last": t(1, 3)},
        known={"record": (frozen(t(2, 6)),)},
    ),
    "it was paused for a time, and no run is recorded": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-02 02:00:00+01:00 paused nightly by ada@desk (cli): until 2026-03-02 06:00:00+01:00",
        state={"last": t(1, 3)},
        known={"changes": (PAUSED, ADDED)},
    ),
    "it was paused for a time, then for longer, and no run is recorded": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-02 02:00:00+01:00 paused nightly by ada@desk (cli): until 2026-03-02 06:00:00+01:00\n"
        "2026-03-02 04:00:00+01:00 paused nightly by ada@desk (cli): until 2026-03-02 08:00:00+01:00",
        state={"last": t(1, 3)},
        known={
            "changes": (
                replace(frozen(t(2, 8)), at=t(2, 4), action="paused", names=("nightly",), count=1, note=""),
                PAUSED,
                ADDED,
            )
        },
    ),
    "it is paused for a time, and waits": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is paused.\n"
        "2026-03-02 02:00:00+01:00 paused nightly by ada@desk (cli): until 2026-03-02 06:00:00+01:00",
        state={**MISSED, "paused": True, "paused_until": to_ms(t(2, 6))},
        now=t(2, 5),
        known={"changes": (PAUSED, ADDED)},
    ),
}


@together("history", HISTORIES.values(), ids=HISTORIES, emptied=True)
def test_what_is_said(history: History) -> None:
    assert [*history.told()] == history.says.split("\n")


def test_without_the_freeze_it_is_not_spoken_of() -> None:
    for history in HISTORIES.values():
        known = {**history.known, "freeze": None, "record": ()}
        assert not any("fr" in line and "oze" in line for line in replace(history, known=known).told())


def test_a_freeze_that_is_over_is_named_by_the_record_of_changes(app: Celery, schedules: Schedules) -> None:
    schedules.add("a", "add", every(60))
    schedules.freeze(60, "n")
    client = schedules._store.backend.client
    made = server_ms(client)
    eventually(lambda: server_ms(client) > made, what="the thaw comes after the freeze")
    schedules.thaw()
    thawed, frozen = (change.at for change in schedules.changes() if change.action in ("thawed", "frozen"))
    case = gather(app, "a", NOW, app.timezone)
    first, second = case.timeline(frozen)
    assert (first.at, second.at) == (frozen, thawed)
    assert first.text.startswith("frozen by ")
    assert second.text.startswith("thawed by ")
    assert case.timeline(thawed) == []


def test_a_freeze_that_holds_is_known_when_its_line_is_gone(app: Celery, schedules: Schedules) -> None:
    schedules.add("a", "add", every(60))
    made = schedules.freeze(60)
    schedules._store.backend.client.delete("{redbeat-lite}:changes")
    found = explain(gather(app, "a", datetime.now(UTC), UTC), None)
    assert found.causes == [f"All entries are frozen until {in_zone(made.until, UTC)}."]
    at_the_end = f"It is next due at {in_zone(made.until, UTC)}"
    assert found.next_run == f"{at_the_end}, if its misfire policy sends a run so late."
