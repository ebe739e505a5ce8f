"""Steps of pipelines that are killed because their run has ended: what is asked for, and what must hold.

A worker gets each revoke that reaches the broker, unless it is about to connect again just then: nobody
delivers a broadcast twice.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat_lite.pipeline import State
from redbeat_lite.pipeline.pipeline_keys import RunKeys
from redbeat_lite.pipeline.run_status import LIVE
from tests.simulation.bodies import Body, Step
from tests.simulation.checks import LATE_MS
from tests.simulation.users import LATEST_MS

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

_PREFIX = "redbeat-lite"

#: End of the channel over which Celery tells workers something.
_REMOTE_CONTROL = b"celery.pidbox"

#: How likely a worker does not hear of a revoke, where something goes wrong now and then.
_UNHEARD = 0.1

#: Milliseconds after the end of its run in which a step may go on that is to be killed, or may begin that was about
#: to, where nothing ever goes wrong.
_PROMPT_MS = 300


class Change(NamedTuple):
    """A state of a run, and since when it has it, epoch ms."""

    at: int
    state: str
    resumed: int


class Kills:
    """Which steps are to be killed, and which were."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._story = scenario.story
        self._random = scenario.world.random_for("revokes")
        #: Runs whose failure kills the steps that still run.
        self._with_siblings: set[str] = set()
        #: By run: when somebody has asked for its end and for that of its steps.
        self._asked: dict[str, list[int]] = defaultdict(list)
        #: The same where somebody was told that it is done, and when.
        self._done: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._changes: dict[str, list[Change]] = defaultdict(list)
        #: Each body that was killed, and when.
        self._killed: list[tuple[Body, int]] = []

    # -- what is asked for -------------------------------------------------------------------------

    def want_siblings(self, run_id: str) -> None:
        """Note that a failure of this run kills the steps that still run."""
        self._with_siblings.add(run_id)

    def terminate(self, run_id: str, call: Callable[[], bool | None]) -> None:
        """Cancel a run and kill its steps, by a call that says whether this has certainly been done."""
        began = self._story.now
        self._asked[run_id].append(began)
        if call():
            self._done[run_id].append((began, self._story.now))

    # -- while it runs -----------------------------------------------------------------------------

    def observe(self, run_id: str, record: dict[str, str]) -> None:
        """Note the state of a run after a script that may have changed it."""
        if not record:
            return
        entry = self._scenario.setup.pipelines.get(record.get("entry", ""))
        if entry is not None and entry.revoke_siblings:
            self.want_siblings(run_id)
        changes = self._changes[run_id]
        state, resumed = record["state"], int(record.get("resumed", 0))
        if not changes or changes[-1][1:] != (state, resumed):
            changes.append(Change(self._story.now, state, resumed))

    def broadcast(self, channel: bytes, message: bytes) -> None:
        """Let all workers hear what somebody has told them, if it is that tasks are revoked."""
        if not channel.endswith(_REMOTE_CONTROL):
            return
        call = json.loads(base64.b64decode(json.loads(message)["body"]))
        assert call["method"] == "revoke"
        ids: Sequence[str] = call["arguments"]["task_id"]
        self._story.counts["revokes"] += 1
        for worker in self._scenario.workers:
            if self._scenario.setup.faults and self._random.random() < _UNHEARD:
                self._story.tell(f"{worker.process.name} does not hear of a revoke")
            else:
                worker.hear_of_revoke(ids)

    def note(self, body: Body) -> None:
        """Note that a body was killed because its task was revoked."""
        now = self._story.now
        self._killed.append((body, now))
        self._story.counts["bodies killed"] += 1
        self._story.tell(f"kills {body.record['id'][:8]}")
        step = body.step
        if step is None:
            self._story.violate("kills", f"{body.record['id']} was killed, and is no step")
        elif not self._is_wanted(step.job, body.record["began"]):
            what = f"step {step.number} of {step.job} was killed, and nobody had asked for that"
            self._story.violate("kills", what)
        elif self._goes_on(step):
            what = f"step {step.number} of {step.job} was killed, and the run was resumed with it"
            self._story.violate("kills", what)

    def _is_wanted(self, run_id: str, began: int) -> bool:
        """Whether a step that began then is to be killed: its run has ended so since, or was about to."""
        wanted = list(self._asked[run_id])
        if run_id in self._with_siblings:
            wanted += [change.at for change in self._changes[run_id] if change.state == State.FAILED]
        return any(began <= at + self._tolerance for at in wanted)

    def _goes_on(self, step: Step) -> bool:
        """Whether the run of a step goes on, and waits for the end of this round of it."""
        database = self._scenario.server.database
        keys = RunKeys.of(_PREFIX, step.job)
        run: Any = database.find(keys.run.encode()) or {}
        steps: Any = database.find(keys.steps.encode()) or {}
        record = json.loads(steps.get(b"%d" % step.number, b"{}"))
        is_this = (record.get("state"), record.get("round", 0)) == (State.RUNNING, step.round)
        if self._scenario.losses_of_data:
            return False  # The server may have forgotten that the run has ended.
        return is_this and run.get(b"state", b"").decode() in LIVE

    @property
    def _tolerance(self) -> int:
        """Milliseconds by which a call or a reply may be late."""
        return LATEST_MS + LATE_MS if self._scenario.setup.faults else _PROMPT_MS

    # -- at the end --------------------------------------------------------------------------------

    def judge(self) -> None:
        """Check all bodies of steps."""
        bodies: dict[str, list[Body]] = defaultdict(list)
        for body in self._scenario.bodies.of_steps:
            assert body.step is not None
            bodies[body.step.job].append(body)
        for run_id, of_run in bodies.items():
            self._check_begun(run_id, of_run)
            if self._scenario.setup.work.forks and not self._scenario.setup.faults:
                self._check_killed(run_id, of_run)
        for killed, at in self._killed:
            self._check_again(killed, at)

    def _check_begun(self, run_id: str, bodies: Sequence[Body]) -> None:
        """No step begins in a run that has ended, unless somebody has resumed it."""
        for body in bodies:
            began = body.record["began"]
            before = [change for change in self._changes[run_id] if change.at <= began]
            if not before or before[-1].state in LIVE or before[-1].at <= self._scenario.lost_data:
                continue
            if began > before[-1].at + self._tolerance:
                late = began - before[-1].at
                what = f"{body.record['id']} of {run_id} began {late} ms after the run was {before[-1].state}"
                self._story.violate("ended runs", what)

    def _check_killed(self, run_id: str, bodies: Sequence[Body]) -> None:
        """Where nothing goes wrong, no step goes on that is to be killed."""
        beyond_reach = self._scenario.bodies.beyond_reach
        within_reach = [body for body in bodies if body.record["id"] not in beyond_reach]
        for end, done in self._ends(run_id):
            for body in within_reach:
                if body.record["began"] <= end and body.record["ended"] > done + _PROMPT_MS:
                    late = body.record["ended"] - done
                    what = f"{body.record['id']} of {run_id} went on for {late} ms, and was to be killed"
                    self._story.violate("kills", what)

    def _ends(self, run_id: str) -> Iterator[tuple[int, int]]:
        """Yield when a run was over whose steps are to be killed, and by when this was certain."""
        changes = self._changes[run_id]
        for number, change in enumerate(changes):
            if change.state in LIVE:
                continue
            if change.state == State.FAILED and run_id in self._with_siblings:
                yield change.at, change.at
            until = changes[number + 1].at if number + 1 < len(changes) else self._story.now
            for began, done in self._done[run_id]:
                if change.at <= done and began <= until:
                    yield max(change.at, began), done

    def _check_again(self, killed: Body, at: int) -> None:
        """What was killed does not run again: a run that is resumed has other ids for its steps."""
        if at <= self._scenario.lost_data:
            return
        for body in self._scenario.bodies.of_steps:
            if body.record["id"] == killed.record["id"] and body.record["began"] > at:
                self._story.violate("kills", f"{body.record['id']} was killed, and began again")
