"""Files of entries: what is exported comes back, what is wrong is named by its path, what is applied stays applied."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat_lite import Calendar, Entry, Misfire, Once, Scheduler, Schedules, at, cron, every, manual, rrule
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.changes import Edit, Stored
from redbeat_lite.entries.stored_entry import decode
from redbeat_lite.interchange.document import read_document
from redbeat_lite.interchange.files import Restore
from redbeat_lite.operate.texts import next_run
from redbeat_lite.store import store as entry_store
from redbeat_lite.store.store import Store
from tests.cli.conftest import Cli, Said
from tests.support.frozen import Clock, frozen_clock
from tests.support.in_process import MakeBeat, make_beat, one_turn
from tests.support.run_rows import RunRows
from tests.support.waiting import eventually

__all__ = ["make_beat"]

OF_FORMAT_1 = Path(__file__).parents[1] / "data" / "export_format_1.json"
LATER = datetime(2090, 12, 1, 8, tzinfo=UTC)
KINDS = {
    "every": every(0.25),
    "aligned": every(3600, align=True),
    "spread": every(3600, spread=True),
    "hashed": cron("H H(0-5) * * *", tz="Asia/Tokyo"),
    "cron": cron("*/5 9-17 * * mon-fri", tz="Asia/Tokyo"),
    "cron-seconds": cron("30 0 3 * * *", seconds="first"),
    "at": at(LATER + timedelta(milliseconds=1)),
    "rrule": rrule("FREQ=MONTHLY;BYDAY=-1FR", tz="Europe/Berlin", start=LATER),
    "rrule-dates": rrule("RRULE:FREQ=DAILY\nEXDATE:20900102\nRDATE;TZID=Asia/Tokyo:20900102T120000", tz="UTC"),
    "crontab": crontab(0, "*/4", day_of_week=[1, 2], month_of_year="1"),
    "schedule": schedule(30, relative=True),
    "solar": solar("sunset", 52.5, 13.4),
    "manual": manual(),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "entries.json"


def fill(schedules: Schedules) -> None:
    for name, kind in KINDS.items():
        schedules.add(name, "add", kind)
    schedules.add(
        *("full", "add", every(60)),
        args=(1, {"id": UUID(int=7)}, Decimal("0.1"), LATER, b"bytes", {"__type__": "mine"}),
        kwargs={"since": LATER},
        options={"queue": "slow", "headers": {"team": "a"}},
        expires=timedelta(minutes=5),
        once=Once(key="full", lease=30),
        misfire=Misfire("all", grace=60, limit=7),
        jitter=1.5,
        start_at=LATER,
        end_at=LATER + timedelta(days=9),
        max_runs=3,  # type: ignore[arg-type]
        description="Every night, äöü \x1b",
        history=7,
        on_failure="pause:3",
        tags=["x", "y"],  # type: ignore[arg-type]
        expect={"start_within": 30, "succeed_every": 100_000_000 / 4},
    )
    schedules.add("disabled", "add", every(60), enabled=False)
    schedules.add("none", "add", every(60), expires=None, misfire="skip")
    schedules.pause("cron", "a note")


def held(client: redis.Redis) -> dict[bytes, object]:
    """What Redis holds of the schedule, but for the spelling of JSON and the last changes."""
    found: dict[bytes, object] = {}
    for name, raw in client.hgetall("{redbeat-lite}:entries").items():
        score = client.zscore("{redbeat-lite}:due", name)
        state = client.hget("{redbeat-lite}:state", name).partition(b"\n")[0]
        found[name] = (json.loads(raw), state, score)
    return found


def test_an_export_of_format_1_is_imported(cli: Cli, schedules: Schedules) -> None:
    """An older version has written it, with a beat that led: entries of each kind, a calendar, a freeze, a backfill."""
    exported = json.loads(OF_FORMAT_1.read_text())
    assert "24 imported, 0 stored already, 0 left out" in cli("import", str(OF_FORMAT_1), "--apply").out
    for record in exported["entries"]:
        entry = schedules[record["name"]]
        known = entry.as_dict()
        for field in record.keys() - {"local", "runs", "state", "owner"}:
            assert known[field] == record[field]
        assert (entry.total_run_count, entry.skipped_count) == (record["state"]["count"], record["state"]["skipped"])
        assert (entry.paused_note is not None) == record["state"]["paused"]
        assert entry.source == ("config:shop" if "owner" in record else "runtime")
    assert [*schedules["config-tides"].unstored] == ["schedule"]
    assert schedules["paused"].paused_note == "for the new disk"
    assert schedules.calendars["holidays"].days == {date(2030, 12, 25), date(2031, 1, 1)}
    assert schedules.frozen() is None, "that version froze some entries, which is a pause now"
    assert [(backfill.name, backfill.note) for backfill in schedules.backfills] == [("a-minute", "again")]
    assert "0 imported, 24 stored already, 0 left out" in cli("import", str(OF_FORMAT_1), "--apply").out


class TestExport:
    def test_everything_about_every_kind_of_entry_comes_back(
        self, cli: Cli, schedules: Schedules, client: redis.Redis, file: Path
    ) -> None:
        fill(schedules)
        name = b"every"  # as if it had run, been left out, and failed
        version, generation, nominal, *_ = client.hget("{redbeat-lite}:state", name).decode().split("|")
        kept = f'{{"last":{int(nominal) - 250},"count":12,"skipped":3,"error":"no broker"}}'
        state = f"{version}|{generation}|{nominal}|{kept}"
        client.hset("{redbeat-lite}:state", name, state)
        before = held(client)
        assert cli("export", str(file)).err == f"exported 16 entries to {file}, 0 left out\n"
        schedules.clear()
        cli("import", str(file))
        assert len(schedules) == 0, "that was only a look"
        assert "16 imported, 0 stored already, 0 left out" in cli("import", str(file), "--apply").out
        assert held(client) == before
        assert (schedules["every"].total_run_count, schedules["every"].last_error) == (12, "no broker")
        assert "0 imported, 16 stored already, 0 left out" in cli("import", str(file), "--apply").out
        assert held(client) == before

    def test_with_all_go_the_freeze_and_backfills_that_go_on(
        self, cli: Cli, schedules: Schedules, client: redis.Redis, file: Path
    ) -> None:
        schedules.add("a", "add", cron("0 * * * *", tz="UTC"), on_failure="pause:3")
        schedules.pause("a")
        schedules.resume("a")
        held = schedules.freeze(3600, "deploy")
        schedules.add("paused", "add", cron("0 * * * *", tz="UTC"))
        schedules.pause("paused", "disk", seconds=3600)
        hours = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(5)]
        first = schedules.backfills.start("a", *hours[:2], max_active=None)
        done = first.but(ended="done", sent=2, cursor=to_ms(hours[1]) + 1)
        assert schedules.backfills._own.put([done.edit(first, None)]) == [True]
        goes_on = schedules.backfills.start("a", hours[0], hours[4], max_active=None, note="why")
        schedules.backfills.pause(goes_on.id)
        cli("export", str(file))
        state, paused = schedules["a"].state, schedules["paused"].state
        again = cli("export", "-", "--name", "*a").json
        assert not again.keys() & {"freeze", "backfills"}, "of some, nothing goes that is of all"
        client.flushall()
        said = cli("import", str(file)).out
        assert "with the freeze until" in said
        assert "with 1 backfill" in said
        assert (schedules.frozen(), [*schedules.backfills]) == (None, [])
        for done in ("imported", "stored already"):
            said = cli("import", str(file), "--apply").out
            assert f"2 {done}" in said
            assert ("with the freeze until" in said) is ("with 1 backfill" in said) is (done == "imported")
            assert schedules.frozen() == held
            assert schedules["paused"].state.paused_until == paused.paused_until
            [found] = schedules.backfills
            assert (found.id, found.total, found.paused, found.note, len(found.skip)) == (goes_on.id, 3, True, "why", 1)
            assert schedules["a"].state.forgiven == state.forgiven > 0

    @pytest.mark.parametrize("here", [60, 7200, None])
    def test_of_the_freezes_here_and_in_the_file_the_later_end_counts(
        self, cli: Cli, schedules: Schedules, client: redis.Redis, file: Path, here: int | None
    ) -> None:
        schedules.add("a", "add", every(60))
        held = schedules.freeze(3600, "deploy")
        cli("export", str(file))
        client.flushall()
        if here == 60:
            schedules.freeze(60)
        restore = Restore(schedules._app, read_document(str(file), file.read_text()))
        steps = restore.plan()
        if here == 7200:
            held = schedules.freeze(7200, "made between the plan and its application")
        restore.apply(steps)
        assert (schedules.frozen(), restore.freeze) == (held, held)
        [line, *_] = [change for change in schedules.changes() if change.action == "frozen"]
        assert (line.note, line.fields) == (held.note, (("until", None, held.until.isoformat()),))

    def test_what_is_left_out_of_an_older_export_is_said(self, cli: Cli, schedules: Schedules, file: Path) -> None:
        old = {"name": "*", "since": "2026-01-01T00:00:00+00:00", "until": "2090-01-01T00:00:00+00:00"}
        file.write_text(json.dumps({"entries": {}, "freezes": [old, {**old, "name": "b*"}]}))
        for words in ([], ["--apply"]):
            assert "without 2 freezes of an older version" in cli("import", str(file), *words).out
        assert schedules.frozen() is None

    def test_what_was_sent_is_no_difference_and_is_kept(
        self, cli: Cli, schedules: Schedules, client: redis.Redis, file: Path
    ) -> None:
        schedules.add("x", "add", every(60))
        sent = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3)]
        RunRows(client, schedules).sent("x", *sent)
        before = schedules["x"].state.sent
        cli("export", str(file))
        assert "0 imported, 1 stored already, 0 left out" in cli("import", str(file), "--apply").out
        schedules.update("x", args=(2,))
        cli("import", str(file), "--apply", "--replace")
        assert (schedules["x"].args, schedules["x"].state.sent) == ((), before)
        assert len(before) == 3

    def test_what_is_stored_is_overwritten_only_with_replace(self, cli: Cli, schedules: Schedules, file: Path) -> None:
        schedules.add("x", "add", every(60), args=(1,))
        cli("export", str(file))
        before = schedules["x"]
        schedules.update("x", args=(2,))
        schedules.pause("x")
        said = cli("import", str(file), "--apply", code=3)
        assert "left out 'x': it is stored already; --replace overwrites it" in said.out
        assert schedules["x"].args == (2,)
        cli("import", str(file), "--apply", "--replace")
        after = schedules["x"]
        assert (after, after.paused_note, after.next_run_at) == (before, None, before.next_run_at)
        assert after.version > 2, "what is being sent by the old state is refused"
        schedules.pause("x", "the state alone differs")
        cli("import", str(file), "--apply", code=3)
        assert schedules["x"].paused_note == "the state alone differs"

    def test_what_cannot_be_exported_is_named(self, cli: Cli, schedules: Schedules, client: redis.Redis) -> None:
        for name in ("good", "bad", "aside"):
            schedules.add(name, "add", every(60))
        client.hset("{redbeat-lite}:entries", "bad", "{")
        schedules.remove("aside")
        client.hset("{redbeat-lite}:quarantine", "aside", json.dumps({"error": "why"}))
        said = cli("export")
        assert [each["name"] for each in said.json["entries"]] == ["good"]
        left = {each["name"]: each["reason"] for each in said.json["left_out"]}
        assert left.keys() == {"bad", "aside"}
        assert left["aside"] == "in quarantine: why"
        assert "left out 'bad'" in said.err

    def test_config_entries_come_back_with_their_state_and_go_with_their_configuration(
        self,
        make_app: Callable[..., Celery],
        run_cli: Callable[..., Said],
        client: redis.Redis,
        file: Path,
    ) -> None:
        def beat(**entries: object) -> Celery:
            app = make_app(beat_schedule=entries, result_expires=None)
            scheduler = Scheduler(app)
            scheduler.run_due()
            scheduler.close()
            return app

        nightly = {"task": "add", "schedule": 3600.0, "args": (1,)}
        app = beat(nightly=nightly, custom={"task": "add", "schedule": _Custom()})
        Schedules(app).pause("nightly", "broken")
        run_cli(app, "export", str(file))
        before = held(client)
        client.flushall()
        run_cli(app, "import", str(file), "--apply")
        assert held(client) == before
        assert decode("custom", client.hget("{redbeat-lite}:entries", "custom")).unstored == {
            "schedule": "<freq: 1.00 hour>"
        }
        app = beat(nightly=nightly)
        assert [*Schedules(app)] == ["nightly"], "the other one has left the configuration"
        assert Schedules(app)["nightly"].paused_note == "broken"
        app = beat(nightly={**nightly, "schedule": 60.0})
        run_cli(app, "import", str(file), "--apply", "--replace", code=0)
        assert Schedules(app)["nightly"].schedule == schedule(60), "the configuration owns the definition"

    def test_commands_of_another_app_show_the_text_of_an_unstored_schedule(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said]
    ) -> None:
        app = make_app(beat_schedule={"custom": {"task": "add", "schedule": _Custom()}}, result_expires=None)
        scheduler = Scheduler(app)
        scheduler.run_due()
        scheduler.close()
        elsewhere = make_app("elsewhere")
        lines = [" ".join(line.split()) for line in run_cli(elsewhere, "show", "custom").lines]
        assert {"schedule <freq: 1.00 hour>", "not stored schedule"} <= {*lines}
        assert "<freq: 1.00 hour>" in run_cli(elsewhere, "list").out
        assert len(run_cli(elsewhere, "next", "--json").json) == 1, "what comes after it is not known"
        assert "next" in run_cli(elsewhere, "why", "custom").out
        assert "ERROR leader: no beat leads" in run_cli(elsewhere, "doctor", code=4).out, "and no check fails"

    @pytest.mark.parametrize("edited", [False, True])
    def test_a_config_entry_that_a_beat_has_made_anew_gets_its_state_back_unless_somebody_edited_it(
        self,
        make_app: Callable[..., Celery],
        run_cli: Callable[..., Said],
        client: redis.Redis,
        file: Path,
        edited: bool,
    ) -> None:
        app = make_app(beat_schedule={"charge": {"task": "add", "schedule": 3600.0}}, result_expires=None)
        schedules = Schedules(app)

        def lead() -> None:
            scheduler = Scheduler(app)
            scheduler.run_due()
            scheduler.close()

        lead()
        schedules.pause("charge", "do not run")
        run_cli(app, "export", str(file))
        client.flushall()
        lead()
        nominal = schedules["charge"].state.nominal
        if edited:
            schedules.pause("charge", "later")
            schedules.resume("charge")
        said = run_cli(app, "import", str(file), "--apply", code=3 if edited else 0).out
        assert ("left out 'charge': it is stored already" in said) == edited
        assert schedules["charge"].paused_note == (None if edited else "do not run")
        assert schedules["charge"].state.nominal == nominal, "what is planned stays"
        schedules.resume("charge")
        said = run_cli(app, "import", str(file), "--apply", code=3).out
        assert "left out 'charge': it is stored already" in said

    def test_a_newer_pause_that_the_beat_has_restored_is_kept(
        self,
        make_app: Callable[..., Celery],
        run_cli: Callable[..., Said],
        make_beat: MakeBeat,
        client: redis.Redis,
        file: Path,
    ) -> None:
        app = make_app(beat_schedule={"charge": {"task": "add", "schedule": 3600.0}}, result_expires=None)
        schedules, beat, standby = Schedules(app), make_beat(app), make_beat(app)
        beat.run_due()
        schedules.pause("charge", "for an hour", seconds=3600)
        run_cli(app, "export", str(file))
        schedules.pause("charge", "until I say so")
        standby.run_due()
        client.flushall()
        standby.run_due()
        assert schedules["charge"].paused_note == "until I say so"
        said = run_cli(app, "import", str(file), "--apply", code=3).out
        assert "left out 'charge': it is stored already" in said
        assert schedules["charge"].paused_note == "until I say so"

    def test_a_config_entry_that_has_left_the_configuration_is_removed_by_the_beat_that_runs(
        self,
        make_app: Callable[..., Celery],
        run_cli: Callable[..., Said],
        make_beat: MakeBeat,
        client: redis.Redis,
        file: Path,
    ) -> None:
        kept = {"kept": {"task": "add", "schedule": 3600.0}}
        both = make_app(beat_schedule={**kept, "gone": {"task": "add", "schedule": 3600.0}}, result_expires=None)
        one_turn(both, make_beat)
        run_cli(both, "export", str(file))
        client.flushall()
        app = make_app(beat_schedule=kept, result_expires=None, redbeat_lite_lease=3)
        schedules, beat = Schedules(app), make_beat(app)
        beat.run_due()
        run_cli(app, "import", str(file), "--apply")
        assert sorted(schedules) == ["gone", "kept"]
        eventually(lambda: beat.leader.needs_repair, what="the next renewal to see it")
        beat.run_due()
        assert list(schedules) == ["kept"]

    def test_an_entry_gets_the_calendar_that_somebody_stores_while_it_is_imported(
        self, cli: Cli, schedules: Schedules, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def closed(*days: int) -> Calendar:
            return Calendar([date(2090, 12, day) for day in days], until=date(2091, 1, 1))

        schedules.calendars["closed"] = closed(3)
        schedules.add("nightly", "add", cron("0 9 * * *"), calendar="closed")
        cli("export", str(file))
        schedules.remove("nightly")
        put = Store.put

        def edit_calendar_first(*args: Any) -> list[bool]:
            monkeypatch.undo()
            schedules.calendars["closed"] = closed(3, 4)
            return put(*args)

        monkeypatch.setattr(Store, "put", edit_calendar_first)
        cli("import", str(file), "--apply")
        assert str(schedules["nightly"].calendar) == "closed@2"

    @pytest.mark.parametrize("changed", [{"enabled": False}, {"schedule": 1800}, {"jitter": 600}])
    def test_a_config_entry_is_due_by_the_definition_that_it_keeps(
        self,
        make_app: Callable[..., Celery],
        run_cli: Callable[..., Said],
        client: redis.Redis,
        file: Path,
        changed: dict[str, object],
    ) -> None:
        app = make_app(beat_schedule={"nightly": {"task": "add", "schedule": 3600.0}}, result_expires=None)
        scheduler = Scheduler(app)
        scheduler.run_due()
        scheduler.close()
        run_cli(app, "export", str(file))
        [(definition, _, due)] = held(client).values()
        found = json.loads(file.read_text())
        [record] = found["entries"]
        record |= changed
        record["state"] |= {"count": 12, "next": LATER.isoformat()}
        file.write_text(json.dumps(found))
        told = run_cli(app, "import", str(file), "--apply", "--replace").out
        [(kept, _, score)] = held(client).values()
        assert (kept, score) == (definition, due)
        after = Schedules(app)["nightly"]
        assert after.total_run_count == 12
        assert next_run(after, app.timezone) in told

    @pytest.mark.parametrize(
        ("state", "complaint"),
        [
            ({"count": -1}, "state.count: expected a whole number"),
            ({"count": 10**15}, "state.count: expected a whole number"),
            ({"note": "x" * 1001}, "state.note: expected text of at most 1000 characters"),
            ({"error": "\ud800"}, "state.error: expected text"),
            ({"next": "soon"}, "state.next: expected an instant"),
            ({"generation": "a|b"}, "state.generation: expected at most 32 letters"),
            ({"paused": 1}, "state.paused: expected True or False"),
        ],
    )
    def test_a_state_that_is_wrong_is_refused_by_its_path(
        self, cli: Cli, schedules: Schedules, file: Path, state: dict[str, object], complaint: str
    ) -> None:
        schedules.add("x", "add", every(60))
        cli("export", str(file))
        schedules.clear()
        found = json.loads(file.read_text())
        found["entries"][0]["state"] |= state
        file.write_text(json.dumps(found))
        said = cli("import", str(file), "--apply", code=1)
        assert said.err.startswith(f"Error: {file}: entry 'x': entries[0].{complaint}")
        assert len(schedules) == 0

    def test_an_entry_is_a_line_in_the_order_of_names(
        self, cli: Cli, schedules: Schedules, client: redis.Redis, file: Path
    ) -> None:
        assert cli("export").json["entries"] == [], "nothing is a document, too"
        schedules.add_many(Entry(f"e{number:04}", "add", every(9000 - number)) for number in range(2500))
        client.hset("{redbeat-lite}:entries", "e0007", "{")
        client.hdel("{redbeat-lite}:entries", "e0008")
        said = cli("export")
        assert [each["name"] for each in said.json["entries"]] == sorted({*schedules} - {"e0007", "e0008"})
        assert [each["name"] for each in said.json["left_out"]] == ["e0007", "e0008"]
        assert [line[:11] for line in said.lines if '"e0000"' in line or '"e2499"' in line] == 2 * ['{"name": "e']
        cli("export", str(file))
        assert file.read_text().split(" [\n", 1)[1] == said.out.split(" [\n", 1)[1]

    def test_it_holds_a_thousand_entries_at_a_time(
        self, cli: Cli, schedules: Schedules, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules.add_many(Entry(f"e{number:04}", "add", every(60)) for number in range(2500))
        read, written = Store.read, list[int]()

        def reading(store: Store, names: Sequence[str | bytes]) -> list[Stored]:
            written.append(sum(path.stat().st_size for path in file.parent.iterdir()))
            return read(store, names)

        monkeypatch.setattr(Store, "read", reading)
        assert cli("export", str(file)).err == f"exported 2500 entries to {file}, 0 left out\n"
        assert len(written) == 3
        assert 0 < written[1] < written[2] < file.stat().st_size, "it is in the file before more is read"

    def test_a_file_that_breaks_off_while_it_is_written_leaves_the_old_one(
        self, cli: Cli, schedules: Schedules, file: Path
    ) -> None:
        file.write_text("old")
        with mock.patch.object(Path, "replace", side_effect=OSError(28, "No space left on device")):
            assert "No space left on device" in cli("export", str(file), code=1).err
        assert file.read_text() == "old"
        assert [*file.parent.iterdir()] == [file]


class _Custom(schedule):  # type: ignore[misc]
    """A schedule that cannot be stored."""

    def __init__(self) -> None:
        super().__init__(timedelta(hours=1))


BAD_JSON = """{"entries": [
  {"name": "a", "task": "add", "schedule": {"every": "5s"}},
  {"name": "b", "task": "add", "schedule": {"every": "5s"}, %s}
]}
"""
BAD_TOML = """
[entries.a]
task = "add"
schedule = {every = "5s"}

