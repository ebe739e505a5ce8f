"""Last runs out of the shelve file of Celery's own scheduler (``celerybeat-schedule``).

The file holds a pickle, which is read as data alone; see :mod:`redbeat_lite.interchange.importers.pickled`. Nor is the
file itself trusted, as the dbm libraries do: that of SQLite runs what the file calls a table, and ``dbm.dumb``
evaluates each line of its directory. These two are read here; the others look a key up and compute nothing.
"""

from __future__ import annotations

import dbm
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from ...errors import ConfigurationError
from .pickled import LONGEST, Class, Instance, Mapping, load
from .source import Found, Left, Source

#: What dbm libraries add to the name, and the journal of SQLite.
_SUFFIXES = ("", ".db", ".dat", ".bak", ".dir", ".pag", "-journal", "-wal", "-shm")

#: Largest files that are copied, in bytes: a library that reuses no space leaves some behind.
_LARGEST = 64 * 2**20


class ShelfSource(Source):
    """The schedule file of a plain ``celery beat``, by its name there; raises ConfigurationError if there is none.

    Its entries are those of ``beat_schedule``, with their last runs. The file is copied before it is read, because the
    library that wrote it may keep it locked while the old beat runs.
    """

    title = "celery-shelve"
    #: Celery writes the file once in three minutes, unless ``beat_sync_every`` says otherwise, and when the beat stops;
    #: and its loop may sleep for another five.
    lag = 490.0

    def __init__(self, path: Path) -> None:
        self._path, self.where = path, str(path)
        if not self._files():
            raise ConfigurationError(f"celery-shelve: there is no schedule file {path}; name it as for celery beat -s")

    def read(self) -> Iterator[Found | Left]:
        """Every entry in the file; raises ConfigurationError if it is no schedule file of Celery's."""
        files = self._files()
        if sum(path.stat().st_size for path in files) > _LARGEST:
            raise ConfigurationError(f"celery-shelve: {self._path} is larger than {_LARGEST} bytes, and is not read")
        with tempfile.TemporaryDirectory(prefix="redbeat-lite-") as directory:
            for path in files:
                shutil.copy(path, directory)
            try:
                raw = read_entries(Path(directory) / self._path.name)
                entries = None if raw is None else load(raw)
            except Exception as exc:
                raise ConfigurationError(
                    f"celery-shelve: {self._path} cannot be read as a schedule of Celery's: {type(exc).__name__}: {exc}"
                ) from exc
        if not isinstance(entries, Mapping):
            why = "" if raw else "; while its beat runs, Python may keep it in memory (dbm.ndbm): stop that one first"
            raise ConfigurationError(f"celery-shelve: {self._path} holds no schedule of Celery's{why}")
        for name, entry in entries:
            yield _entry(name, entry)

    def _files(self) -> list[Path]:
        paths = [self._path.with_name(self._path.name + suffix) for suffix in _SUFFIXES]
        return [path for path in paths if path.is_file()]


def _entry(name: Any, entry: Any) -> Found | Left:
    if not isinstance(name, str):
        return Left("(no text)", "its name is no text")
    if not isinstance(entry, Instance) or entry.made_by != Class("celery.beat", "ScheduleEntry"):
        return Left(name, "it is no entry of Celery's own scheduler, but of a class that is not read")
    # Celery hands these over in this order; a subclass may keep them by name.
    fields = dict(zip(("name", "task", "last_run_at", "total_run_count"), entry.args, strict=False))
    if isinstance(entry.state, Mapping):
        fields |= entry.state.texts()
    task, runs = fields.get("task"), fields.get("total_run_count") or 0
    if not isinstance(task, str):
        return Left(name, "its task is no name")
    if type(runs) is not int:
        return Left(name, "the number of its runs is no number")
    try:
        since = _instant(fields.get("last_run_at"))
    except Exception:  # noqa: BLE001 - whatever is wrong with one entry must not reach the others
        return Left(name, "its last run is no instant, or in a time zone of a class that is not read")
    if since.tzinfo is None:
        return Left(name, "its last run is an instant without a time zone")
    # The file is not asked what the entry is: Celery, too, takes that from the configuration at each start.
    return Found(name, {"task": task}, since=since, runs=runs, of_config=True)


