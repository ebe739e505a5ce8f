"""A user who edits the schedule through the Python API while everything else goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import redis

from redbeat_lite import Schedules, at
from redbeat_lite.errors import EntryChanged, EntryExists, EntryNotFound
from tests.simulation.apps import MISFIRES, PERIODS, Setup, make_app
from tests.simulation.primitives import Waiters
from tests.simulation.story import Story
from tests.simulation.world import World

#: Names of the entries that the user adds.
NAMES = ("daily", "hourly", "mail", "report")

#: Answers that refuse a call, so that it has changed nothing.
REFUSALS = (EntryNotFound, EntryExists, EntryChanged)

#: Answers after which nobody knows whether the call has changed anything.
FAULTS = (redis.RedisError, OSError)

#: Seconds by which a freeze may end earlier or later than it says, where all clocks are right.
FREEZE_TOLERANCE_MS = 2000


class User:
    """Calls one method after the other, and notes each call in the history."""

    def __init__(self, world: World, setup: Setup, story: Story) -> None:
        self._world = world
        self._random = world.random
        self._story = story
        self._setup = setup
        self._app = make_app(world, setup)
        self._schedules = Schedules(self._app, actor="user")
        self.is_done = False
        self._waiters = Waiters(world)
        #: Names that have been added, and perhaps not removed since.
        self._added: dict[str, None] = {}

    def hurry(self) -> None:
        """Call the next method at once, so that it meets what happens now."""
        self._waiters.wake_all()

    def run(self) -> None:
        """Edit until the calm begins."""
        acts = [self._add, self._add, self._edit, self._edit, self._edit]
        acts += [self._pause, self._resume, self._resume, self._remove, self._freeze]
        while not self.is_done:
            self._waiters.wait(self._random.expovariate(1 / 4.0))
            if not self.is_done:
                self._random.choice(acts)()

    # -- acts --------------------------------------------------------------------------------------

    def _any_name(self) -> str:
        return self._random.choice((*self._added, *self._setup.config))

    def _own_name(self) -> str:
        """The name of an entry that is there, as a rule."""
        names = list(self._added) if self._random.random() < 0.9 else []
        return self._random.choice(names or NAMES)

    def _add(self) -> None:
        name = self._random.choice(NAMES)
        misfire = self._random.choice(MISFIRES)
        max_runs = self._random.choice((None, None, 1, 3))
        self._added[name] = None
        schedule, rule = self._rule()
        self._call(
            "add",
            name,
            lambda: self._schedules.add(name, "project.run", schedule, misfire=misfire, max_runs=max_runs),
            rule=rule,
            misfire=misfire,
            max_runs=max_runs,
        )

    def _rule(self) -> tuple[Any, dict[str, Any]]:
        """Draw a schedule, mostly an interval; return it with the same in the form of the history."""
        if self._random.random() < 0.2:
            instant = self._story.now + self._random.randint(12_000, 30_000)
            return at(datetime.fromtimestamp(instant / 1000, UTC)), {"at": [instant]}
        period = self._random.choice(PERIODS)
        return float(period), {"every": period * 1000}

    def _edit(self) -> None:
        name = self._own_name()
        period = self._random.choice(PERIODS)
        try:
            entry = self._schedules[name]
        except (*REFUSALS, *FAULTS):
            return
        details: dict[str, Any] = {"rule": {"every": period * 1000}, "misfire": entry.misfire.policy}
        details["max_runs"] = entry.max_runs
        version = entry.version if self._random.random() < 0.5 else None
        if version is not None:
            details["if_version"] = version

        def update() -> dict[str, Any]:
            changed = self._schedules.update(name, if_version=version, schedule=float(period))
            return {"version": changed.version}

        self._call("edit", name, update, **details)

    def _pause(self) -> None:
        name = self._any_name()
        self._call("pause", name, lambda: self._schedules.pause(name))

    def _resume(self) -> None:
        name = self._any_name()
        self._call("resume", name, lambda: self._schedules.resume(name))

    def _remove(self) -> None:
        name = self._own_name()
        self._added.pop(name, None)
        self._call("remove", name, lambda: self._schedules.remove(name))

    def _freeze(self) -> None:
        seconds = self._random.uniform(1.0, 10.0)
        record = self._call("freeze", None, lambda: self._schedules.freezes.add(seconds=seconds))
        if record["ok"] is not False:
            until = record["began"] + round(1000 * seconds)
            began, returned = until - FREEZE_TOLERANCE_MS, until + FREEZE_TOLERANCE_MS
            self._story.record(kind="call", act="thaw", began=began, returned=returned, ok=True)

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, act: str, entry: str | None, call: Callable[[], Any], **details: Any) -> dict[str, Any]:
        record: dict[str, Any] = {"kind": "call", "act": act, "began": self._story.now, "returned": None, "ok": None}
        if entry is not None:
            record["entry"] = entry
        record |= details
        # The record stands where the call began, also if the process does not live to see its end.
        self._story.records.append(record)
        self._story.counts[act] += 1
        try:
            answer = call()
            record["ok"] = True
            record |= answer if isinstance(answer, dict) else {}
        except REFUSALS as exc:
            record["ok"] = False
            self._story.tell(f"{act} {entry} is refused: {type(exc).__name__}")
        except FAULTS as exc:
            self._story.tell(f"{act} {entry} is unanswered: {type(exc).__name__}")
            return record
        except Exception as exc:
            self._story.violate(f"{act} of {entry!r} raised {type(exc).__name__}: {exc}")
            return record
        record["returned"] = self._story.now
        if record["ok"]:
            self._story.tell(f"{act} {entry} {details.get('rule', '')}".rstrip())
        return record
