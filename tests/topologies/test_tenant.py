"""A tenant of a shared server who may use keys of one prefix alone, as an ACL gives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redbeat_lite import Schedules
from tests.support.in_process import MakeApp
from tests.support.processes import Process, celery
from tests.support.server import Server
from tests.support.waiting import eventually

PROJ = """
import os
from celery import Celery
from redbeat_lite import Pipeline, PipelineTask, every, install

app = Celery("tenantproj", broker=os.environ["PROJ_URL"])
app.conf.broker_transport_options = {"global_keyprefix": "myapp:"}
app.conf.redbeat_lite_key_prefix = os.environ["PROJ_PREFIX"]
app.conf.result_expires = None
install(app)

@app.task(name="say")
def say(): ...

@app.task(name="step", base=PipelineTask)
def step(params): ...

app.finalize()
app.conf.beat_schedule = {
    "say": {"task": "say", "schedule": every(0.5), "once": True},
    "steps": {"task": Pipeline(app, [("step", 1), ("again", "step", 2)]), "schedule": every(0.5)},
}
"""


@pytest.fixture
def tenant(server: Server, client: redis.Redis) -> Iterator[str]:
    """The URL of a user who may use all that begins with ``myapp:``."""
    rules = ("on", ">secret-of-tenant", "~myapp:*", "&*", "+@all", "-@dangerous", "+info")
    client.execute_command("ACL", "SETUSER", "tenant", "reset", *rules)
    yield f"redis://tenant:secret-of-tenant@127.0.0.1:{server.port}/0"
    client.execute_command("ACL", "DELUSER", "tenant")


def start(folder: Path, url: str, prefix: str, *words: str) -> Process:
    (folder / "tenantproj.py").write_text(PROJ)
    return celery("tenantproj", "--workdir", str(folder), *words, "-l", "INFO", PROJ_URL=url, PROJ_PREFIX=prefix)


def test_a_prefix_with_text_before_its_braces_is_all_that_a_tenant_needs(
    tenant: str, tmp_path: Path, running: list[Process], client: redis.Redis, make_app: MakeApp
) -> None:
    running.append(start(tmp_path, tenant, "myapp:{beat}", "worker", "-P", "solo"))
    running.append(start(tmp_path, tenant, "myapp:{beat}", "beat", "-S", "redbeat_lite.Scheduler"))
    schedules = Schedules(make_app("tenantproj", broker_url=tenant, redbeat_lite_key_prefix="myapp:{beat}"))
    running[1].says("beat: leading")
    for name in ("say", "steps"):
        eventually(lambda name=name: schedules.runs(name, outcome="succeeded"), what=f"a run of {name!r}")
    assert running[1].lines("schedule -> .* under myapp:{beat}")
    assert {key.split(b":")[0] for key in client.keys("*")} == {b"myapp"}
    assert not [line for process in running for line in process.lines("ERROR|WARNING.*redbeat|permission")]


def test_the_error_of_missing_rights_names_the_patterns(tenant: str, tmp_path: Path, running: list[Process]) -> None:
    running.append(start(tmp_path, tenant, "myapp:beat", "beat", "-S", "redbeat_lite.Scheduler"))
    line = running[0].says("cannot use")
    assert "it needs those of the patterns ~{myapp:beat}:* and ~{myapp:beat:*" in line
