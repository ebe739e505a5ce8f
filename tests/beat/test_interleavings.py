"""Hundreds of random changes from several threads against a beat that runs: no ghost, no stale rule."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from redbeat_lite import EntryExists, EntryNotFound, Scheduler, Schedules, every
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import Message, queued
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
class Span:
    """A time, in lengths of the queue, during which one name had to behave in one way."""

    name: str
    start: int
    rule: int | None  # None: nothing may fire
    interval: int = 0
    phase: int = 0
    end: int | None = None


@dataclass
class Hand:
    """One thread's changes, and what it may expect after each of them."""

    names: list[str]
    schedules: Schedules
    length: Callable[[], int]
    draw: random.Random
    rules: int = 0
    current: dict[str, Span] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)  # name -> "on" or "paused"
    done: dict[str, int] = field(default_factory=dict)

    def work(self, changes: int) -> None:
        for _ in range(changes):
            name = self.draw.choice(self.names)
            if name not in self.stored:
                what = self.draw.choice(["add", "add", "add", "remove", "edit"])
            else:
                what = self.draw.choice(["add", "edit", "edit", "pause", "resume", "remove"])
            self.done[what] = self.done.get(what, 0) + 1
            getattr(self, what)(name)
            # Long enough that most entries live to fire between two changes, which is where they would go wrong.
            time.sleep(self.draw.random() * PACE)

    def add(self, name: str) -> None:
        interval = self.draw.choice(INTERVALS)
        try:
            entry = self.schedules.add(name, "t", every(interval / 1000), kwargs={"rule": self.rules + 1}, expires=None)
        except EntryExists:
            assert name in self.stored
        else:
            assert name not in self.stored
            self.stored[name] = "on"
            self.follows(name, interval, entry.due)

    def edit(self, name: str) -> None:
        interval = self.draw.choice(INTERVALS)
        try:
            entry = self.schedules.update(name, schedule=every(interval / 1000), kwargs={"rule": self.rules + 1})
        except EntryNotFound:
            assert name not in self.stored
            return
        assert name in self.stored
        assert (entry.paused_note is not None) == (self.stored[name] == "paused")
        assert entry.state is not None
        self.follows(name, interval, entry.state.nominal)

    def follows(self, name: str, interval: int, phase: int | None) -> None:
        self.rules += 1
        assert phase is not None
        span = Span(name, self.length(), self.rules, interval, phase)
        self.begin(span if self.stored[name] == "on" else Span(name, span.start, None, interval, phase))

    def pause(self, name: str) -> None:
        self.schedules.pause(name)
        self.stored[name] = "paused"
        old = self.current[name]
        self.begin(Span(name, self.length(), None, old.interval, old.phase))

    def resume(self, name: str) -> None:
        entry = self.schedules.resume(name, catch_up=self.draw.random() < 0.5)
        self.stored[name] = "on"
        old = self.current[name]
        self.begin(Span(name, self.length(), entry.kwargs["rule"], old.interval, old.phase))

    def remove(self, name: str) -> None:
        try:
            del self.schedules[name]
        except EntryNotFound:
            assert name not in self.stored
        else:
            del self.stored[name]
        self.begin(Span(name, self.length(), None))

    def begin(self, span: Span) -> None:
        self.current[span.name] = span
        self.spans.append(span)


def violations(spans: list[Span], messages: list[Message]) -> list[str]:
    """What was sent while it must not be, or by a rule that did not hold any more or not yet."""
    found = []
    latest: dict[str, Span] = {}
    starts = sorted(spans, key=lambda span: span.start)
    position = 0
    # A span starts once its change was acknowledged. What was sent while the change was under way may belong to either.
    for index, message in enumerate(messages):
        while position < len(starts) and starts[position].start <= index:
            latest[starts[position].name] = starts[position]
            position += 1
        span = latest.get(message.entry or "")
        if span is None:
            continue
        if message.kwargs["rule"] < (span.rule or 0) or (span.rule is None and not _is_later(message, span, spans)):
            found.append(f"message {index} of {message.entry} by rule {message.kwargs['rule']}, in {span}")
            continue
        at = round(message.scheduled_at.timestamp() * 1000) if message.scheduled_at else 0
        if message.kwargs["rule"] == span.rule and (at - span.phase) % span.interval:
            found.append(f"message {index} of {message.entry} at {at}, which is no occurrence of {span}")
    return found


def _is_later(message: Message, span: Span, spans: list[Span]) -> bool:
    """Whether a change that was under way, and acknowledged right after, had let the entry fire again."""
    mine = [each for each in spans if each.name == span.name]
    # By identity: two pauses in a row, with nothing sent between them, make spans that are equal.
    last = next(index for index, each in enumerate(mine) if each is span)
    following = mine[last + 1 :]
    return bool(following) and following[0].rule is not None and message.kwargs["rule"] == following[0].rule


@needs_batches  # Else a message is out before its commit can refuse it.
@pytest.mark.parametrize("changes", [200, pytest.param(8000, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
def test_no_ghost_and_no_stale_rule(
    make_app: MakeApp,
    make_beat: MakeBeat,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    changes: int,
) -> None:
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"SEED={seed}")
    app = make_app()
    beat = make_beat(app)
    commit = beat.store.commit

    def late(*args: Any) -> Any:
        time.sleep(SLOWNESS)
        return commit(*args)

    monkeypatch.setattr(beat.store, "commit", late)
    hands = [
        Hand(
            [f"{thread}-{number}" for number in range(NAMES)],
            Schedules(make_app()),
            lambda: int(client.llen("celery")),
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
        start = client.llen("celery")
        on = {(name, hand.current[name].rule) for hand in hands for name, kept in hand.stored.items() if kept == "on"}
        eventually(
            lambda: on <= {(each.entry, each.kwargs["rule"]) for each in queued(client)[start:]},
            what="an occurrence of every entry by its latest rule",
        )
    assert violations([span for hand in hands for span in hand.spans], queued(client)) == []
    assert sorted(Schedules(app)) == sorted(name for hand in hands for name in hand.stored)
    assert beat.store.quarantined() == {}
    assert client.llen("celery") > changes // 5, "the beat hardly ran between the changes"
    ids = [message.id for message in queued(client)]
    assert len(set(ids)) == len(ids)
    kinds = ("add", "edit", "pause", "resume", "remove")
    done = {what: sum(hand.done.get(what, 0) for hand in hands) for what in kinds}
    assert min(done.values()) > changes // 40, f"too few of one kind: {done}"
