"""Examples, tried by the very commands of their READMEs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from redbeat_lite import Schedules
from tests.support.pages import URL, blocks, document
from tests.support.processes import ROOT, Process, run_python
from tests.support.server import Server
from tests.support.waiting import eventually

EXAMPLES = ROOT / "examples"
COMMANDS = r"(?:    )?((?:celery|python|flask|uvicorn) .*)"


@pytest.fixture
def env(server: Server) -> dict[str, str]:
    return {"BROKER_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def start(env: dict[str, str]) -> Iterator[Callable[..., Process]]:
    """Starts a command of a README in the directory of its example."""
    processes: list[Process] = []

    def start(words: list[str], cwd: Path, **more: str) -> Process:
        processes.append(Process([sys.executable, "-m", *words], {**env, **more}, cwd=cwd))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
        process.destroy()


def commands(example: str) -> list[list[str]]:
    """The commands that a README has its reader type."""
    lines = (EXAMPLES / example / "README.md").read_text().splitlines()
    return [shlex.split(found[1], comments=True) for line in lines if (found := re.fullmatch(COMMANDS, line))]


def test_the_quickstart_example_works(start: Callable[..., Process], env: dict[str, str]) -> None:
    here = EXAMPLES / "quickstart"

    def schedule(*words: str, code: int = 0) -> str:
        done = run_python(*words, cwd=here, env={**os.environ, **env})
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    worker_line, beat_line, second_line, *lines = commands("quickstart")
    add, show, pause, resume, remove = (words[1:] for words in lines)
    worker = start(worker_line, here)
    beat = start(beat_line, here)
    beat.says("beat: leading")
    second = start(second_line, here)
    second.says("standing by")
    worker.says("still here")
    schedule(*add)
    worker.says("time for tea")
    assert "already stored" in schedule(*add, code=1)
    schedule(*pause)
    assert "paused " in schedule(*show)
    schedule(*resume)
    assert "paused " not in schedule(*show)
    schedule(*remove)
    assert "no entry 'tea'" in schedule(*remove, code=1)
    assert {"heartbeat", "nightly"} <= set(schedule(*show).split())
    beat.terminate()
    second.says(r"beat: leading \(term 2\)")


def test_the_example_of_django_works(
    start: Callable[..., Process], env: dict[str, str], make_app: Callable[..., Celery], tmp_path: Path
) -> None:
    here = shutil.copytree(EXAMPLES / "django", tmp_path / "django")
    worker_line, beat_line, *manage, remind = commands("django")
    assert [words[2] for words in manage] == ["migrate", "createsuperuser", "runserver"], "tried in tests/web"
    worker = start(worker_line, here)
    start(beat_line, here).says("beat: leading")
    done = run_python(*remind[1:], cwd=here, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    worker.says("order 1")
    schedules = Schedules(make_app(redbeat_lite_key_prefix="shop"))
    eventually(
        lambda: ("reminder:1", "succeeded") in [(run.name, run.outcome) for run in schedules.runs()],
        what="the record of the run",
    )


def test_the_section_on_django_leads_a_new_project_to_a_running_task(
    start: Callable[..., Process], env: dict[str, str], server: Server, tmp_path: Path
) -> None:
    def run(*words: str) -> str:
        done = run_python(*words, cwd=tmp_path, env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
        return done.stdout

    section = [*blocks(document("howto.md"), "Use it with Django")]
    *files, in_shell = [block.text for block in section if block.language == "python"]
    [lines] = [block.text for block in section if block.language == "text"]
    worker_line, beat_line, list_line, run_line = map(shlex.split, lines.splitlines())
    run("-m", "django", "startproject", "shop", ".")
    for text in files:
        name = re.match(r"# (\S+)\n", text)
        assert name, "a file begins with its name"
        with (tmp_path / name[1]).open("a") as file:  # only the settings exist
            file.write(text.replace(URL, server.url))
    worker = start(worker_line, tmp_path)
    start(beat_line, tmp_path).says(r"beat: leading \(term 1\), 2 entries$")
    # Which of them is due first goes by the time of day.
    _head, *names = re.findall(r"^\S+", run("-m", *list_line), re.MULTILINE)
    assert sorted(names) == ["celery.backend_cleanup", "cleanup"]
    run("-m", *run_line)
    worker.says("cleaned up")
    run("manage.py", "shell", "-c", in_shell)
    assert "hello" in run("-m", *list_line)


def test_a_wrong_setting_does_not_stop_the_commands_of_django(env: dict[str, str], tmp_path: Path) -> None:
    here = shutil.copytree(EXAMPLES / "django", tmp_path / "django")
    with (here / "shop" / "settings.py").open("a") as settings:
        settings.write("CELERY_REDBEAT_LITE_LEESE = 4\n")
    checked = run_python("manage.py", "check", cwd=here, env={**os.environ, **env})
    assert checked.returncode == 0, checked.stderr


def test_both_servers_of_the_example_of_progress_start(start: Callable[..., Process]) -> None:
    _worker, flask, uvicorn = commands("progress")
    for words, port in ((flask, "FLASK_RUN_PORT"), (uvicorn, "UVICORN_PORT")):
        said = start(words, EXAMPLES / "progress", **{port: "0"}).says(r"unning on http://")
        [address] = re.findall(r"http://[\d.]+:\d+", said)
        with urllib.request.urlopen(address) as answer:
            assert "EventSource" in answer.read().decode()
