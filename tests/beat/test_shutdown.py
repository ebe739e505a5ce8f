"""A beat that is to stop in the middle of its work, in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import EmbeddedService, Service

from redbeat_lite import Entry, Scheduler, Schedules, every, locks
from redbeat_lite.beat import stop
from tests.support.frozen import Clock
from tests.support.in_process import KEY, MakeApp, MakeBeat
from tests.support.messages import queued
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


class Stage:
    """Twenty due entries, and a beat that a signal stops in the middle of one of their publishes.

    Parameters:
        at: the number of that publish, from 1.
    """

    def __init__(self, app: Celery, clock: Clock, *, at: int, **fields: Any) -> None:
        self.app = app
        self.service = Service(app, scheduler_cls=Scheduler)
        self.stop: Callable[[], None] = partial(signal.raise_signal, signal.SIGTERM)
        self.schedules = Schedules(app)

        @app.task(shared=False, name="t")
        def task(number: int = 0) -> None: ...

        self._left = at
        self._publish = task.apply_async
        task.apply_async = self._apply_async  # type: ignore[method-assign]
        self.schedules.add_many(Entry(f"e{number:02}", "t", every(10), (number,), **fields) for number in range(20))
        clock.forward(10)

    def _apply_async(self, *args: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.stop()
        return self._publish(*args, **options)

    def run_counts(self) -> list[int]:
        return [entry.total_run_count for entry in self.schedules.values()]


@pytest.fixture
def plain_app(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app whose messages are sent one by one, and whose beat is never left for its slowness: it is this process."""
    monkeypatch.setattr(stop, "_PATIENCE", 1000)
    return make_app(redbeat_lite_dispatch="plain")


def test_messages_that_are_sent_are_committed_and_no_further_one_is_sent(
    plain_app: Celery, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    stage = Stage(plain_app, clock, at=8, once=True)
    stage.service.start()
    assert not client.exists(f"{KEY}leader")
    assert sum(stage.run_counts()) == 8
    sent = queued(client)
    assert len(sent) == 8
    assert {lock.task_id for lock in locks(plain_app).list()} >= {message.id for message in sent}
    make_beat(plain_app).run_due()
    messages = queued(client)
    assert len(messages) == len({message.id for message in messages}) == 20
    assert set(stage.run_counts()) == {1}


def test_a_failure_among_them_is_kept_with_its_entry(plain_app: Celery, clock: Clock) -> None:
    stage = Stage(plain_app, clock, at=8)
    publish = plain_app.tasks["t"].apply_async

    def refuses_the_fourth(args: Any, *rest: Any, **options: Any) -> Any:
        published = publish(args, *rest, **options)
        if args == [3]:
            raise LookupError("nope")
        return published

    plain_app.tasks["t"].apply_async = refuses_the_fourth
    stage.service.start()
    assert "nope" in (stage.schedules["e03"].last_error or "")
    assert sum(stage.run_counts()) == 7


def test_who_leads_no_more_commits_nothing(plain_app: Celery, clock: Clock, client: redis.Redis) -> None:
    stage = Stage(plain_app, clock, at=8)

    def frozen_and_replaced() -> None:
        client.hset(f"{KEY}leader", mapping={"token": "successor", "term": 99})
        signal.raise_signal(signal.SIGTERM)

    stage.stop = frozen_and_replaced
    stage.service.start()
    assert client.hget(f"{KEY}leader", "token") == b"successor"
    assert set(stage.run_counts()) == {0}


def test_a_beat_gives_the_signals_back_that_it_took(plain_app: Celery, clock: Clock) -> None:
    handlers = []
    stage = Stage(plain_app, clock, at=1)

    def noted() -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        signal.raise_signal(signal.SIGTERM)

    stage.stop = noted
    before = signal.getsignal(signal.SIGTERM)
    stage.service.start()
    assert handlers != [before]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_beat_that_another_thread_closes_gives_the_signals_back(make_app: MakeApp) -> None:
    before = signal.getsignal(signal.SIGTERM)
    beat = Scheduler(make_app(), max_interval=0.01)
    beat.tick()
    closing = Thread(target=beat.close)
    closing.start()
    closing.join()
    with pytest.raises(SystemExit):
        beat.tick()
    beat.close()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_beat_in_a_thread_stops_when_its_worker_says_so(make_app: MakeApp, client: redis.Redis) -> None:
    embedded = EmbeddedService(make_app(), scheduler_cls=Scheduler, thread=True)
    embedded.start()
    eventually(lambda: client.exists(f"{KEY}leader"), what="a leader")
    with Stopwatch() as watch:
        embedded.stop()
    watch.at_most(2)  # Celery lets such a beat wait for one second at most.
    assert not client.exists(f"{KEY}leader")
    embedded.join()


def test_a_stop_in_a_thread_takes_no_signals(make_app: MakeApp, client: redis.Redis) -> None:
    beat = Scheduler(make_app(), max_interval=0.01)
    before = signal.getsignal(signal.SIGTERM)

    def live() -> None:
        with suppress(SystemExit):
            beat.tick()

    thread = Thread(target=live)
    thread.start()
    thread.join()
    assert client.exists(f"{KEY}leader")
    assert signal.getsignal(signal.SIGTERM) == before
    beat.close()


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


def test_a_beat_that_hangs_while_it_is_built_says_so_before_it_leaves(caplog: pytest.LogCaptureFixture) -> None:
    stop.Stop()._do_last_work()
    assert "still busy" in caplog.text
