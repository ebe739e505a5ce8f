"""``why``, held against histories: an entry that has no run at a time, or is not there."""

from __future__ import annotations

from dataclasses import replace

from redbeat_lite.store.records import Refused
from tests.operate.histories import (
    ADDED,
    GAP,
    LEADS,
    MISSED,
    NIGHT,
    OFF,
    RAN,
    History,
    change,
    run,
    status,
    t,
    term,
)
from tests.support.cases import together

LATER = run(t(2, 9, 12), "succeeded")

HISTORIES = {
    "it was paused then": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was paused.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-01 12:00:00+01:00 paused nightly by alice@desk (cli): moving house\n"
        "2026-03-02 09:00:00+01:00 resumed nightly by alice@desk (cli)",
        state={"last": t(1, 3)},
        known={
            "runs": (RAN,),
            "changes": (change(t(2, 9), "resumed"), change(t(1, 12), "paused", note="moving house"), ADDED),
        },
    ),
    "it is paused": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is paused: moving house.\n"
        "2026-03-01 12:00:00+01:00 paused nightly by alice@desk (cli): moving house",
        state={**MISSED, "paused": True, "note": "moving house"},
        known={"changes": (change(t(1, 12), "paused", note="moving house"), ADDED)},
    ),
    "it is paused, and nobody knows since when": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is paused: moving house.",
        state={**MISSED, "paused": True, "note": "moving house"},
        known={"changes": ()},
    ),
    "it was paused again for another reason": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was paused.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-01 12:00:00+01:00 paused nightly by alice@desk (cli): moving house\n"
        "2026-03-02 09:00:00+01:00 paused nightly by alice@desk (cli): no power",
        state={"last": t(1, 3), "paused": True, "note": "no power"},
        known={
            "runs": (RAN,),
            "changes": (
                change(t(2, 9), "paused", note="no power"),
                change(t(1, 12), "paused", note="moving house"),
                ADDED,
            ),
        },
    ),
    "it is disabled": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is disabled.\n"
        "2026-03-01 12:00:00+01:00 edited nightly by alice@desk (cli): enabled default → false",
        fields={"enabled": False},
        state=MISSED,
        known={"changes": (change(t(1, 12), "edited", OFF), ADDED)},
    ),
    "it is disabled, and nobody knows since when": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is disabled.",
        fields={"enabled": False},
        state=MISSED,
        known={"changes": ()},
    ),
    "it was disabled then": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was disabled.\n"
        "2026-03-01 12:00:00+01:00 edited nightly by alice@desk (cli): enabled default → false\n"
        "2026-03-02 09:00:00+01:00 edited nightly by alice@desk (cli): enabled false → default",
        state={"last": t(1, 3)},
        known={
            "changes": (change(t(2, 9), "edited", ("enabled", "false", None)), change(t(1, 12), "edited", OFF), ADDED)
        },
    ),
    "it was not there yet": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored.\n"
        "2026-03-02 09:00:00+01:00 added nightly by alice@desk (cli)",
        state={"last": None, "count": 0},
        known={"changes": (change(t(2, 9), "added"),)},
    ),
    "it had been removed": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored.\n"
        "2026-03-01 12:00:00+01:00 removed nightly by alice@desk (cli)\n"
        "2026-03-02 09:00:00+01:00 added nightly by alice@desk (cli)",
        state={"last": None, "count": 0},
        known={"changes": (change(t(2, 9), "added"), change(t(1, 12), "removed"), ADDED)},
    ),
    "it was removed and added, and only the latter is recorded": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not sent.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 09:00:00+01:00 added nightly by alice@desk (cli)\n"
        "2026-03-02 09:12:00+01:00 run: succeeded, task t",
        state={"last": None, "count": 0},
        known={"changes": (change(t(2, 9), "added"),), "runs": (LATER, RAN)},
    ),
    "it was in quarantine": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored.\n"
        "2026-03-01 12:00:00+01:00 quarantined nightly by alice@desk (cli): no task\n"
        "2026-03-02 09:00:00+01:00 released nightly by alice@desk (cli)",
        state={"last": t(1, 3)},
        known={"changes": (change(t(2, 9), "released"), change(t(1, 12), "quarantined", note="no task"), ADDED)},
    ),
    "it is in quarantine": History(
        "'nightly' does not run: it is not stored.\n"
        "2026-03-01 12:00:00+01:00 quarantined nightly by alice@desk (cli): schedule: no such zone\n"
        "It has no next run, because it is not stored.",
        stored=False,
        at=None,
        known={"changes": (change(t(1, 12), "quarantined", note="schedule: no such zone"), ADDED)},
    ),
    "it has been put in quarantine since": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-02 12:00:00+01:00 quarantined nightly by alice@desk (cli): schedule: no such zone",
        stored=False,
        known={"changes": (change(t(2, 12), "quarantined", note="schedule: no such zone"), ADDED)},
    ),
    "it has been removed since": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-02 09:00:00+01:00 removed nightly by alice@desk (cli)",
        stored=False,
        known={"changes": (change(t(2, 9), "removed"), ADDED)},
    ),
    "it ran, and has been removed since": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, task t\n"
        "2026-03-02 09:00:00+01:00 removed nightly by alice@desk (cli)",
        stored=False,
        known={"changes": (change(t(2, 9), "removed"), ADDED), "runs": (run(NIGHT, "succeeded", seconds=5.0),)},
    ),
    "it had been removed for good": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored.\n"
        "2026-03-01 12:00:00+01:00 removed nightly by alice@desk (cli)",
        stored=False,
        known={"changes": (change(t(1, 12), "removed"), ADDED)},
    ),
    "beat_schedule is refused": History(
        "'nightly' does not run: it is not stored.\n"
        "The beat refuses the definition in beat_schedule: expire: expected a known field, got 60\n"
        "It has no next run, because it is not stored.",
        stored=False,
        at=None,
        known={"refused": Refused(errors={"nightly": "expire: expected a known field, got 60"}), "changes": ()},
    ),
    "beat_schedule was refused, and nothing is known of that time": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "The beat refuses the definition in beat_schedule: expire: expected a known field, got 60",
        stored=False,
        known={"refused": Refused(errors={"nightly": "expire: expected a known field, got 60"}), "changes": ()},
    ),
    "nobody leads": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "Nobody leads now; the last sign of life of a leader: 2026-03-01 22:00:00+01:00.",
        state=MISSED,
        known={"status": status(leader=None, last_tick=t(1, 22))},
    ),
    "no beat has ever led": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "Nobody leads now; the last sign of life of a leader: never.",
        state=MISSED,
        known={"status": status(leader=None, last_tick=None)},
    ),
    "it cannot be published": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The beat that leads, pid 812 on beat-1: its first due entry is 0 s late.\n"
        "The last attempt to publish it failed: ValueError: not JSON",
        state={**MISSED, "due": t(2, 13, 8), "attempts": 9, "error": "ValueError: not JSON"},
    ),
    "the leader cannot reach the broker": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The beat that leads, pid 812 on beat-1: cannot reach the broker.",
        state=MISSED,
        known={"status": status(leader=replace(LEADS, failing_for=90.0, why="cannot reach the broker"))},
    ),
    "the beat is behind": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The beat that leads, pid 812 on beat-1: its first due entry is 1 min 15 s late.",
        state=MISSED,
        known={"status": status(overdue=900, lag=75.0)},
    ),
    "it is about to be sent": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The beat that leads, pid 812 on beat-1: its first due entry is 0 s late.",
        state=MISSED,
    ),
    "its jitter has not passed": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The beat that leads, pid 812 on beat-1: its first due entry is 0 s late.\n"
        "Jitter puts off 2026-03-02 03:00:00+01:00 to 2026-03-02 03:30:24+01:00.",
        now=t(2, 3, 0, 5),
        state=MISSED,
        fields={"jitter": 3600},
    ),
    "it is older than what is kept": History(
        "'nightly' may have run at 2026-02-04 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t",
        at=t(4, 3, month=2),
        known={"runs": (RAN,)},
    ),
    "its history is 0": History(
        "'nightly' may have run at 2026-03-01 03:00:00+01:00; that is not recorded any more.",
        at=t(1, 3),
    ),
    "it was sent, and its history is 0": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00; what became of it is not recorded.",
        fields={"history": 0},
    ),
    "it has been removed, and its next night is to come": History(
        "'nightly' has not run at 2026-03-05 03:00:00+01:00: it is not stored.\n"
        "2026-03-02 09:00:00+01:00 removed nightly by alice@desk (cli)",
        at=t(5, 3),
        stored=False,
        known={"changes": (change(t(2, 9), "removed"), ADDED)},
    ),
    "nothing is recorded at all": History(
        "'nightly' may have run at 2026-03-01 03:00:00+01:00; that is not recorded any more.",
        at=t(1, 3),
        known={"changes": ()},
    ),
    "nobody led, and a run before and one after are recorded": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not sent.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 02:50:00+01:00 nobody led until 2026-03-02 04:10:00+01:00, when beat of beat-2 began to "
        "lead\n"
        "2026-03-02 09:12:00+01:00 run: succeeded, task t",
        state={"last": t(1, 3)},
        known={"runs": (LATER, RAN), "record": (GAP, term(t(1, 1), t(1, 2)))},
    ),
    "nothing says why": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not sent.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 09:12:00+01:00 run: succeeded, task t",
        state={"last": t(1, 3)},
        known={"runs": (LATER, RAN)},
    ),
    "only one side is recorded": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t",
        state={"last": t(1, 3)},
        known={"runs": (RAN,)},
    ),
    "the beat has told of others that it left out, and no worker tells": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-01 03:00:00+01:00 run: skipped\n"
        "2026-03-02 09:00:00+01:00 run: skipped, 2 occurrences until 2026-03-02 10:00:00+01:00",
        state={"last": t(1, 3)},
        known={
            "runs": (
                run(t(2, 9), "skipped", until=t(2, 10), count=2, task_id=None),
                run(t(1, 3), "skipped", task_id=None),
            )
        },
    ),
    "its schedule was another then": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not sent.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 09:00:00+01:00 edited nightly by alice@desk (cli): schedule cron 0 4 * * * → cron 0 3 * "
        "* *\n"
        "2026-03-02 09:12:00+01:00 run: succeeded, task t",
        state={"last": t(1, 3)},
        known={
            "runs": (LATER, RAN),
            "changes": (change(t(2, 9), "edited", ("schedule", '{"cron":"0 4 * * *"}', '{"cron":"0 3 * * *"}')), ADDED),
        },
    ),
    "it was edited since by a line that tells no field, which may have been its schedule": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not sent.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 09:00:00+01:00 edited nightly by alice@desk (cli)\n"
        "2026-03-02 09:12:00+01:00 run: succeeded, task t",
        state={"last": t(1, 3)},
        known={"runs": (LATER, RAN), "changes": (change(t(2, 9), "edited"), ADDED)},
    ),
    "its schedule has no such time, and was another then": History(
        "'nightly' had no occurrence at 2026-03-02 04:00:00+01:00 by its schedule of today.\n"
        "Its schedule is cron('0 3 * * *', tz='Europe/Berlin'); the nearest occurrences: 2026-03-02 "
        "03:00:00+01:00 and 2026-03-03 03:00:00+01:00.\n"
        "2026-03-02 09:00:00+01:00 edited nightly by alice@desk (cli): schedule cron 0 4 * * * → cron 0 3 * * *",
        at=t(2, 4),
        known={
            "changes": (change(t(2, 9), "edited", ("schedule", '{"cron":"0 4 * * *"}', '{"cron":"0 3 * * *"}')), ADDED)
        },
    ),
    "its schedule has no such time, and was edited while it was enabled": History(
        "'nightly' had no occurrence at 2026-03-02 04:00:00+01:00 by its schedule of today.\n"
        "Its schedule is cron('0 3 * * *', tz='Europe/Berlin'); the nearest occurrences: 2026-03-02 "
        "03:00:00+01:00 and 2026-03-03 03:00:00+01:00.\n"
        "2026-03-02 09:00:00+01:00 edited nightly by alice@desk (cli): enabled false → default; schedule",
        at=t(2, 4),
        known={
            "changes": (
                change(t(2, 9), "edited", ("enabled", "false", None), ("schedule", None, None)),
                ADDED,
            )
        },
    ),
}

