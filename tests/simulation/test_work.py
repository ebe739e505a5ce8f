"""Workers, jobs and a broker of its own: what seeds have found, and what is broken on purpose is found."""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from weakref import ref

import pytest

from redbeat_lite import Run
from redbeat_lite.store.scripts import _sha
from tests.simulation.apps import PERIODS, Setup
from tests.simulation.bodies import Body
from tests.simulation.broker import QUEUE
from tests.simulation.checks import Checks
from tests.simulation.network import Loss
from tests.simulation.once_entries import OnceEntries
from tests.simulation.rules import interval
from tests.simulation.scenario import Scenario, draw_setup
from tests.simulation.story import MOST_LINES, LogLines
from tests.simulation.test_seeds import changed_script
from tests.simulation.values import CommandError, Refusal
from tests.simulation.work import Work
from tests.simulation.world import EPOCH_US, MICROS, Process

WORK = Work(
    dispatch="auto",
    is_broker_apart=True,
    workers=2,
    slots=2,
    prefetch=1,
    forks=True,
    visibility=6.0,
    once_lease=2.0,
    has_jobs=True,
)


def busy(*faults: str, work: Work = WORK, **options: Any) -> Setup:
    """What to simulate: entries of all kinds of locks, for half a minute."""
    config = {"runs": interval(3), "skips": interval(2), "waits": interval(2)}
    tasks = {"runs": "project.late", "skips": "project.skips", "waits": "project.waits"}
    start = {"zone": "UTC", "start_us": EPOCH_US, "periods": PERIODS}
    calm = {"lease": 2.0, "stall_timeout": 6.0, "stormy": 25.0, "calm": 20.0, "lingers": True, "beats": 1, "holders": 0}
    parts = {"work": work, "config": config, "tasks": tasks, "jitter": 0.0, "once": OnceEntries()}
    parts |= {"kept": {}, "deploys": ()}
    return replace(draw_setup(1), faults=faults, **parts | start | calm | options)


def at(scenario: Scenario, seconds: float, call: Callable[[], object]) -> None:
    """Call something when the scenario has run for so long."""
    scenario.world.at(scenario.world.start_us + int(seconds * MICROS), call)


def with_expired_messages() -> Scenario:
    """A worker does not begin what it has received, so another one gets it when it has expired."""
    scenario = Scenario(1, busy(work=replace(WORK, has_jobs=False)))
    scenario.user.is_done = True  # Messages of users would fill the worker, and have no end.

    def freeze_children() -> None:
        worker = scenario.workers[0]
        processes = worker.processes
        for child in worker.pool.children:
            child.process.freeze()
        at(scenario, 9.0, worker.process.freeze)  # It has received as many messages as it takes.
        at(scenario, 22.0, lambda: [process.thaw() for process in processes])

    at(scenario, 5.0, freeze_children)
    return scenario


def laws(scenario: Scenario) -> list[str]:
    """What a scenario breaks."""
    return [str(violation) for violation in scenario.run().violations]


def broken_laws(seed: int, fault: str) -> set[str]:
    """The laws that a seed breaks if this fault happens."""
    return {violation.law for violation in Scenario(seed, busy(fault)).run().violations}


# -- what seeds have found -----------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_beats_do_not_wait_for_each_other_when_the_broker_is_back() -> None:
    """Found by seed 3014: each of two beats had given up its lead for a minute, so that the other one could try."""
    work = replace(WORK, workers=0, has_jobs=False)
    setup = busy(work=work, beats=2, lease=30.0, stall_timeout=10.0, stormy=42.0, calm=60.0)
    scenario = Scenario(1, replace(setup, tasks=dict.fromkeys(setup.tasks, "project.run")))
    network = scenario.broker.network

    def go() -> None:
        network.is_up = False
        network.cut_all()

    def come_back() -> None:
        network.is_up = True

    at(scenario, 5.0, go)
    at(scenario, 41.0, come_back)
    assert laws(scenario) == []
    assert sum("giving up the lead" in line for line in scenario.story.lines) >= 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("losses", [1, 3])
def test_a_job_survives_connections_that_are_lost_while_a_queue_is_declared(losses: int) -> None:
    """Found by seeds 9 and 30: kombu raises an AttributeError then, and the job failed.

    Found by seed 1003: the publish was repeated only once, and at once, and lost its connection again.
    """
    scenario = Scenario(4, busy())  # None of its jobs fails by itself.
    lost = []

    def lose_declaration(process: Process, commands: list[list[bytes]]) -> Loss | None:
        is_declaration = any(command[0] == b"LLEN" for command in commands)
        if process.name != "jobs" or not is_declaration or len(lost) == losses:
            return None
        lost.append(commands)
        return Loss.AFTER

    at(scenario, 0.0, lambda: setattr(scenario.broker.network, "draw_loss", lose_declaration))
    assert laws(scenario) == []
    assert len(lost) == losses
    assert scenario.story.counts["jobs failed"] == 0


