"""What a pipeline may be, and what a step may return: all without a server."""

from __future__ import annotations

import json
import os
import random
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, chain
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite import CorruptEntry, InvalidEntry, Pipeline, PipelineTask
from redbeat_lite._base.json_values import dumps, unpack
from redbeat_lite._base.text import describe
from redbeat_lite.pipeline import RunStatus, State, StepStatus, progress_line
from redbeat_lite.pipeline.definition import (
    Definition,
    Ref,
    StepFailed,
    decode_params,
    merge_params,
    pack_params,
    result_of,
)
from tests.pipeline.steps import make_app
from tests.support.cases import together
from tests.support.examples import examples


@pytest.fixture(scope="module")
def app() -> Celery:
    return make_app("redis://127.0.0.1:1/0")


def stages(pipeline: Pipeline) -> list[list[str]]:
    return pipeline.definition.names()


def test_stages_go_by_priority_and_steps_keep_their_places(app: Celery) -> None:
    pipeline = Pipeline(
        app, [("late", 1), ("step", 3), ("proj.add", 2), (app.tasks["proj.auto"], 2.0), ("requeue", -1)]
    )
    assert stages(pipeline) == [["step"], ["proj.add", "proj.auto"], ["late"], ["requeue"]]
    assert pipeline.definition.steps[0].task == "proj.step"


def test_a_signature_brings_its_arguments_and_options(app: Celery) -> None:
    signature = app.tasks["proj.step"].s(1, how="x").set(queue="q", priority=3)
    [step] = Pipeline(app, [("mine", signature, 1)]).definition.steps
    assert (step.name, step.args, step.kwargs, step.options) == (
        "mine",
        [1],
        {"how": "x"},
        {"queue": "q", "priority": 3},
    )


def test_a_definition_survives_its_text(app: Celery) -> None:
    params = {"n": 2**60, "e": [], "o": {}, "ü": "💧", "f": 0.1, "__type__": "mine", "t": None}
    pipeline = Pipeline(app, [("step", 1), ("add", 2)], params, revoke_siblings=True, ttl=timedelta(hours=1))
    read = Definition.decode(pipeline.definition.encode())
    assert read.encode() == pipeline.definition.encode()
    assert unpack(read.params) == params


def test_a_definition_of_an_old_export_is_read(app: Celery) -> None:
    text = (
        '{"v":1,"stages":['
        '[{"name":"mine","task":"proj.step","priority":3,"args":{"__type__":"tuple","__value__":[1]},'
        '"options":{"queue":"q"}}],'
        '[{"name":"add","task":"proj.add","priority":1},{"name":"proj.auto","task":"proj.auto","priority":1}],'
        '[{"name":"late","task":"proj.late"}]],'
        '"params":{"n":1},"ttl":3600.0,"at_once":2}'
    )
    signature = app.tasks["proj.step"].s(1).set(queue="q")
    steps = [("mine", signature, 3), ("add", 1), ("proj.auto", 1), ("late", 0)]
    expected = Pipeline(app, steps, {"n": 1}, at_once=2, ttl="1h").definition
    read = Definition.decode(text)
    assert [(step.name, step.task, step.stage, [*unpack(step.args)], step.options) for step in read.steps] == [
        (step.name, step.task, step.stage, step.args, step.options) for step in expected.steps
    ]
    assert (read.params, read.at_once, read.ttl) == (expected.params, expected.at_once, expected.ttl)


def test_a_length_of_time_is_the_same_however_it_is_written(app: Celery) -> None:
    written = [
        Pipeline(app, [("step", 1)], ttl=each, deadline=each).definition.encode() for each in (3600, 3600.0, "1h")
    ]
    assert len({*written}) == 1


def test_what_was_checked_is_what_starts(app: Celery) -> None:
    params: dict[str, Any] = {"days": [1]}
    options = {"region": ["eu"]}
    pipeline = Pipeline(app, [("mine", app.tasks["proj.step"].s(how=options), 1)], params)
    params["days"].append({1, object()})
    options["region"].append("us")
    assert pipeline.definition.params == {"days": [1]}
    assert pipeline.definition.steps[0].kwargs == {"how": {"region": ["eu"]}}


