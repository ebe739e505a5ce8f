"""Entries that start pipelines: what is broken on purpose is found, and faults that seeds have found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import redis

from redbeat_lite import PipelineRun
from redbeat_lite.pipeline import State, pipeline_run, sweeper
from redbeat_lite.pipeline.pipeline_keys import RunKeys, turn
from redbeat_lite.pipeline.pipeline_store import PipelineStore
from redbeat_lite.store.scripts import _sha
from tests.simulation.network import Loss
from tests.simulation.pipeline_entries import Overlap, PipelineEntry, draw_pipelines
from tests.simulation.pool import Pool
from tests.simulation.rules import interval
from tests.simulation.scenario import Scenario, draw_setup
from tests.simulation.story import Story
from tests.simulation.test_seeds import changed_script
from tests.simulation.test_work import WORK, busy
from tests.simulation.timeline import Timeline
from tests.simulation.turns import EntryRun, Turns
from tests.simulation.work import ALONE
from tests.simulation.world import MICROS, Process

#: Seeds of which one has to find what is broken.
SEEDS = range(1, 11)


def entry(overlap: Overlap) -> PipelineEntry:
    """An entry that starts a run every two seconds, each of which takes about as long."""
    drawn = PipelineEntry.draw(Random(1), overlap)
    steps = [("step-0-0", "project.step", 2), ("step-0-1", "project.step", 2), ("step-1-0", "project.step", 1)]
    return replace(
        drawn, stages=[2, 1], steps=steps, is_config=True, rule=interval(2), at_once=None, deadline=None, expires=None
    )


def scenario_of(seed: int, overlap: Overlap, *faults: str) -> Scenario:
    """Return a seed in which only an entry of this overlap does anything, and its operator."""
    pipelines = {f"pipeline-{overlap}": entry(overlap)}
    work = replace(WORK, is_broker_apart=False, has_jobs=False)
    setup = busy(*faults, work=work, pipelines=pipelines, history=20)
    scenario = Scenario(seed, replace(setup, config={}, tasks={}))
    scenario.user.is_done = True
    return scenario


def run(seed: int, overlap: Overlap, *faults: str) -> Story:
    return scenario_of(seed, overlap, *faults).run()


def test_each_overlap_is_drawn_and_only_beside_workers() -> None:
    setups = [draw_setup(seed) for seed in range(1, 101)]
    drawn = {entry.overlap for setup in setups for entry in setup.pipelines.values()}
    assert drawn == {"allow", "skip", "wait"}
    assert all(setup.work.has_jobs for setup in setups if setup.pipelines)
    assert not any(draw_pipelines(Random(seed), ALONE) for seed in range(10))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("overlap", ["allow", "skip", "wait"])
def test_an_overlap_breaks_no_promise(overlap: Overlap) -> None:
    story = run(1, overlap)
    assert story.violations == []
    assert story.counts[f"runs with overlap {overlap}"] > 5
    assert (story.counts["runs left out"] > 0) == (overlap == "skip")


# -- what is broken on purpose -------------------------------------------------------------------------

_join_line = sweeper.join_line
_start_next = sweeper.start_next
_fate_of = sweeper._fate_of


def start_at_once(store: PipelineStore, run_id: str) -> None:
    """Start a run that should wait for its turn."""
    record, _ = store.read(run_id)
    sweeper._start(store, turn(run_id, int(record.get("resumed", 0))))


def keep_turn(store: PipelineStore, entry: str, ended: str = "") -> None:
    """Leave the run after one that has ended to the sweeper."""
    if ended:
        store.change_line(entry, remove=ended)
    else:
        _start_next(store, entry)


def join_as(overlap: str) -> Callable[..., str]:
    """Return a function that takes a run for one of another overlap."""
    return lambda store, entry, member, _: _join_line(store, entry, member, overlap)


def record_as_revoked(*args: Any) -> Any:
    """Say of a run that was left out that somebody has cancelled it."""
    fate = _fate_of(*args)
    return fate._replace(outcome="revoked") if fate.outcome == "left out" else fate


#: What is changed, the overlap that shows it, and the law that it breaks.
MUTATIONS: dict[str, tuple[Any, Overlap, str]] = {
    "a run does not wait for its turn": (
        lambda: patch.object(sweeper, "_take_turn", start_at_once),
        "wait",
        "one at a time",
    ),
    "a run that is resumed does not wait for its turn": (
        lambda: patch.object(pipeline_run, "go_on", start_at_once),
        "wait",
        "one at a time",
    ),
    "the sweeper alone starts the next run": (lambda: patch.object(sweeper, "start_next", keep_turn), "wait", "turns"),
    "a run never has its turn": (lambda: patch.object(sweeper, "_take_turn", lambda *_: None), "wait", "runs end"),
    "a run that should be left out waits": (
        lambda: patch.object(sweeper, "join_line", join_as("wait")),
        "skip",
        "left out",
    ),
    "a run that should wait is left out": (
        lambda: patch.object(sweeper, "join_line", join_as("skip")),
        "wait",
        "left out",
    ),
    "a run that was left out counts as revoked": (
        lambda: patch.object(sweeper, "_fate_of", record_as_revoked),
        "skip",
        "record of runs",
    ),
    "a stage begins with the first end of the one before": (
        lambda: changed_script("pipeline/complete", {"if left == 0 then": "if true then"}),
        "allow",
        "stages",
    ),
    "a run that was resumed is not another one": (
        lambda: changed_script(
            "pipeline/resume",
            {"redis.call('HINCRBY', run, 'resumed', 1)": "redis.call('HINCRBY', run, 'resumed', 0)"},
        ),
        "allow",
        "runs end",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mutation", "overlap", "law"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_change_that_breaks_a_promise_is_found(mutation: Callable[[], Any], overlap: Overlap, law: str) -> None:
    with mutation():
        stories = (run(seed, overlap) for seed in SEEDS)
        assert any(violation.law == law for story in stories for violation in story.violations)


# -- what is killed ------------------------------------------------------------------------------------


def killing(seed: int, *faults: str, revoke_siblings: bool = False) -> Scenario:
    """Return a seed in which runs whose steps take long and often fail are terminated."""
    steps = [(f"step-0-{number}", task, 2) for number, task in enumerate(("project.step", "project.retried_step"))]
    steps.append(("step-1-0", "project.step", 1))
    pipeline = replace(entry("allow"), steps=steps, revoke_siblings=revoke_siblings)
    setup = busy(*faults, work=replace(WORK, is_broker_apart=False), pipelines={"pipeline-allow": pipeline}, history=20)
    scenario = Scenario(seed, replace(setup, config={}, tasks={}))
    scenario.user.is_done = True
    return scenario


@pytest.mark.timeout(300)
@pytest.mark.parametrize("faults", [(), ("kill worker", "freeze worker")], ids=["calm", "storm"])
def test_what_is_terminated_is_killed(faults: tuple[str, ...]) -> None:
    stories = [killing(seed, *faults, revoke_siblings=True).run() for seed in range(4, 8)]
    assert [violation for story in stories for violation in story.violations] == []
    assert sum(story.counts["bodies killed"] for story in stories) > 5


def test_threads_are_not_killed() -> None:
    scenario = killing(1, revoke_siblings=True)
    setup = replace(scenario.setup, work=replace(scenario.setup.work, forks=False))
    story = Scenario(1, setup).run()
    assert story.violations == []
    assert story.counts["revokes"] > 0
    assert story.counts["bodies killed"] == 0


def test_a_child_is_killed_with_the_task_that_it_has_begun_meanwhile() -> None:
    """Found by seed 89001774: the step to be killed had ended, and the child had begun a step of another run."""
    assert Scenario(89001774).run().violations == []


def test_many_threads_of_one_process_hang_in_the_broker_at_once() -> None:
    """Found by seed 89005590: the eleventh waited in real time for a connection of kombu's pool."""
    assert Scenario(89005590).run().violations == []


