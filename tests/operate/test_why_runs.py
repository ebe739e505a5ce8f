"""``why``, held against histories: what became of a run."""

from __future__ import annotations

import pytest

from redbeat_lite import cron
from tests.operate.histories import ADDED, GAP, NIGHT, RAN, History, change, run, t

HISTORIES = {
    "it succeeded": History(
        "'nightly' did run for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It went to w1@a, began at 2026-03-02 03:00:01+01:00, took 1 min 2 s and was attempted 2 times.",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 3, 0, 1), seconds=62.4, worker="w1@a", attempts=2),)},
    ),
    "it failed": History(
        "'nightly' did run for 2026-03-02 03:00:00+01:00, and failed.\n"
        "It began at 2026-03-02 03:00:01+01:00 and took 2 s.\n"
        "The error: ValueError: no disk.\n"
        "-> Mend what the error names; celery -A ... redbeat run nightly sends it once more.",
        known={"runs": (run(NIGHT, "failed", began_at=t(2, 3, 0, 1), seconds=2.0, error="ValueError: no disk."),)},
    ),
    "it runs": History(
        "'nightly' runs for 2026-03-02 03:00:00+01:00, and has not ended.\n"
        "It went to w1@a and began at 2026-03-02 03:00:01+01:00.",
        known={"runs": (run(NIGHT, "running", began_at=t(2, 3, 0, 1), worker="w1@a"),)},
    ),
    "it is tried again": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00 and failed; it is to be tried again.\n"
        "It was attempted 2 times.\n"
        "The error: OSError: busy.",
        known={"runs": (run(NIGHT, "retrying", attempts=2, error="OSError: busy"),)},
    ),
    "the result backend tells that it succeeded": History(
        "'nightly' did run for 2026-03-02 03:00:00+01:00, and succeeded.\nNothing more is recorded of it.",
        known={"runs": (run(NIGHT, "succeeded", source="result"),)},
    ),
    "it waits, and no worker takes it": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it was sent, and no worker has begun it.\n"
        "No worker reports that it takes from queue 'slow' now; those without install() do not report.\n"
        "-> Start a worker that takes from queue 'slow', or send it to a queue that one takes from.",
        known={"runs": (run(NIGHT, "waiting", source="schedule"),), "queue": "slow"},
    ),
    "it waits for busy workers": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it was sent, and no worker has begun it.\n"
        "Of the workers that report, 'w1@a', 'w2@b' take from queue 'celery' now.",
        known={"runs": (run(NIGHT, "waiting", source="schedule"),), "takers": ("w1@a", "w2@b")},
    ),
    "it expired where no worker takes it": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: it was sent, and its message expired before a "
        "worker began it.\n"
        "No worker reports that it takes from queue 'slow' now; those without install() do not report.\n"
        "-> Start a worker that takes from queue 'slow', or send it to a queue that one takes from.",
        known={"runs": (run(NIGHT, "expired"),), "queue": "slow"},
    ),
    "it expired before a busy worker": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: it was sent, and its message expired before a "
        "worker began it.\n"
        "Of the workers that report, 'w1@a' takes from queue 'celery' now.\n"
        "-> Have more workers take from queue 'celery', or let its messages live longer: expires.",
        known={"runs": (run(NIGHT, "expired"),), "takers": ("w1@a",)},
    ),
    "it was revoked": History(
        "'nightly' did not run to its end for 2026-03-02 03:00:00+01:00: its task was revoked.\nIt went to w1@a.",
        known={"runs": (run(NIGHT, "revoked", worker="w1@a"),)},
    ),
    "it was rejected": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: a worker rejected its message.\nIt went to w1@a.",
        known={"runs": (run(NIGHT, "rejected", worker="w1@a"),)},
    ),
    "its worker died": History(
        "'nightly' did not run to its end for 2026-03-02 03:00:00+01:00: the process that ran it died.\n"
        "It went to w1@a and began at 2026-03-02 03:00:01+01:00.\n"
        "-> Look at the worker's log, and at what the machine says of memory.",
        known={"runs": (run(NIGHT, "lost", began_at=t(2, 3, 0, 1), worker="w1@a"),)},
    ),
    "nobody told what became of it": History(
        "Whether 'nightly' ran for 2026-03-02 03:00:00+01:00 is not recorded: it was sent, and nobody told "
        "what became of it.\n"
        "Nothing more is recorded of it.\n"
        "-> Call redbeat_lite.install(app) where the app is made, and restart the workers: they then tell.",
        known={"runs": (run(NIGHT, "unknown", source="schedule"),)},
    ),
    "it was too late after a time without a leader": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left that out.\n"
        "It was missed, and with 'skip' an occurrence may be 5 s late, or a quarter of the time to the next.\n"
        "Nobody led: a leader last gave a sign of life at 2026-03-02 02:50:00+01:00, and at 2026-03-02 "
        "04:10:00+01:00 beat-2 began to lead.",
        fields={"misfire": "skip"},
        known={"runs": (run(NIGHT, "skipped"), RAN), "gaps": (GAP,)},
    ),
    "a pause made it late": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left that out.\n"
        "It was missed, and with 'coalesce' only the latest of missed occurrences is sent. So were all 2 "
        "occurrences from 2026-03-01 03:00:00+01:00 to 2026-03-02 03:00:00+01:00.\n"
        "alice@desk paused it at 2026-03-01 00:00:00+01:00 (cli): moving house.\n"
        "alice@desk resumed it at 2026-03-02 09:00:00+01:00 (cli).",
        known={
            "runs": (run(t(1, 3), "skipped", until=t(2, 3), count=2),),
            "changes": (change(t(2, 9), "resumed"), change(t(1, 0), "paused", note="moving house"), ADDED),
        },
    ),
    "it was later than its grace, and nothing says why": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left that out.\n"
        "It was missed, and with 'all' an occurrence may be 30 s late.\n"
        "What made it late is not recorded.\n"
        'alice@desk changed it at 2026-03-02 09:00:00+01:00 (cli): misfire from its default to "all".',
        fields={"misfire": {"policy": "all", "grace": 30}},
        known={
            "runs": (run(NIGHT, "skipped"),),
            "changes": (change(t(2, 9), "edited", ("misfire", None, '"all"')), ADDED),
        },
    ),
    "its policy was another then": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left that out.\n"
        "It was missed; with 'all', as it is now, it would have been sent.\n"
        "What made it late is not recorded.\n"
        'alice@desk changed it at 2026-03-02 09:00:00+01:00 (cli): misfire from "skip" to "all".',
        fields={"misfire": "all"},
        known={
            "runs": (run(NIGHT, "skipped"),),
            "changes": (change(t(2, 9), "edited", ("misfire", '"skip"', '"all"')), ADDED),
        },
    ),
    "the run before had its once-lock": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its once-lock was held.\n"
        "It is left out while a task with its key is queued or runs.\n"
        "The run before, of 2026-03-01 03:00:00+01:00, began at 2026-03-01 03:00:01+01:00: running.\n"
        "-> Look who holds it: celery -A ... redbeat locks list.",
        fields={"once": True},
        known={"runs": (run(NIGHT, "left out"), run(t(1, 3), "running", began_at=t(1, 3, 0, 1)))},
    ),
    "its once-lock was held for hours": History(
        "'nightly' did not run for 2026-03-02 03:07:00+01:00: its once-lock was held.\n"
        "It is left out while a task with its key is queued or runs. So were all 61 occurrences from "
        "2026-03-02 03:00:00+01:00 to 2026-03-02 04:00:00+01:00.\n"
        "-> Look who holds it: celery -A ... redbeat locks list.",
        at=t(2, 3, 7),
        fields={"once": True, "schedule": cron("* * * * *")},
        known={"runs": (run(t(2, 3), "left out", until=t(2, 4), count=61),)},
    ),
    "it ran late after a time without a leader": History(
        "'nightly' did run for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It began at 2026-03-02 04:10:02+01:00 and took 1 min 2 s.\n"
        "Nobody led: a leader last gave a sign of life at 2026-03-02 02:50:00+01:00, and at 2026-03-02 "
        "04:10:00+01:00 beat-2 began to lead.",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 4, 10, 2), seconds=62.0),), "gaps": (GAP,)},
    ),
    "it was put off by its jitter": History(
        "'nightly' did run for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It took 1 min 2 s.\n"
        "Its jitter put it off to 2026-03-02 03:06:17+01:00.",
        fields={"jitter": 600},
        known={"runs": (run(NIGHT, "succeeded", seconds=62.0),)},
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_what_became_of_it(name: str) -> None:
    assert "\n".join(HISTORIES[name].told()) == HISTORIES[name].says
