"""Moving in from the schedule file that Celery's own scheduler writes."""

from __future__ import annotations

import dbm.dumb
import os
import pickle
import shelve
import sqlite3
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, ScheduleEntry
from celery.schedules import crontab, schedule, solar

from redbeat_lite import Scheduler, Schedules
from redbeat_lite.errors import ConfigurationError
from redbeat_lite.interchange.importers.move_in import Move, MoveIn
from redbeat_lite.interchange.importers.pickled import LONGEST
from redbeat_lite.interchange.importers.shelf import ShelfSource
from redbeat_lite.interchange.importers.source import Found, Left


class OfOurOwn(schedule):  # type: ignore[misc]  # Celery ships no types
    """A schedule class that only the app knows."""


class Elsewhere(tzinfo):
    """A zone of a class that only its app knows."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=2)


class Hostile:
    """What somebody might plant in a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def shelf_app(make_app: Callable[..., Celery]) -> Celery:
    app = make_app()
    app.conf.beat_schedule = {
        "interval": {"task": "shop.sync", "schedule": 3600},
        "crontab": {"task": "shop.sync", "schedule": crontab(minute=0, hour=3)},
        "solar": {"task": "shop.sync", "schedule": solar("sunset", 52.5, 13.4)},
        "own": {"task": "shop.sync", "schedule": OfOurOwn(7200)},
        "fresh": {"task": "shop.sync", "schedule": 60},
    }
    return app


def written(app: Celery, path: Path, **runs: timedelta) -> Path:
    """The file as Celery's own scheduler leaves it; these entries last ran so long ago."""
    scheduler = PersistentScheduler(app, schedule_filename=str(path))
    for name, ago in runs.items():
        entry = next(scheduler.schedule[name])
        entry.last_run_at -= ago
        entry.total_run_count = 9
        scheduler.schedule[name] = entry
    scheduler.close()
    return path


def plan(app: Celery, path: Path, *, apply: bool = False) -> dict[str, Move]:
    mover = MoveIn(app)
    try:
        moves = mover.plan(ShelfSource(path).read())
        if apply:
            mover.apply(moves)
        return {move.name: move for move in moves}
    finally:
        mover.close()


def _away_from_the_sunset() -> timedelta:
    """Two hours, or three: of a run within the second of a sunset, Celery and we need not say the same."""
    two = timedelta(hours=2)
    sunset = solar("sunset", 52.5, 13.4, app=Celery(set_as_current=False)).remaining_estimate(datetime.now(UTC))
    return two if abs(timedelta(days=1) - sunset - two) > timedelta(minutes=10) else timedelta(hours=3)


def test_each_entry_goes_on_from_its_last_run(
    shelf_app: Celery, tmp_path: Path, make_beat: Callable[[Celery], Scheduler]
) -> None:
    ago = {"interval": timedelta(minutes=50), "crontab": timedelta(hours=30), "solar": _away_from_the_sunset()}
    path = written(shelf_app, tmp_path / "celerybeat-schedule", own=timedelta(0), **ago)
    running = PersistentScheduler(shelf_app, schedule_filename=str(path))
    theirs = {name: running.schedule[name].is_due() for name in ("interval", "solar", "fresh", "crontab")}
    now = datetime.now(UTC)
    answers = {name: now + timedelta(seconds=0 if due else wait) for name, (due, wait) in theirs.items()}
    running.close()
    moves = plan(shelf_app, path, apply=True)
    for name, answer in answers.items():
        entry = moves[name].entry
        assert entry is not None
        # Our instants of the sun are whole seconds.
        assert abs(max(entry.next_run_at, now) - answer) <= timedelta(seconds=1 if name == "solar" else 0.1), name
    schedules = Schedules(shelf_app)
    assert {name: entry.total_run_count for name, entry in schedules.items()} == {
        "interval": 9,
        "crontab": 9,
        "solar": 9,
        "own": 9,
        "fresh": 0,
    }
    assert {entry.source for entry in schedules.values()} == {"config:proj"}
    before = schedules["interval"].next_run_at
    make_beat(shelf_app).run_due()
    assert schedules["interval"].next_run_at == before
    assert schedules["crontab"].total_run_count == 10, "it was overdue there, so it is here"


