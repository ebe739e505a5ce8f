"""Moving in from crontab files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from redbeat_lite import cron, rrule
from redbeat_lite.errors import ConfigurationError, InvalidEntry
from redbeat_lite.interchange.importers.crontabfile import CrontabFile
from redbeat_lite.interchange.importers.source import Found, Left
from redbeat_lite.interchange.importers.zoned_crontab import zoned_cron_line, zoned_crontab
from redbeat_lite.schedules import rule_of
from redbeat_lite.schedules.cron import crontab_rule
from tests.support.cases import together

BERLIN = ZoneInfo("Europe/Berlin")

CRONTAB = r"""
# m h dom mon dow  command
SHELL=/bin/sh
MAILTO = "ops@example.org"

0 3 * * *          /usr/bin/backup --full
*/5 8-18 * * mon-fri  /usr/bin/sync   # every five minutes
@daily             /usr/bin/rotate
30 4 1,15 * 5      /usr/bin/rotate
@reboot            /usr/bin/warm-up
0 25 * * *         /usr/bin/late
0 3 * *
5 3 * * *          mail -s "50\% off" all
6 3 * * *          mail root%Hello
CRON_TZ=Asia/Tokyo
0 9 * * *          /usr/bin/tokyo
"""


def read(tmp_path: Path, text: str = CRONTAB, zone: tzinfo = BERLIN, **options: object) -> dict[str, Found | Left]:
    (tmp_path / "tab").write_text(text)
    source = CrontabFile(tmp_path / "tab", zone, **options)  # type: ignore[arg-type]
    return {each.name: each for each in source.read()}


def test_lines_become_entries_of_one_task_that_takes_commands(tmp_path: Path) -> None:
    found = read(tmp_path, task="ops.run")
    schedules = {name: each.fields["schedule"] for name, each in found.items() if isinstance(each, Found)}
    assert schedules == {
        "/usr/bin/backup --full": cron("0 3 * * *", tz="Europe/Berlin"),
        "/usr/bin/sync   # every five minutes": cron("*/5 8-18 * * mon-fri", tz="Europe/Berlin"),
        "/usr/bin/rotate": cron("@daily", tz="Europe/Berlin"),
        "/usr/bin/rotate (2)": cron("30 4 1,15 * 5", tz="Europe/Berlin"),
        'mail -s "50% off" all': cron("5 3 * * *", tz="Europe/Berlin"),
        "/usr/bin/tokyo": cron("0 9 * * *", tz="Asia/Tokyo"),
    }
    backup = found["/usr/bin/backup --full"]
    assert isinstance(backup, Found)
    assert (backup.fields["task"], backup.fields["args"]) == ("ops.run", ["/usr/bin/backup --full"])
    assert backup.fields["description"] == "crontab: 0 3 * * *          /usr/bin/backup --full"


def test_lines_that_cannot_be_carried_over_are_said_with_their_number(tmp_path: Path) -> None:
    left = {name: each.reason for name, each in read(tmp_path, task="ops.run").items() if isinstance(each, Left)}
    assert {name.split(":")[0] for name in left} == {"line 10", "line 11", "line 12", "line 14"}
    assert "send the task when your program starts" in left["line 10: /usr/bin/warm-up"]
    assert "hours of 0 to 23" in left["line 11: /usr/bin/late"]
    assert left["line 12"] == "expected 5 fields of time and a command, got '0 3 * *'"
    assert "as its input" in left["line 14: mail root%Hello"]


def test_a_mapping_says_which_task_stands_for_which_command(tmp_path: Path) -> None:
    commands = tmp_path / "commands.json"
    target = {"name": "rotate", "task": "ops.rotate", "args": [7], "options": {"queue": "ops"}}
    commands.write_text(json.dumps({"/usr/bin/backup --full": "ops.backup", "/usr/bin/rotate": target}))
    found = read(tmp_path, commands=commands)
    backup, rotate, again = found["/usr/bin/backup --full"], found["rotate"], found["rotate (2)"]
    assert isinstance(backup, Found)
    assert isinstance(rotate, Found)
    assert isinstance(again, Found)
    assert backup.fields["task"] == "ops.backup"
    assert {key: rotate.fields[key] for key in target if key != "name"} == {
        key: value for key, value in target.items() if key != "name"
    }
    left = [each.reason for each in found.values() if isinstance(each, Left) and "a command is no task" in each.reason]
    assert len(left) == 5


def test_a_system_crontab_names_a_user(tmp_path: Path) -> None:
    text = "0 3 * * * root /usr/bin/backup\n@weekly www-data /usr/bin/rotate\n0 4 * * * root\n"
    found = read(tmp_path, text, task="ops.run", user_column=True)
    assert [*found] == ["/usr/bin/backup", "/usr/bin/rotate", "line 3"]
    folder = tmp_path / "etc" / "cron.d"
    folder.mkdir(parents=True)
    (folder / "shop").write_text(text)
    assert [each.name for each in CrontabFile(folder / "shop", BERLIN, task="ops.run").read()] == [*found]


@together(
    ("line", "days"),
    [
        ("0 0 13 * 5", [2, 9, 13, 16, 23, 30]),  # either day
        ("0 0 */10 * 1", []),  # a field that begins with a star does not count, so both: a Monday 1, 11, 21 or 31
        ("0 0 */2 * 1", [5, 19]),
        ("0 0 1-7 * */2", [1, 3, 4, 6]),  # Sunday is 0
        ("0 0 * * 7", [4, 11, 18, 25]),
    ],
)
def test_two_day_fields_mean_what_they_mean_to_cron(line: str, days: list[int]) -> None:
    rule = rule_of(zoned_cron_line(line, UTC), UTC)
    at, found = datetime(2026, 9, 30, 23, 59, tzinfo=UTC), []
    while (at := rule.next_after(at)) < datetime(2026, 11, 1, tzinfo=UTC):
        found.append(at.day)
    assert found == days


@together("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
@together("days", [{}, {"day_of_month": "*/2"}, {"day_of_week": "sun,mon"}, {"month_of_year": "3,4,10"}])
@together("hour", ["*", "2", "*/2", "1-23/2", "*/3", "1-5", "22-4", 2])
def test_celerys_crontab_with_a_zone_keeps_every_occurrence(hour: Any, days: dict[str, str], zone: str) -> None:
    where = ZoneInfo(zone)
    found = crontab(minute="0,30", hour=hour, **{"day_of_month": "1-31/2", "day_of_week": "*/2", **days})
    ours, theirs = rule_of(zoned_crontab(found, where), UTC), crontab_rule(found, where)
    for begin, end in (((3, 28), (4, 7)), ((10, 3), (10, 6)), ((10, 24), (10, 27))):
        at = other = datetime(2026, *begin, tzinfo=UTC)
        while at < datetime(2026, *end, tzinfo=UTC):
            at, other = ours.next_after(at), theirs.next_after(other)
            assert at == other


def test_hours_that_cannot_be_counted_are_those_of_the_clock() -> None:
    found = crontab(minute=0, hour="1,*/6", day_of_month="1-7", day_of_week="mon")
    assert zoned_crontab(found, BERLIN) == rrule(
        "FREQ=DAILY;BYHOUR=0,1,6,12,18;BYMONTHDAY=1,2,3,4,5,6,7;BYDAY=MO;BYMINUTE=0;BYSECOND=0", tz="Europe/Berlin"
    )


def test_files_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*absent: No such file"):
        CrontabFile(tmp_path / "absent", BERLIN)
    commands = tmp_path / "commands.json"
    for text, message in {
        "{": "is no JSON",
        "[]": "expected an object from commands to tasks",
        '{"a": 1}': "'a': expected the name of a task",
        '{"a": {"task": "t", "schedule": 60}}': "without a schedule",
    }.items():
        commands.write_text(text)
        with pytest.raises(ConfigurationError, match=message):
            read(tmp_path, commands=commands)
    with pytest.raises(InvalidEntry, match=r"line 1: CRON_TZ: expected .*did you mean Europe/Berlin"):
        read(tmp_path, "CRON_TZ=Berlin\n", task="t")


def test_a_day_that_never_comes_is_left_out_with_what_to_write_instead(tmp_path: Path) -> None:
    [left] = read(tmp_path, "0 0 31 2 * /usr/bin/reindex\n", task="ops.run").values()
    assert isinstance(left, Left)
    assert left.reason.endswith("(to run by hand only, write manual())")
