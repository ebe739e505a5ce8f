"""A user who edits the schedule through the Python API while everything else goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import redis

from redbeat_lite import Misfire, Run, Schedules
from redbeat_lite._base.errors import EntryChanged, EntryExists, EntryNotFound, InvalidEntry
from tests.simulation.apps import Setup, make_app
from tests.simulation.bodies import Bodies
from tests.simulation.holds import NEVER_BEGAN, NEVER_ENDS, End, Holds
from tests.simulation.rules import Rule, daily, instant, interval
from tests.simulation.story import Story
from tests.simulation.world import Waiters, World
from tests.support.audit import Record
from tests.support.audit.history import FOREVER

#: Names of the entries that the user adds.
NAMES = ("daily", "hourly", "mail", "report")

#: Answers that refuse a call, so that it has changed nothing.
REFUSALS = (EntryNotFound, EntryExists, EntryChanged)

#: Answers after which nobody knows whether the call has changed anything.
FAULTS = (redis.RedisError, OSError)

#: Milliseconds by which a freeze may end earlier or later than it says, where all clocks are right.
FREEZE_TOLERANCE_MS = 2000

#: Milliseconds after which a request arrives that was given up, at most.
LATEST_MS = 20_000

#: Milliseconds for which the server keeps the reply to an edit.
_KEPT_MS = 60_000

#: Faults by which an entry changes though nobody changes it.
_LOSSES_OF_DATA = {"empty", "fail over"}

_HOUR = 3600

#: What a user may say about missed runs. Seconds of grace are longer than a take-over by a stand-by lasts.
MISFIRES = (
    Misfire("coalesce"),
    Misfire("coalesce", grace=40),
    Misfire("skip"),
    Misfire("skip", grace=20),
    Misfire("all"),
    Misfire("all", limit=3),
    Misfire("all", grace=60),
)

#: How likely an edit gives an entry its once-lock, or takes it away.
_CHANGES_LOCK = 0.3

#: Seconds between two calls, on average: in a storm, and while it is calm.
_PAUSE = 2.5
_CALM_PAUSE = 12.0


class User:
    """Calls one method after the other, and notes each call in the history."""

    def __init__(self, world: World, setup: Setup, story: Story, bodies: Bodies) -> None:
        self._world = world
        self._story = story
        self._setup = setup
        self._app = make_app(world, setup)
        bodies.register(self._app)
        self.schedules = Schedules(self._app, actor="user")
        self._random = world.random_for("user")
        self.is_calm = False
        self.is_done = False
        self._waiters = Waiters(world)
        #: Names that have been added, and perhaps not removed since.
        self._added: dict[str, None] = {}
        #: The rule of each entry, as far as this user knows.
        self._rules: dict[str, Rule] = dict(setup.config)
        #: Instants in epoch ms at which something that was asked for is due.
        self.instants: list[int] = []
        self._calls = 0
        #: Freezes, and pauses with an end, that may hold -> the entry; ``*`` is everything.
        self._freezes: dict[str, str] = {}
        #: What the record of runs said at the end.
        self.runs: list[Run] = []
        #: When a call about an entry has got no answer, epoch ms: it may arrive long after that.
        self._unanswered: dict[str, int] = {}
        #: Names that no call can have added since they were removed.
        self._absent = set(NAMES)
        self._holds = Holds()
        self._holds_made = 0

    def hurry(self) -> None:
        """Call the next method at once, so that it meets what happens now."""
        self._waiters.wake_all()

    def run(self) -> None:
        """Edit until somebody says that it is enough."""
        while not self.is_done:
            self._calls += 1
            name = f"call {self._calls}"
            # Each call draws from a source of its own, so it stays what it is if others are left out.
            self._random = self._world.random_for(name)
            self._waiters.wait(self._random.expovariate(1 / (_CALM_PAUSE if self.is_calm else _PAUSE)))
            if not self.is_done and self._story.happens(name):
                self._draw_act(self._random)()

    def _draw_act(self, random: Random) -> Callable[[], object]:
        acts = [self._add] * 3 + [self._edit] * 3 + [self._freeze] + [self._resume] * 2 + [self._thaw] * 2
        acts += [self._change_backfill, self._pause, self._remove, self._freeze, self._backfill, self._backfill]
        return random.choice(acts)

    # -- acts --------------------------------------------------------------------------------------

    def _any_name(self) -> str:
        return self._random.choice((*self._added, *self._setup.config) or NAMES)

    def _own_name(self) -> str:
        """The name of an entry that is there, as a rule."""
        names = list(self._added) if self._random.random() < 0.9 else []
        return self._random.choice(names or NAMES)

    def _add(self) -> None:
        name = self._random.choice(NAMES)
        misfire = self._random.choice(MISFIRES)
        max_runs = self._random.choice((None, None, 1, 3))
        self._added[name] = None
        rule = self._draw_rule()
        once = self._setup.once
        task = once.task(name, self._setup.work.draw_task(self._random))
        fields = {"misfire": misfire, "max_runs": max_runs, "jitter": self._setup.jitter, **once.fields(name)}
        record = self._call(
            "add",
            name,
            lambda: self.schedules.add(name, task, rule.schedule, **fields),
            **_record_of(rule, misfire, max_runs),
        )
        if name in self._absent:
            self._check_refusal(record)
        self._absent.discard(name)
        self._note_rule(name, rule, record)

    def _draw_rule(self) -> Rule:
        """Draw a schedule, mostly an interval; for seeds of days mostly times of the day."""
        if self._random.random() < 0.2:
            least, most = (600, 48 * _HOUR) if self._setup.is_long else (12, 30)
            return instant(self._story.now + self._random.randint(1000 * least, 1000 * most))
        if self._setup.is_long and self._random.random() < 0.7:
            return daily(self._random, self._setup.zone, self._setup.start)
        return interval(self._random.choice(self._setup.periods))

    def _note_rule(self, name: str, rule: Rule, record: Record) -> None:
        if record["ok"] is not False:
            self._rules[name] = rule
            self.instants += rule.record.get("at", ())

    def _edit(self) -> None:
        name = self._own_name()
        rule = self._draw_rule()
        try:
            entry = self.schedules[name]
        except (*REFUSALS, *FAULTS):
            return
        details = _record_of(rule, entry.misfire, entry.max_runs)
        version = entry.version if self._random.random() < 0.5 else None
        if version is not None:
            details["if_version"] = version
        fields: dict[str, Any] = {"schedule": rule.schedule}
        once = self._setup.once.of.get(name)
        if once is not None and once.is_removable and self._random.random() < _CHANGES_LOCK:
            fields["once"] = None if entry.once is not None else once.once

        def update() -> dict[str, Any]:
            changed = self.schedules.update(name, if_version=version, **fields)
            return {"version": changed.version}

        record = self._call("edit", name, update, **details)
        if version is not None and name in NAMES:
            self._check_refusal(record)
        self._note_rule(name, rule, record)

    def _pause(self) -> None:
        name = self._any_name()
        self._pause_for_good(name)
        self._hold_again(name)

    def _pause_for_good(self, name: str) -> None:
        """Pause an entry until somebody resumes it."""
        self._note_hold(name, self._call("pause", name, lambda: self.schedules.pause(name)), NEVER_ENDS)

    def _resume(self) -> None:
        name = self._any_name()
        record = self._call("resume", name, lambda: self.schedules.resume(name))
        self._note_thaw(name, record)
        self._check_holds(name)

    def _remove(self) -> None:
        name = self._own_name()
        self._added.pop(name, None)
        record = self._call("remove", name, lambda: self.schedules.remove(name))
        self._note_thaw(name, record)
        if name in NAMES and record["ok"]:
            self._absent.add(name)

    def _check_refusal(self, record: Record) -> None:
        """No call is refused because somebody else has changed the entry: nobody else does."""
        name = record["entry"]
        is_sure = record["began"] > self._unanswered.get(name, 0) + LATEST_MS
        if record["ok"] is False and is_sure and not _LOSSES_OF_DATA & set(self._setup.faults):
            self._story.violate("refused", f"{record['act']} of {name} was refused, and nobody else had changed it")

    # -- freezes -----------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """Freeze everything, or pause one entry for a time."""
        seconds = self._draw_length()
        name = self._any_name() if self._random.random() < 0.5 else "*"
        self.freeze(name, seconds)
        self._hold_again(name)

    def _draw_length(self) -> float:
        """Draw how many seconds a freeze or a pause lasts."""
        seconds = self._random.uniform(1.0, 10.0)
        if self._setup.is_long and self._random.random() < 0.5:
            seconds *= 3 * _HOUR
        return seconds

    def _hold_again(self, name: str) -> None:
        """Freeze or pause what is held already, or hold it in the other way, too, and end one of both; or end it soon.

        Parameters:
            name: of the entry; ``*`` is everything.
        """
        if self._random.random() < 0.5 or not self._story.happens(f"again after call {self._calls}"):
            return
        self._world.wait(self._random.uniform(0.0, 2.0))
        if self.is_done:
            return
        other = self._any_name() if name == "*" else "*"
        acts: list[Callable[[], object]] = [
            lambda: self.freeze(name, self._draw_length()),
            lambda: self._hold_otherwise(name, other),
            lambda: self._end_hold(name),
        ]
        if name != "*":
            acts += [acts[0], lambda: self._pause_for_good(name)]
        self._random.choice(acts)()
        self._check_holds(other if name == "*" else name)

    def _hold_otherwise(self, name: str, other: str) -> None:
        """Freeze everything where an entry is paused, or the other way round, and end one of both."""
        self.freeze(other, self._draw_length())
        self._world.wait(self._random.uniform(0.0, 2.0))
        self._check_holds(self._any_name() if name == "*" else name)
        self._end_hold(self._random.choice((name, other)))

    def _check_holds(self, name: str) -> None:
        """What the schedule says of the pause of an entry, and of the freeze, is what was asked for."""
        if _LOSSES_OF_DATA & set(self._setup.faults):
            return
        try:
            entry, freeze = self.schedules[name], self.schedules.frozen()
        except (*REFUSALS, *FAULTS):
            return
        paused = FOREVER if entry.paused_until is None else _epoch_ms(entry.paused_until)
        frozen = None if freeze is None else _epoch_ms(freeze.until)
        for what, until in ((name, None if entry.paused_note is None else paused), ("*", frozen)):
            complaint = self._holds.complaint(what, until, self._story.now)
            if complaint:
                self._story.violate("holds", f"{what} {complaint}")

    def _note_hold(self, name: str, record: Record, end: End) -> None:
        """Note what a call says that decides when a hold ends, or when it ends at the earliest if it has an end."""
        is_refused_freeze = name == "*" and not record["ok"] and end != NEVER_BEGAN
        if record["returned"] is None or record["ok"] is None or is_refused_freeze:
            self._holds.forget(name, self._story.now + LATEST_MS)
        elif end in (NEVER_BEGAN, NEVER_ENDS) and record["ok"]:
            self._holds.put(name, end, record["began"])
        elif end not in (NEVER_BEGAN, NEVER_ENDS) and record["ok"]:
            self._holds.add(name, end)

    def forget_hold(self, name: str) -> None:
        """Note that nobody knows any more whether an entry is held: it was removed, or stored again."""
        self._holds.forget(name, self._story.now)

    def freeze(self, name: str, seconds: float) -> None:
        """Pause an entry for a time, or freeze everything, which is ``*``.

        Runs that were held are sent at the end of either, so a pause with an end is a freeze of its entry.
        """
        self._holds_made += 1
        key = f"freeze {self._holds_made}"
        until = self._story.now + round(1000 * seconds)
        details: dict[str, Any] = {"freeze": key, "until": until}
        if name != "*":
            details["entries"] = [name]

        def freeze() -> None:
            if name == "*":
                self.schedules.freeze(seconds)
            elif not self.schedules.select(name).pause(seconds=seconds):
                raise EntryNotFound  # Nothing was paused.

        record = self._call("freeze", None, freeze, **details)
        self._note_hold(name, record, End(until - 1, self._story.now + round(1000 * seconds) + 1))
        if record["ok"] is not False:
            began, returned = until - FREEZE_TOLERANCE_MS, until + FREEZE_TOLERANCE_MS
            self._story.record(kind="call", act="thaw", began=began, returned=returned, ok=True, freeze=key)
            self._freezes[key] = name
            self.instants.append(until)

    def _thaw(self) -> None:
        """End a freeze, or a pause with an end, before its time."""
        if not self._freezes:
            return
        self._end_hold(self._freezes[self._random.choice(list(self._freezes))])

    def _end_hold(self, name: str) -> None:
        """End the freezes, or resume an entry with the runs that it has missed."""
        if name == "*":
            record = self._call("thaw", None, self.schedules.thaw, freeze="")
        else:
            record = self._call("resume", name, lambda: self.schedules.resume(name, catch_up=True), catch_up=True)
        self._note_thaw(name, record)
        self._check_holds(self._any_name() if name == "*" else name)

    def _note_thaw(self, name: str, call: Record) -> None:
        """Note that a call may have ended the freezes of an entry, or those of everything."""
        self._note_hold(name, call, NEVER_BEGAN)
        for key in [key for key, frozen in self._freezes.items() if frozen == name]:
            if call["ok"]:
                del self._freezes[key]
            times = {field: call[field] for field in ("began", "returned", "ok")}
            self._story.record(kind="call", act="thaw", freeze=key, **times)

    # -- backfills ---------------------------------------------------------------------------------

    def _backfill(self) -> None:
        """Have runs of the past sent, whether they were sent in time or not."""
        name = self._any_name()
        end = self._story.now - self._random.choice((0, 0, 2000))
        most = 3 * 24 * _HOUR if self._setup.is_long else 90
        start = end - round(1000 * self._random.uniform(most / 10, most))
        rate = self._random.choice((2, 20, 1000))
        again = self._random.choice((0, 0, 1))
        self.start_backfill(name, start, end, rate, again)

    def start_backfill(self, name: str, start: int, end: int, rate: int = 1000, again: int = 0) -> None:
        """Have runs of a span sent.

        Parameters:
            start, end: of the span, epoch ms.
            rate: runs a second.
            again: whether runs are sent that were sent in time, too.
        """

        def backfill() -> dict[str, Any]:
            started = self.schedules.backfills.start(
                name, _instant(start), _instant(end), max_active=None, rate=rate, again=again
            )
            return {"backfill": started.id, "total": started.total}

        # The start is refused where the span holds no run, or another backfill of the entry goes on.
        details = {"start": start, "end": end, "again": again}
        self._call("backfill", name, backfill, refusals=(InvalidEntry,), **details)

    def _change_backfill(self) -> None:
        """Pause, resume or cancel a backfill that goes on."""
        backfills = self.schedules.backfills
        try:
            running = [backfill for backfill in backfills if not backfill.ended]
        except FAULTS:
            return
        if not running:
            return
        backfill = self._random.choice(running)
        change = self._random.choice((backfills.pause, backfills.resume, backfills.resume, backfills.cancel))
        act = f"{change.__name__}-backfill"
        self._call(act, backfill.name, lambda: change(backfill.id), backfill=backfill.id)

    def report(self) -> None:
        """Note how far each backfill has come, and what the record of runs says."""
        self._report_backfills()
        if self._setup.work.workers:
            self._report_runs()

    def _report_runs(self) -> None:
        for name in self._rules:
            with suppress(EntryNotFound):
                self.runs += self.schedules.runs(name)

    def _report_backfills(self) -> None:
        for backfill in self.schedules.backfills:
            self._story.record(
                kind="backfill",
                entry=backfill.name,
                backfill=backfill.id,
                start=_epoch_ms(backfill.start),
                end=_epoch_ms(backfill.end),
                total=backfill.total,
                sent=backfill.sent,
                paused=backfill.paused,
                ended=backfill.ended,
            )

    # -- calls -------------------------------------------------------------------------------------

    def _call(
        self,
        act: str,
        entry: str | None,
        call: Callable[[], Any],
        refusals: tuple[type[Exception], ...] = (),
        **details: Any,
    ) -> Record:
        record: Record = {"kind": "call", "act": act, "began": self._story.now, "returned": None, "ok": None}
        if entry is not None:
            record["entry"] = entry
        record |= details
        # The record stands where the call began, also if the process does not live to see its end.
        self._story.records.append(record)
        self._story.counts[act] += 1
        what = f"{act} {entry or ''} (call {self._calls})"
        refused: tuple[type[Exception], ...] = (*REFUSALS, *refusals)
        try:
            answer = call()
            record["ok"] = True
            record |= answer if isinstance(answer, dict) else {}
        except refused as exc:
            self._story.tell(f"{what} is refused: {type(exc).__name__}")
            if self._story.now < record["began"] + _KEPT_MS:
                record["ok"] = False
            elif entry is not None:
                # A machine that slept in the middle of the call asks again, and the server does not keep the reply
                # any more: perhaps the first try has changed the entry.
                self._unanswered[entry] = self._story.now
        except FAULTS as exc:
            self._story.tell(f"{what} is unanswered: {type(exc).__name__}")
            if entry is not None:
                self._unanswered[entry] = self._story.now
            return record
        except Exception as exc:
            self._story.violate("calls", f"{act} of {entry!r} raised {type(exc).__name__}: {exc}")
            return record
        record["returned"] = self._story.now
        if record["ok"]:
            self._story.tell(f"{what} {_words(record)}".rstrip())
        return record


def _record_of(rule: Rule, misfire: Misfire, max_runs: int | None) -> Record:
    """A definition as the history has it."""
    grace = None if misfire.grace is None else round(1000 * float(misfire.grace))  # type: ignore[arg-type]
    return {
        "rule": rule.record,
        "words": rule.text,
        "misfire": misfire.policy,
        "grace": grace,
        "limit": misfire.limit,
        "max_runs": max_runs,
    }


def _words(record: Record) -> str:
    """What a call was about, for the story."""
    parts = [str(record["words"])] if "words" in record else []
    fields = (
        "misfire",
        "grace",
        "limit",
        "max_runs",
        "if_version",
        "version",
        "total",
        "backfill",
        "freeze",
        "entries",
    )
    parts += [f"{field} {record[field]}" for field in fields if record.get(field) is not None]
    return ", ".join(parts)


def _instant(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


def _epoch_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
