"""Last runs out of the shelve file of Celery's own scheduler (``celerybeat-schedule``).

The file is a pickle, which is read as data alone; see :mod:`redbeat_lite.interchange.importers.pickled`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from ...errors import ConfigurationError
from .pickled import Class, Instance, Mapping, load
from .shelved import read_entries
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
        for name, entry in self._entries():
            yield _entry(name, entry)

    def _files(self) -> list[Path]:
        paths = [self._path.with_name(self._path.name + suffix) for suffix in _SUFFIXES]
        return [path for path in paths if path.is_file()]

    def _entries(self) -> Mapping:
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
            raise ConfigurationError(f"celery-shelve: {self._path} holds no schedule of Celery's")
        return entries


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
