"""The page about the command line shows what the commands print."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules, cron, every
from redbeat_lite._base import actors
from redbeat_lite.entries.run import Outcome
from tests.cli.conftest import Said
from tests.support.beats import KEYS
from tests.support.changes import forget_changes
from tests.support.frozen import frozen_clock
from tests.support.incidents import incident
from tests.support.pages import blocks, document
from tests.support.run_rows import RunRows

PAGE = document("cli.md")
DAY = timedelta(days=1)
_EXITS = {"show nigthly": 1}


@pytest.fixture
def proj(make_app: Callable[..., Celery], client: redis.Redis) -> Celery:
    """The app of the page, with what is in Redis when the page begins."""
    app = make_app("proj", timezone="Europe/Berlin", result_expires=None)
    for name in ("reports.build", "proj.say"):
        app.task(name=name, shared=False)(_task)
    schedules = Schedules(app)
    schedules.add("nightly", "reports.build", cron("30 2 * * *", tz="Europe/Berlin"))
    schedules.add("poll", "proj.say", every(90))
    schedules.add("report", "reports.build", cron("0 9 * * mon", tz="Asia/Tokyo"), enabled=False)
    _some_nights(client, schedules)
    aside = {"error": "definition is not usable", "definition": "{", "state": "", "at": 1772451000000}
    failed = incident("failed", "nightly", 1772452800000, "failed: KeyError: 7")
    client.hset("{redbeat-lite}:runs:incidents", failed.field, failed.encode())
    client.hset("{redbeat-lite}:quarantine", "old", json.dumps(aside))
    return app


def _some_nights(client: redis.Redis, schedules: Schedules) -> None:
    """Three runs that workers have recorded."""
    rows, nights = RunRows(client, schedules), [datetime(2026, 2, 28, 1, 30, tzinfo=UTC) + n * DAY for n in range(3)]
    told: list[tuple[Outcome, int, str, int]] = [
        ("succeeded", 39_000, "celery@w1", 0),
        ("failed", 70, "celery@w2", 2),
        ("succeeded", 41_000, "celery@w1", 0),
    ]
    for night, task_id, (outcome, took, worker, attempt) in zip(
        nights, rows.sent("nightly", *nights), told, strict=True
    ):
        error = "KeyError" if outcome == "failed" else ""
        more = {"begin": 20, "duration": took, "attempt": attempt}
        line = rows.line("nightly", night, outcome, task_id, worker=worker, error=error, **more)
        rows.row("nightly", night, outcome, task_id, **more, feed=line)


def _task(*args: object, **kwargs: object) -> None: ...


def test_every_command_prints_what_the_page_shows(
    run_cli: Callable[..., Said],
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(actors, "_user_at_host", lambda: "ada@laptop")
    with frozen_clock():
        app = request.getfixturevalue("proj")
        for block in blocks(PAGE):
            if block.language == "toml":
                Path("entries.toml").write_text(block.text)
            if "redbeat why" in block.text:
                forget_changes(client, KEYS)
            if block.language == "console":
                follow(app, block.text, run_cli)


def test_the_help_groups_the_commands_as_the_page_does(app: Celery, run_cli: Callable[..., Said]) -> None:
    said = run_cli(app, "--help").out
    sections = re.findall(r"^(\w[\w ]*):$", said.partition("Options:")[2], re.MULTILINE)
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert sections == headings[headings.index("Entries") :]
    text = PAGE.read_text()
    for section, rows in zip(
        sections, re.split(r"^\w[\w ]*:$", said, flags=re.MULTILINE)[-len(sections) :], strict=True
    ):
        chapter = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        commands = re.findall(r"^  (\w+)  ", rows, re.MULTILINE)
        assert commands
        assert not [name for name in commands if not re.search(rf"\b{name}\b", chapter)], section


def follow(app: Celery, text: str, run_cli: Callable[..., Said]) -> None:
    """Type the commands of a block; what they print has to be what it shows."""
    for part in re.split(r"^\$ celery -A proj redbeat ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        said = run_cli(app, *shlex.split(command), code=_EXITS.get(command, 0))
        # How wide a column is depends on what the page leaves open.
        printed, shown = (re.sub(" +", " ", each) for each in (said.printed, shown))
        pattern = ".*".join(map(re.escape, shown.split("...")))
        assert re.fullmatch(pattern, printed), f"{command}\n{printed}"
