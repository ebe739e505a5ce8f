"""``log`` and what ``show`` tells of the last change."""

from __future__ import annotations

import getpass
import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every
from tests.cli.conftest import Cli

AT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0[12]:00  "
SELF = f"{getpass.getuser()}@{socket.gethostname()}"


def test_tells_who_changed_what_and_why(cli: Cli, schedules: Schedules) -> None:
    cli("add", "hello", "add", "--every", "30s", "--note", "for the demo")
    cli("edit", "hello", "--every", "5m", "--max-runs", "100", "--args", "[1]", "--note", "less load")
    cli("pause", "hello", "--note", "until the disk is replaced")
    cli("remove", "hello", "--note", "moved out")
    printed = cli("log").out
    assert max(map(len, printed.splitlines())) <= 80
    lines = re.split(f"^(?={AT})", printed, flags=re.M)[1:]
    removed, paused, edited, added = [" ".join(line.split()) for line in lines]
    assert f"removed hello by {SELF} (cli): moved out" in removed
    assert f"paused hello by {SELF} (cli): until the disk is replaced" in paused
    assert f"edited hello by {SELF} (cli): " in edited
    assert edited.endswith("schedule every 30s → every 5m; args; max_runs default → 100; less load")
    assert added.endswith(f"added hello by {SELF} (cli): for the demo")


def test_goes_by_entry_time_and_number(cli: Cli, schedules: Schedules) -> None:
    schedules.add_many(Entry(f"e{n:02}", "add", every(60)) for n in range(25))
    cli("remove", "e00")
    changes = re.findall(rf"^{AT}(\w+) e00", cli("log", "e00").out, re.MULTILINE)
    assert changes == ["removed", "added"]
    assert "and 5 more by" in " ".join(cli("log").out.split())
    assert len(cli("log", "--limit", "1", "--json").json) == 1
    assert len(cli("log", "--since", "1h", "--json").json) == 2
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert cli("log", "--since", later, "--json").json == []
    assert cli("log", "never").out == "Nothing is recorded.\n"
    assert len(cli("log", "--since", "9999999w", "--json").json) == 2
    assert (
        "since: expected an instant such as 2026-12-01T09:00+01:00, or a time of day such as 03:00, or how long ago"
        in cli("log", "--since", "3q", code=1).err
    )


def test_a_term_that_begins_is_told_for_people(cli: Cli, app: Celery) -> None:
    for _ in range(2):
        beat = Scheduler(app)
        beat.run_due()
        beat.close()
    second, first = re.split(f"^(?={AT})", cli("log").out, flags=re.M)[1:]
    host, at_once = re.escape(socket.gethostname()), AT.strip()
    told = (
        rf"term begun by beat of {host} \(beat\): term 2; the last sign of life of the one before: {at_once}; pid \d+"
    )
    assert re.search(told, " ".join(second.split()))
    assert re.search(r"\(beat\): term 1; pid \d+", " ".join(first.split()))


def test_a_name_that_none_can_have_has_no_changes(cli: Cli, schedules: Schedules) -> None:
    schedules.add("a", "add", every(60))
    assert "Nothing is recorded." in cli("log", "\udcff").out
    assert "no entry" in cli("why", "\udcff", code=1).err


def test_what_comes_from_a_file_is_told(cli: Cli, schedules: Schedules, tmp_path: Path) -> None:
    file = str(tmp_path / "entries.json")
    schedules.add("a", "add", every(60))
    cli("export", file)
    cli("edit", "a", "--every", "5m")
    cli("import", file, "--replace", "--apply")
    [edited, *_] = schedules.changes()
    assert (edited.action, edited.way, edited.names, edited.note) == ("edited", "cli", ("a",), "imported")
    assert edited.fields == (("schedule", '{"every":"5m"}', '{"every":"1m"}'),)
    cli("pause", "a")
    cli("import", file, "--replace", "--apply")
    resumed = schedules.changes()[0]
    assert (resumed.action, resumed.note) == ("resumed", "imported")
    assert schedules["a"].last_change == resumed
    Path(file).write_text('{"entries": {"b": {"task": "add", "schedule": 60}}}')
    cli("apply", file, "--prune")
    assert [(change.action, change.way, change.names) for change in schedules.changes(limit=2)] == [
        ("removed", "cli", ("a",)),
        ("added", "cli", ("b",)),
    ]


def test_json_has_everything(cli: Cli, schedules: Schedules) -> None:
    schedules.add("a", "add", every(60))
    cli("edit", "a", "--description", "new")
    [edited, _] = cli("log", "--json").json
    assert datetime.now(UTC) - datetime.fromisoformat(edited.pop("at")) < timedelta(minutes=1)
    assert edited == {
        "action": "edited",
        "actor": SELF,
        "way": "cli",
        "names": ["a"],
        "count": 1,
        "fields": [["description", None, "new"]],
        "note": "",
    }


def test_show_tells_the_last_change(cli: Cli, schedules: Schedules) -> None:
    cli("add", "a", "add", "--every", "30s")
    cli("pause", "a", "--note", "why")
    shown = " ".join(cli("show", "a").out.split())
    assert re.search(rf"changed paused by {re.escape(SELF)} \(cli\) at {AT.strip()}: why", shown)
    last = cli("show", "a", "--json").json["last_change"]
    assert (last["action"], last["actor"], last["note"]) == ("paused", SELF, "why")
    assert "last_change" not in cli("list", "--json").json[0]
