"""What holds for all commands: whole help, colours where they are wanted, a word where a list is empty or cut."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from redbeat_lite import Schedules, at, every
from redbeat_lite.cli import redbeat
from redbeat_lite.cli.command import Group
from redbeat_lite.cli.output import echo_table, showing_progress, table, wants_colour
from tests.cli.conftest import Cli
from tests.support.cases import together
from tests.support.waiting import eventually


def commands(group: click.Group = redbeat, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = dict(commands())


@together("path", ALL)
def test_the_help_of_a_command_is_whole_and_tells_its_exit_codes(path: tuple[str, ...]) -> None:
    said = CliRunner().invoke(redbeat, [*path, "--help"], terminal_width=80).output
    assert "..." not in ALL[path].get_short_help_str(45)
    assert "Example" in said
    assert isinstance(ALL[path], click.Group) or "Exit codes: 0" in said


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
        (["calendars", "list"], "No calendar is stored."),
        (["quarantine", "list"], "No entry is in quarantine."),
        (["freezes"], "Nothing is frozen."),
        (["backfills"], "No backfill was started."),
        (["incidents"], "No incident is open, and none was closed."),
        (["log"], "Nothing is recorded."),
        (["next"], "Nothing runs until "),
        (["list"], "No entry is stored."),
    ],
)
def test_an_empty_list_says_why(cli: Cli, words: list[str], why: str) -> None:
    assert cli(*words).out.startswith(why)


def test_what_cannot_stand_beside_stands_below_and_names_are_cut_last() -> None:
    names, long = ["billing:customer-0", "b"], "a reason of some fifty columns, which has two lines"

    @click.command()
    def shown() -> None:
        rows = zip(names, ("proj.tasks.fetch", "t"), (long, None), strict=True)
        echo_table(("NAME", "TASK", "WHAT"), rows, below=True)

    assert CliRunner(env={"COLUMNS": "30"}).invoke(shown).output.splitlines() == [
        "NAME                TASK",
        "billing:customer-0  proj.task…",
        "    a reason of some fifty",
        "    columns, which has two",
        "    lines",
        "b                   t",
    ]
    assert len(CliRunner(env={"COLUMNS": "99"}).invoke(shown).output.splitlines()) == 3


def test_a_table_has_whole_values_where_the_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not a terminal")

    @click.command()
    def shown() -> None:
        echo_table(("NAME", "TASK"), [("report", "x" * 200)])

    monkeypatch.setattr("os.get_terminal_size", refuse)
    assert "x" * 200 in CliRunner(env={"COLUMNS": None}).invoke(shown).output
    assert "x" * 80 not in CliRunner(env={"COLUMNS": "80"}).invoke(shown).output


def test_a_word_that_others_have_for_a_command_leads_to_ours(cli: Cli) -> None:
    assert "Did you mean thaw?" in cli("unfreeze", code=1).err
    assert isinstance(redbeat, Group)
    assert {meant.split()[0] for meant in redbeat.synonyms.values()} <= {*redbeat.list_commands(click.Context(redbeat))}
    assert not {*redbeat.synonyms} & {path[0] for path in ALL}


def test_a_cut_list_says_so(cli: Cli, schedules: Schedules) -> None:
    for number in range(3):
        schedules.add(f"e{number}", "add", every("10m"))
    for words in (["next", "--until", "25m"], ["log"]):
        assert cli(*words, "--limit", "2").lines[-1] == "There are more: --limit 4"
        assert len(cli(*words, "--limit", "2", "--json").json) == 2
        assert "more" not in cli(*words, "--limit", "30").out
    assert cli("list", "--limit", "2").lines[-1] == "There are more: --offset 2"


def test_times_are_those_of_the_apps_zone(cli: Cli, schedules: Schedules) -> None:
    schedules.add("once", "add", at(datetime(2030, 1, 1, 8, tzinfo=UTC)), start_at=datetime(2029, 1, 1, tzinfo=UTC))
    assert "at 2030-01-01 09:00:00+01:00" in cli("list").out
    shown = cli("show", "once").out
    assert "--at 2030-01-01T09:00:00+01:00" in shown
    assert "2029-01-01 01:00:00+01:00" in shown
    assert "+00:00" not in shown


def test_colours_are_of_words_of_ours_and_fit() -> None:
    rows = [("failed", "✓✗", "paused"), ("b", "-", "2026-01-01 00:00:00+00:00")]
    plain = table(("NAME", "LAST", "NEXT RUN"), rows, width=60)
    painted = table(("NAME", "LAST", "NEXT RUN"), rows, width=60, paint=True)
    assert [click.unstyle(line).rstrip() for line in painted] == plain
    assert painted[1].startswith("failed "), "the name of an entry is no word of ours"
    assert click.style("✗", fg="red") in painted[1]
    assert click.style("paused", fg="yellow")[:5] in painted[1]
    assert "\x1b" not in "".join(table(("NAME", "LAST", "NEXT RUN"), rows, width=20, paint=True))


@together(
    "env, is_terminal, wanted",
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
    ],
)
def test_colours_are_for_a_terminal_that_wants_them(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, Any], is_terminal: bool, wanted: bool
) -> None:
    isatty: Callable[[], bool] = lambda: is_terminal  # noqa: E731
    with monkeypatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setattr(sys.stdout, "isatty", isatty)
        assert wants_colour() is wanted


def test_long_work_shows_that_it_lives_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    with showing_progress("comparing"):
        pass
    assert err.getvalue() == "", "no terminal"
    monkeypatch.setattr(err, "isatty", lambda: True, raising=False)
    with showing_progress("comparing"):
        eventually(lambda: "comparing: 1 s" in err.getvalue())
    assert err.getvalue().endswith("\r\x1b[K"), "and leaves the line empty"


def test_json_is_asked_for_by_each_command_where_a_shell_keeps_the_context_above(
    app: Celery, schedules: Schedules
) -> None:
    schedules.add("a", "add", every(60))
    shell = click.Context(click.Command("shell"), obj=CLIContext(app=app, no_color=True, workdir=None))
    asked = (["list", "--json"], ["pause", "a"], ["resume", "*"])
    said = [CliRunner().invoke(redbeat, words, parent=shell).stdout for words in asked]
    assert [each[:6] for each in said] == ["[\n  {\n", "paused", "resume"]
