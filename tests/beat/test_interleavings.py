"""Hundreds of random changes from several threads against a beat that runs: no ghost, no stale rule."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from redbeat_lite import EntryExists, EntryNotFound, Scheduler, Schedules, every
from tests.beat.queue_history import QueueHistory
from tests.support.chance import draw_seed
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.waiting import eventually

#: The threads that make the changes, each to names of its own.
THREADS, NAMES = 4, 5

#: Seconds that the beat takes between what it has read and its commit, so that many a change comes in between.
SLOWNESS = 0.004

#: Longest pause between two changes of a thread, in seconds.
PACE = 0.02

#: Intervals in ms that share no multiples nearby, so that an occurrence tells which rule it follows.
INTERVALS = (50, 53, 59, 61, 67)


@contextmanager
def running(beat: Scheduler) -> Iterator[None]:
    """A thread that does nothing but turn the beat's loop."""
    stop, failures = threading.Event(), []

    def loop() -> None:
        while not stop.is_set():
            try:
                beat.run_due()
            except Exception as exc:
                failures.append(exc)
                return
            stop.wait(0.001)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


@dataclass
class Hand:
    """One thread's changes to entries of its own, and what is stored after each of them."""

    names: list[str]
    schedules: Schedules
    history: QueueHistory
    draw: random.Random
    rules: int = 0
    stored: dict[str, str] = field(default_factory=dict)  # name -> "on" or "paused"
    current: dict[str, int] = field(default_factory=dict)  # name -> number of its rule
    done: Counter[str] = field(default_factory=Counter)

    def work(self, changes: int) -> None:
        for _ in range(changes):
            name = self.draw.choice(self.names)
            if name not in self.stored:
                what = self.draw.choice(["add", "add", "add", "remove", "edit"])
            else:
                what = self.draw.choice(["add", "edit", "edit", "pause", "resume", "remove"])
            self.done[what] += 1
            is_refused = (name in self.stored) == (what == "add")
            refusal = EntryExists if what == "add" else EntryNotFound
            if what in ("pause", "resume") or not is_refused:
                getattr(self, what)(name)
            else:
                with pytest.raises(refusal):
                    getattr(self, what)(name)
            # Long enough that most entries live to fire between two changes, which is where they would go wrong.
            time.sleep(self.draw.random() * PACE)

    def add(self, name: str) -> None:
        interval = self.draw.choice(INTERVALS)
        with self.history.call("add", name, rule={"every": interval}) as call:
            entry = self.schedules.add(name, "t", every(interval / 1000), kwargs={"rule": self.rules + 1}, expires=None)
            call["rule"]["phase"] = entry.due
        self.stored[name] = "on"
        self.follows(name)

    def edit(self, name: str) -> None:
        interval = self.draw.choice(INTERVALS)
        with self.history.call("edit", name, rule={"every": interval}) as call:
            entry = self.schedules.update(name, schedule=every(interval / 1000), kwargs={"rule": self.rules + 1})
            assert entry.state is not None
            call["rule"]["phase"] = entry.state.nominal
        assert (entry.paused_note is not None) == (self.stored[name] == "paused")
        self.follows(name)

    def follows(self, name: str) -> None:
        self.rules += 1
        self.current[name] = self.rules

    def pause(self, name: str) -> None:
        with self.history.call("pause", name):
            self.schedules.pause(name)
        self.stored[name] = "paused"

    def resume(self, name: str) -> None:
        with self.history.call("resume", name):
            self.schedules.resume(name, catch_up=self.draw.random() < 0.5)
        self.stored[name] = "on"

    def remove(self, name: str) -> None:
        with self.history.call("remove", name):
            del self.schedules[name]
        del self.stored[name]


@needs_batches  # Else a message is out before its commit can refuse it.
@pytest.mark.parametrize("changes", [200, pytest.param(8000, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
def test_no_ghost_and_no_stale_rule(
    make_app: MakeApp,
    make_beat: MakeBeat,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    changes: int,
) -> None:
    seed = draw_seed()
    app = make_app()
    beat = make_beat(app)
    commit = beat.store.commit

    def late(*args: Any) -> Any:
        time.sleep(SLOWNESS)
        return commit(*args)

    monkeypatch.setattr(beat.store, "commit", late)
    history = QueueHistory(client)
    hands = [
        Hand(
            [f"{thread}-{number}" for number in range(NAMES)],
            Schedules(make_app()),
            history,
            random.Random(f"{seed}-{thread}"),
        )
        for thread in range(THREADS)
    ]
    failures: list[BaseException] = []

    def work(hand: Hand) -> None:
        try:
            hand.work(changes // THREADS)
        except BaseException as exc:
            failures.append(exc)

    with running(beat):
        threads = [threading.Thread(target=work, args=(hand,)) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        # Each entry that is left to fire goes on by its latest rule.
        start = history.length()
        on = {(name, hand.current[name]) for hand in hands for name, kept in hand.stored.items() if kept == "on"}
        eventually(
            lambda: on <= {(each.entry, each.kwargs["rule"]) for each in queued(client)[start:]},
            what="an occurrence of every entry by its latest rule",
        )
    history.check()
    assert sorted(Schedules(app)) == sorted(name for hand in hands for name in hand.stored)
    assert beat.store.quarantined() == {}
    assert client.llen("celery") > changes // 5, "the beat hardly ran between the changes"
    done = sum((hand.done for hand in hands), Counter[str]())
    assert min(done[what] for what in ("add", "edit", "pause", "resume", "remove")) > changes // 40, done