[entries."b c"]
task = "add"
%s
"""


_TOML = '[entries.x]\ntask = "add"\nschedule = 60\n'


class TestBadFiles:
    @pytest.mark.parametrize(
        ("field", "complaint"),
        [
            ('"jitter": -3', "entry 'b': entries[1].jitter: expected seconds"),
            ('"jiter": 3', "entry 'b': entries[1].jiter: expected a known field"),
            (
                '"misfire": {"policy": "all", "limit": 0}',
                "entry 'b': entries[1].misfire.limit: expected a whole number from 1 to 1000",
            ),
            ('"start_at": "2026-01-01"', "entry 'b': entries[1].start_at: expected an instant such as 2026-12-01T09"),
            ('"name": "b"', "'name' comes twice"),
            ('"args": [{"__type__": "no such", "__value__": 1}]', "entry 'b': entries[1].args: expected values"),
            ('"remove_when_done": true', "entry 'b': entries[1].remove_when_done: expected false in a file"),
            ('"jitter": 9', "entry 'b': entries[1].jitter: expected less than the shortest gap"),
            ('"max_runs": 1}, 7, {"name": "c"', "entries[2]: expected an object with task and schedule, got 7"),
            ('"max_runs": 1}, {"task": "add"', "entries[2].name: expected text of 1 to 200 characters, got None"),
            ('"max_runs": 1}, {"name": "a"', "entries[2]: entry 'a' comes a second time"),
            ('"max_runs": 1}, {"name": "c"', "entry 'c': entries[2].task: expected"),
        ],
    )
    def test_one_bad_entry_is_named_by_its_path_and_nothing_is_applied(
        self, cli: Cli, schedules: Schedules, file: Path, field: str, complaint: str
    ) -> None:
        file.write_text(BAD_JSON % field)
        said = cli("apply", str(file), code=1).err
        assert said.startswith(f"Error: {file}: {complaint}")
        assert said.count("\n") == 1
        assert len(schedules) == 0

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ('schedule = {every = "5q"}', "schedule.every: expected seconds, a timedelta"),
            ('[entries."b c".schedule]\nevery = "5s"\nalign = 3', "schedule.align: expected True or False"),
            ("schedule = 5\njiter = 1", "jiter: expected a known field"),
            (
                'schedule = 5\nexpect = {start_within = 9, trust = "backend"}',
                "expect.trust: expected one of the fields start_within",
            ),
            ('schedule = 5\nname = "b"', "name: expected 'b c', which is its key, got 'b'"),
        ],
    )
    def test_in_toml_too(self, cli: Cli, schedules: Schedules, file: Path, text: str, complaint: str) -> None:
        file = file.with_suffix(".toml")
        file.write_text(BAD_TOML % text)
        assert cli("apply", str(file), code=1).err.startswith(f"Error: {file}: entries['b c'].{complaint}")
        assert len(schedules) == 0

    def test_a_name_that_cannot_be_one_is_told_in_one_short_line(self, cli: Cli, file: Path) -> None:
        file.write_text(json.dumps({"entries": {"x" * 9000: {"task": "add", "schedule": 60}}}))
        said = cli("apply", str(file), code=1).err
        assert "expected text of 1 to 200 characters" in said
        assert len(said) < 1000

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("{", "line 1 column 2"),
            ('{"entries": {"a": 3}}', "entries['a']: expected an object"),
            ("[]", 'expected "entries"'),
            ('{"entries": 3}', 'expected "entries"'),
            ('{"entries": [], "freeze": 5}', "freeze: expected an object, got 5"),
            ('{"entries": [], "freeze": {"since": "x"}}', "freeze.until: expected"),
            ('{"entries": [], "backfills": 5}', "backfills: expected a list, got 5"),
            ('{"entries": [], "backfills": [5]}', "backfills[0]: expected an object, got 5"),
            ("[" * 100_000, "nested too deeply"),
        ],
    )
    def test_what_is_no_file_of_entries_is_refused(self, cli: Cli, file: Path, text: str, complaint: str) -> None:
        file.write_text(text)
        assert complaint in cli("plan", str(file), code=1).err

    def test_args_nested_hundreds_of_levels_deep_are_refused_with_the_name_of_their_entry(
        self, cli: Cli, schedules: Schedules, file: Path
    ) -> None:
        deep = "[" * 900 + "]" * 900
        file.write_text(BAD_JSON % f'"args": {deep}')
        said = cli("apply", str(file), code=1).err
        assert "entry 'b': entries[1].args: expected" in said
        assert "levels deep" in said
        for much, why in ((deep, "levels deep"), ("[" * 100_000, "maximum recursion depth exceeded")):
            said = cli("add", "deep", "add", "--every", "5s", "--args", much, code=1).err
            assert "args: expected " in said
            assert why in said
        assert len(schedules) == 0

    @pytest.mark.parametrize("suffix", [".json", ".toml"])
    def test_a_byte_order_mark_is_passed_over(self, cli: Cli, schedules: Schedules, file: Path, suffix: str) -> None:
        text = {".json": '{"entries": {"x": {"task": "add", "schedule": 60}}}', ".toml": _TOML}[suffix]
        file = file.with_suffix(suffix)
        file.write_text(text, encoding="utf-8-sig")
        cli("apply", str(file))
        assert [*schedules] == ["x"]

    def test_a_file_that_is_not_there_is_refused(self, cli: Cli, file: Path) -> None:
        for command in ("plan", "apply", "import"):
            said = cli(command, str(file), code=1).err
            assert f"'{file}': No such file or directory" in said

    def test_a_file_that_is_not_utf_8_is_refused(self, cli: Cli, file: Path) -> None:
        file.write_bytes(b'{"entries": {"\xff": {}}}')
        assert f"Error: {file}: not UTF-8: " in cli("plan", str(file), code=1).err


class TestPlan:
    def write(self, file: Path, **entries: object) -> str:
        file.write_text(json.dumps({"entries": entries}))
        return str(file)

    def test_it_is_empty_after_apply_for_every_kind_of_entry(self, cli: Cli, schedules: Schedules, file: Path) -> None:
        fill(schedules)
        schedules.update("full", remove_when_done=False)
        cli("export", str(file))
        schedules.clear()
        assert cli("plan", str(file)).lines[-1] == "16 to add, 0 to change, 0 to remove; 0 the same."
        cli("apply", str(file))
        assert cli("plan", str(file), "--prune", "--exit-code").out == (
            "0 to add, 0 to change, 0 to remove; 16 the same.\n"
        )

    def test_the_difference_is_shown_field_by_field_and_then_made_none(
        self, cli: Cli, schedules: Schedules, file: Path
    ) -> None:
        for name in ("same", "other", "gone"):
            schedules.add(name, "add", every(60))
        schedules.pause("other", "state is no part of it")
        path = self.write(
            file,
            same={"task": "add", "schedule": {"every": "1m"}},
            other={"task": "add", "schedule": {"every": "2m"}, "args": [1]},
            new={"task": "add", "schedule": "30s"},
        )
        difference = [
            "~ other",
            "    schedule: every 1m -> every 2m",
            "    args: (default) -> [1]",
            "+ new  add  every 30s",
        ]
        assert cli("plan", path, "--exit-code", code=3).lines == [
            *difference,
            "1 to add, 1 to change, 0 to remove; 1 the same.",
            "1 not in the file; --prune would remove them.",
        ]
        version = schedules["same"].version
        said = cli("apply", path, "--prune").lines
        assert said == [
            *difference,
            "- gone  add  every 1m",
            "1 to add, 1 to change, 1 to remove; 1 the same.",
            "Applied.",
        ]
        assert {*schedules} == {"same", "other", "new"}
        assert (schedules["other"].args, schedules["other"].paused_note) == ((1,), "state is no part of it")
        assert schedules["same"].version == version

    def test_a_plan_reads_what_its_file_names_and_counts_the_others(
        self, cli: Cli, schedules: Schedules, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(60)) for number in range(1200))
        path = self.write(file, e7={"task": "add", "schedule": "1m"}, new={"task": "add", "schedule": "1m"})
        read, asked = Store.read, set[str | bytes]()
        monkeypatch.setattr(Store, "read", lambda store, names: [asked.update(names), read(store, names)][1])
        monkeypatch.setattr(Store, "page", None)
        assert cli("plan", path).lines[-1] == "1199 not in the file; --prune would remove them."
        assert asked == {"e7", "new"}
        assert cli("plan", path, "--json").json["unlisted"] == 1199

    def test_an_apply_that_is_interrupted_and_repeated_ends_in_the_same_state(
        self, cli: Cli, schedules: Schedules, file: Path
    ) -> None:
        for number in range(40):
            schedules.add(f"old-{number}", "add", every(60))
        entries = {f"new-{n}": {"task": "add", "schedule": 60 + n, "args": [n]} for n in range(40)}
        path = self.write(file, **entries, **{"old-7": {"task": "add", "schedule": 5}})
        put, calls = Store.put, iter(range(100))

        def interrupted(store: Store, edits: Iterable[Edit], term: object = None) -> list[bool]:
            if next(calls) == 3:
                raise KeyboardInterrupt
            return put(store, edits)

        with mock.patch.object(Store, "put", interrupted), mock.patch.object(entry_store, "AT_ONCE", 7):
            cli("apply", path, "--prune", code=1)
        assert 0 < sum(name.startswith("new") for name in schedules) < 40, "it broke off in the middle"
        cli("apply", path, "--prune")
        assert {*schedules} == {*entries, "old-7"}
        assert all(schedules[name].args == tuple(fields["args"]) for name, fields in entries.items())  # type: ignore[arg-type]
        assert cli("plan", path, "--prune", "--exit-code").lines[-1].endswith("; 41 the same.")

    def test_config_entries_are_not_fought_over(
        self, make_app: Callable[..., Celery], run_cli: Callable[..., Said], file: Path
    ) -> None:
        app = make_app(beat_schedule={"tick": {"task": "add", "schedule": 5}}, result_expires=None)
        path = self.write(file, tick={"task": "add", "schedule": 6})
        assert "the configuration of 'proj' does not have" in run_cli(app, "apply", path, code=1).err
        scheduler = Scheduler(app)
        scheduler.run_due()
        scheduler.close()
        assert "the configuration of 'proj' does not have" in run_cli(app, "apply", path, code=1).err
        run_cli(app, "apply", self.write(file), "--prune")
        assert [*Schedules(app)] == ["tick"], "nothing of the configuration is pruned"
        run_cli(app, "export", str(file))
        said = run_cli(app, "plan", str(file), "--exit-code").lines
        assert said[0] == "  tick: not changed, belongs to the configuration of 'proj'"

    def test_a_one_off_that_has_run_does_not_come_back(self, cli: Cli, schedules: Schedules, file: Path) -> None:
        with frozen_clock() as clock:
            assert isinstance(clock, Clock)
            path = self.write(
                file, launch={"task": "add", "schedule": {"at": (clock.now + timedelta(hours=1)).isoformat()}}
            )
            clock.forward(7200)
            assert "launch: not changed, its last run lies in the past" in cli("plan", path, "--exit-code").out
            cli("apply", path)
            assert len(schedules) == 0