def test_an_entry_that_celery_has_named_for_its_call_keeps_its_history(shelf_app: Celery, tmp_path: Path) -> None:
    sync = shelf_app.signature("shop.sync", kwargs={"numbers": [*range(1000, 1100)]})
    shelf_app.add_periodic_task(3600.0, sync)
    [name] = [name for name in shelf_app.conf.beat_schedule if len(name) > 200]
    path = written(shelf_app, tmp_path / "celerybeat-schedule", **{name: timedelta(minutes=50)})
    moves = plan(shelf_app, path, apply=True)
    [entry] = [move.entry for move in moves.values() if move.entry and len(move.entry.name) == 200]
    assert (entry.total_run_count, Schedules(shelf_app)[entry.name].kwargs["numbers"][0]) == (9, 1000)


def test_the_file_is_read_while_its_beat_has_it_open_and_is_left_as_it_is(shelf_app: Celery, tmp_path: Path) -> None:
    running = PersistentScheduler(shelf_app, schedule_filename=str(tmp_path / "celerybeat-schedule"))
    assert running.schedule
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    source = ShelfSource(tmp_path / "celerybeat-schedule")
    if hasattr(running._store.dict, "sync"):
        assert len([*source.read()]) == 5
    else:  # as of dbm.ndbm: nothing is in the file before its beat stops
        with pytest.raises(ConfigurationError, match="holds no schedule of Celery's; while its beat runs"):
            list(source.read())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    running.close()


def test_what_the_configuration_no_longer_has_is_left_out(shelf_app: Celery, tmp_path: Path) -> None:
    path = written(shelf_app, tmp_path / "celerybeat-schedule")
    del shelf_app.conf.beat_schedule["interval"]
    move = plan(shelf_app, path)["interval"]
    assert (move.action, "beat_schedule" in move.notes[0]) == ("left out", True)


