"""Random freezes, thaws, pauses, resumptions, edits and flushes against a beat that runs: nothing frozen goes out."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from redbeat_lite import Entry, EntryNotFound, Freeze, Scheduler, Schedules, at, every
from tests.beat.test_interleavings import SLOWNESS, running
from tests.support.beats import KEYS
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

CONFIG = {
    f"c{n}": {"task": "t", "schedule": 0.05, "misfire": misfire, "tags": tags, "expires": None}
    for n, (misfire, tags) in enumerate([("all", []), ("coalesce", ["x"]), ("skip", ["x", "y"])])
}
RUNTIME: dict[str, dict[str, Any]] = {"r0": {"misfire": "all"}, "r1": {"tags": ["x"]}, "r2": {"once": True}}
NAMES = (*CONFIG, *RUNTIME)

#: What is frozen, and longest for how long, in seconds.
SELECTIONS: tuple[dict[str, str], ...] = ({}, {"name": "c*"}, {"name": "r1"}, {"tag": "x"}, {"task": "t"}, {"tag": "y"})
LONGEST = 0.3

EPOCH = datetime.fromtimestamp(0, UTC)
WHAT = ("freeze", "freeze", "freeze", "thaw", "thaw", "pause", "resume", "edit")


@dataclass
class Span:
    """In lengths of the queue, when an entry was frozen: from the return of the call on, and surely until."""

    name: str
    start: int
    end: int


@dataclass
class Hand:
    """What is done to the schedule, and what has to be so because of that."""

    schedules: Schedules
    client: redis.Redis
    knows: Callable[[str], bool]
    draw: random.Random
    holding: dict[str, Freeze] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def do(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1
        getattr(self, what)()
        time.sleep(self.draw.random() * 0.02)
        self.look()

    def length(self) -> int:
        return int(self.client.llen("celery"))

    def is_frozen(self, name: str, at: datetime) -> bool:
        tags = {**CONFIG.get(name, {}), **RUNTIME.get(name, {})}.get("tags", ())
        held = (each for each in self.holding.values() if each.until > at)
        return any(each.selection.covers(Entry(name, "t", 60, tags=tags)) for each in held)

    def look(self) -> None:
        """What is frozen still has been so until now."""
        length, now = self.length(), datetime.now(UTC)
        for name, span in [*self.spans.items()]:
            if self.is_frozen(name, now):
                span.end = length
            else:
                self.judge([self.spans.pop(name)])

    def judge(self, spans: list[Span]) -> None:
        sent = [each.entry for each in queued(self.client)]
        self.violations += [f"{span}: sent" for span in spans if span.name in sent[span.start : span.end]]

    def freeze(self) -> None:
        length = timedelta(seconds=self.draw.uniform(0.05, LONGEST))
        made = self.schedules.freezes.add(**self.draw.choice(SELECTIONS), seconds=length)
        self.look()  # What another freeze held has had a gap if that ended before this one was there.
        start = self.length()
        self.holding[made.id] = made
        for name in NAMES:
            if self.is_frozen(name, datetime.now(UTC)):
                self.spans.setdefault(name, Span(name, start, start))

    def thaw(self) -> None:
        self.look()
        now = datetime.now(UTC)
        held = [each for each in self.holding.values() if each.until > now + timedelta(seconds=0.1)]
        if held:
            made = self.draw.choice(held)
            del self.holding[made.id]
            with suppress(EntryNotFound):  # it has come to its end on a machine that was busy meanwhile
                self.schedules.freezes.thaw(made.id)

    def pause(self) -> None:
        name = self.draw.choice(NAMES)
        self.schedules.pause(name, "n")
        self.paused.add(name)

    def resume(self) -> None:
        name = self.draw.choice(NAMES)
        self.schedules.resume(name, catch_up=self.draw.random() < 0.5)
        self.paused.discard(name)

    def edit(self) -> None:
        entry = self.schedules.update(
            self.draw.choice([*RUNTIME]), schedule=every(self.draw.choice((0.05, 0.061, 0.07)))
        )
        assert (entry.paused_note is not None) == (entry.name in self.paused)

    def flush(self) -> None:
        for each in self.schedules.freezes:
            eventually(lambda id=each.id: self.knows(id), what="the beat knows it")  # type: ignore[misc]
        self.look()
        self.judge([*self.spans.values()])
        before = [each.until for each in self.schedules.freezes]
        self.client.flushall()
        for span in self.spans.values():
            span.start = span.end = 0
        eventually(lambda: self.client.hlen(KEYS.entries) == len(CONFIG) and self.back(before), what="it is back")
        self.paused.clear()
        self.add()

    def back(self, before: list[datetime]) -> bool:
        """What had not ended is there again; what ended beside the flush may have been let go of before it."""
        return bool(self.client.hexists(KEYS.meta, "freezes")) or max(before, default=EPOCH) <= datetime.now(UTC)

    def add(self) -> None:
        for name, fields in RUNTIME.items():
            self.schedules.add(name, "t", every(0.05), expires=None, **fields)


@needs_batches
@pytest.mark.parametrize("interleavings", [20, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_nothing_that_is_frozen_goes_out_and_pauses_stay(
    make_app: MakeApp,
    make_beat: MakeBeat,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    interleavings: int,
) -> None:
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"SEED={seed}")
    app = make_app(beat_schedule=CONFIG)
    beat, draw = make_beat(app), random.Random(seed)
    commit = beat.store.commit

    def late(*args: Any) -> Any:
        time.sleep(SLOWNESS)
        return commit(*args)

    monkeypatch.setattr(beat.store, "commit", late)
    hand = Hand(Schedules(make_app()), client, lambda id: _knows(beat, id), draw)
    with running(beat):
        eventually(lambda: client.hlen(KEYS.entries) == len(CONFIG), what="the configuration")
        hand.add()
        for number in range(interleavings):
            for what in draw.sample(WHAT, 4):
                hand.do(what)
            if number % 20 == 10:
                hand.do("flush")
            assert not hand.violations
        hand.judge([*hand.spans.values()])
        for each in [*hand.schedules.freezes]:
            with suppress(EntryNotFound):
                hand.schedules.freezes.thaw(each.id)
        start = hand.length()
        on = {name for name in NAMES if name not in hand.paused and name != "r2"}  # whose message nobody takes
        eventually(lambda: on <= {each.entry for each in queued(client)[start:]}, what="all that is not paused goes on")
        eventually(lambda: (client.hget(KEYS.meta, "freezes") or b"").endswith(b"|[]"), what="the end is seen to")
    assert not hand.violations
    assert {name for name, entry in hand.schedules.items() if entry.paused_note is not None} == hand.paused
    assert beat.store.quarantined() == {}
    ids = [message.id for message in queued(client)]
    assert len(set(ids)) == len(ids)
    assert min(hand.done.get(what, 0) for what in (*WHAT, "flush")) > interleavings // 40, hand.done


def _knows(beat: Scheduler, id: str) -> bool:
    return any(each.id == id for each in beat._terms.freezing.known.all)


@pytest.fixture
def ticking(inner_beat: Scheduler, client: redis.Redis) -> Iterator[None]:
    """A beat that sleeps between its turns, as it does by itself."""
    over: list[bool] = []

    def loop() -> None:
        while not over:
            inner_beat.tick()

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    over.append(True)
    client.publish(KEYS.wake, "head")
    thread.join()


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("name", ["a", "*"])
def test_the_end_and_a_thaw_are_kept_within_a_second(schedules: Schedules, client: redis.Redis, name: str) -> None:
    made = schedules.freezes.add(name, seconds=0.4)
    schedules.add("a", "t", at(datetime.now(UTC) + timedelta(seconds=0.1)))
    with Stopwatch() as watch:
        eventually(lambda: client.llen("celery") == 1, what="it is sent")
    assert datetime.now(UTC) >= made.until
    watch.at_most(0.4 + 1)
    made = schedules.freezes.add(name.replace("a", "b"), seconds=1000)
    schedules.add("b", "t", at(datetime.now(UTC) + timedelta(seconds=0.05)))
    due = (made.until if name == "a" else schedules["b"].next_run_at, datetime.now(UTC) + timedelta(seconds=0.05))
    eventually(lambda: schedules["b"].next_run_at == due[0] and datetime.now(UTC) > due[1], what="it waits")
    with Stopwatch() as watch:
        schedules.freezes.thaw(made.id)
        eventually(lambda: client.llen("celery") == 2, what="it is sent")
    watch.at_most(1)