LATER_CHANGES = [change(t(2, hour), "edited", ("jitter", None, f"{hour}.0")) for hour in range(4, 12)]


def test_the_timeline_has_the_first_changes_after_the_instant() -> None:
    history = History("", known={"changes": (*reversed(LATER_CHANGES), ADDED), "runs": (LATER, RAN)})
    texts = [line for line in history.told() if "edited" in line]
    assert texts == [
        f"{change.at.isoformat(' ')} edited nightly by alice@desk (cli): jitter default → {change.at.hour}.0"
        for change in LATER_CHANGES[:5]
    ]


PAUSED = change(t(1, 12), "paused", note="moving house")
REMOVED = change(t(1, 12), "removed")

#: What a record tells that has gaps: an older release edits without a line, and a commit removes what is done.
GAPPED = {
    "an extra run ends no pause": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was paused.\n"
        "2026-03-01 12:00:00+01:00 paused nightly by alice@desk (cli): moving house\n"
        "2026-03-01 15:00:00+01:00 run: succeeded, task t\n"
        "2026-03-02 09:00:00+01:00 resumed nightly by alice@desk (cli)",
        state={"last": t(1, 3)},
        known={"changes": (change(t(2, 9), "resumed"), PAUSED, ADDED), "runs": (run(t(1, 15), "succeeded"),)},
    ),
    "it was added paused, as by an import": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is paused: until the disk is replaced.",
        state={**MISSED, "paused": True, "note": "until the disk is replaced"},
        known={"changes": (change(t(1, 12), "added", note="imported"), PAUSED, ADDED)},
    ),
    "it was added disabled": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is disabled.",
        fields={"enabled": False},
        state=MISSED,
        known={"changes": (change(t(1, 12), "added"), change(t(1, 11), "edited", OFF), ADDED)},
    ),
    "it is one of many that were edited, and may have been disabled then": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is disabled.\n"
        "2026-03-01 12:00:00+01:00 edited nightly by alice@desk (cli): enabled",
        fields={"enabled": False},
        state=MISSED,
        known={"changes": (change(t(1, 12), "edited", ("enabled", None, None)), ADDED)},
    ),
    "it had been removed, and is back, nobody knows since when": History(
        "'nightly' may have run at 2026-03-02 03:00:00+01:00; that is not recorded any more.",
        state={"last": None},
        known={"changes": (REMOVED, ADDED)},
    ),
    "it is done, and its runs of that time are not kept": History(
        "'nightly' may have run at 2026-02-04 03:00:00+01:00; that is not recorded any more.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t",
        at=t(4, 3, month=2),
        stored=False,
        known={"runs": (RAN,)},
    ),
    "it is done": History(
        "'nightly' does not run: it is not stored.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "It has no next run, because it is not stored.",
        at=None,
        stored=False,
        known={"runs": (RAN,)},
    ),
    "it is done, and nobody told of its run": History(
        "'nightly' does not run: it is not stored.\nIt has no next run, because it is not stored.",
        at=None,
        stored=False,
    ),
    "it was removed after it had run": History(
        "'nightly' does not run: it is not stored.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-01 12:00:00+01:00 removed nightly by alice@desk (cli)\n"
        "It has no next run, because it is not stored.",
        at=None,
        stored=False,
        known={"runs": (RAN,), "changes": (REMOVED, ADDED)},
    ),
    "it was in quarantine then, and still is": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored.\n"
        "2026-03-01 12:00:00+01:00 quarantined nightly by alice@desk (cli): schedule: no such zone",
        stored=False,
        known={"changes": (change(t(1, 12), "quarantined", note="schedule: no such zone"), ADDED)},
    ),
}


@together("name", GAPPED)
def test_what_is_not_recorded_is_not_guessed(name: str) -> None:
    assert "\n".join(GAPPED[name].told()) == GAPPED[name].says


@together("name", HISTORIES)
def test_absences(name: str) -> None:
    assert "\n".join(HISTORIES[name].told()) == HISTORIES[name].says
