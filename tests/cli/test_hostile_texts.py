"""What is in Redis or in a file by somebody else's hand confuses no terminal, and ends no command."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from redbeat_lite import Schedules, every
from redbeat_lite.__main__ import main
from redbeat_lite.cli import redbeat
from redbeat_lite.pipeline.pipeline_keys import RunKeys, index_key
from tests.cli.conftest import Shell
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.server import Server

EVIL = "\x1b[31m\x9b2J\x07\r\nFAKE\u202e\u061c"


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    app = make_app()

    @app.task(name="add", shared=False)
    def add() -> None:
        """Never runs."""

    return app


@pytest.fixture
def run(app: Celery) -> Callable[..., Result]:
    def run(*words: str) -> Result:
        said = CliRunner().invoke(redbeat, words, obj=CLIContext(app=app, no_color=True, workdir=None))
        assert said.exception is None or isinstance(said.exception, SystemExit), said.exc_info
        return said

    return run


def is_clean(said: Result) -> bool:
    """Nothing in it moves the cursor, rings, hides or begins a line of its own."""
    return (
        "FAKE" in said.output
        and not any(char in said.output for char in "\x1b\x9b\x07\r\u202e\u061c")
        and "\nFAKE" not in said.output
    )


@pytest.fixture
def evil(app: Celery, client: redis.Redis) -> str:
    """The name of an entry that somebody has written by hand."""
    Schedules(app).add("evil", "add", every(3600))
    stored = {**json.loads(client.hget(KEYS.entries, "evil") or b""), "owner": EVIL, "description": EVIL}
    client.hset(KEYS.entries, "evil", json.dumps(stored))
    client.hset(KEYS.entries, f"bad{EVIL}", "{")
    client.hset(KEYS.state, f"bad{EVIL}", client.hget(KEYS.state, "evil") or b"")
    client.zadd(KEYS.due, {f"bad{EVIL}": 9e12})
    return "evil"


@together(
    "words",
    [["show", "evil"], ["show", "evil", "--json"], ["list", "--json"], ["doctor"], ["export"], ["remove", "evil"]],
)
def test_no_command_prints_what_a_terminal_obeys(run: Callable[..., Result], evil: str, words: list[str]) -> None:
    said = run(*words)
    assert is_clean(said), said.output


def test_no_file_prints_what_a_terminal_obeys(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "entries.json"
    for fields in ({"schedule": 60, f"x{EVIL}": 1}, {"schedule": {f"k{EVIL}": 1}}, {"schedule": EVIL}):
        file.write_text(json.dumps({"entries": {"entry": {"task": "add", **fields}}}))
        said = run("plan", str(file))
        assert said.exit_code == 1
        assert is_clean(said), said.output
    heartbeat = {"role": EVIL, "pid": 7, "at": 0.0, "failing_since": None, "why": EVIL}
    file.write_text(json.dumps(heartbeat))
    assert is_clean(CliRunner().invoke(main, ["health", str(file)]))


def test_what_a_list_leaves_out_is_said_beside_it(server: Server, client: redis.Redis, evil: str) -> None:
    shell = Shell(server.url)
    client.zadd(index_key("redbeat-lite"), {f"0:run{EVIL}": 1})
    client.hset(RunKeys.of("redbeat-lite", f"run{EVIL}").run, "state", EVIL)
    for words, name in ((["list"], "bad"), (["pipelines", "list"], "run")):
        said = shell.typed(*words, "--json")
        assert isinstance(said.json, list)
        [line] = said.err.splitlines()
        assert line.startswith("Warning: ")
        assert name in line
        assert not any(char in line for char in "\x1b\x9b\x07\u202e\u061c")


def test_an_export_is_read_by_its_owner_alone_and_follows_no_link(
    app: Celery, run: Callable[..., Result], evil: str, tmp_path: Path
) -> None:
    other, path = tmp_path / "other", tmp_path / "backup.json"
    other.write_text("precious")
    path.symlink_to(other)
    assert run("export", str(path)).exit_code == 0
    assert other.read_text() == "precious"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert "evil" in path.read_text()
    assert not any(char in path.read_text() for char in "\x1b\x9b\u202e\u061c")


def test_an_export_replaces_neither_a_pipe_nor_a_device(run: Callable[..., Result], evil: str, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for place in (path, "/dev/fd/1"):
        said = run("export", str(place))
        assert (said.exit_code, "a pipe or a device, and no file" in said.output) == (1, True)
    assert path.is_fifo()


FILES = {
    "infinite.json": '{"entries": {"a": {"task": "add", "schedule": {"every": Infinity}}}}',
    "nan.json": '{"entries": {"a": {"task": "add", "schedule": {"every": NaN}}}}',
    "digits.json": f'{{"entries": {{"a": {{"task": "add", "schedule": {{"every": "{"9" * 400}s"}}}}}}}}',
    "jitter.json": '{"entries": {"a": {"task": "add", "schedule": 60, "jitter": NaN}}}',
    "dotted.toml": f"[entries.{'.'.join('a' * 3000)}]\nx = 1\n",
    "name.json": f'{{"entries": [{{"name": {"[" * 400}{"]" * 400}}}]}}',
}


@together("name", FILES)
def test_no_file_ends_a_command_with_a_traceback(run: Callable[..., Result], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    for command in ("plan", "import"):
        said = run(command, str(tmp_path / name))
        assert said.exit_code == 1, said.output
        assert said.output.startswith("Error: ")
        assert len(said.output) < 1000