def _instant(value: Any) -> datetime:
    *when, last = _args(value, Class("datetime", "datetime"))
    parts: Any = (*when, _zone(last) if isinstance(last, Instance) else last)
    return datetime(*parts)  # noqa: DTZ001 - as it was written


def _zone(value: Instance) -> tzinfo:
    if value.made_by == Class("datetime", "timezone"):
        return timezone(timedelta(*_args(value.args[0], Class("datetime", "timedelta"))))
    # Its class method is asked for in this roundabout way.
    owner, name = _args(value.made_by, Class("builtins", "getattr"))
    key = value.args[0]
    if (owner, name) != (Class("zoneinfo", "ZoneInfo"), "_unpickle") or not isinstance(key, str):
        raise TypeError("a zone of another class")
    return ZoneInfo(key)


def _args(value: Any, made_by: Class) -> tuple[Any, ...]:
    """What an instance of a class is made of."""
    if not isinstance(value, Instance) or value.made_by != made_by or not value.args:
        raise TypeError(f"no {made_by.name}")
    return value.args


_KEY = b"entries"

_SQLITE = b"SQLite format 3\0"
#: What ``dbm.sqlite3`` makes, and the only thing in its file.
_TABLE = re.compile(r"CREATE TABLE Dict \( key (BLOB|TEXT) UNIQUE NOT NULL, value BLOB NOT NULL \)")
#: Steps of SQLite's machine; to look one key up takes some dozens.
_STEPS = 1_000_000

#: Longest directory of ``dbm.dumb``, in bytes; Celery keeps four keys.
_DIRECTORY = 64 * 2**10
_PLACE = re.compile(rb"^'entries', \((\d{1,12}), (\d{1,12})\)$", re.MULTILINE)


def read_entries(path: Path) -> bytes | None:
    """What lies under ``entries``, or ``None`` where nothing does. :mod:`shelve` may have added to the file's name.

    Raises:
        ValueError, OSError, dbm.error, sqlite3.Error: it cannot be read, or is too long.
    """
    kind = dbm.whichdb(path)
    if kind == "dbm.dumb":
        return _of_dumb(path)
    if kind in (None, "", "dbm.sqlite3") and _begins_like_sqlite(path):
        return _of_sqlite(path)
    with dbm.open(str(path), "r") as shelf:
        return shelf.get(_KEY, None)


def _of_dumb(path: Path) -> bytes | None:
    with path.with_name(f"{path.name}.dir").open("rb") as directory:
        lines = directory.read(_DIRECTORY + 1)
    if len(lines) > _DIRECTORY:
        raise ValueError(f"a directory of more than {_DIRECTORY} bytes")
    places = _PLACE.findall(lines)
    if not places:
        return None
    at, length = map(int, places[-1])  # a later line stands for an earlier one
    with path.with_name(f"{path.name}.dat").open("rb") as data:
        data.seek(at)
        return data.read(min(length, LONGEST + 1))


def _begins_like_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _of_sqlite(path: Path) -> bytes | None:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
        file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST + 2**10)
        # Called once in so many steps; that it is called ends the statement. Pages may lead in circles.
        file.set_progress_handler(lambda: 1, _STEPS)
        # All of the schema: the name and the type in a row of it need not be those of what its text makes.
        schema = file.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchmany(2)
        if len(schema) != 1 or not _TABLE.fullmatch(" ".join(str(schema[0][0]).split())):
            raise ValueError("its tables are not those of dbm.sqlite3")
        row = file.execute("SELECT value FROM Dict WHERE key = CAST(? AS BLOB)", (_KEY,)).fetchone()
    return None if row is None else bytes(row[0])
