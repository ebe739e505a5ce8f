"""The wheel, installed into an empty environment, is all that a user needs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.beats import complaints
from tests.support.messages import of_entry
from tests.support.process_table import descendants, is_running
from tests.support.processes import ROOT
from tests.support.server import Server
from tests.support.waiting import eventually
from tests.support.wheel import Installation

pytestmark = pytest.mark.timeout(180)

_PROJECT = """
from celery import Celery

app = Celery("proj", broker={url!r})
app.conf.beat_schedule = {{"often": {{"task": "proj.nothing", "schedule": 0.5}}}}
"""


@pytest.fixture
def project(installation: Installation, server: Server) -> Iterator[Installation]:
    """A Celery project on the shared server, beside nothing but the installed wheel."""
    path = installation.project / "proj.py"
    path.write_text(_PROJECT.format(url=server.url))
    yield installation
    path.unlink()


def test_holds_every_file_of_the_package(installation: Installation) -> None:
    where = Path(installation.run("python", "-c", "import redbeat_lite; print(redbeat_lite.__path__[0])").strip())
    assert not where.is_relative_to(ROOT)
    installed = _files(where)
    assert {"py.typed", "store/scripts/lua/schedule/commit.lua"} <= installed
    # The rule for the length of lines is for those who change the source.
    assert installed == _files(installation.sources / "redbeat_lite") - {"ruff.toml"}


def test_pytest_has_the_fixture_in_a_project_that_asks_for_it_and_nothing_of_ours_in_any_other(
    installation: Installation,
) -> None:
    installation.have("pytest")
    show = ("python", "-m", "pytest", "--fixtures", "-q")
    said = installation.run(*show)
    assert "tmp_path -- " in said
    assert not any(ours in said for ours in ("schedule_clock", "redbeat"))
    assert "schedule_clock -- " in installation.run(*show, "-p", "redbeat_lite.pytest_plugin")


def _files(directory: Path) -> set[str]:
    names = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    return {name for name in names if "__pycache__" not in name}


@pytest.mark.parametrize("scheduler", [pytest.param("redbeat_lite.Scheduler", marks=pytest.mark.soak), "redbeat_lite"])
def test_a_beat_runs_and_ends(project: Installation, client: redis.Redis, scheduler: str) -> None:
    beat = project.start("celery", "-A", "proj", "beat", "-S", scheduler, "-l", "INFO")
    try:
        beat.says(r"scheduler -> redbeat_lite\.Scheduler")
        eventually(lambda: len(of_entry(client, "often")) >= 2, what="messages")
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output
        assert not beat.lines("ERROR|CRITICAL|Traceback"), beat.output
    finally:
        beat.destroy()


def test_the_demonstration_shows_an_entry_come_and_go_and_a_stand_by_take_over(
    installation: Installation, tmp_path: Path
) -> None:
    """It does so without the page, too, where the page's requirements are missing."""
    # Celery would use this broker instead of the server of the demonstration.
    elsewhere = {"CELERY_BROKER_URL": "redis://nowhere.invalid:1/0"}
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not installed')")
    demo = installation.start("python", "-m", "redbeat_lite", "demo", PYTHONPATH=str(tmp_path), **elsewhere)
    try:
        demo.says(r"the page needs the extra web: pip install 'redbeat-lite\[web]'")
        demo.says("standing by")
        eventually(lambda: len(descendants(demo.pid)) == 4, what="a server, a worker and two beats")
        demo.says(r"worker +received 'heartbeat': still here")
        demo.says(r"--- schedules\.add\('guest'")
        demo.says(r"worker +received 'guest': hello")
        demo.says(r"--- schedules\.remove\('guest'\)")
        demo.says(r"--- kill -9 of the leading beat")
        demo.says(r"beat-2 +beat: leading \(term 2\)")
        demo.says(r"--- that is all")
        text = demo.output
        removed, killed, taken_over = map(text.index, ("schedules.remove", "kill -9", "beat: leading (term 2)"))
        assert removed < killed < taken_over
        assert "'guest'" not in text[killed:], "an entry that was removed is sent no more"
        assert re.search(r"worker +received", text[taken_over:])
        eventually(lambda: len(descendants(demo.pid)) == 4, what="a new beat that stands by")
        children = descendants(demo.pid)
        demo.signal(signal.SIGINT)
        assert demo.wait() == 0
        assert demo.lines(r"--- stopped$")
        assert not demo.lines("nowhere|is registered in this app")
        assert not complaints(demo)
        eventually(lambda: not any(map(is_running, children)), what="the end of all its processes")
    finally:
        demo.destroy()
