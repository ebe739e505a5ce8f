"""Calendars where operators meet them: commands, export and import, plan and apply, doctor, why."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat_lite import Calendar, Schedules, cron
from redbeat_lite.operate.doctor import examine
from redbeat_lite.store.store import Store
from tests.cli.conftest import Cli

TODAY = datetime.now(UTC).date()
DAILY = cron("0 9 * * *", tz="UTC")


def free(*offsets: int, until: int = 300) -> Calendar:
    """Days from today on."""
    return Calendar({TODAY + timedelta(days=each) for each in offsets}, TODAY + timedelta(days=until))


def run(cli: Cli, *words: str, code: int = 0) -> str:
    said = cli(*words, code=code)
    return said.out + said.err


def test_commands(cli: Cli, schedules: Schedules) -> None:
    run(cli, "calendars", "set", "closed", "2090-12-24", "2090-12-31")
    assert schedules.calendars["closed"].until == date(2090, 12, 31)
    said = run(cli, "calendars", "set", "closed", "2090-12-24", "--until", "2091-06-30")
    assert said == "stored closed@2, until 2091-06-30\n"
    assert "did you mean 'closed'?" in run(cli, "calendars", "remove", "closed@2", code=1), "as tables name it"
    listed = json.loads(run(cli, "calendars", "list", "--json"))
    assert listed == [{"calendar": "closed@2", "until": "2091-06-30", "days": ["2090-12-24"]}]
    assert run(cli, "calendars", "list").split()[4:] == ["closed@2", "2091-06-30", "2090-12-24"]
    run(cli, "add", "a", "add", "--cron", "0 9 * * *", "--calendar", "closed")
    assert [line.split() for line in run(cli, "show", "a").splitlines() if "calendar" in line] == [
        ["calendar", "closed@2"]
    ]
    assert "one that no entry names" in run(cli, "calendars", "remove", "closed", code=1)
    run(cli, "edit", "a", "--calendar", "none")
    run(cli, "calendars", "remove", "closed")
    assert "no calendar 'closed' is stored" in run(cli, "calendars", "remove", "closed", code=1)
    assert "name the days, or a place with --holidays" in run(cli, "calendars", "set", "closed", code=1)


def test_public_holidays(cli: Cli, schedules: Schedules) -> None:
    pytest.importorskip("holidays")
    run(cli, "calendars", "set", "de", "2090-12-24", "--holidays", "DE-BY", "2090", "2091")
    found = schedules.calendars["de"]
    assert (found.until, {date(2090, 12, 24), date(2091, 1, 6)} <= found.days) == (date(2091, 12, 31), True)


def test_an_export_holds_the_calendars_and_comes_back(cli: Cli, schedules: Schedules, tmp_path: Path) -> None:
    schedules.calendars["closed"] = free(1)
    schedules.calendars["closed"] = free(0, 1, 2)
    due = schedules.add("a", "add", DAILY, calendar="closed").next_run_at
    file = str(tmp_path / "all.json")
    run(cli, "export", file)
    schedules.clear()
    del schedules.calendars["closed"]
    run(cli, "import", file)
    assert [*schedules.calendars] == []
    run(cli, "import", file, "--apply")
    assert str(schedules.calendars["closed"]) == str(schedules["a"].calendar) == "closed@2"
    assert schedules["a"].next_run_at == due


def test_an_import_goes_by_the_calendar_that_is_stored(cli: Cli, schedules: Schedules, tmp_path: Path) -> None:
    schedules.calendars["closed"] = free(0, 1, 2)
    schedules.add("a", "add", DAILY, calendar="closed")  # waits for the third day
    file = str(tmp_path / "all.json")
    run(cli, "export", file)
    schedules.calendars["closed"] = free(0, 3)
    due = schedules["a"].next_run_at
    assert "1 stored already" in run(cli, "import", file, "--apply", "--replace")
    schedules.remove("a")
    run(cli, "import", file, "--apply")
    assert (str(schedules["a"].calendar), schedules["a"].next_run_at) == ("closed@2", due)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("[5]", "calendars[0].calendar: expected a stored calendar, got 5"),
        ('["x@1"]', "calendars[0].calendar: expected a stored calendar, got 'x@1'"),
        ("7", "calendars: expected a list, got 7"),
    ],
)
def test_a_file_with_a_wrong_calendar_is_refused(cli: Cli, tmp_path: Path, wrong: str, complaint: str) -> None:
    (tmp_path / "all.json").write_text(f'{{"entries": [], "calendars": {wrong}}}')
    assert complaint in run(cli, "import", str(tmp_path / "all.json"), code=1)


def test_a_plan_is_empty_after_apply(cli: Cli, schedules: Schedules, tmp_path: Path) -> None:
    schedules.calendars["closed"] = free(1)
    file = tmp_path / "entries.toml"
    file.write_text('[entries.a]\ntask = "add"\nschedule = {cron = "0 9 * * *"}\ncalendar = "closed"\n')
    run(cli, "apply", str(file))
    assert str(schedules["a"].calendar) == "closed@1"
    schedules.calendars["closed"] = free(2)
    assert "0 to change" in run(cli, "plan", str(file))
    file.write_text(file.read_text().replace('"closed"', '"clsed"'))
    assert "expected the name of a stored calendar, got 'clsed' (did you mean 'closed'?)" in " ".join(
        run(cli, "plan", str(file), code=1).split()
    )
    schedules.calendars["other"] = free(2)
    file.write_text(file.read_text().replace('"clsed"', '"other"'))
    assert '    calendar: "closed" -> "other"' in run(cli, "plan", str(file))


def found(app: Celery, check: str) -> list[Any]:
    return [finding for finding in examine(app) if finding.check == check]


def test_the_doctor_tells_of_an_end_60_days_before(app: Celery, schedules: Schedules) -> None:
    schedules.calendars["long"], schedules.calendars["soon"] = free(1, until=65), free(1, until=55)
    schedules.add("a", "add", DAILY, calendar="long")
    assert found(app, "calendar-ends") == []
    schedules.add("b", "add", DAILY, calendar="soon")
    [finding] = found(app, "calendar-ends")
    assert finding.entries == ("b",)
    assert f"calendar soon@1 has days until {TODAY + timedelta(days=55)}" in finding.what


def test_the_doctor_names_entries_that_missed_a_revision(
    app: Celery, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.calendars["closed"] = free(1)
    schedules.add("a", "add", DAILY, calendar="closed")
    assert found(app, "calendar-behind") == []

    with monkeypatch.context() as broken:
        broken.setattr(Store, "rewrite", lambda *args, **more: None)  # it breaks off here
        schedules.calendars["closed"] = free(2)
    assert [finding.entries for finding in found(app, "calendar-behind")] == [("a",)]
    schedules.calendars["closed"] = free(2)
    assert found(app, "calendar-behind") == []


def test_why_names_the_calendar(cli: Cli, schedules: Schedules) -> None:
    schedules.calendars["closed"] = free(-1, 1)
    schedules.add("a", "add", DAILY, calendar="closed")
    said = run(cli, "why", "a", f"{TODAY - timedelta(days=1)} 09:00+00:00")
    assert f"Its calendar closed@1 leaves out {TODAY - timedelta(days=1)}." in " ".join(said.split())
    assert "calendar" not in run(cli, "why", "a", f"{TODAY - timedelta(days=1)} 10:00+00:00")


def test_the_log_names_calendars_without_their_days(cli: Cli, schedules: Schedules) -> None:
    schedules.calendars["closed"] = free(1, 2)
    schedules.add("a", "add", DAILY)
    run(cli, "edit", "a", "--calendar", "closed")
    schedules.calendars["closed"] = free(1, 2, 3)
    changes = json.loads(run(cli, "log", "a", "--json"))
    assert [change["fields"] for change in changes] == [
        [["calendar", "closed@1", "closed@2"]],
        [["calendar", None, "closed@1"]],
        [],
    ]