@pytest.mark.timeout(300)
def test_a_job_ends_whose_start_arrives_after_its_caller_gave_up() -> None:
    """Found by seed 5524: a sweeper had forgotten the job before it existed, and nobody published its steps."""
    scenario = Scenario(4, busy())
    start = _sha("pipeline/start").encode()
    late = []

    def delay_start(process: Process, commands: list[list[bytes]]) -> Loss | None:
        if process.name != "jobs" or commands[0][:2] != [b"EVALSHA", start] or late:
            return None
        late.append(commands)
        return Loss.LATE_REQUEST

    def begin() -> None:
        scenario.network.draw_loss = delay_start
        scenario.network._delay = lambda _process: 7.0  # type: ignore[method-assign]

    at(scenario, 0.0, begin)
    assert laws(scenario) == []
    assert len(late) == 1


@pytest.mark.timeout(300)
def test_a_seed_that_is_run_again_has_the_same_trace_although_tasks_have_expired() -> None:
    """Found by seed 80163: workers of the second run knew from the first one which tasks had expired."""
    scenario, again = with_expired_messages(), with_expired_messages()
    scenario.run()
    again.run()
    assert scenario.requests.revoked.ids
    assert again.trace() == scenario.trace()


@pytest.mark.timeout(300)
def test_a_run_whose_time_is_over_before_its_body_begins_has_failed() -> None:
    """Found by seed 91034: the record of runs was said to be wrong, because no body had failed."""
    setup = busy(history=20, work=replace(WORK, has_jobs=False))
    scenario = Scenario(1, replace(setup, tasks=dict.fromkeys(setup.tasks, "project.asked")))
    scenario.user.is_done = True
    database = scenario.server.database

    def children() -> list[Process]:
        return [child.process for worker in scenario.workers for child in worker.pool.children]

    def refuse_writes() -> None:
        """Begin what has been sent meanwhile, for which the server takes no writes until most of its time is over."""
        database.refusal = Refusal.READ_ONLY
        for child in children():
            child.thaw()

    at(scenario, 5.0, lambda: [child.freeze() for child in children()])
    at(scenario, 6.5, refuse_writes)
    at(scenario, 8.2, lambda: setattr(database, "refusal", None))
    assert laws(scenario) == []
    begun = {record["id"] for record in scenario.story.records if record["kind"] == "body"}
    (run,) = (run for run in scenario.user.runs if run.outcome == "failed" and run.task_id not in begun)
    assert run.error == "SoftTimeLimitExceeded: SoftTimeLimitExceeded()"


@pytest.mark.parametrize("error", ["TimeLimitExceeded: TimeLimitExceeded(2.0,)", "LockUnavailable: no server"])
def test_an_error_without_a_body_is_an_end_unless_another_end_is_recorded(error: str) -> None:
    """Found by seed 1054339: a body had returned, and its process was killed before the end was recorded.

    Found by seed 1055446: the server had lost the record of a run, and then a copy of it met its limit.
    Found by seed 89512670: the server had lost the record of a run, and was away when a copy of it asked for the guard.
    """
    scenario = Scenario(1, busy())
    body: dict[str, Any] = {"kind": "body", "id": "a", "attempt": 0, "end": "well", "ended": 1000, "settled": False}
    scenario.story.records.append(body)
    scenario.user.runs = [Run("runs", datetime.now(UTC), "failed", "a", attempts=1, error=error)]
    checks = Checks(scenario)
    checks._check_runs()
    body["settled"] = True
    scenario.lost_data = 1001
    checks._check_runs()
    assert scenario.story.violations == []
    scenario.lost_data = 0
    checks._check_runs()
    assert [violation.law for violation in scenario.story.violations] == ["record of runs"]


def test_a_time_limit_may_be_the_end_of_a_run_whose_body_has_just_returned() -> None:
    """Found by seed 89509190: the server was away, and the limit came before the end of the body was recorded."""
    setup = busy(history=20, work=replace(WORK, has_jobs=False))
    scenario = Scenario(1, replace(setup, tasks=dict.fromkeys(setup.tasks, "project.slow")))
    scenario.user.is_done = True
    database, end, observe = scenario.server.database, scenario.bodies._end, scenario.network.observe
    release = _sha("once/end").encode()
    ended: set[Process] = set()

    def end_without_server(body: Body, how: str) -> None:
        end(body, how)
        ended.add(body.process)
        database.refusal = Refusal.READ_ONLY
        scenario.world.after(0.02, lambda: setattr(database, "refusal", None))

    def meet_limit(process: Process, command: list[bytes], reply: Any) -> None:
        observe(process, command, reply)
        if process not in ended or command[1] != release or isinstance(reply, CommandError):
            return
        ended.remove(process)
        for worker in scenario.workers:
            for child in worker.pool.children:
                if child.process is process and child.job is not None:
                    worker.pool._time_out(child, child.job)

    scenario.bodies._end = end_without_server  # type: ignore[method-assign]
    scenario.network.observe = meet_limit
    assert laws(scenario) == []
    assert any(run.error == "TimeLimitExceeded: TimeLimitExceeded(2.0,)" for run in scenario.user.runs)


