"""Commands that mean several entries: by a pattern, a tag or a task."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, every, manual
from tests.cli.conftest import Cli
from tests.support.cases import together
from tests.support.commands import commands
from tests.support.frozen import NOW, Clock
from tests.support.in_process import clock
from tests.support.messages import queued
from tests.support.run_rows import RunRows
from tests.support.server import Server

__all__ = ["clock"]


@pytest.fixture
def shop(schedules: Schedules) -> Schedules:
    """Two entries of billing, and a third."""
    schedules.add("bill:a", "shop.bill", every(3600), tags=["billing"], kwargs={"of": "eu"})
    schedules.add("bill:b", "shop.bill", every(7200), tags=["billing", "eu"])
    schedules.add("mail", "add", every(60), tags=["eu"])
    return schedules


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)


def paused(schedules: Schedules) -> set[str]:
    return {entry.name for entry in schedules.values() if entry.paused_note is not None}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("bill:*",), {"bill:a", "bill:b"}),
        (("--tag", "billing"), {"bill:a", "bill:b"}),
        (("--tag", "eu"), {"bill:b", "mail"}),
        (("--task", "shop.*"), {"bill:a", "bill:b"}),
        (("b*", "--tag", "eu"), {"bill:b"}),
        (("mail", "--tag", "eu"), {"mail"}),
        (("*",), {"bill:a", "bill:b", "mail"}),
    ],
)
def test_all_that_are_meant_are_paused_and_resumed(
    cli: Cli, shop: Schedules, words: tuple[str, ...], meant: set[str]
) -> None:
    number = f"{len(meant)} {'entry' if len(meant) == 1 else 'entries'}\n"
    assert cli("pause", *words, "--note", "move").out == f"paused {number}"
    assert paused(shop) == meant
    assert {shop[name].paused_note for name in meant} == {"move"}
    again = cli("pause", *words).lines
    assert again == ["paused 0 entries", f"paused for as long already: {', '.join(map(repr, sorted(meant)))}"]
    assert cli("resume", *words).out == f"resumed {number}"
    assert paused(shop) == set()


@together("command", ["pause", "resume", "run", "remove", "runs", "next", "export"])
def test_nothing_that_is_meant_is_said(cli: Cli, shop: Schedules, tmp_path: Path, command: str) -> None:
    path = (str(tmp_path / "x"),) if command == "export" else ()
    assert cli(command, *path, "--tag", "uk", code=1).err == "Error: no entry is selected by tag uk\n"
    assert not (tmp_path / "x").exists()
    if command not in ("runs", "next", "export"):
        assert (
            "say which entries: a NAME or a pattern ('*' is all of them), --tag or --task" in cli(command, code=1).err
        )
        assert "no entry is selected by x*, task t" in cli(command, "x*", "--task", "t", code=1).err
        assert "no entry 'mial' is stored; did you mean 'mail'?" in cli(command, "mial", code=1).err
    assert len(shop) == 3


def test_an_entry_of_the_very_name_goes_before_a_pattern(cli: Cli, shop: Schedules) -> None:
    shop.add("b*", "add", every(60), tags=["eu"])
    assert cli("pause", "b*").out == "paused 'b*' until it is resumed\n"
    assert paused(shop) == {"b*"}
    assert cli("list", "b*", "--json").json[0]["name"] == "b*"
    assert cli("resume", "b*", "--tag", "eu").out == "resumed 1 entry\n"
    assert cli("remove", "b*").out == "removed 'b*'\n"
    assert {*shop} == {"bill:a", "bill:b", "mail"}
    assert cli("remove", "b*").out == "removed 2 entries\n"


def test_what_will_be_touched_is_shown_and_asked_about(cli: Cli, shop: Schedules, at_a_terminal: None) -> None:
    said = cli("pause", "--tag", "eu", typed="n\n", code=1)
    assert said.err.startswith("2 entries to pause: 'mail', 'bill:b'\nGo on? [y/N]: ")
    assert paused(shop) == set()
    assert cli("pause", "--tag", "eu", code=1).err.endswith("Aborted!\n"), "nobody answers"
    cli("pause", "--tag", "eu", typed="y\n")
    assert paused(shop) == {"bill:b", "mail"}
    assert "Go on?" not in cli("resume", "--tag", "eu", "--yes").err
    assert cli("remove", "b*", "--tag", "eu").err == "", "of one nobody is asked"
    shop.add_many(Entry(f"n{number:02}", "add", 60 + number) for number in range(12))
    said = cli("remove", "n*", typed="y\n")
    assert said.err.startswith("12 entries to remove: 'n00', 'n01',")
    assert "'n09' and 2 more\n" in said.err


def test_without_a_terminal_nobody_is_asked(cli: Cli, shop: Schedules) -> None:
    said = cli("remove", "--task", "shop.*")
    assert (said.out, said.err) == ("removed 2 entries\n", "2 entries to remove: 'bill:a', 'bill:b'\n")
    assert [*shop] == ["mail"]


def test_scripts_are_told_of_all_of_them(cli: Cli, shop: Schedules, client: redis.Redis) -> None:
    shop.select(tag="billing").pause()
    assert sorted(cli("resume", "--tag", "billing", "--json").json) == ["bill:a", "bill:b"]
    sent = cli("run", "--tag", "billing", "--note", "again", "--json").json
    assert {each["name"]: each["task_id"] for each in sent} == {each.entry: each.id for each in queued(client)}
    assert len(sent) == 2
    assert sorted(line.split()[1] for line in cli("run", "bill:*").lines) == ["'bill:a'", "'bill:b'"]
    said = cli("run", "bill:*", "--kwargs", "{}", code=1).err
    assert "--args and --kwargs go with the NAME of one entry" in said
    [note] = {change.note for change in shop.changes(limit=2)} - {"2 tasks"}
    assert note == "2 tasks: again"


def test_what_the_configuration_brings_back_is_said(cli: Cli, shop: Schedules, client: redis.Redis) -> None:
    raw = json.loads(client.hget("{redbeat-lite}:entries", "mail"))
    client.hset("{redbeat-lite}:entries", "mail", json.dumps({**raw, "owner": "proj"}, separators=(",", ":")))
    said = cli("remove", "--tag", "eu").lines
    assert said[0] == "removed 2 entries"
    assert said[1].startswith("A beat stores the entries of config:proj again")


def test_a_broker_that_is_away_is_told_of(cli: Cli, shop: Schedules, app: Celery, server: object) -> None:
    app.conf.redbeat_lite_url, app.conf.broker_url = app.conf.broker_url, "redis://127.0.0.1:1/0"
    assert "cannot reach the broker: " in cli("run", "--tag", "billing", code=2).err


def test_for_a_time_all_of_them_are_paused(cli: Cli, shop: Schedules) -> None:
    shop.add("b*", "add", every(60))
    assert "paused 'b*' until " in cli("pause", "b*", "--for", "2h").out
    assert "paused 2 entries" in cli("pause", "--tag", "eu", "--for", "2h", "--note", "move").out
    assert paused(shop) == {"b*", "mail", "bill:b"}
    found = cli("list", "--tag", "eu", "--status", "paused", "--json").json
    assert {each["name"] for each in found} == {"mail", "bill:b"}
    assert all(each["paused_until"] for each in found)
    assert cli("list", "--tag", "billing", "--status", "waiting", "--json").json[0]["name"] == "bill:a"


def test_list_has_those_of_a_tag(cli: Cli, shop: Schedules) -> None:
    for words, names in {("--tag", "eu"): ["mail", "bill:b"], ("b*", "--tag", "eu"): ["bill:b"]}.items():
        assert [each["name"] for each in cli("list", *words, "--json").json] == names
    assert cli("list", "--tag", "eu", "--limit", "1", "--json").json[0]["tags"] == ["eu"]
    assert "Nothing is in this list; 3 entries are stored." in cli("list", "--tag", "uk").out


def test_next_has_those_of_a_tag(cli: Cli, shop: Schedules) -> None:
    for words, names in {("--tag", "eu"): {"mail", "bill:b"}, ("b*", "--tag", "eu"): {"bill:b"}}.items():
        assert {each["name"] for each in cli("next", *words, "--limit", "200", "--json").json} == names
    shop.add("b*", "add", manual())
    assert cli("next", "b*").out == "No run is planned: 'b*' is manual.\n"
    assert cli("next", "b*", "--task", "shop.*", "--until", "1m", code=1).err == (
        "Error: no entry is selected by b[*], task shop.*\n"
    )


def test_runs_are_those_of_the_entries(cli: Cli, shop: Schedules, client: redis.Redis, clock: Clock) -> None:
    rows = RunRows(client, shop)
    for name in ("bill:a", "bill:b", "mail"):
        [task_id] = rows.sent(name, NOW - timedelta(minutes=1))
        rows.line(name, NOW - timedelta(minutes=1), "failed", task_id)
    assert {each["name"] for each in cli("runs", "--tag", "eu", "--json").json} == {"bill:b", "mail"}
    assert {each["name"] for each in cli("runs", "--json").json} == {"bill:a", "bill:b", "mail"}
    assert {each["name"] for each in cli("runs", "*", "--json").json} == {"bill:a", "bill:b", "mail"}
    said = cli("runs", "b*", "--failed").lines
    assert said[0].split()[:3] == ["SCHEDULED", "ENTRY", "OUTCOME"]
    assert len(said) == 3
    assert cli("runs", "b*", "--since", "1s").out.startswith("No run matches. Workers record")
    assert [run.name for run in shop.runs(["mail"])] == ["mail"]
    assert shop.runs([]) == []


def test_export_and_import_carry_the_selected_with_their_tags(
    cli: Cli, shop: Schedules, client: redis.Redis, tmp_path: Path
) -> None:
    aside = {"error": "x", "definition": '{"tags":["eu"]}'}
    client.hset("{redbeat-lite}:quarantine", mapping={"old": json.dumps(aside), "bill:x": "{}"})
    path = str(tmp_path / "some.json")
    assert cli("export", path, "--tag", "eu").err.startswith(
        f"exported 2 entries to {path}, 1 left out\nleft out 'old'"
    )
    assert "exported 1 entry, 0" in cli("export", "--name", "b*", "--tag", "eu").err
    assert "exported 2 entries, 1 left out\nleft out 'bill:x'" in cli("export", "--name", "bill:*").err
    shop.clear()
    cli("import", path, "--apply")
    assert {entry.name: entry.tags for entry in shop.values()} == {"bill:b": ("billing", "eu"), "mail": ("eu",)}


def test_a_file_with_tags_is_the_same_after_it_was_applied(cli: Cli, shop: Schedules, tmp_path: Path) -> None:
    path = tmp_path / "entries.json"
    path.write_text(json.dumps({"entries": {"a": {"task": "add", "schedule": 60, "tags": ["z", "billing"]}}}))
    cli("apply", str(path))
    assert "1 the same" in cli("plan", str(path), "--exit-code").out
    assert "a" in shop.select(tag="z").names()


def test_the_next_runs_of_all_entries_need_no_names(cli: Cli, schedules: Schedules, server: Server) -> None:
    schedules.add_many(Entry(f"e{number:04}", "add", every(60)) for number in range(1500))
    with commands(server) as seen:
        assert "e0000" in cli("next", "--limit", "3").out
    assert [command for command in seen if command.startswith("ZSCAN")] == []
