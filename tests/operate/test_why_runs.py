"""``why``, held against histories: what became of a run."""

from __future__ import annotations

from redbeat_lite import cron, every
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.state import backfill_id
from tests.operate.histories import ADDED, GAP, MISSED, NIGHT, RAN, History, change, run, t
from tests.support.cases import together

HELD = (
    "A task with its key was queued or running. "
    "Or such a task had ended in a worker without install(), and its lock had not expired."
)

HISTORIES = {
    "it succeeded": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 1 s, task t",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 3, 0, 1), seconds=62.4, worker="w1@a", attempts=2),)},
    ),
    "it failed": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed.\n"
        "2026-03-02 03:00:00+01:00 run: failed, began after 1 s, ValueError: no disk., task t",
        known={
            "runs": (
                run(NIGHT, "failed", began_at=t(2, 3, 0, 1), seconds=2.0, attempts=1, error="ValueError: no disk."),
            )
        },
    ),
    "a backfill has sent it": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 6 h, task 2ae5fd1d-9b85-8e4f-8ab8-c67aaaba5718",
        known={
            "runs": (run(NIGHT, "succeeded", began_at=t(2, 9), task_id=backfill_id("nightly", "g", to_ms(NIGHT), 0)),)
        },
    ),
    "it runs": History(
        "'nightly' runs for 2026-03-02 03:00:00+01:00, and has not ended.\n"
        "2026-03-02 03:00:00+01:00 run: running, began after 1 s, task t",
        known={"runs": (run(NIGHT, "running", began_at=t(2, 3, 0, 1), worker="w1@a"),)},
    ),
    "it is tried again": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed; it waits for its retry, due at 2026-03-02 "
        "13:30:00+01:00.\n"
        "2026-03-02 03:00:00+01:00 run: retrying, OSError: busy, task t",
        known={"runs": (run(NIGHT, "retrying", attempts=2, error="OSError: busy", retry_at=t(2, 13, 30)),)},
    ),
    "its retry is overdue": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed; it waits for its retry, due at 2026-03-02 "
        "11:30:00+01:00.\n"
        "2026-03-02 03:00:00+01:00 run: retrying, OSError: busy, task t",
        known={"runs": (run(NIGHT, "retrying", error="OSError: busy", retry_at=t(2, 11, 30)),)},
    ),
    "its retry has expired": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed; its message expired before its retry, due "
        "at 2026-03-02 03:10:00+01:00.\n"
        "2026-03-02 03:00:00+01:00 run: failed, OSError: busy, task t",
        known={"runs": (run(NIGHT, "failed", attempts=2, error="OSError: busy", retry_at=t(2, 3, 10)),)},
    ),
    "nobody has told of its retry for so long that it may be lost": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed; no worker has reported its retry, due at "
        "2026-03-02 03:10:00+01:00.\n"
        "No worker with install() takes from queue 'celery' now. Start a worker with -Q celery, or correct "
        "the queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: unknown, began after 1 s, OSError: busy, task t",
        known={
            "runs": (
                run(NIGHT, "unknown", began_at=t(2, 3, 0, 1), seconds=2.0, error="OSError: busy", retry_at=t(2, 3, 10)),
            )
        },
    ),
    "its message went back to its queue": History(
        "'nightly' began for 2026-03-02 03:00:00+01:00, and did not end; its message is to come again.\n"
        "No worker with install() takes from queue 'celery' now. Start a worker with -Q celery, or correct "
        "the queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: waiting, began after 1 s, task t",
        known={"runs": (run(NIGHT, "waiting", began_at=t(2, 3, 0, 1)),)},
    ),
    "its body rejected its message": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and rejected its message.\n"
        "2026-03-02 03:00:00+01:00 run: rejected, began after 1 s, task t",
        known={"runs": (run(NIGHT, "rejected", began_at=t(2, 3, 0, 1), seconds=2.0),)},
    ),
    "its body raised Ignore": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00; its outcome is not known.\n"
        "No worker with install() takes from queue 'celery' now. Start a worker with -Q celery, or correct "
        "the queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: unknown, began after 1 s, no, task t",
        known={"runs": (run(NIGHT, "unknown", began_at=t(2, 3, 0, 1), seconds=2.0, error="no"),)},
    ),
    "it began, and its end is not recorded": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00; its outcome is not known.\n"
        "No worker with install() takes from queue 'celery' now. Start a worker with -Q celery, or correct "
        "the queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: unknown, began after 1 s, task t",
        known={"runs": (run(NIGHT, "unknown", began_at=t(2, 3, 0, 1)),)},
    ),
    "its once-lock was refused": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: it failed before its body began.\n"
        "2026-03-02 03:00:00+01:00 run: failed, OnceRejected: taken, task t",
        known={"runs": (run(NIGHT, "failed", error="OnceRejected: taken", attempts=0),)},
    ),
    "it waits, and no worker takes it": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00, and no worker has reported that it began.\n"
        "No worker with install() takes from queue 'slow' now. Start a worker with -Q slow, or correct the "
        "queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: waiting, task t",
        fields={"options": {"queue": "slow"}},
        known={"runs": (run(NIGHT, "waiting", source="schedule"),)},
    ),
    "it waits for busy workers": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00, and no worker has reported that it began.\n"
        "2026-03-02 03:00:00+01:00 run: waiting, task t",
        known={"runs": (run(NIGHT, "waiting", source="schedule"),), "queues": ("celery",)},
    ),
    "it expired where no worker takes it": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its message expired before a worker began it.\n"
        "No worker with install() takes from queue 'slow' now. Start a worker with -Q slow, or correct the "
        "queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: expired, task t",
        fields={"options": {"queue": "slow"}},
        known={"runs": (run(NIGHT, "expired"),)},
    ),
    "it expired before a busy worker": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its message expired before a worker began it.\n"
        "2026-03-02 03:00:00+01:00 run: expired, task t",
        known={"runs": (run(NIGHT, "expired"),), "queues": ("celery",)},
    ),
    "it was revoked": History(
        "'nightly' did not run to its end for 2026-03-02 03:00:00+01:00: its task was revoked.\n"
        "2026-03-02 03:00:00+01:00 run: revoked, task t",
        known={"runs": (run(NIGHT, "revoked", worker="w1@a"),)},
    ),
    "it was rejected": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: a worker rejected its message.\n"
        "2026-03-02 03:00:00+01:00 run: rejected, task t",
        known={"runs": (run(NIGHT, "rejected", worker="w1@a"),)},
    ),
    "its worker died": History(
        "'nightly' did not run to its end for 2026-03-02 03:00:00+01:00: the process that ran it died.\n"
        "2026-03-02 03:00:00+01:00 run: lost, began after 1 s, task t",
        known={"runs": (run(NIGHT, "lost", began_at=t(2, 3, 0, 1), worker="w1@a"),)},
    ),
    "nobody told what became of it": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00; its outcome is not known.\n"
        "No worker with install() takes from queue 'celery' now. Start a worker with -Q celery, or correct "
        "the queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: unknown, task t",
        known={"runs": (run(NIGHT, "unknown", attempts=2),)},
    ),
    "it expired unseen in a queue that no worker takes from": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00; what became of it is not recorded.\n"
        "No worker with install() takes from queue 'slow' now. Start a worker with -Q slow, or correct the "
        "queue of the entry.\n"
        "2026-03-02 03:00:00+01:00 run: unknown, task t",
        fields={"options": {"queue": "slow"}},
        known={"runs": (run(NIGHT, "unknown", source="schedule"),)},
    ),
    "it expired unseen, and workers take from its queue now": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00; what became of it is not recorded.\n"
        "2026-03-02 03:00:00+01:00 run: unknown, task t",
        known={"runs": (run(NIGHT, "unknown", source="schedule"),), "queues": ("celery",)},
    ),
    "it was too late after a time without a leader": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'skip' an occurrence may be 5 s late, or a quarter of the time to the next.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 02:50:00+01:00 nobody led until 2026-03-02 04:10:00+01:00, when beat of beat-2 began to "
        "lead\n"
        "2026-03-02 03:00:00+01:00 run: skipped",
        fields={"misfire": "skip"},
        known={"runs": (run(NIGHT, "skipped"), RAN), "record": (GAP,)},
    ),
    "a pause made it late": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'coalesce' only the latest of missed occurrences is sent.\n"
        "2026-03-01 00:00:00+01:00 paused nightly by alice@desk (cli): moving house\n"
        "2026-03-01 03:00:00+01:00 run: skipped, 2 occurrences until 2026-03-02 03:00:00+01:00\n"
        "2026-03-02 09:00:00+01:00 resumed nightly by alice@desk (cli)",
        known={
            "runs": (run(t(1, 3), "skipped", until=t(2, 3), count=2),),
            "changes": (change(t(2, 9), "resumed"), change(t(1, 0), "paused", note="moving house"), ADDED),
        },
    ),
    "it was later than its grace, and nothing says why": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'all' an occurrence may be 30 s late.\n"
        "2026-03-02 03:00:00+01:00 run: skipped\n"
        '2026-03-02 09:00:00+01:00 edited nightly by alice@desk (cli): misfire default → "all"',
        fields={"misfire": {"policy": "all", "grace": 30}},
        known={
            "runs": (run(NIGHT, "skipped"),),
            "changes": (change(t(2, 9), "edited", ("misfire", None, '"all"')), ADDED),
        },
    ),
    "its policy was another then": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'all' missed occurrences are sent.\n"
        "2026-03-02 03:00:00+01:00 run: skipped\n"
        '2026-03-02 09:00:00+01:00 edited nightly by alice@desk (cli): misfire "skip" → "all"',
        fields={"misfire": "all"},
        known={
            "runs": (run(NIGHT, "skipped"),),
            "changes": (change(t(2, 9), "edited", ("misfire", '"skip"', '"all"')), ADDED),
        },
    ),
    "the run before had its once-lock": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its once-lock was held.\n"
        "A task with its key was queued or running. Or such a task had ended in a worker without install(), "
        "and its lock had not expired.\n"
        "2026-03-01 03:00:00+01:00 run: running, began after 1 s, task t\n"
        "2026-03-02 03:00:00+01:00 run: left out",
        fields={"once": True},
        known={"runs": (run(NIGHT, "left out"), run(t(1, 3), "running", began_at=t(1, 3, 0, 1)))},
    ),
    "the run before has ended since": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its once-lock was held.\n"
        "A task with its key was queued or running. Or such a task had ended in a worker without install(), "
        "and its lock had not expired.\n"
        "2026-03-01 03:00:00+01:00 run: succeeded, began after 1 s, task t\n"
        "2026-03-02 03:00:00+01:00 run: left out",
        fields={"once": True},
        known={"runs": (run(NIGHT, "left out"), RAN)},
    ),
    "its once-lock was held for hours": History(
        "'nightly' did not run for 2026-03-02 03:07:00+01:00: its once-lock was held.\n"
        "A task with its key was queued or running. Or such a task had ended in a worker without install(), "
        "and its lock had not expired.\n"
        "2026-03-02 03:00:00+01:00 run: left out, 61 occurrences until 2026-03-02 04:00:00+01:00",
        at=t(2, 3, 7),
        fields={"once": True, "schedule": cron("* * * * *")},
        known={"runs": (run(t(2, 3), "left out", until=t(2, 4), count=61),)},
    ),
    "the first run of its minute was left out with those before it, and the second was sent": History(
        "'nightly' did not run for 2026-03-02 02:59:16+01:00: its once-lock was held.\n"
        "A task with its key was queued or running. Or such a task had ended in a worker without install(), "
        "and its lock had not expired.\n"
        "2026-03-02 02:58:36+01:00 run: left out, 3 occurrences until 2026-03-02 02:59:16+01:00\n"
        "2026-03-02 02:59:36+01:00 run: succeeded, task t",
        at=t(2, 2, 59),
        fields={"once": True, "schedule": every(20)},
        state={"nominal": t(2, 13, 7, 16), "last": t(2, 2, 59, 36)},
        known={
            "runs": (
                run(t(2, 2, 59, 56), "left out", until=t(2, 3, 5, 16), count=17),
                run(t(2, 2, 59, 36), "succeeded"),
                run(t(2, 2, 58, 36), "left out", until=t(2, 2, 59, 16), count=3),
            )
        },
    ),
    "no run of its minute is recorded": History(
        "'nightly' may have run at 2026-03-02 02:59:00+01:00; that is not recorded any more.",
        at=t(2, 2, 59),
        fields={"schedule": every(5)},
        state={"nominal": t(2, 13, 7, 5), "last": t(2, 13, 7)},
    ),
    "it ran late after a time without a leader": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 02:50:00+01:00 nobody led until 2026-03-02 04:10:00+01:00, when beat of beat-2 began to "
        "lead\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 1 h 10 min, task t",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 4, 10, 2), seconds=62.0),), "record": (GAP,)},
    ),
    "it began while nobody led, which kept it from nothing": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-02 02:50:00+01:00 nobody led until 2026-03-02 04:10:00+01:00, when beat of beat-2 began to "
        "lead\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 1 s, task t",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 3, 0, 1), seconds=62.0),), "record": (GAP,)},
    ),
    "it ran late after a pause": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "2026-03-01 12:00:00+01:00 paused nightly by alice@desk (cli)\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, began after 6 h, task t\n"
        "2026-03-02 09:00:00+01:00 resumed nightly by alice@desk (cli)",
        known={
            "runs": (run(NIGHT, "succeeded", began_at=t(2, 9, 0, 2)),),
            "changes": (change(t(2, 9), "resumed"), change(t(1, 12), "paused"), ADDED),
        },
    ),
    "an extra run of the same minute is another": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed.\n"
        "2026-03-02 03:00:00+01:00 run: failed, task t\n"
        "2026-03-02 03:00:30+01:00 run: succeeded, task t",
        known={"runs": (run(t(2, 3, 0, 30), "succeeded"), run(NIGHT, "failed"))},
    ),
    "an extra run of the same minute is not that of the schedule": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The beat that leads, pid 812 on beat-1: its first due entry is 0 s late.\n"
        "2026-03-02 03:00:30+01:00 run: succeeded, task t",
        state=MISSED,
        known={"runs": (run(t(2, 3, 0, 30), "succeeded"),)},
    ),
    "an extra run is told if its second is asked about": History(
        "'nightly' ran for 2026-03-02 03:00:30+01:00, and succeeded.\n"
        "2026-03-02 03:00:00+01:00 run: failed, task t\n"
        "2026-03-02 03:00:30+01:00 run: succeeded, task t",
        at=t(2, 3, 0, 30),
        known={"runs": (run(t(2, 3, 0, 30), "succeeded"), run(NIGHT, "failed"))},
    ),
    "it was put off by its jitter": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "Jitter puts off 2026-03-02 03:00:00+01:00 to 2026-03-02 03:06:17+01:00.\n"
        "2026-03-02 03:00:00+01:00 run: succeeded, task t",
        fields={"jitter": 600},
        known={"runs": (run(NIGHT, "succeeded", seconds=62.0),)},
    ),
}


@together("name", HISTORIES)
def test_what_became_of_it(name: str) -> None:
    assert "\n".join(HISTORIES[name].told()) == HISTORIES[name].says
