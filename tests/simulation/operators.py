"""Somebody who adds entries that start pipelines, ends and resumes their runs, and starts some by hand or again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redbeat_lite import PipelineRun, Run, Schedules
from redbeat_lite._base.errors import EntryNotFound, InvalidEntry
from redbeat_lite._base.times import from_ms
from tests.simulation.apps import make_app
from tests.simulation.jobs import FAULTS, REFUSALS
from tests.simulation.users import REFUSALS as ENTRY_REFUSALS
from tests.simulation.world import Waiters

if TYPE_CHECKING:
    from tests.simulation.pipeline_entries import PipelineEntry
    from tests.simulation.scenario import Scenario
    from tests.simulation.turns import EntryRun

#: Seconds between two calls, on average.
_PAUSE = 2.5

#: How likely a call comes just when a run joins or leaves the line of its entry, or is cancelled or resumed.
_MEETS = 0.05

#: The latest runs of an entry, of which one is cancelled or resumed.
_LATEST = 3

#: Seconds of the past of which runs are sent again.
_SPAN = (2.0, 20.0)

#: Seconds between two looks at whether all entries are paused.
_LOOK = 2.0


class Operator:
    """Calls one method after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        self._entries = scenario.setup.pipelines
        self._app = make_app(scenario.world, scenario.setup)
        scenario.bodies.register(self._app)
        self._schedules = Schedules(self._app, actor="operator")
        self._random = scenario.world.random_for("operator")
        self._meets = scenario.world.random_for("operators that meet a turn")
        self._waiters = Waiters(scenario.world)
        self.is_done = False
        self._calls = 0

    def run(self) -> None:
        """Call one method after the other, and pause all entries when somebody says that it is enough."""
        for entry in self._entries.values():
            self._add(entry)
        while not self.is_done:
            self._calls += 1
            name = f"operator's call {self._calls}"
            self._random = self._world.random_for(name)
            self._waiters.wait(self._random.expovariate(1 / _PAUSE))
            if not self.is_done and self._story.happens(name):
                self._draw_act()(self._random.choice(list(self._entries.values())))
        while True:
            for entry in self._entries.values():
                self._pause(entry)
            self._world.wait(_LOOK)

    def meet(self) -> None:
        """Call the next method at once, now and then."""
        if self._meets.random() < _MEETS:
            self._waiters.wake_all()

    def end(self) -> None:
        """Have all entries paused from now on."""
        self.is_done = True
        self._waiters.wake_all()

    def judge(self) -> None:
        """Check what became of the runs; call it in a process."""
        recorded: dict[str, list[Run]] = {}
        for name in self._entries:
            with suppress(EntryNotFound):
                recorded[name] = list(self._schedules.runs(name))
        self._scenario.turns.judge(recorded)

    # -- acts --------------------------------------------------------------------------------------

    def _draw_act(self) -> Callable[[PipelineEntry], None]:
        acts = [self._cancel] * 3 + [self._resume] * 4 + [self._run_now, self._run_now, self._add, self._backfill]
        return self._random.choice(acts)

    def _add(self, entry: PipelineEntry) -> None:
        if entry.is_config:
            return
        fields = entry.fields(self._app)
        record = {"rule": entry.rule.record, "words": entry.rule.text}
        self._edit("add", entry, lambda: self._schedules.add(entry.name, **fields), **record)

    def _pause(self, entry: PipelineEntry) -> None:
        """Pause an entry, unless it is paused: it may have come back after a loss of data."""
        try:
            is_paused = self._schedules[entry.name].paused_note is not None
        except (EntryNotFound, *FAULTS):
            return
        if not is_paused:
            self._edit("pause", entry, lambda: self._schedules.pause(entry.name))

    def _edit(
        self,
        act: str,
        entry: PipelineEntry,
        call: Callable[[], Any],
        refusals: tuple[type[Exception], ...] = (),
        **details: Any,
    ) -> None:
        """Change an entry; the record stands where the call began."""
        record = {"kind": "call", "act": act, "entry": entry.name, "began": self._story.now, **details}
        record |= {"returned": None, "ok": None}
        self._story.records.append(record)
        is_done = self._call(f"{act} {entry.name}", call, *refusals)
        if is_done is not None:
            record |= {"returned": self._story.now, "ok": is_done}

    def _run_now(self, entry: PipelineEntry) -> None:
        self._call(f"run {entry.name} now", lambda: self._schedules.run_now(entry.name))

    def _backfill(self, entry: PipelineEntry) -> None:
        """Have runs of the past started, whether they were started in time or not."""
        end = self._story.now
        start = end - round(1000 * self._random.uniform(*_SPAN))
        rate = self._random.choice((1, 1000))
        again = self._random.choice((0, 0, 1))

        def backfill() -> None:
            span = from_ms(start), from_ms(end)
            self._schedules.backfills.start(entry.name, *span, max_active=None, rate=rate, again=again)

        # The start is refused where the span holds no run, or another backfill of the entry goes on.
        self._edit("backfill", entry, backfill, refusals=(InvalidEntry,), start=start, end=end, again=again)

    def _cancel(self, entry: PipelineEntry) -> None:
        run = self._any_run(entry)
        if run is None or self._random.random() < 0.5:
            self._touch("cancel", run, lambda run: run.cancel())
            return
        self._scenario.kills.terminate(
            run.id, lambda: self._touch("terminate", run, lambda run: run.cancel(terminate=True))
        )

    def _resume(self, entry: PipelineEntry) -> None:
        self._touch("resume", self._any_run(entry), lambda run: run.resume())

    def _any_run(self, entry: PipelineEntry) -> EntryRun | None:
        """One of the latest runs of an entry."""
        runs = [run for run in self._scenario.turns.runs.values() if run.entry is entry]
        return self._random.choice(runs[-_LATEST:]) if runs else None

    def _touch(self, act: str, run: EntryRun | None, call: Callable[[PipelineRun], Any]) -> bool:
        """Change a run; return whether that has certainly been done."""
        if run is None:
            return False
        what = f"{act} {run.id[:8]} of {run.entry.name}"
        return bool(self._call(what, lambda: call(PipelineRun(self._app, run.id))))

    def _call(self, what: str, call: Callable[[], Any], *refusals: type[Exception]) -> bool | None:
        """Call something; return whether it has been done, ``None`` if nobody knows."""
        self._story.counts[f"job call of entries: {what.split()[0]}"] += 1
        try:
            call()
        except (*REFUSALS, *ENTRY_REFUSALS, *refusals) as exc:
            self._story.tell(f"{what} is refused: {type(exc).__name__}: {exc}")
            return False
        except FAULTS as exc:
            self._story.tell(f"{what} is unanswered: {type(exc).__name__}")
            return None
        except Exception as exc:
            self._story.violate("calls", f"{what} raised {type(exc).__name__}: {exc}")
            return None
        self._story.tell(what)
        return True