def test_a_step_goes_on_if_its_worker_has_a_second_message_of_it() -> None:
    """Found by seed 89011271: Celery's revoke met the second message, which the worker had not begun."""
    for seed in range(10, 40):  # It takes some ten seeds for this to happen.
        scenario = killing(seed, "deliver twice", revoke_siblings=True)
        assert scenario.run().violations == []
        if scenario.bodies.beyond_reach:
            return
    pytest.fail("no worker had a second message of a step that was to be killed")


def test_a_thread_drops_a_job_that_is_to_be_terminated_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by seed 88000386: Celery raises an error there, and neither runs the task nor acknowledges it."""
    setup = killing(1).setup
    scenario = Scenario(1, replace(setup, work=replace(setup.work, forks=False)))
    scenario.user.is_done = True
    apply_async = Pool.apply_async

    def terminate_first_step(pool: Pool, *args: Any, **options: Any) -> None:
        request = options["accept_callback"].__self__
        if request.name == "project.step":
            if not steps:
                request.terminate(pool, signal=15)
            steps.append(request.id)
        apply_async(pool, *args, **options)

    steps: list[str] = []
    monkeypatch.setattr(Pool, "apply_async", terminate_first_step)
    story = scenario.run()
    assert any(worker.pool.dropped_tags for worker in scenario.workers)
    assert story.violations == []


#: What is changed in a script, the faults that show it, and the law that it breaks.
CHANGES: dict[str, tuple[tuple[str, dict[str, str]], tuple[str, ...], str]] = {
    "siblings are killed though nobody wants that": (
        ("shared/run", {"if how == 'FAILED' and this_run.revoke_siblings == '1' then": "if how == 'FAILED' then"}),
        (),
        "kills",
    ),
    "siblings are not killed": (
        ("shared/run", {"if how == 'FAILED' and this_run.revoke_siblings == '1' then": "if false then"}),
        (),
        "kills",
    ),
    "the steps of a run that is terminated go on": (
        ("pipeline/cancel", {"if terminate == '1' then": "if false then"}),
        (),
        "kills",
    ),
    "the steps of each cancelled run are killed": (
        ("pipeline/cancel", {"if terminate == '1' then": "if true then"}),
        (),
        "kills",
    ),
    "a run is resumed with a step that is being killed": (
        ("pipeline/resume", {"if this_run.revoke == '1' and #alive > 0 then": "if false then"}),
        ("freeze worker",),
        "kills",
    ),
    "a step begins in a run that has ended": (
        ("pipeline/begin", {"if this_run.state ~= 'RUNNING' then": "if not this_run.state then"}),
        (),
        "ended runs",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("change", "faults", "law"), CHANGES.values(), ids=CHANGES)
def test_a_wrong_kill_is_found(change: tuple[str, dict[str, str]], faults: tuple[str, ...], law: str) -> None:
    with changed_script(*change):
        stories = (killing(seed, *faults, revoke_siblings=seed % 2 == 1).run() for seed in range(41, 81))
        assert any(violation.law == law for story in stories for violation in story.violations)


def test_an_occurrence_is_not_lost_whose_start_cannot_be_retried() -> None:
    """Found by seed 41100072: the broker did not take the retry of a start, and Celery dropped the message."""
    assert Scenario(41100072).run().violations == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [7.0, 12.0])
def test_no_run_is_forgotten_whose_resume_arrives_after_its_caller_gave_up(seconds: float) -> None:
    """Found by seed 82000920: a sweeper had forgotten the run before it was resumed, and nobody published its steps."""
    scenario = scenario_of(1, "allow")
    scenario.network._delay = lambda _process: seconds  # type: ignore[method-assign]
    resume = _sha("pipeline/resume").encode()
    calls = []

    def delay_resume(process: Process, commands: list[list[bytes]]) -> Loss | None:
        if process.name != "somebody" or commands[0][:2] != [b"EVALSHA", resume]:
            return None
        calls.append(commands)
        # The server refuses the first call, because it does not know the script.
        return Loss.LATE_REQUEST if len(calls) > 1 else None

    def cancel_and_resume() -> None:
        scenario.network.draw_loss = delay_resume
        run_id = next(run.id for run in scenario.turns.runs.values() if run.state == State.RUNNING)
        run = PipelineRun(scenario._operator._app, run_id)
        run.cancel()
        scenario.world.wait(3.0)
        with pytest.raises((redis.RedisError, OSError)):
            run.resume()

    scenario.world.after(5.0, lambda: scenario.world.process("somebody").start_main(cancel_and_resume))
    story = scenario.run()
    assert [violation for violation in story.violations if violation.law == "runs end"] == []


def test_a_run_may_go_on_whose_end_a_loss_of_data_has_undone() -> None:
    """Found by seed 81001067: a fail-over undid the end of a run when the next one was about to begin."""
    scenario = Scenario(1, busy(work=WORK, pipelines={"pipeline-wait": entry("wait")}, history=20))
    turns = Turns(scenario)
    database = scenario.server.database

    def read(name: str, state: str) -> list[str]:
        database.put(
            RunKeys.of("redbeat-lite", name).run.encode(), {b"entry": b"pipeline-wait", b"state": state.encode()}
        )
        turns._read(name)
        return [violation.law for violation in scenario.story.violations]

    for state in (State.RUNNING, State.SUCCEEDED):
        read("first", state)
    scenario.losses_of_data += 1
    assert read("first", State.RUNNING) == []
    assert read("second", State.RUNNING) == []
    assert read("third", State.RUNNING) == ["one at a time"]
    scenario.losses_of_data = 0
    read("first", State.SUCCEEDED)
    assert read("first", State.RUNNING) == ["one at a time", "runs end"]


def test_a_run_may_be_left_out_as_before_after_a_loss_of_data() -> None:
    """Found by seed 80500990: a fail-over undid that the run had begun at last."""
    scenario = Scenario(1, busy(work=WORK, pipelines={"pipeline-skip": entry("skip")}, history=20))
    turns = Turns(scenario)
    run, other = (EntryRun(name, entry("skip"), scenario.story.now, scenario.story.now) for name in ("run", "other"))
    turns.runs = {"run": run, "other": other}
    run.state, run.error = State.ABORTED, "left out: run other of its entry has not ended"
    other.state, other.lived = State.FAILED, scenario.story.now
    turns._check_left_out(run)
    scenario.world.now_us += 60 * MICROS
    scenario.lost_data = scenario.story.now
    turns._check_left_out(run)
    assert scenario.story.violations == []
    scenario.lost_data = 0
    turns._check_left_out(run)
    assert [violation.law for violation in scenario.story.violations] == ["left out"]


def test_runs_that_start_late_have_time_to_end() -> None:
    """Found by seed 89019831: ten runs began at the end of the storm, and had to wait for each other."""

    def longest_wait(late_runs: int) -> float:
        scenario = Scenario(1, busy(work=WORK, pipelines={"pipeline-wait": entry("wait")}, history=20))
        runs, waits = scenario.turns.runs, []

        def start(name: str) -> None:
            runs[name] = EntryRun(name, entry("wait"), 0, 0, state=State.WAITING)

        def live(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) <= late_runs:
                start(f"late-{len(waits)}")

        start("first")
        with patch.object(Timeline, "live", lambda _timeline, seconds: live(seconds)):
            scenario._finish_work(Timeline(scenario), 0)
        return sum(waits)

    assert longest_wait(late_runs=10) > longest_wait(late_runs=0) + 100


def test_a_run_may_begin_while_the_others_are_judged() -> None:
    """Found by seed 89025803: a message was delivered late."""
    scenario = Scenario(1, busy(work=WORK, pipelines={"pipeline-wait": entry("wait")}, history=20))
    turns = Turns(scenario)
    turns.runs["first"] = EntryRun("first", entry("wait"), 1, 1)

    def begin_another(*_: Any) -> None:
        turns.runs["second"] = EntryRun("second", entry("wait"), 1, 1)

    with patch.object(scenario.jobs, "judge_one", begin_another):
        turns.judge({})
    assert scenario.story.violations == []


def test_a_resumed_run_may_wait_for_another_one_although_later_runs_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by seed 96510422: a run that was resumed began as soon as the other one had ended."""
    scenario = Scenario(1, busy(work=WORK, pipelines={"pipeline-skip": entry("skip")}, history=20))
    monkeypatch.setattr(scenario, "can_send", lambda: True)
    turns = Turns(scenario)

    def see(run_id: str, state: str, resumed: int = 0) -> None:
        record = {"entry": "pipeline-skip", "state": state, "resumed": str(resumed)}
        fields = {name.encode(): value.encode() for name, value in record.items()}
        scenario.server.database.put(RunKeys.of("redbeat-lite", run_id).run.encode(), fields)
        turns._read(run_id)

    def wait(seconds: int) -> None:
        for _ in range(seconds):
            scenario.world.now_us += MICROS
            turns._look()

    see("other", State.RUNNING)
    see("resumed", State.WAITING, resumed=1)
    wait(10)
    see("other", State.SUCCEEDED)
    see("resumed", State.RUNNING, resumed=1)
    assert scenario.story.violations == []
    see("resumed", State.SUCCEEDED, resumed=1)
    see("again", State.WAITING, resumed=1)
    wait(10)
    see("again", State.RUNNING, resumed=1)
    assert [violation.law for violation in scenario.story.violations] == ["turns", "turns"]
