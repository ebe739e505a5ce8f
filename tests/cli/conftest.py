"""Commands as one types them, and the same ones in this process, where a process of their own would add nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from redbeat_lite import Schedules
from redbeat_lite.cli import redbeat
from tests.support.beats import FAST, conf
from tests.support.in_process import small_pages
from tests.support.processes import ROOT, Process, celery, celery_beat, run_celery
from tests.support.server import Server

__all__ = ["small_pages"]


class Said(NamedTuple):
    """What a command printed."""

    out: str
    err: str
    printed: str = ""  # both, as a terminal has them

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run_command(app: Celery, *words: str, code: int = 0, typed: str | None = None, encoding: str = "utf-8") -> Said:
    """Run a command in this process; tables are 80 columns wide."""
    context = CLIContext(app=app, no_color=True, workdir=None)
    ended = CliRunner(encoding, env={"COLUMNS": "80"}).invoke(redbeat, words, obj=context, input=typed)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == code, (words, ended.output)
    return Said(ended.stdout, ended.stderr, ended.output)


class Shell:
    """Command lines beside a live beat.

    Parameters:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        # As the beat has them: an app that does not know a config entry would be another app.
        self.env = {
            **os.environ,
            "PROJ_URL": url,
            "PROJ_CONF": conf(schedule={"tick": FAST}),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "80",
        }
        self._app = Celery("proj", broker=url, set_as_current=False)
        self._app.conf.update(json.loads(self.env["PROJ_CONF"]), result_expires=None)

        @self._app.task(name="proj.add", shared=False)
        def add(x: int = 0, y: int = 0) -> None: ...

    def start(self, *words: str) -> Process:
        """Start a command that takes its time."""
        return celery("tests.acceptance.proj", "redbeat", *words, **self.env)

    def __call__(self, *words: str, code: int = 0) -> Said:
        """Run a command in this process to its end, which has to be this exit code."""
        return run_command(self._app, *words, code=code)

    def typed(self, *words: str, code: int = 0) -> Said:
        """Run a command in a process of its own."""
        ended = run_celery("tests.acceptance.proj", "redbeat", *words, env=self.env)
        assert ended.returncode == code, (words, ended.stdout, ended.stderr)
        return Said(ended.stdout, ended.stderr)

    def both(self, *words: str) -> tuple[Said, Any]:
        """Run a command plain and with ``--json``: what the one printed and what the other one means."""
        said = self(*words)
        assert max(map(len, said.lines), default=0) <= 80, said.out
        return said, self(*words, "--json").json


@pytest.fixture(scope="module")
def live_url() -> Iterator[str]:
    """A server with a beat that runs one config entry five times a second."""
    with Server() as server:
        settings = conf(schedule={"tick": FAST})
        with celery_beat("tests.acceptance.proj", PROJ_URL=server.url, PROJ_CONF=settings) as beat:
            beat.says("beat: leading")
            yield server.url
            assert beat.alive, beat.output


@pytest.fixture(scope="module")
def shell(live_url: str) -> Shell:
    return Shell(live_url)


@pytest.fixture(scope="module")
def live(live_url: str) -> Iterator[Schedules]:
    """The schedule of the live beat."""
    app = Celery("proj", broker=live_url, set_as_current=False)
    yield Schedules(app)
    app.close()


Cli = Callable[..., Said]


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    """An app in Berlin, with one task."""
    app = make_app(timezone="Europe/Berlin", result_expires=None)

    @app.task(name="add", shared=False)
    def add(x: int = 0, y: int = 0) -> int:
        return x + y

    return app


@pytest.fixture
def schedules(app: Celery) -> Schedules:
    return Schedules(app)


@pytest.fixture
def run_cli() -> Callable[..., Said]:
    """Runs a command of an app in this process."""
    return run_command


@pytest.fixture
def cli(app: Celery, run_cli: Callable[..., Said]) -> Cli:
    """Runs a command of the app in this process."""
    return lambda *words, **options: run_cli(app, *words, **options)
