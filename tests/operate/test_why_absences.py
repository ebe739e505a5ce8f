"""``why``, held against histories: an entry that has no run at a time, or is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redbeat_lite.instants import to_ms
from redbeat_lite.operate.why.evidence import Gap
from tests.operate.histories import ADDED, GAP, LEADS, MISSED, NIGHT, OFF, RAN, History, change, run, status, t

HISTORIES = {
    "it was paused then": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was paused.\n"
        "alice@desk paused it at 2026-03-01 12:00:00+01:00 (cli): moving house.\n"
        "alice@desk resumed it at 2026-03-02 09:00:00+01:00 (cli).",
        known={
            "runs": (RAN,),
            "changes": (change(t(2, 9), "resumed"), change(t(1, 12), "paused", note="moving house"), ADDED),
        },
    ),
    "it is paused": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it is paused.\n"
        "alice@desk paused it at 2026-03-01 12:00:00+01:00 (cli): moving house.\n"
        "-> Let it fire again: celery -A ... redbeat resume nightly.",
        state={**MISSED, "paused": True, "note": "moving house"},
        known={"changes": (change(t(1, 12), "paused", note="moving house"), ADDED)},
    ),
    "it is paused, and nobody knows since when": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it is paused.\n"
        "It is paused: moving house; who did that, and when, is not recorded any more.\n"
        "-> Let it fire again: celery -A ... redbeat resume nightly.",
        state={**MISSED, "paused": True, "note": "moving house"},
        known={"changes": (), "since": None},
    ),
    "it is disabled": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it is disabled.\n"
        "alice@desk changed it at 2026-03-01 12:00:00+01:00 (cli): enabled from its default to false.\n"
        "-> Let it fire again: celery -A ... redbeat edit nightly --enabled.",
        fields={"enabled": False},
        state=MISSED,
        known={"changes": (change(t(1, 12), "edited", OFF), ADDED)},
    ),
    "it is disabled, and nobody knows since when": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it is disabled.\n"
        "Who disabled it, and when, is not recorded any more.\n"
        "-> Let it fire again: celery -A ... redbeat edit nightly --enabled.",
        fields={"enabled": False},
        state=MISSED,
        known={"changes": (), "since": None},
    ),
    "it was disabled then": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was disabled.\n"
        "alice@desk changed it at 2026-03-01 12:00:00+01:00 (cli): enabled from its default to false.",
        known={
            "changes": (change(t(2, 9), "edited", ("enabled", "false", None)), change(t(1, 12), "edited", OFF), ADDED)
        },
    ),
    "it was not there yet": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored then.\n"
        "alice@desk added it at 2026-03-02 09:00:00+01:00 (cli).",
        state={"last": None, "count": 0},
        known={"changes": (change(t(2, 9), "added"),)},
    ),
    "it had been removed": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored then.\n"
        "alice@desk removed it at 2026-03-01 12:00:00+01:00 (cli).",
        known={"changes": (change(t(2, 9), "added"), change(t(1, 12), "removed"), ADDED)},
    ),
    "it was removed and added, and only the latter is recorded": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00, as far as is recorded: it was neither sent nor "
        "skipped.\n"
        "alice@desk added it at 2026-03-02 09:00:00+01:00 (cli).\n"
        "Changes before 2026-03-02 04:00:00+01:00 are not recorded any more.",
        state={"last": None, "count": 0},
        known={"changes": (change(t(2, 9), "added"),), "since": t(2, 4), "runs": (RAN,)},
    ),
    "it was in quarantine": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored then.\n"
        "alice@desk put it in quarantine at 2026-03-01 12:00:00+01:00 (cli): no task.",
        known={"changes": (change(t(2, 9), "released"), change(t(1, 12), "quarantined", note="no task"), ADDED)},
    ),
    "it is in quarantine": History(
        "'nightly' does not run: it is in quarantine.\n"
        "In quarantine since 2026-03-01 12:00:00+01:00: schedule: no such zone.\n"
        "-> Mend that, then: celery -A ... redbeat quarantine release nightly.",
        stored=False,
        at=None,
        known={"quarantine": {"error": "schedule: no such zone", "at": to_ms(t(1, 12))}},
    ),
    "it has been put in quarantine since": History(
        "Whether 'nightly' ran at 2026-03-02 03:00:00+01:00 is not recorded any more.\n"
        "In quarantine since 2026-03-02 12:00:00+01:00: schedule: no such zone.\n"
        "-> Mend that, then: celery -A ... redbeat quarantine release nightly.",
        stored=False,
        known={"quarantine": {"error": "schedule: no such zone", "at": to_ms(t(2, 12))}},
    ),
    "it has been removed since": History(
        "Whether 'nightly' ran at 2026-03-02 03:00:00+01:00 is not recorded any more.\n"
        "alice@desk removed it at 2026-03-02 09:00:00+01:00 (cli).",
        stored=False,
        known={"changes": (change(t(2, 9), "removed"), ADDED)},
    ),
    "it ran, and has been removed since": History(
        "'nightly' did run for 2026-03-02 03:00:00+01:00, and succeeded.\nIt took 5 s.",
        stored=False,
        known={"changes": (change(t(2, 9), "removed"), ADDED), "runs": (run(NIGHT, "succeeded", seconds=5.0),)},
    ),
    "it had been removed for good": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00: it was not stored.\n"
        "alice@desk removed it at 2026-03-01 12:00:00+01:00 (cli).",
        stored=False,
        known={"changes": (change(t(1, 12), "removed"), ADDED)},
    ),
    "beat_schedule is refused": History(
        "'nightly' does not run: it is not stored.\n"
        "The beat refuses the one in beat_schedule: expire: expected a known field, got 60.",
        stored=False,
        at=None,
        known={"refused": "expire: expected a known field, got 60", "changes": ()},
    ),
    "nobody leads": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "Nobody leads now; the last sign of life of a leader was at 2026-03-01 22:00:00+01:00.\n"
        "-> Start a beat: celery -A ... beat -S redbeat_lite.Scheduler.",
        state=MISSED,
        known={"status": status(leader=None, last_tick=t(1, 22))},
    ),
    "no beat has ever led": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "Nobody leads now, and no beat has ever led.\n"
        "-> Start a beat: celery -A ... beat -S redbeat_lite.Scheduler.",
        state=MISSED,
        known={"status": status(leader=None, last_tick=None)},
    ),
    "it cannot be published": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "9 attempts to publish it failed, the last one with: ValueError: not JSON. It is tried again at "
        "2026-03-02 13:08:00+01:00.\n"
        "-> Mend what the error names; it is tried again at least once a minute.",
        state={**MISSED, "due": t(2, 13, 8), "attempts": 9, "error": "ValueError: not JSON"},
    ),
    "the leader cannot reach the broker": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The leader, pid 812 on beat-1, cannot do its work for 90 s: cannot reach the broker.\n"
        "-> Look at the log of the beat that leads.",
        state=MISSED,
        known={"status": status(leader=replace(LEADS, failing_for=90.0, why="cannot reach the broker"))},
    ),
    "the beat is behind": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "A beat leads, and is behind: the first of those that are due is 1 min 15 s late.\n"
        "-> Look at celery -A ... redbeat status, and at the log of the beat that leads.",
        state=MISSED,
        known={"status": status(overdue=900, lag=75.0)},
    ),
    "it is about to be sent": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "A beat leads, and is about to send it.",
        state=MISSED,
    ),
    "its jitter has not passed": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it is not due yet.\n"
        "Its jitter puts it off to 2026-03-02 03:30:24+01:00.",
        now=t(2, 3, 0, 5),
        state=MISSED,
        fields={"jitter": 3600},
    ),
    "it is older than what is kept": History(
        "Whether 'nightly' ran at 2026-02-04 03:00:00+01:00 is not recorded any more.\n"
        "1 run is kept; the first that is recorded is of 2026-03-01 03:00:00+01:00.",
        at=t(4, 3, month=2),
        known={"runs": (RAN,), "kept": 1},
    ),
    "its history is 0": History(
        "Whether 'nightly' ran at 2026-03-01 03:00:00+01:00 is not recorded any more.\n"
        "None of its runs is recorded: its history is 0.",
        at=t(1, 3),
        known={"kept": 0},
    ),
    "it was sent, and its history is 0": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00; what became of it is not recorded.\n"
        "It was sent as task e9a7d332-0f3d-5c04-95d0-16b706d9aa80.\n"
        "None of its runs is recorded: its history is 0.",
        known={"kept": 0},
    ),
    "nothing is recorded at all": History(
        "Whether 'nightly' ran at 2026-03-01 03:00:00+01:00 is not recorded any more.\n"
        "No run of it is recorded.\n"
        "No change is recorded.",
        at=t(1, 3),
        known={"changes": (), "since": None},
    ),
    "nobody led, and nothing else is recorded": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00, as far as is recorded: it was neither sent nor "
        "skipped.\n"
        "Nobody led: a leader last gave a sign of life at 2026-03-02 02:50:00+01:00, and at 2026-03-02 "
        "04:10:00+01:00 beat-2 began to lead.",
        state={"last": t(1, 3)},
        known={"runs": (RAN,), "gaps": (GAP, Gap(t(1, 1), t(1, 2), "beat-1"))},
    ),
    "nothing says why": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00, as far as is recorded: it was neither sent nor "
        "skipped.\n"
        "What kept it is not recorded.",
        state={"last": t(1, 3)},
        known={"runs": (RAN,)},
    ),
    "its schedule was another then": History(
        "'nightly' did not run at 2026-03-02 03:00:00+01:00, as far as is recorded: it was neither sent nor "
        "skipped.\n"
        'alice@desk changed it at 2026-03-02 09:00:00+01:00 (cli): schedule from {"cron":"0 4 * * *"} to '
        '{"cron":"0 3 * * *"}.',
        state={"last": t(1, 3)},
        known={
            "runs": (RAN,),
            "changes": (change(t(2, 9), "edited", ("schedule", '{"cron":"0 4 * * *"}', '{"cron":"0 3 * * *"}')), ADDED),
        },
    ),
    "its schedule has no such time, and was another then": History(
        "'nightly' had no occurrence at 2026-03-02 04:00:00+01:00 by its schedule of today.\n"
        "Its schedule is cron('0 3 * * *', tz='Europe/Berlin'): the nearest are 2026-03-02 03:00:00+01:00 "
        "and 2026-03-03 03:00:00+01:00.\n"
        'alice@desk changed it at 2026-03-02 09:00:00+01:00 (cli): schedule from {"cron":"0 4 * * *"} to '
        '{"cron":"0 3 * * *"}.',
        at=t(2, 4),
        known={
            "changes": (change(t(2, 9), "edited", ("schedule", '{"cron":"0 4 * * *"}', '{"cron":"0 3 * * *"}')), ADDED)
        },
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_absences(name: str) -> None:
    assert "\n".join(HISTORIES[name].told()) == HISTORIES[name].says
