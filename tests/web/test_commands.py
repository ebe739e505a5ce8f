"""Each command that a page shows is one that the command line takes."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import redis

from redbeat_lite import Schedules, every, lock
from redbeat_lite.cli.group import redbeat
from redbeat_lite.web import RIGHTS
from redbeat_lite.web.site import ROUTES
from tests.cli.conftest import Said
from tests.support.beats import KEYS
from tests.support.changes import forget_changes
from tests.support.incidents import incident
from tests.support.run_records import Worker
from tests.web.conftest import Seen, Visitor
from tests.web.test_pipelines import Runs, runs

__all__ = ["runs"]


def parsed(shown: str) -> str:
    """The name of the command that a line means, once click has taken the words after it."""
    words = shlex.split(shown)
    assert words[:4] == ["celery", "-A", "proj", "redbeat"]
    command: click.Command = redbeat
    names, words = [], words[4:]
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(click.Context(command), words)
        assert found is not None
        command = found
        names.append(str(name))
    command.make_context(names[-1], words)
    return " ".join(names)


def shown_on(seen: Seen) -> list[str]:
    return [html.unescape(each) for each in re.findall("<code>(celery [^<]*)</code>", seen.html)]


def test_each_command_on_a_page_parses(
    look: Callable[..., Visitor], schedules: Schedules, client: redis.Redis, runs: Runs
) -> None:
    name, now = "-my job's", datetime.now(UTC)
    schedules.add(name, "add", every(60), tags=["t"])
    schedules.add("paused", "add", every(60))
    schedules.pause("paused")
    case = incident("failed", name, int(time.time() * 1000), "x")
    client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
    client.hset(KEYS.quarantine, name, json.dumps({"error": "x"}))
    schedules.freeze(3600)
    schedules.backfills.start(name, now - timedelta(days=1), now, max_active=None)
    runs.start(("a", 1), run_id="open")
    runs.end(runs.start(("a", 1), run_id="bad"), 0, "FAILED", "x")
    pages = [path[1:] for method, path in ROUTES if method == "GET"]
    assert {"", "entries", "edit", "doctor"} <= {*pages}
    filters: list[dict[str, Any]] = [
        {"q": "-my", "tag": "t", "task": "add", "offset": 50},
        *({"state": each} for each in ("failed", "paused")),
    ]
    seen: list[Seen] = []
    with lock(runs.app, "-key"):
        for visitor in (look(), look(*RIGHTS)):
            seen += [visitor.get(page, name=name, since="2h", outcome="failed") for page in pages]
            seen += [visitor.get("why", name=each) for each in (name, "paused")]
            seen += [visitor.get("changes", q=name), visitor.get("pipelines", state="running")]
            seen += [visitor.get("pipeline", id=each) for each in ("open", "bad")]
            seen += [visitor.get("entries", **each) for each in ({}, {"q": "nope"}, *filters)]
        seen += [visitor.post(f"{each}-all", q="-my", tag="t") for each in ("pause", "resume", "run", "remove")]
        seen.append(visitor.post("edit", name=name, version=1, jitter="5s", description="-x", args='["a b"]'))
        seen += [visitor.post("add", name=new, task="add", every="60") for new in ("new", "-new")]
        seen += [visitor.post("run-all", pick=[name, "paused"]), visitor.get("runs", q="-*", task="a*")]
        schedules.remove("paused")
        seen.append(visitor.get("why", name="paused"))
    found = {parsed(each) for page in seen for each in shown_on(page)}
    assert {
        "ack",
        "add",
        "backfill",
        "edit",
        "list",
        "locks clear",
        "next",
        "pipelines resume",
        "quarantine release",
        "thaw",
    } <= found


def test_each_command_works_as_it_is_shown(
    look: Callable[..., Visitor], schedules: Schedules, client: redis.Redis, run_cli: Callable[..., Said]
) -> None:
    name = "-my job's"
    schedules.add(name, "add", every(60), tags=["t"])
    Worker(client).reports("celery")
    visitor = look(*RIGHTS)
    pages = ("", "entries", "entry", "why", "runs", "timeline", "backfills", "changes", "pipelines", "locks")
    seen = [visitor.get(page, name=name) for page in (*pages, "quarantine")]
    seen += [visitor.get("entries", q="-my", tag="t", state="waiting"), visitor.get("timeline", q="*", span="7d")]
    seen += [visitor.get("runs", since="2h", q=name), visitor.post("pause-all", pick=name, **{"for": "1h 30m"})]
    seen += [visitor.post(f"{does}-all", tag="t") for does in ("pause", "resume", "run")]
    shown = dict.fromkeys(each for page in seen for each in shown_on(page))
    assert {shlex.split(each)[4] for each in shown} >= {"freeze", "pause", "run", "next", "backfill", "log", "remove"}
    for line in sorted(shown, key=lambda line: " remove " in line):
        if " backfill " in line:
            forget_changes(client, KEYS)  # the entry was added before the record begins
            schedules.resume(name)
        run_cli(visitor.site.parts.app, *shlex.split(line)[4:])
    assert len(schedules) == 0
    assert schedules.frozen() is not None


def test_a_command_has_a_text_of_several_lines_as_it_is(visitor: Visitor, schedules: Schedules) -> None:
    schedules.add("e", "add", every(60))
    text = 'it\'s\n"two" \\n lines'
    [line] = shown_on(visitor.post("edit", name="e", version=1, description=text))
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True).stdout
    assert words.split("\0")[4:8] == ["edit", "e", "--description", text]
