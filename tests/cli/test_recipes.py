"""The recipes for operators, done as their page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from celery import Celery
from redis.exceptions import AuthenticationError

from redbeat_lite import Scheduler, Schedules, every
from tests.cli.conftest import Said
from tests.cli.test_docs import follow
from tests.support.messages import queued
from tests.support.pages import document
from tests.support.server import Server

MakeApp = Callable[..., Celery]
RunCli = Callable[..., Said]


@pytest.fixture(autouse=True)
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recipe(heading: str, language: str = "console") -> list[str]:
    """The blocks of one recipe, also those inside its numbered steps."""
    section = document("recipes.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def lead(app: Celery) -> None:
    """Let a beat lead for one turn."""
    beat = Scheduler(app)
    beat.run_due()
    beat.close()


def add_entries(app: Celery) -> Schedules:
    schedules = Schedules(app)
    schedules.add("report", "reports.build", every(3600))
    schedules.add("sync", "shop.sync", every(60))
    schedules.pause("report", "broken")
    return schedules


def test_the_schedule_moves_to_another_server(
    make_app: MakeApp, run_cli: RunCli, own_server: Callable[..., Server]
) -> None:
    export, restore = recipe("Move the schedule to another server")
    old_app = make_app(result_expires=None)
    old = add_entries(old_app)
    next_run = old["sync"].next_run_at
    follow(old_app, export, run_cli)
    new_app = make_app(result_expires=None, redbeat_lite_url=own_server().url)
    follow(new_app, restore, run_cli)
    lead(new_app)
    new = Schedules(new_app)
    assert sorted(new) == ["report", "sync"]
    assert new["report"].paused_note == "broken"
    assert new["sync"].next_run_at == next_run


def test_a_backup_restores_the_pauses_of_config_entries_beside_a_beat(
    make_app: MakeApp, run_cli: RunCli, client: redis.Redis
) -> None:
    export, restore = recipe("Back up and restore")
    app = make_app(beat_schedule={"sync": {"task": "shop.sync", "schedule": 3600.0}}, result_expires=None)
    lead(app)
    schedules = Schedules(app)
    schedules.add("report", "reports.build", every(3600))
    schedules.pause("sync", "do not run")
    follow(app, export, run_cli)
    client.flushall()
    lead(app)
    assert schedules["sync"].paused_note is None, "this beat has not seen the pause"
    follow(app, restore, run_cli)
    assert schedules["sync"].paused_note == "do not run"
    assert "report" in schedules
    client.flushall()
    lead(app)
    schedules.pause("sync", "somebody's edit")
    schedules.resume("sync")
    run_cli(app, "import", "backup.json", "--apply", code=3)
    assert schedules["sync"].paused_note is None
    run_cli(app, "import", "backup.json", "--apply", "--replace")
    assert schedules["sync"].paused_note == "do not run"


def test_a_password_is_rotated_while_beats_run(make_app: MakeApp, own_server: Callable[..., Server]) -> None:
    server = own_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "beat", "on", ">old-secret", "~*", "&*", "+@all")
        add_new, remove_old = (shlex.split(block)[2:6] for block in recipe("Rotate a password"))
        url = f"redis://beat:{{}}@127.0.0.1:{server.port}/0"
        old_app = make_app(broker_url=url.format("old-secret"), result_expires=None)
        Schedules(old_app).add("sync", "shop.sync", every(60))
        assert admin.execute_command(*add_new) == b"OK"
        new_app = make_app(broker_url=url.format("new-secret"), result_expires=None)
        lead(old_app)
        lead(new_app)
        assert admin.execute_command(*remove_old) == b"OK"
        lead(new_app)
        assert Schedules(new_app)["sync"].name == "sync"
        late_app = make_app(broker_url=url.format("old-secret"))
        with pytest.raises(AuthenticationError):
            Schedules(late_app)["sync"]


def test_two_environments_share_a_database(make_app: MakeApp, client: redis.Redis) -> None:
    [settings] = recipe("Run two environments on one server", "python")
    production = make_app(result_expires=None)
    staging = make_app(result_expires=None)
    exec(settings, {"app": staging})
    for app, task in ((production, "shop.production"), (staging, "shop.staging")):
        Schedules(app).add("sync", task, every(3600))
        Schedules(app).run_now("sync")
        lead(app)
    assert [message.task for message in queued(client)] == ["shop.production"]
    assert [message.task for message in queued(client, "staging:celery")] == ["shop.staging"]
    assert Schedules(production)["sync"].task == "shop.production"
    assert Schedules(staging)["sync"].task == "shop.staging"


def test_an_entry_is_renamed(make_app: MakeApp, run_cli: RunCli) -> None:
    [block] = recipe("Rename an entry")
    export, after = block.split("$ sed ", 1)
    sed, rest = after.split("\n", 1)
    app = make_app(result_expires=None)
    schedules = add_entries(app)
    follow(app, export, run_cli)
    subprocess.run(["sed", *shlex.split(sed)], check=True)
    follow(app, rest, run_cli)
    assert sorted(schedules) == ["daily-report", "sync"]
    assert schedules["daily-report"].paused_note == "broken"
