"""Watches the runs that entries have started, and what must hold of them.

The state of each run is read on the server after each script that may change it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redbeat_lite import Run
from redbeat_lite.pipeline import State
from redbeat_lite.pipeline.pipeline_keys import RunKeys, index_key
from redbeat_lite.pipeline.run_status import LIVE
from redbeat_lite.store.scripts import _sha
from tests.simulation.bodies import Body
from tests.simulation.checks import LATE_MS
from tests.simulation.jobs import Job
from tests.simulation.users import LATEST_MS
from tests.support.audit import Record

if TYPE_CHECKING:
    from tests.simulation.pipeline_entries import PipelineEntry
    from tests.simulation.scenario import Scenario

_PREFIX = "redbeat-lite"
_OPEN = index_key(_PREFIX).encode()

#: Scripts that may change the state of a run, which is their first key.
_CHANGING = ("start", "check", "cancel", "complete", "resume")

#: Scripts at which somebody may interfere.
_MET = ("turn", "resume", "cancel")

#: Milliseconds after which a run has begun whose turn has come, where nothing ever goes wrong.
_PROMPT_MS = 1_000

#: Milliseconds from one check of a run by the sweeper to the next, at most. It may take two checks.
_SWEEP_MS = 7_000

#: Text before the reason of a run that was left out.
_LEFT_OUT = "left out: run "

#: Outcome in the record of runs of each end of a run.
_OUTCOMES = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.ABORTED: "revoked"}


@dataclass
class EntryRun:
    """A run that an entry has started."""

    id: str
    entry: PipelineEntry
    #: When somebody has seen it first, and when its state has changed last, epoch ms.
    began: int
    changed: int
    state: str = ""
    resumed: int = 0
    error: str = ""
    #: When somebody has first seen each reason for which it was left out, epoch ms.
    left_out: dict[str, int] = field(default_factory=dict)
    #: When it was live last, epoch ms.
    lived: int = 0
    #: Whether it had ended, and the server has lost that.
    is_revived: bool = False
    #: Since when it waits although nothing holds it up, epoch ms.
    stuck: int | None = None

    @property
    def waits_for_others(self) -> bool:
        """Whether it begins only after another run of its entry has ended. With "skip", only a resumed run waits."""
        return self.entry.overlap == "wait" or (self.entry.overlap == "skip" and self.resumed > 0)


@dataclass
class Turns:
    """The runs of all entries that start pipelines."""

    scenario: Scenario
    runs: dict[str, EntryRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: The name of each script of pipelines.
        self._names = {_sha(f"pipeline/{name}").encode(): name for name in (*_CHANGING, "begin", "turn")}

    def begin(self) -> None:
        """Look every second for runs that wait for nothing."""
        if self.scenario.setup.pipelines:
            self.scenario.world.after(1.0, self._look)

    # -- while it runs -----------------------------------------------------------------------------

    def observe(self, command: list[bytes]) -> bool:
        """Note what a script has changed; return whether this is a moment at which somebody may interfere."""
        if not self.scenario.setup.work.has_jobs and not self.scenario.setup.pipelines:
            return False
        script = self._names.get(command[1])
        if script in _CHANGING:
            run_id = _run_id(command[3])
            record = self.record_of(run_id)
            self.scenario.kills.observe(run_id, record)
            self._note(run_id, record)
        if script == "begin":
            self.scenario.jobs.meet(_run_id(command[3]))
        if script == "turn":
            self._check_line(command[3])
        return script in _MET

    def record_of(self, run_id: str) -> dict[str, str]:
        """Return what the server has of a run."""
        key = RunKeys.of(_PREFIX, run_id).run.encode()
        record: Any = self.scenario.server.database.find(key) or {}
        return {name.decode(): value.decode() for name, value in record.items()}

    def _read(self, run_id: str) -> None:
        self._note(run_id, self.record_of(run_id))

    def _note(self, run_id: str, record: dict[str, str]) -> None:
        """Note what the server has of a run."""
        entry = self.scenario.setup.pipelines.get(record.get("entry", ""))
        if entry is None:
            return
        story = self.scenario.story
        run = self.runs.get(run_id)
        if run is None:
            run = self.runs[run_id] = EntryRun(run_id, entry, story.now, story.now)
            story.counts[f"runs with overlap {entry.overlap}"] += 1
        was = run.state, run.resumed
        if was[0] in LIVE:
            run.lived = story.now
        run.state, run.resumed, run.error = record["state"], int(record.get("resumed", 0)), record.get("error", "")
        if was == (run.state, run.resumed):
            return
        waits_since, run.changed = run.changed, story.now
        self._check_end(run, *was)
        story.tell(f"run {run.id[:8]} of {entry.name} is {run.state}: {run.error}".removesuffix(": "))
        if run.state == State.RUNNING and not run.is_revived:
            self._check_alone(run)
            self._check_prompt(run, waits_since)
        if _is_left_out(run):
            story.counts["runs left out"] += 1
            self._check_left_out(run)

    def _of(self, name: str) -> Iterator[EntryRun]:
        return (run for run in self.runs.values() if run.entry.name == name)

    def _check_end(self, run: EntryRun, was: str, resumed: int) -> None:
        """A run that has ended begins again only if somebody resumes it, or if the server loses its end."""
        if run.state not in LIVE or run.resumed > resumed:
            run.is_revived = False
        elif was not in ("", *LIVE):
            run.is_revived = True
            if not self.scenario.losses_of_data:
                self.scenario.story.violate("runs end", f"{run.id} of {run.entry.name} was {was}, and is {run.state}")

    def _check_alone(self, run: EntryRun) -> None:
        """No two runs of an entry run at the same time, unless they may overlap."""
        if run.entry.overlap == "allow":
            return
        for other in self._of(run.entry.name):
            if other is run or other.state not in LIVE or other.is_revived:
                continue
            if self.record_of(other.id).get("state") == State.RUNNING:
                what = f"{run.id} of {run.entry.name} begins, and {other.id} has not ended"
                self.scenario.story.violate("one at a time", what)

    def _check_prompt(self, run: EntryRun, waits_since: int) -> None:
        """Where nothing goes wrong, the process that ends a run starts the next one, and no sweeper has to do it."""
        ended = [other.lived for other in self._of(run.entry.name) if other is not run and run.waits_for_others]
        waited = self.scenario.story.now - max([waits_since, *ended])
        if waited > _PROMPT_MS and not self.scenario.setup.faults:
            self.scenario.story.violate("turns", f"{run.id} of {run.entry.name} begins {waited} ms after its turn")

    def _check_line(self, key: bytes) -> None:
        """No run waits in the line of an entry whose later runs are left out, unless somebody has resumed it."""
        line: Any = self.scenario.server.database.find(key)
        name = key.decode().rpartition(":")[2]
        begun = [member for member in (line.scores if line else ()) if member.startswith(b"0:")]
        if self.scenario.setup.pipelines[name].overlap == "skip" and len(begun) > 1:
            self.scenario.story.violate("left out", f"{len(begun)} runs are in the line of {name}")

    def _check_left_out(self, run: EntryRun) -> None:
        """A run is left out because another run of its entry has not ended, which its error names."""
        story = self.scenario.story
        if run.entry.overlap != "skip":
            story.violate("left out", f"{run.id} of {run.entry.name}: {run.error}")
            return
        other = self.runs.get(run.error.removeprefix(_LEFT_OUT).partition(" ")[0])
        if other is None or other.entry.name != run.entry.name or other is run:
            story.violate("left out", f"{run.id} names no other run of {run.entry.name}: {run.error}")
            return
        if run.left_out.setdefault(run.error, story.now) <= self.scenario.lost_data:
            return  # The server has lost what came after this, and the run is left out as before.
        # The run may have ended while the process that leaves out this one asked twice.
        tolerance = LATEST_MS + LATE_MS if self.scenario.setup.faults else LATE_MS
        lived = story.now if other.state in LIVE else other.lived
        if lived < story.now - tolerance:
            story.violate("left out", f"{run.id} of {run.entry.name}, but {other.id} ended {story.now - lived} ms ago")

    def _look(self) -> None:
        self.scenario.world.after(1.0, self._look)
        running = {run.entry.name for run in self.runs.values() if run.state == State.RUNNING}
        for run in list(self.runs.values()):
            if run.state in LIVE:
                self._read_again(run)
            may_wait = run.waits_for_others and run.entry.name in running
            if run.state != State.WAITING or may_wait or not self.scenario.can_send():
                run.stuck = None
            else:
                self._check_stuck(run)

    def _read_again(self, run: EntryRun) -> None:
        """Read a run whose writes the server may have lost."""
        if self.record_of(run.id):
            self._read(run.id)
        else:
            run.state = ""

    def _check_stuck(self, run: EntryRun) -> None:
        """A run begins, or is left out, when no other run of its entry holds it up any more."""
        story = self.scenario.story
        if run.stuck is None:
            run.stuck = story.now
        since = max(run.stuck, self.scenario.disturbed)
        if story.now - since > self._longest_wait(since):
            run.stuck = story.now + 10**9  # One violation is enough.
            what = f"{run.id} of {run.entry.name} waits since {story.now - since} ms, and nothing holds it up"
            story.violate("turns", what)

    def _longest_wait(self, since: int) -> float:
        if not self.scenario.setup.faults:
            return _PROMPT_MS
        return self.scenario.longest_wait(since) + 2 * _SWEEP_MS

    # -- at the end --------------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """The number of runs that have not started or not ended, or of whose end not all has followed."""
        if not self.scenario.setup.pipelines:
            return 0
        index: Any = self.scenario.server.database.find(_OPEN)
        unended = set() if index is None else {member.decode().partition(":")[2] for member in index.scores}
        live = sum(run.state in LIVE or run_id in unended for run_id, run in self.runs.items())
        return live + len(self._unstarted())

    def judge(self, recorded: dict[str, list[Run]]) -> None:
        """Check what became of all runs.

        Parameters:
            recorded: what the record of runs has of each entry.
        """
        if not self.scenario.setup.pipelines:
            return
        lost_data = self.scenario.lost_data
        for run in self.runs.values():
            if run.state in LIVE and run.began > lost_data:
                self.scenario.story.violate("runs end", f"{run.id} of {run.entry.name} is {run.state} at the end")
        self._check_started()
        for name, runs in recorded.items():
            self._check_recorded(name, runs)
        bodies: dict[str, list[Body]] = defaultdict(list)
        for body in self.scenario.bodies.of_steps:
            assert body.step is not None
            bodies[body.step.job].append(body)
        for run in list(self.runs.values()):  # Others may begin meanwhile.
            if run.began > lost_data:
                job = Job(run.id, run.entry.stages, run.began, has_started=True)
                self.scenario.jobs.judge_one(job, bodies[run.id])

    def _check_started(self) -> None:
        """Each occurrence that was sent has started a run, which may have been left out."""
        for record in self._unstarted():
            what = f"{record['id']} of {record['entry']} was sent, and has started no run"
            self.scenario.story.violate("occurrences", what)

    def _unstarted(self) -> list[Record]:
        """Return the occurrences that were sent, do not expire, and have started no run."""
        lasting = [name for name, entry in self.scenario.setup.pipelines.items() if entry.expires is None]
        return [
            record
            for record in self.scenario.story.records
            if record["kind"] == "sent"
            and record["entry"] in lasting
            and record["at"] > self.scenario.lost_data
            and record["id"] not in self.runs
        ]

    def _check_recorded(self, name: str, recorded: list[Run]) -> None:
        """The record of runs says how each run has ended."""
        story = self.scenario.story
        nominals = {
            record["id"]: record["nominal"]
            for record in story.records
            if record["kind"] == "sent" and record["entry"] == name and record["at"] > self.scenario.lost_data
        }
        # Runs that were started by hand and occurrences that were missed have rows, too.
        outcomes = {run.task_id: run.outcome for run in recorded}
        for run in self._of(name):
            if run.id not in nominals or run.state not in set(State) - set(LIVE):
                continue
            wanted = "left out" if _is_left_out(run) else _OUTCOMES[State(run.state)]
            is_kept = len(nominals) <= self.scenario.setup.history / 4
            outcome = outcomes.get(run.id, None if is_kept else wanted)
            if outcome != wanted:
                story.violate("record of runs", f"{run.id} of {name} has {outcome}, and it was {wanted}")


def _is_left_out(run: EntryRun) -> bool:
    return run.state == State.ABORTED and bool(run.error)


def _run_id(key: bytes) -> str:
    """Return the id in ``{prefix:<id>}:run``."""
    return key.decode().partition(":")[2].partition("}")[0]
