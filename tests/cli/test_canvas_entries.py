"""A canvas as an entry, as commands tell of it."""

from __future__ import annotations

import pytest
from celery import Celery, chord, signature

from redbeat_lite import Schedules, every, install
from redbeat_lite.entries.canvas import CANVAS
from redbeat_lite.once.install import apply_canvas
from redbeat_lite.operate.doctor import examine
from tests.cli.conftest import Cli
from tests.support.processes import run_python

JOINED = chord([signature("add", (1, 2)), signature("gone")], signature("add"))


@pytest.fixture
def joined(schedules: Schedules) -> Schedules:
    schedules.add("joined", JOINED, every(60), options={"queue": "slow"})
    return schedules


def test_show_writes_it_as_celery_does_and_list_names_its_tasks(cli: Cli, joined: Schedules) -> None:
    assert cli("list").lines[1].split()[3:5] == ["add,", "gone"]
    [line] = [line for line in cli("show", "joined").lines if line.startswith("task ")]
    assert line.split(None, 1)[1] == "%add([add(1, 2), gone()])"
    assert "subtask_type" not in cli("show", "joined").out
    told = cli("show", "joined", "--json").json
    assert (told["task"], told["args"][0]["kwargs"]["header"][0]["args"]) == (CANVAS, [1, 2])
    assert "add, gone" in cli("list", "--task", "redbeat_lite.*").out


def test_the_doctor_names_members_that_no_task_is_there_for_and_who_applies_it(app: Celery, joined: Schedules) -> None:
    def told() -> dict[str, str]:
        return {each.what: each.todo for each in examine(app) if each.check == "task"}

    gone, canvas = (f"'joined' sends {name!r}, which is no task of this app" for name in ("gone", CANVAS))
    app.finalize()
    install(app)
    assert apply_canvas.name in app.tasks
    assert told().keys() == {gone}
    del app.tasks[CANVAS]
    assert told().keys() == {gone, canvas}
    assert told()[canvas].startswith("Call install(app).")


def test_who_turns_workers_on_by_the_configuration_has_the_task_that_applies_it() -> None:
    script = """
from celery import Celery
app = Celery("x", include=["redbeat_lite.worker"])
app.loader.import_default_modules()
print("redbeat_lite.canvas" in app.tasks)
"""
    assert run_python("-c", script, env={}).stdout == "True\n"
