"""Random freezes, thaws, pauses, resumptions, edits and flushes against a beat that runs: nothing frozen goes out."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from redbeat_lite import Entry, EntryNotFound, Scheduler, Schedules, at, every
from tests.beat.queue_history import QueueHistory
from tests.beat.test_interleavings import SLOWNESS, running
from tests.support.beats import KEYS
from tests.support.chance import draw_seed
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
class Hand:
    """What is done to the schedule, and what has to be so because of that."""

    schedules: Schedules
    history: QueueHistory
    client: redis.Redis
    knows: Callable[[str], bool]
    draw: random.Random
    #: Id of a freeze -> when it ends by itself.
    holding: dict[str, datetime] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)

    def do(self, what: str) -> None:
        self.done[what] += 1
        getattr(self, what)()
        time.sleep(self.draw.random() * 0.02)

    def freeze(self) -> None:
        length = timedelta(seconds=self.draw.uniform(0.05, LONGEST))
        with self.history.call("freeze") as call:
            made = self.schedules.freezes.add(**self.draw.choice(SELECTIONS), seconds=length)
            tags = {name: {**CONFIG.get(name, {}), **RUNTIME.get(name, {})}.get("tags", ()) for name in NAMES}
            entries = [Entry(name, "t", 60, tags=tags[name]) for name in NAMES]
            call["entries"] = [entry.name for entry in entries if made.selection.covers(entry)]
            call["freeze"] = made.id
        self.holding[made.id] = made.until
        self.history.note_end(made.id, made.until)

    def thaw(self) -> None:
        now = datetime.now(UTC)
        held = [id for id, until in self.holding.items() if until > now + timedelta(seconds=0.1)]
        if held:
            made = self.draw.choice(held)
            del self.holding[made]
            # On a machine that was busy meanwhile it may have come to its end.
            with suppress(EntryNotFound), self.history.call("thaw", freeze=made):
                self.schedules.freezes.thaw(made)

    def pause(self) -> None:
        name = self.draw.choice(NAMES)
        with self.history.call("pause", name):
            self.schedules.pause(name, "n")
        self.paused.add(name)

    def resume(self) -> None:
        name = self.draw.choice(NAMES)
        with self.history.call("resume", name):
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
        before = [each.until for each in self.schedules.freezes]
        with self.history.flush(self.paused):
            self.client.flushall()
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
    seed = draw_seed()
    app = make_app(beat_schedule=CONFIG)
    beat, draw = make_beat(app), random.Random(seed)
    commit = beat.store.commit

    def late(*args: Any) -> Any:
        time.sleep(SLOWNESS)
        return commit(*args)

    monkeypatch.setattr(beat.store, "commit", late)
    history = QueueHistory(client)
    hand = Hand(Schedules(make_app()), history, client, lambda id: _knows(beat, id), draw)
    with running(beat):
        eventually(lambda: client.hlen(KEYS.entries) == len(CONFIG), what="the configuration")
        hand.add()
        for number in range(interleavings):
            for what in draw.sample(WHAT, 4):
                hand.do(what)
            if number % 20 == 10:
                hand.do("flush")
        for each in [*hand.schedules.freezes]:
            with suppress(EntryNotFound), history.call("thaw", freeze=each.id):
                hand.schedules.freezes.thaw(each.id)
        start = history.length()
        on = {name for name in NAMES if name not in hand.paused and name != "r2"}  # whose message nobody takes
        eventually(lambda: on <= {each.entry for each in queued(client)[start:]}, what="all that is not paused goes on")
        eventually(lambda: (client.hget(KEYS.meta, "freezes") or b"").endswith(b"|[]"), what="the end is seen to")
    history.check()
    assert {name for name, entry in hand.schedules.items() if entry.paused_note is not None} == hand.paused
    assert beat.store.quarantined() == {}
    assert min(hand.done[what] for what in (*WHAT, "flush")) > interleavings // 40, hand.done


def _knows(beat: Scheduler, id: str) -> bool:
    return any(each.id == id for each in beat._parts.leadership.freezing.known.all)


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
