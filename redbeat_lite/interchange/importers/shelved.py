"""The one value of interest out of a file of a dbm library, read without trusting the file.

The libraries themselves trust it: that of SQLite runs what the file calls a table, and ``dbm.dumb`` evaluates each line
of its directory. These two are read here; the others look a key up and compute nothing.
"""

from __future__ import annotations

import dbm
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from .pickled import LONGEST

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