def test_only_lines_that_celery_does_not_write_of_a_task_are_too_many() -> None:
    """Seed 80000746 sent a hundred runs of a backfill whose once-lock another run held: Celery wrote a line of each."""
    scenario = Scenario(1, busy())
    handler = LogLines(scenario.story)
    for name, broken in (("celery.app.trace", []), ("redbeat_lite.beat", ["log"])):
        for _ in range(MOST_LINES):
            handler.handle(logging.makeLogRecord({"name": name, "levelno": logging.ERROR, "msg": "text"}))
        assert [violation.law for violation in scenario.story.violations] == broken


def test_jobs_may_take_longer_behind_a_long_queue() -> None:
    """Seed 12000299 ended while a step waited behind the hundred runs of three backfills."""
    work = busy().work
    assert work.seconds_for(0) == 0.0
    assert work.seconds_for(100 * work.workers * work.slots) == 250.0


@pytest.mark.timeout(300)
def test_a_seed_that_is_over_is_not_held() -> None:
    """Each of thousands of seeds in one process would else take a megabyte and a half for ever."""
    worlds = []
    for seed in (1, 2, 3):
        scenario = Scenario(seed)
        scenario.run()
        worlds.append(ref(scenario.world))
    del scenario
    gc.collect()
    # The interpreter of the scripts holds the last one.
    assert [world() is None for world in worlds] == [True, True, False]


def test_a_message_waits_if_no_worker_takes_it_within_a_second() -> None:
    """Seed 70180 ended when a message was on its way to a worker, and another one had been sent just then."""
    scenario = Scenario(1, busy())
    scenario.start_worker()
    scenario.broker.server.database.put(QUEUE, deque([b"message"]))
    scenario.broker.note_put([b"message"])
    checks = Checks(scenario)
    checks._check_broker()
    assert scenario.story.violations == []
    scenario.world.now_us += 2 * MICROS
    checks._check_broker()
    assert [violation.law for violation in scenario.story.violations] == ["delivered"]


def test_a_worker_that_is_about_to_get_a_message_may_let_older_ones_wait() -> None:
    """Seed 201413 ended when a worker with a backlog had just ended one run, and the next message was on its way."""
    scenario = Scenario(1, busy())
    scenario.world.now_us += 10 * MICROS
    scenario.start_worker()
    scenario.broker.server.database.put(QUEUE, deque([b"message"]))
    scenario.broker.note_put([b"message"])
    scenario.world.now_us += 2 * MICROS
    checks = Checks(scenario)
    scenario.workers[0]._channel.basic_ack("1")
    checks._check_broker()
    assert scenario.story.violations == []
    scenario.world.now_us += 2 * MICROS
    checks._check_broker()
    assert [violation.law for violation in scenario.story.violations] == ["delivered"]


# -- what is broken on purpose -------------------------------------------------------------------------

#: Seeds of which one has to find it.
SEEDS = range(1, 11)

#: What is changed in a script, the fault that shows it, and the law that it breaks.
MUTATIONS = {
    "a copy runs beside the first one": (
        ("once/begin", {"state == 'running' and runner ~= token and tonumber(until_ms) > now": "false"}),
        "deliver twice",
        "one per task",
    ),
    "a copy runs after the first one": (
        ("once/begin", {"attempt < last_attempt or (attempt == last_attempt and state == 'done')": "false"}),
        "deliver twice",
        "one per task",
    ),
    "two tasks of a key run": (
        ("once/begin", {"if first and first ~= task_id then": "if false then"}),
        "cut",
        "one per key",
    ),
    "a run that has failed is recorded as one that has succeeded": (
        ("shared/record", {"id .. '|' .. letter": "id .. '|' .. (letter == 'f' and 's' or letter)"}),
        "cut",
        "record of runs",
    ),
    "a run that has succeeded is recorded as one that has failed": (
        ("shared/record", {"id .. '|' .. letter": "id .. '|' .. (letter == 's' and 'f' or letter)"}),
        "cut",
        "record of runs",
    ),
    "a stage begins with the first end of the one before": (
        ("pipeline/complete", {"if left == 0 then": "if true then"}),
        "cut",
        "stages",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mutation", "fault", "law"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_change_that_breaks_a_promise_is_found(mutation: tuple[str, dict[str, str]], fault: str, law: str) -> None:
    with changed_script(*mutation):
        assert any(law in broken_laws(seed, fault) for seed in SEEDS)


@pytest.mark.timeout(300)
def test_a_waiter_that_is_woken_again_at_once_is_found() -> None:
    setup = busy("freeze worker")
    setup = replace(setup, tasks=dict.fromkeys(setup.tasks, "project.line"))
    with changed_script("once/wake", {"elseif tonumber(resend) > now then": "elseif false then"}):
        stories = (Scenario(seed, setup).run() for seed in SEEDS)
        assert any(violation.law == "woken once" for story in stories for violation in story.violations)