def test_nothing_in_the_file_runs_code(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    arguments = (Hostile(planted),), {"x": Hostile(planted)}
    entry = ScheduleEntry("bad", "shop.sync", datetime.now(UTC), 1, crontab(), *arguments, {})
    with shelve.open(str(tmp_path / "s")) as shelf:
        shelf["entries"] = {"bad": entry, "worse": Hostile(planted)}
    found = {each.name: each for each in ShelfSource(tmp_path / "s").read()}
    assert not planted.exists()
    assert isinstance(found["bad"], Found)
    assert isinstance(found["worse"], Left)


def planted(path: Path, payload: bytes) -> ShelfSource:
    """A schedule file whose entries are these bytes of a pickle."""
    with dbm.dumb.open(str(path), "n") as shelf:
        shelf[b"entries"] = payload
    return ShelfSource(path)


def a_class(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


@pytest.mark.parametrize(
    ("module", "name", "attribute"),
    [
        ("celery.schedules", "schedule", "is_due"),
        ("celery.beat", "ScheduleEntry", "__init__"),
        ("zoneinfo", "ZoneInfo", "utcoffset"),
        ("builtins", "getattr", "x"),
    ],
)
def test_nothing_in_the_file_changes_a_class(tmp_path: Path, module: str, name: str, attribute: str) -> None:
    before = [vars(owner).copy() for owner in (schedule, ScheduleEntry)]
    sound = pickle.dumps({"sound": ScheduleEntry("sound", "shop.sync", datetime.now(UTC), 1, 60)}, 3)
    text = pickle.BINUNICODE + struct.pack("<I", len(attribute)) + attribute.encode()
    attributes = pickle.EMPTY_DICT + text + a_class("builtins", "set") + pickle.SETITEM
    change = a_class(module, name) + pickle.NONE + attributes + pickle.TUPLE2 + pickle.BUILD + pickle.POP
    [found] = planted(tmp_path / "s", change + sound).read()
    assert [vars(owner) for owner in (schedule, ScheduleEntry)] == before
    assert isinstance(found, Found)


def test_one_bad_entry_does_not_reach_the_others(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    good = {"task": "shop.sync", "last_run_at": now, "total_run_count": 3}
    bad: dict[Any, dict[str, Any]] = {
        "no task": {**good, "task": None},
        "a task that is none": {**good, "task": ["shop.sync"]},
        "runs in words": {**good, "total_run_count": "abc"},
        "a number that takes long": {**good, "total_run_count": Decimal("1e9999999")},
        "never": {**good, "last_run_at": None},
        "a zone of nobody's": {**good, "last_run_at": now.replace(tzinfo=Elsewhere())},
        ("no", "text"): good,
    }
    entries = {name: ScheduleEntry("name", "task", now, 0, 60) for name in (*bad, "sound")}
    for name, entry in entries.items():
        vars(entry).update(bad.get(name, good))
    found = [*planted(tmp_path / "s", pickle.dumps(entries)).read()]
    assert [each.name for each in found if isinstance(each, Found)] == ["sound"]
    left = {each.name: each.reason for each in found if isinstance(each, Left)}
    assert len(left) == len(bad)
    assert "task" in left["no task"]
    assert "runs" in left["runs in words"]
    assert "zone" in left["a zone of nobody's"]


@pytest.mark.parametrize(
    "payload",
    [
        pickle.EMPTY_DICT + pickle.LONG_BINPUT + struct.pack("<I", 0x0FFFFFFF) + pickle.STOP,
        pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 33) + b"x" + pickle.STOP,
        # A key that is hashed for hours: a pair of the same pair, 60 deep.
        pickle.EMPTY_DICT
        + pickle.EMPTY_TUPLE
        + (pickle.DUP + pickle.TUPLE2) * 60
        + pickle.NONE
        + pickle.SETITEM
        + pickle.STOP,
        pickle.EMPTY_DICT + pickle.EMPTY_TUPLE + pickle.TUPLE1 * 100_000 + pickle.NONE + pickle.SETITEM + pickle.STOP,
    ],
    ids=["a far memo", "a long text", "a slow key", "a deep key"],
)
def test_a_file_takes_no_more_time_and_memory_than_it_has_bytes(tmp_path: Path, payload: bytes) -> None:
    source = planted(tmp_path / "s", payload)
    tracemalloc.start()
    try:
        for each in source.read():
            assert isinstance(each, Left)
    except ConfigurationError as exc:
        assert "cannot be read as a schedule" in str(exc)  # noqa: PT017 - either will do
    finally:
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        tracemalloc.stop()


@pytest.mark.parametrize("length", [LONGEST // 64, pytest.param(LONGEST, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["marks", "dicts"])
def test_the_longest_pickle_takes_a_bounded_memory(tmp_path: Path, kind: str, length: int) -> None:
    payload = b"(" * length if kind == "marks" else b"}(" + b"}" * (length - 4) + b"u."
    source = planted(tmp_path / "s", payload)
    tracemalloc.start()
    try:
        with suppress(ConfigurationError):
            [*source.read()]
        assert tracemalloc.get_traced_memory()[1] < 160 * length
    finally:
        tracemalloc.stop()


def test_thousands_of_entries_are_read(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    entries = {
        f"an-entry-{number}": ScheduleEntry(
            f"an-entry-{number}", "shop.tasks.sync_orders", now, number, crontab(), (number,), {"a": 1}, {"queue": "q"}
        )
        for number in range(2_000)
    }
    assert all(isinstance(each, Found) for each in planted(tmp_path / "s", pickle.dumps(entries)).read())


def in_sqlite(path: Path, schema: str, payload: bytes = b"") -> Path:
    """A file of SQLite with this schema, and the payload where ``dbm.sqlite3`` would have it."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(schema)
        if payload:
            file.execute("INSERT INTO Dict VALUES (?, ?)", (b"entries", payload))
        file.commit()
    return path


#: As ``dbm.sqlite3`` of Python 3.13 has it.
TABLE = "CREATE TABLE IF NOT EXISTS Dict (\n    key BLOB UNIQUE NOT NULL,\n    value BLOB NOT NULL\n  )\n"


def test_a_file_of_sqlite_is_read_while_its_beat_has_it_open(tmp_path: Path) -> None:
    sound = pickle.dumps({"sound": ScheduleEntry("sound", "shop.sync", datetime.now(UTC), 1, 60)})
    with closing(sqlite3.connect(tmp_path / "a ?#b")) as file:
        file.execute("PRAGMA journal_mode = wal")
        file.execute(TABLE)
        file.execute("INSERT INTO Dict VALUES (?, ?)", (b"entries", sound))
        file.commit()
        [found] = ShelfSource(tmp_path / "a ?#b").read()
    assert isinstance(found, Found)


#: As many rows as there is time for.
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


@pytest.mark.parametrize(
    "schema",
    [
        f"CREATE VIEW Dict AS {ENDLESS} CAST(i AS BLOB) AS key, i AS value FROM n;",
        # It says of itself that it is the table.
        f"{TABLE}; CREATE VIEW x AS {ENDLESS} CAST(i AS BLOB) AS key, i AS value FROM n; PRAGMA writable_schema = ON;"
        "DELETE FROM sqlite_master WHERE name LIKE '%Dict%';"
        "UPDATE sqlite_master SET type = 'table', name = 'Dict', tbl_name = 'Dict',"
        " sql = replace(sql, ' x ', ' Dict ');",
        "CREATE TABLE Dict (key BLOB, value AS (hex(zeroblob(400000))));",
        f"{TABLE}; CREATE TABLE another (x);",
    ],
    ids=["a view", "a view in disguise", "a column that is computed", "a second table"],
)
def test_nothing_in_a_file_of_sqlite_is_run(tmp_path: Path, schema: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read as a schedule"):
        [*ShelfSource(in_sqlite(tmp_path / "s", schema)).read()]


def test_a_file_of_sqlite_without_entries_holds_no_schedule(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no schedule"):
        [*ShelfSource(in_sqlite(tmp_path / "s", TABLE)).read()]
    with pytest.raises(ConfigurationError, match="cannot be read as a schedule"):
        [*ShelfSource(in_sqlite(tmp_path / "t", TABLE, b"." * (2 * LONGEST))).read()]


@pytest.mark.parametrize("line", [b"'x', (0, 1)\n" * 200_000, b"'entries', (" + b"-" * 2**21 + b"1, 2)\n"])
def test_the_directory_of_a_dumb_file_is_not_evaluated(tmp_path: Path, line: bytes) -> None:
    source = planted(tmp_path / "s", pickle.dumps({}))
    (tmp_path / "s.dir").write_bytes(line)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match="a directory of more than 65536 bytes"):
            [*source.read()]
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_the_last_place_in_a_dumb_file_counts(tmp_path: Path) -> None:
    source = planted(tmp_path / "s", pickle.dumps({}))
    entry = pickle.dumps({"sound": ScheduleEntry("sound", "shop.sync", datetime.now(UTC), 1, 60)})
    with (tmp_path / "s.dat").open("ab") as data:
        at = data.tell()
        data.write(entry)
    with (tmp_path / "s.dir").open("a") as directory:
        directory.write(f"'entries', ({at}, {len(entry)})\n")
    assert [each.name for each in source.read()] == ["sound"]


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="at most 1048576 are read"):
        [*planted(tmp_path / "s", b"." * (LONGEST + 1)).read()]
    with (tmp_path / "t").open("wb") as file:
        file.truncate(65 * LONGEST)
    with pytest.raises(ConfigurationError, match="is larger than"):
        [*ShelfSource(tmp_path / "t").read()]


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_files_of_every_python_and_zone_are_read(
    tmp_path: Path, make_app: Callable[..., Celery], protocol: int
) -> None:
    at = datetime.now(UTC)
    zones = {zone: make_app(timezone=zone).timezone for zone in ("Europe/Berlin", "UTC")} | {"fixed": UTC}
    with shelve.open(str(tmp_path / "s"), protocol=protocol) as shelf:
        shelf["entries"] = {
            name: ScheduleEntry(name, "shop.sync", at.astimezone(zone), 1, crontab()) for name, zone in zones.items()
        }
    found = {each.name: each for each in ShelfSource(tmp_path / "s").read()}
    assert {name: getattr(each, "since", each) for name, each in found.items()} == dict.fromkeys(zones, at)


def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no schedule file"):
        ShelfSource(tmp_path / "absent")
    (tmp_path / "text").write_text("no shelf")
    with pytest.raises(ConfigurationError, match="cannot be read as a schedule of Celery's"):
        [*ShelfSource(tmp_path / "text").read()]
    with dbm.dumb.open(str(tmp_path / "empty"), "c") as shelf:
        shelf[b"other"] = b""
    with pytest.raises(ConfigurationError, match="holds no schedule of Celery's"):
        [*ShelfSource(tmp_path / "empty").read()]
