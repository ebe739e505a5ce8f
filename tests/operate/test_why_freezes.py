"""``why``, held against histories: an entry that was, or is, frozen; and what is recorded of freezes."""

from __future__ import annotations

from dataclasses import replace

from celery import Celery

from redbeat_lite import Freeze, Schedules, every
from redbeat_lite._base.times import in_zone
from redbeat_lite.operate.why_case import _freeze_periods, gather
from tests.operate.histories import MISSED, NIGHT, NOW, RAN, History, run, t
from tests.support.cases import together

NIGHTLY = Freeze("f1", "night*", None, "*", t(2, 2), t(2, 6), "deploy", "ada@desk")
OTHERS = NIGHTLY.but(id="f2", name="poll")
FROZE = "ada@desk froze night* until 2026-03-02 06:00:00+01:00: deploy."

HISTORIES = {
    "it was held, and its policy left it out": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'skip' an occurrence may be 5 s late, or a quarter of the time to the next.\n" + FROZE,
        fields={"misfire": "skip"},
        known={"runs": (run(NIGHT, "skipped"), RAN), "freezes": (OTHERS, NIGHTLY)},
    ),
    "it was held, and ran after the thaw": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, began at 2026-03-02 05:00:01+01:00.\n"
        "ada@desk froze night* until 2026-03-02 05:00:00+01:00: deploy.",
        known={
            "runs": (run(NIGHT, "succeeded", began_at=t(2, 5, 0, 1)),),
            "freezes": (NIGHTLY.but(thawed=t(2, 5)), OTHERS),
        },
    ),
    "it was held, and ran at the end by the leader's clock": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, began at 2026-03-02 05:59:59+01:00.\n"
        "ada@desk froze night* until 2026-03-02 06:00:00+01:00: deploy.",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 5, 59, 59)),), "freezes": (NIGHTLY,)},
    ),
    "it ran late, but that was not for the freeze": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, began at 2026-03-02 05:00:01+01:00.",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 5, 0, 1)),), "freezes": (NIGHTLY, OTHERS)},
    ),
    "it is frozen, and waits": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is frozen.\n" + FROZE,
        state=MISSED,
        now=t(2, 5),
        known={"freezes": (NIGHTLY,)},
    ),
    "it was frozen, and no run is recorded": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n" + FROZE,
        state={"last": t(1, 3)},
        known={"freezes": (NIGHTLY,)},
    ),
    "what comes next is frozen": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, took 5 s.\n"
        "ada@desk froze night* until 2026-03-02 18:00:00+01:00: deploy.\n"
        "It is next due at 2026-03-03 03:00:00+01:00.",
        at=None,
        known={
            "runs": (run(NIGHT, "succeeded", seconds=5.0),),
            "freezes": (NIGHTLY.but(since=t(2, 13), until=t(2, 18)),),
        },
    ),
}


@together("history", HISTORIES.values(), ids=HISTORIES, emptied=True)
def test_what_is_said(history: History) -> None:
    assert [*history.told()] == history.says.split("\n")


def test_without_the_freeze_it_is_not_spoken_of() -> None:
    for history in HISTORIES.values():
        assert not any("froze" in line for line in replace(history, known={**history.known, "freezes": ()}).told())


def test_a_freeze_that_is_over_is_named_by_the_record_of_changes(app: Celery, schedules: Schedules) -> None:
    schedules.add("a", "add", every(60))
    freeze = schedules.freezes.add("a", seconds=60, note="n")
    schedules.freezes.thaw(freeze.id)
    thawed = next(change.at for change in schedules.changes() if change.action == "thawed")
    [period] = _freeze_periods(gather(app, "a", NOW, app.timezone))
    assert (period.state, period.end) == ("frozen", thawed)
    assert period.reasons[0].sentence == f"{freeze.actor} froze a until {in_zone(thawed, app.timezone)}: n"


def test_a_freeze_that_holds_is_known_when_its_line_is_gone(app: Celery, schedules: Schedules) -> None:
    schedules.add("a", "add", every(60))
    freeze = schedules.freezes.add("a", seconds=60)
    schedules._store.backend.client.delete("{redbeat-lite}:changes")
    assert gather(app, "a", NOW, app.timezone).state_at(freeze.since) == "frozen"