@together(
    ("steps", "params", "message"),
    [
        ([], None, r"steps: expected 1 to 1000 steps, got 0"),
        ([(f"s{i}", "step", i) for i in range(1001)], None, r"steps: expected 1 to 1000 steps"),
        ("step", None, r"steps: expected a list of \(task, priority\)"),
        ([("step",)], None, r"steps\[0\]: expected a pair"),
        (["step"], None, r"steps\[0\]: expected a pair"),
        ([("step", 1), ("step", 2)], None, r"steps\[1\]\.name: expected a name that no other step has, got 'step'"),
        ([("stepp", 1)], None, r"steps\[0\]\.task: expected the name of a registered task.*did you mean"),
        ([("zzzzzz", 1)], None, r"no task of that name is registered"),
        ([("proj.foreign", 1)], None, r"expected a task whose base is redbeat_lite\.PipelineTask"),
        ([("step", "1")], None, r"steps\[0\]\.priority: expected a number, got '1'"),
        ([("step", True)], None, r"priority: expected a number"),
        ([("step", float("nan"))], None, r"priority: expected a number"),
        ([("step", None)], None, r"priority: expected a number"),
        ([("step", 10**400)], None, r"priority: expected a number"),
        ([("", 1)], None, r"steps\[0\]\.task"),
        ([("step", 1)], [1], r"params: expected a JSON object"),
        ([("step", 1)], "text", r"params: expected a JSON object"),
        ([("step", 1)], {"x": object()}, r"params\.x: expected a value that JSON"),
        ([("step", 1)], {"x": {1: 2}}, r"params\.x: expected a mapping with text keys"),
        ([("step", 1)], {"x": [float("inf")]}, r"params\.x\[0\]: expected a finite number"),
    ],
)
def test_bad_input_is_named(app: Celery, steps: Any, params: Any, message: str) -> None:
    with pytest.raises(InvalidEntry, match=message):
        Pipeline(app, steps, params)


def test_what_cannot_be_one_step_is_refused(app: Celery) -> None:
    step = app.tasks["proj.step"]
    with pytest.raises(InvalidEntry, match="no chain"):
        Pipeline(app, [(chain(step.s(), step.s()), 1)])
    with pytest.raises(InvalidEntry, match=r"options\.link"):
        Pipeline(app, [(step.s().set(link=step.s()), 1)])
    with pytest.raises(InvalidEntry, match=r"step 'mine'\.kwargs\.give: expected"):
        Pipeline(app, [("late", 1), ("mine", step.s(give=object()), 2)])
    for ttl in (0, 1e12, float("nan"), timedelta.max, "7x"):
        with pytest.raises(InvalidEntry, match="ttl"):
            Pipeline(app, [("step", 1)], ttl=ttl)  # type: ignore[arg-type] # on purpose


def test_a_name_that_two_tasks_have_is_ambiguous(app: Celery) -> None:
    other = make_app("redis://127.0.0.1:1/0")
    other.task(name="other.step", base=PipelineTask, shared=False)(stages)
    with pytest.raises(InvalidEntry, match=r"full name.*other\.step, proj\.step"):
        Pipeline(other, [("step", 1)])


@together(
    ("returned", "added"),
    [(None, {}), ({"a": []}, {"a": []}), ((True, {"a": 1}), {"a": 1}), ((True, None), {}), ({}, {})],
)
def test_what_a_step_may_return(returned: Any, added: dict[str, Any]) -> None:
    assert decode_params(result_of(returned)) == added


@together(
    ("returned", "message"),
    [
        (7, "expected a JSON object"),
        ("text", "expected a JSON object"),
        ([1, 2], "expected a JSON object"),
        (True, "expected a JSON object"),
        ((True, [1]), "expected a JSON object"),
        ({"a": object()}, r"return value\.a"),
        ({"a": float("nan")}, "finite"),
        ((False, None), "said that it failed"),
        ((False, "no rows"), "no rows"),
    ],
)
def test_what_a_step_may_not_return(returned: Any, message: str) -> None:
    with pytest.raises(StepFailed, match=message):
        result_of(returned)


