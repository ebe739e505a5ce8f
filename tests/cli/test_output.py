"""What holds for all commands: whole help, whole values, a word where a list is empty or cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from redbeat_lite import Schedules, at, every
from redbeat_lite.cli import redbeat
from redbeat_lite.cli.command import echo_table
from tests.cli.conftest import Cli
from tests.support.beats import KEYS
from tests.support.cases import together


def commands(group: click.Group = redbeat, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = dict(commands())


@together("path", ALL)
def test_the_help_of_a_command_is_whole(path: tuple[str, ...]) -> None:
    said = CliRunner().invoke(redbeat, [*path, "--help"], terminal_width=80).output
    assert "..." not in said.partition("Commands:")[2]
    assert "Example" in said


def test_the_summaries_of_all_commands_are_whole() -> None:
    said = CliRunner().invoke(redbeat, ["--help"], terminal_width=80).output
    assert "..." not in said.partition("Commands:")[2]
    assert len(ALL) > 45


@together(
    "words, why",
    [
        (["locks", "list"], "No lock is held or waited for."),
        (["pipelines", "list"], "No run is recorded."),
        (["pipelines", "list", "--failed"], "No run matches."),
        (
            ["list", "--status", "failed"],
            "No recorded run has failed. Workers record runs if their app has called install(",
        ),
        (["calendars"], "No calendar is stored."),
        (["quarantine"], "No entry is in quarantine."),
        (["backfills"], "No backfill was started."),
        (["incidents"], "No incident is open, and none was closed."),
        (["log"], "Nothing is recorded."),
        (["next"], "No run is planned until "),
        (["list"], "No entry is stored."),
    ],
)
def test_an_empty_list_says_why(cli: Cli, words: list[str], why: str) -> None:
    assert cli(*words).out.startswith(why)


@click.command()
def shown() -> None:
    long = "a reason of some fifty columns, which has two lines"
    rows = [("billing:customer-0", "fetch", long), ("x\x1b[2J\x07\u202ey", "t", None)]
    echo_table(("NAME", "TASK", "WHAT"), rows)


def test_the_last_column_is_broken_between_words_and_nothing_moves_the_cursor() -> None:
    assert CliRunner(env={"COLUMNS": "52"}).invoke(shown).output.splitlines() == [
        "NAME                TASK   WHAT",
        "billing:customer-0  fetch  a reason of some fifty",
        "                           columns, which has two",
        "                           lines",
        "x [2J y             t      -",
    ]


def test_a_row_is_one_line_where_the_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not a terminal")

    monkeypatch.setattr("os.get_terminal_size", refuse)
    assert len(CliRunner(env={"COLUMNS": None}).invoke(shown).output.splitlines()) == 3


def test_a_cut_list_says_so(cli: Cli, schedules: Schedules) -> None:
    for number in range(3):
        schedules.add(f"e{number}", "add", every("10m"))
    for words in (["next", "--until", "25m"], ["log"], ["list"]):
        assert cli(*words, "--limit", "2").lines[-1] == "There are more: --limit 4"
        assert len(cli(*words, "--limit", "2", "--json").json) == 2
        assert "more" not in cli(*words, "--limit", "30").out


def test_a_time_in_quarantine_that_is_none_is_left_out(cli: Cli, client: redis.Redis) -> None:
    client.hset(KEYS.quarantine, "bad", json.dumps({"error": "e", "at": 10**40}))
    assert cli("quarantine").lines[1].split() == ["bad", "-", "e"]


def test_times_are_those_of_the_apps_zone(cli: Cli, schedules: Schedules) -> None:
    schedules.add("once", "add", at(datetime(2030, 1, 1, 8, tzinfo=UTC)), start_at=datetime(2029, 1, 1, tzinfo=UTC))
    assert "at 2030-01-01 09:00:00+01:00" in cli("list").out
    shown = cli("show", "once").out
    assert "--at 2030-01-01T09:00:00+01:00" in shown
    assert "2029-01-01 01:00:00+01:00" in shown
    assert "+00:00" not in shown


def test_json_is_asked_for_by_each_command_where_a_shell_keeps_the_context_above(
    app: Celery, schedules: Schedules
) -> None:
    schedules.add("a", "add", every(60))
    shell = click.Context(click.Command("shell"), obj=CLIContext(app=app, no_color=True, workdir=None))
    asked = (["list", "--json"], ["pause", "a"], ["resume", "*"])
    said = [CliRunner().invoke(redbeat, words, parent=shell).stdout for words in asked]
    assert [each[:6] for each in said] == ["[\n  {\n", "paused", "resume"]
