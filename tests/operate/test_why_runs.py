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
        "It was sent as task t, went to w1@a, began at 2026-03-02 03:00:01+01:00, took 1 min 2 s, was "
        "attempted 2 times.",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 3, 0, 1), seconds=62.4, worker="w1@a", attempts=2),)},
    ),
    "it failed": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed.\n"
        "It was sent as task t, began at 2026-03-02 03:00:01+01:00, took 2 s.\n"
        "The error: ValueError: no disk.",
        known={
            "runs": (
                run(NIGHT, "failed", began_at=t(2, 3, 0, 1), seconds=2.0, attempts=1, error="ValueError: no disk."),
            )
        },
    ),
    "a backfill has sent it": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task 2ae5fd1d-9b85-8e4f-8ab8-c67aaaba5718, began at 2026-03-02 09:00:00+01:00.",
        known={
            "runs": (run(NIGHT, "succeeded", began_at=t(2, 9), task_id=backfill_id("nightly", "g", to_ms(NIGHT), 0)),)
        },
    ),
    "it runs": History(
        "'nightly' runs for 2026-03-02 03:00:00+01:00, and has not ended.\n"
        "It was sent as task t, went to w1@a, began at 2026-03-02 03:00:01+01:00.",
        known={"runs": (run(NIGHT, "running", began_at=t(2, 3, 0, 1), worker="w1@a"),)},
    ),
    "it is tried again": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00 and failed; it waits for its retry, due at 2026-03-02 "
        "13:30:00+01:00.\n"
        "It was sent as task t, was attempted 2 times.\n"
        "The error: OSError: busy.",
        known={"runs": (run(NIGHT, "retrying", attempts=2, error="OSError: busy", retry_at=t(2, 13, 30)),)},
    ),
    "its retry is overdue": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00 and failed; it waits for its retry, due at 2026-03-02 "
        "11:30:00+01:00.\n"
        "It was sent as task t.\n"
        "The error: OSError: busy.",
        known={"runs": (run(NIGHT, "retrying", error="OSError: busy", retry_at=t(2, 11, 30)),)},
    ),
    "its retry has expired": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed; its message expired before its retry, due "
        "at 2026-03-02 03:10:00+01:00.\n"
        "It was sent as task t, was attempted 2 times.\n"
        "The error: OSError: busy.",
        known={"runs": (run(NIGHT, "failed", attempts=2, error="OSError: busy", retry_at=t(2, 3, 10)),)},
    ),
    "nobody has told of its retry for so long that it may be lost": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00 and failed; no worker has reported its retry, due at "
        "2026-03-02 03:10:00+01:00.\n"
        "It was sent as task t, began at 2026-03-02 03:00:01+01:00, took 2 s.\n"
        "The error: OSError: busy.",
        known={
            "runs": (
                run(NIGHT, "unknown", began_at=t(2, 3, 0, 1), seconds=2.0, error="OSError: busy", retry_at=t(2, 3, 10)),
            )
        },
    ),
    "its message went back to its queue": History(
        "'nightly' began for 2026-03-02 03:00:00+01:00, and did not end; its message is to come again.\n"
        "It was sent as task t, began at 2026-03-02 03:00:01+01:00.",
        known={"runs": (run(NIGHT, "waiting", began_at=t(2, 3, 0, 1)),)},
    ),
    "its body rejected its message": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and rejected its message.\n"
        "It was sent as task t, began at 2026-03-02 03:00:01+01:00, took 2 s.",
        known={"runs": (run(NIGHT, "rejected", began_at=t(2, 3, 0, 1), seconds=2.0),)},
    ),
    "its body raised Ignore": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and reported no outcome, as with Ignore or replace.\n"
        "It was sent as task t, began at 2026-03-02 03:00:01+01:00, took 2 s.\n"
        "The error: no.",
        known={"runs": (run(NIGHT, "unknown", began_at=t(2, 3, 0, 1), seconds=2.0, error="no"),)},
    ),
    "it began, and its end is not recorded": History(
        "'nightly' began for 2026-03-02 03:00:00+01:00; how it ended is not recorded.\n"
        "It was sent as task t, began at 2026-03-02 03:00:01+01:00.",
        known={"runs": (run(NIGHT, "unknown", began_at=t(2, 3, 0, 1)),)},
    ),
    "its once-lock was refused": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: it failed before its body began.\n"
        "It was sent as task t.\n"
        "The error: OnceRejected: taken.",
        known={"runs": (run(NIGHT, "failed", error="OnceRejected: taken"),)},
    ),
    "it waits, and no worker takes it": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00, and no worker has reported that it began.\n"
        "No worker with install() takes from queue 'slow' now. Start a worker with -Q slow, or correct the "
        "queue of the entry.\n"
        "It was sent as task t.",
        fields={"options": {"queue": "slow"}},
        known={"runs": (run(NIGHT, "waiting", source="schedule"),)},
    ),
    "it waits for busy workers": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00, and no worker has reported that it began.\n"
        "By reports of the last minute, a worker with install() takes from queue 'celery'.\n"
        "It was sent as task t.",
        known={"runs": (run(NIGHT, "waiting", source="schedule"),), "queues": ("celery",)},
    ),
    "it expired where no worker takes it": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: it was sent, and its message expired before a "
        "worker began it.\n"
        "No worker with install() takes from queue 'slow' now. Start a worker with -Q slow, or correct the "
        "queue of the entry.\n"
        "It was sent as task t.",
        fields={"options": {"queue": "slow"}},
        known={"runs": (run(NIGHT, "expired"),)},
    ),
    "it expired before a busy worker": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: it was sent, and its message expired before a "
        "worker began it.\n"
        "By reports of the last minute, a worker with install() takes from queue 'celery'.\n"
        "It was sent as task t.",
        known={"runs": (run(NIGHT, "expired"),), "queues": ("celery",)},
    ),
    "it was revoked": History(
        "'nightly' did not run to its end for 2026-03-02 03:00:00+01:00: its task was revoked.\n"
        "It was sent as task t, went to w1@a.",
        known={"runs": (run(NIGHT, "revoked", worker="w1@a"),)},
    ),
    "it was rejected": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: a worker rejected its message.\n"
        "It was sent as task t, went to w1@a.",
        known={"runs": (run(NIGHT, "rejected", worker="w1@a"),)},
    ),
    "its worker died": History(
        "'nightly' did not run to its end for 2026-03-02 03:00:00+01:00: the process that ran it died.\n"
        "It was sent as task t, went to w1@a, began at 2026-03-02 03:00:01+01:00.",
        known={"runs": (run(NIGHT, "lost", began_at=t(2, 3, 0, 1), worker="w1@a"),)},
    ),
    "nobody told what became of it": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00; what became of it is not recorded.\n"
        "No worker with install() takes from queue 'celery' now. Start a worker with -Q celery, or correct "
        "the queue of the entry.\n"
        "It was sent as task t, was attempted 2 times.",
        known={"runs": (run(NIGHT, "unknown", attempts=2),)},
    ),
    "it expired unseen in a queue that no worker takes from": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00; what became of it is not recorded.\n"
        "No worker with install() takes from queue 'slow' now. Start a worker with -Q slow, or correct the "
        "queue of the entry.\n"
        "It was sent as task t.",
        fields={"options": {"queue": "slow"}},
        known={"runs": (run(NIGHT, "unknown", source="schedule"),)},
    ),
    "it expired unseen, and workers take from its queue now": History(
        "'nightly' was sent for 2026-03-02 03:00:00+01:00; what became of it is not recorded.\n"
        "By reports of the last minute, a worker with install() takes from queue 'celery'.\n"
        "It was sent as task t.",
        known={"runs": (run(NIGHT, "unknown", source="schedule"),), "queues": ("celery",)},
    ),
    "it was too late after a time without a leader": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'skip' an occurrence may be 5 s late, or a quarter of the time to the next.\n"
        "Nobody led: a leader last gave a sign of life at 2026-03-02 02:50:00+01:00, and at 2026-03-02 "
        "04:10:00+01:00 beat of beat-2 began to lead.",
        fields={"misfire": "skip"},
        known={"runs": (run(NIGHT, "skipped"), RAN), "record": (GAP,)},
    ),
    "a pause made it late": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'coalesce' only the latest of missed occurrences is sent.\n"
        "It is one of 2 occurrences in a row until 2026-03-02 03:00:00+01:00.\n"
        "It was paused by alice@desk (cli) at 2026-03-01 00:00:00+01:00: moving house.\n"
        "It was resumed by alice@desk (cli) at 2026-03-02 09:00:00+01:00.",
        known={
            "runs": (run(t(1, 3), "skipped", until=t(2, 3), count=2),),
            "changes": (change(t(2, 9), "resumed"), change(t(1, 0), "paused", note="moving house"), ADDED),
        },
    ),
    "it was later than its grace, and nothing says why": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'all' an occurrence may be 30 s late.\n"
        'It was edited by alice@desk (cli) at 2026-03-02 09:00:00+01:00: misfire default → "all".',
        fields={"misfire": {"policy": "all", "grace": 30}},
        known={
            "runs": (run(NIGHT, "skipped"),),
            "changes": (change(t(2, 9), "edited", ("misfire", None, '"all"')), ADDED),
        },
    ),
    "its policy was another then": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its misfire policy left it out.\n"
        "It was missed, and with 'all' missed occurrences are sent.\n"
        'It was edited by alice@desk (cli) at 2026-03-02 09:00:00+01:00: misfire "skip" → "all".',
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
        "The run before it: 2026-03-01 03:00:00+01:00 (running).",
        fields={"once": True},
        known={"runs": (run(NIGHT, "left out"), run(t(1, 3), "running", began_at=t(1, 3, 0, 1)))},
    ),
    "the run before has ended since": History(
        "'nightly' did not run for 2026-03-02 03:00:00+01:00: its once-lock was held.\n"
        "A task with its key was queued or running. Or such a task had ended in a worker without install(), "
        "and its lock had not expired.\n"
        "The run before it: 2026-03-01 03:00:00+01:00 (succeeded).",
        fields={"once": True},
        known={"runs": (run(NIGHT, "left out"), RAN)},
    ),
    "its once-lock was held for hours": History(
        "'nightly' did not run for 2026-03-02 03:07:00+01:00: its once-lock was held.\n"
        "A task with its key was queued or running. Or such a task had ended in a worker without install(), "
        "and its lock had not expired.\n"
        "It is one of 61 occurrences in a row until 2026-03-02 04:00:00+01:00.",
        at=t(2, 3, 7),
        fields={"once": True, "schedule": cron("* * * * *")},
        known={"runs": (run(t(2, 3), "left out", until=t(2, 4), count=61),)},
    ),
    "the first run of its minute was left out with those before it, and the second was sent": History(
        "'nightly' did not run for 2026-03-02 02:59:16+01:00: its once-lock was held.\n"
        "A task with its key was queued or running. Or such a task had ended in a worker without install(), "
        "and its lock had not expired.\n"
        "It is one of 3 occurrences in a row until 2026-03-02 02:59:16+01:00.\n"
        "This minute also has '2026-03-02 02:59:36+01:00 (succeeded)', '2026-03-02 02:59:56+01:00 (left out)'.",
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
        "'nightly' may have run at 2026-03-02 02:59:00+01:00; that is not recorded any more.\n"
        "This minute also has '2026-03-02 02:59:05+01:00', '2026-03-02 02:59:10+01:00', '2026-03-02 "
        "02:59:15+01:00', '2026-03-02 02:59:20+01:00', '2026-03-02 02:59:25+01:00' and 6 more.",
        at=t(2, 2, 59),
        fields={"schedule": every(5)},
        state={"nominal": t(2, 13, 7, 5), "last": t(2, 13, 7)},
    ),
    "it ran late after a time without a leader": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, began at 2026-03-02 04:10:02+01:00, took 1 min 2 s.\n"
        "Nobody led: a leader last gave a sign of life at 2026-03-02 02:50:00+01:00, and at 2026-03-02 "
        "04:10:00+01:00 beat of beat-2 began to lead.",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 4, 10, 2), seconds=62.0),), "record": (GAP,)},
    ),
    "it began while nobody led, which kept it from nothing": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, began at 2026-03-02 03:00:01+01:00, took 1 min 2 s.",
        known={"runs": (run(NIGHT, "succeeded", began_at=t(2, 3, 0, 1), seconds=62.0),), "record": (GAP,)},
    ),
    "it ran late after a pause": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, began at 2026-03-02 09:00:02+01:00.\n"
        "It was paused by alice@desk (cli) at 2026-03-01 12:00:00+01:00.\n"
        "It was resumed by alice@desk (cli) at 2026-03-02 09:00:00+01:00.",
        known={
            "runs": (run(NIGHT, "succeeded", began_at=t(2, 9, 0, 2)),),
            "changes": (change(t(2, 9), "resumed"), change(t(1, 12), "paused"), ADDED),
        },
    ),
    "an extra run of the same minute is another": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and failed.\n"
        "It was sent as task t.\n"
        "This minute also has '2026-03-02 03:00:30+01:00 (succeeded)'.",
        known={"runs": (run(t(2, 3, 0, 30), "succeeded"), run(NIGHT, "failed"))},
    ),
    "an extra run of the same minute is not that of the schedule": History(
        "'nightly' has not run yet for 2026-03-02 03:00:00+01:00: it has not been sent.\n"
        "The beat that leads, pid 812 on beat-1: its first due entry is 0 s late.\n"
        "This minute also has '2026-03-02 03:00:30+01:00 (succeeded)'.",
        state=MISSED,
        known={"runs": (run(t(2, 3, 0, 30), "succeeded"),)},
    ),
    "an extra run is told if its second is asked about": History(
        "'nightly' ran for 2026-03-02 03:00:30+01:00, and succeeded.\nIt was sent as task t.",
        at=t(2, 3, 0, 30),
        known={"runs": (run(t(2, 3, 0, 30), "succeeded"), run(NIGHT, "failed"))},
    ),
    "it was put off by its jitter": History(
        "'nightly' ran for 2026-03-02 03:00:00+01:00, and succeeded.\n"
        "It was sent as task t, took 1 min 2 s.\n"
        "Jitter puts off 2026-03-02 03:00:00+01:00 to 2026-03-02 03:06:17+01:00.",
        fields={"jitter": 600},
        known={"runs": (run(NIGHT, "succeeded", seconds=62.0),)},
    ),
}


@together("name", HISTORIES)
def test_what_became_of_it(name: str) -> None:
    assert "\n".join(HISTORIES[name].told()) == HISTORIES[name].says