def test_params_among_other_things_are_unwrapped_only_in_a_task_process() -> None:
    returned = {"id": "x", "name": "t", "result": True, "params": {"a": 1}}
    assert decode_params(result_of(returned, process=True)) == {"a": 1}
    assert decode_params(result_of(returned)) == returned
    with pytest.raises(StepFailed, match="broken"):
        result_of({"result": False, "error_info": "broken"}, process=True)


def test_the_truth_of_the_first_of_a_pair_decides_in_a_task_process() -> None:
    assert decode_params(result_of((1, {"n": 1}), process=True)) == {"n": 1}
    assert decode_params(result_of(("yes", None), process=True)) == {}
    with pytest.raises(StepFailed, match="broken"):
        result_of((0, "broken"), process=True)
    with pytest.raises(StepFailed):
        result_of((1, {"n": 1}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@examples(20)
@given(st.lists(st.dictionaries(st.text(max_size=2), JSON, max_size=4), max_size=5))
def test_merging_is_that_of_dicts_and_changes_no_value(dicts: list[dict[str, Any]]) -> None:
    merged: dict[str, Any] = {}
    for each in dicts:
        merged.update(each)
    got = decode_params(merge_params([dumps(pack_params(each)) for each in dicts]))
    assert json.dumps(got) == json.dumps(merged)


@examples(25)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "__type__", "__value__"]), JSON), max_size=3))
def test_merging_knows_the_names_that_mark_a_type(dicts: list[dict[str, Any]]) -> None:
    merged = {key: value for each in dicts for key, value in each.items()}
    assert decode_params(merge_params([dumps(pack_params(each)) for each in dicts])) == merged


def test_merging_looks_into_no_value() -> None:
    unknown = '{"a":{"__type__":"of somebody else","__value__":1}}'
    assert merge_params(['{"a":1,"b":2}', unknown]) == unknown[:-1] + ',"b":2}'
    for lost in (None, "[]", "{", '{"__type__":"set","__value__":[]}', '{"__type__":"dict","__value__":[1]}'):
        with pytest.raises(CorruptEntry):
            merge_params(["{}", lost])


def test_a_failure_can_be_told_whatever_it_says() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(ValueError("no")) == "ValueError: no"
    assert describe(ValueError()) == "ValueError"
    assert describe(FileNotFoundError(os.fsdecode(b"caf\xe9"))) == r"FileNotFoundError: caf\udce9"
    assert describe(Mute()) == "Mute: (its text cannot be shown)"


def test_ids_differ_wherever_steps_do() -> None:
    refs = [Ref(run, step, round_) for run in ("a", "b") for step in (0, 1) for round_ in (0, 1)]
    random.shuffle(refs)
    ids = {ref.task_id for ref in refs}
    assert len(ids) == len(refs)
    assert Ref("a", 1, 0).task_id == Ref("a", 1, 0, 2, "token").task_id, "a retry has the same id"


def test_a_progress_line_says_what_runs_and_what_failed() -> None:
    steps = tuple(StepStatus(f"s{n}", "t", 0, State.RUNNING, f"id{n}") for n in range(5))
    running = RunStatus("r", State.RUNNING, 0, 2, steps, total=5)
    assert progress_line(running) == "r  RUNNING    stage 1/2  0/5 steps  running: s0, s1, s2 and 2 more"
    failed = RunStatus("r", State.FAILED, 1, 2, error_step="s1", error="ValueError: no\nmore")
    assert progress_line(failed).endswith("s1 failed: ValueError: no")
    assert "\n" not in progress_line(failed)
    assert progress_line(RunStatus("r", State.GONE)) == "r  GONE"


def test_a_call_of_its_own_keeps_its_name_and_its_words() -> None:
    class Mine(PipelineTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """In a context of mine."""

    call = Mine.__call__
    assert (call.__doc__, call.__qualname__.split(".")[-2:]) == ("In a context of mine.", ["Mine", "__call__"])
