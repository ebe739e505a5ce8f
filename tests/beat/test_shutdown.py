"""What a beat does when it is told to stop in the middle of its work, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat_lite import Entry, Scheduler, Schedules, every, locks
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.waiting import eventually


class Interrupted:
    """An app with a task whose publish a signal interrupts, as Celery's handler takes it: close, then SystemExit."""

    def __init__(self, make_app: MakeApp, make_beat: MakeBeat, *, at: int, sent: bool, **conf: Any) -> None:
        self.app = make_app(**conf)
        self.schedules = Schedules(self.app)
        self.beat = make_beat(self.app)
        self.left = at

        @self.app.task(shared=False, name="t")
        def task(number: int = 0) -> None: ...

        publish = task.apply_async

        def interrupted(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not sent:
                self.stop()
            published = publish(*args, **options)
            if self.left == 0:
                self.stop()
            return published

        task.apply_async = interrupted  # type: ignore[method-assign]

    def stop(self) -> None:
        self.beat.close()
        raise SystemExit


@pytest.mark.parametrize("sent", [False, True])
def test_what_is_out_one_by_one_is_committed_but_for_the_message_under_way(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, sent: bool
) -> None:
    stage = Interrupted(make_app, make_beat, at=8, sent=sent, redbeat_lite_dispatch="plain")
    stage.schedules.add_many(Entry(f"e{number:02}", "t", every(10), (number,), once=True) for number in range(20))
    clock.forward(10)
    with pytest.raises(SystemExit):
        stage.beat.tick()
    assert not client.exists(stage.beat.keys.leader)
    assert sum(entry.total_run_count for entry in stage.schedules.values()) == 7
    out = queued(client)
    assert len(out) == (8 if sent else 7)
    assert {lock.task_id for lock in locks(stage.app).list()} >= {message.id for message in out[:7]}
    make_beat(stage.app).run_due()
    messages = queued(client)
    assert len({message.id for message in messages}) == 20
    assert len(messages) == (21 if sent else 20)
    assert {entry.total_run_count for entry in stage.schedules.values()} == {1}


def test_a_failure_among_them_is_kept_with_its_entry(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    stage = Interrupted(make_app, make_beat, at=8, sent=True, redbeat_lite_dispatch="plain")
    stage.schedules.add_many(Entry(f"e{number:02}", "t", every(10), (number,)) for number in range(20))
    apply_async = stage.app.tasks["t"].apply_async

    def refuses_the_fourth(args: Any, *rest: Any, **options: Any) -> Any:
        if args == [3]:
            raise LookupError("nope")
        return apply_async(args, *rest, **options)

    stage.app.tasks["t"].apply_async = refuses_the_fourth
    clock.forward(10)
    with pytest.raises(SystemExit):
        stage.beat.tick()
    assert "nope" in (stage.schedules["e03"].last_error or "")
    assert sum(entry.total_run_count for entry in stage.schedules.values()) == 7


@needs_batches
def test_a_batch_apart_that_has_arrived_is_committed(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_app().conf.broker_url.removesuffix("/0")
    app = make_app(broker_url=f"{url}/1", redbeat_lite_url=f"{url}/0")
    schedules, beat = Schedules(app), make_beat(app)
    schedules.add_many(Entry(f"e{number:02}", "t", every(10)) for number in range(20))
    clock.forward(10)

    def interrupted(*args: Any) -> None:
        beat.close()
        raise SystemExit

    monkeypatch.setattr(beat.store, "commit", interrupted)
    with pytest.raises(SystemExit):
        beat.tick()
    assert {entry.total_run_count for entry in schedules.values()} == {1}
    make_beat(app).run_due()
    with redis.Redis.from_url(f"{url}/1") as broker:
        assert broker.llen("celery") == 20


def test_a_signal_whose_exception_becomes_another_ends_the_loop_all_the_same(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = make_beat(make_app())

    def importing(*args: Any) -> None:
        beat.close()
        raise RuntimeError("Error calling __set_name__ on what is being imported") from SystemExit()

    monkeypatch.setattr(beat.store, "peek", importing)
    with pytest.raises(SystemExit):
        beat.tick()
    assert not client.exists(beat.keys.leader)


def _threads() -> int:
    """All of the process: Python knows nothing of those that were started without it."""
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_a_closed_beat_leaves_no_thread(make_app: MakeApp, clock: Clock) -> None:
    app = make_app()
    Schedules(app).add("a", "t", every(10))

    def live() -> None:
        beat = Scheduler(app)
        clock.forward(10)
        beat.run_due()
        beat.close()

    live()
    before = _threads()
    for _ in range(5):
        live()
    eventually(lambda: _threads() <= before, what="the end of each thread")


def test_who_leads_no_more_commits_nothing(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    stage = Interrupted(make_app, make_beat, at=8, sent=True, redbeat_lite_dispatch="plain")
    stage.schedules.add_many(Entry(f"e{number:02}", "t", every(10)) for number in range(20))
    clock.forward(10)
    stop = stage.stop

    def frozen_and_replaced() -> None:
        client.hset(stage.beat.keys.leader, mapping={"token": "successor", "term": 99})
        stop()

    stage.stop = frozen_and_replaced  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        stage.beat.tick()
    assert client.hget(stage.beat.keys.leader, "token") == b"successor"
    assert {entry.total_run_count for entry in stage.schedules.values()} == {0}
