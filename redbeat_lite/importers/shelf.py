"""Last runs out of the shelve file of Celery's own scheduler (``celerybeat-schedule``).

The file is a pickle. It is read with an unpickler that builds Celery's entries and schedules, dates and zones, and
nothing else: any other class becomes a stand-in, and no code of it runs.
"""

from __future__ import annotations

import dbm
import io
import pickle
import shutil
import tempfile
import zoneinfo
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from celery.beat import ScheduleEntry

from ..errors import ConfigurationError
from .found import Found, Left

#: What dbm libraries add to the name, and the journal of SQLite.
_SUFFIXES = ("", ".db", ".dat", ".bak", ".dir", ".pag", "-journal", "-wal", "-shm")

_ALLOWED = {
    ("celery.beat", "ScheduleEntry"),
    ("celery.schedules", "crontab"),
    ("celery.schedules", "schedule"),
    ("celery.schedules", "solar"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("uuid", "UUID"),
    ("zoneinfo", "ZoneInfo"),
    ("zoneinfo", "ZoneInfo._unpickle"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
}


class ShelfSource:
    """The schedule file of a plain ``celery beat``.

    Its entries are those of ``beat_schedule``, with their last runs. The file is copied before it is read, because the
    library that wrote it may keep it locked while the old beat runs.

    Parameters:
        path: as given to ``celery beat -s``.

    Raises:
        ConfigurationError: there is no such file.
    """

    title = "celery-shelve"
    #: Celery writes the file once in three minutes, unless ``beat_sync_every`` says otherwise, and when the beat stops;
    #: and its loop may sleep for another five.
    lag = 490.0

    def __init__(self, path: Path) -> None:
        self._path = path
        if not self._files():
            raise ConfigurationError(f"celery-shelve: there is no schedule file {path}; name it as for celery beat -s")

    @property
    def where(self) -> str:
        """The place that is read, for people."""
        return str(self._path)

    def read(self) -> Iterator[Found | Left]:
        """Every entry in the file.

        Raises:
            ConfigurationError: it is no schedule file of Celery's.
        """
        entries = self._entries()
        for name, entry in entries.items():
            yield _entry(str(name), entry)

    def close(self) -> None:
        """Nothing is left open."""

    def _files(self) -> list[Path]:
        paths = [self._path.with_name(self._path.name + suffix) for suffix in _SUFFIXES]
        return [path for path in paths if path.is_file()]

    def _entries(self) -> dict[Any, Any]:
        with tempfile.TemporaryDirectory(prefix="redbeat-lite-") as directory:
            for path in self._files():
                shutil.copy(path, directory)
            try:
                with dbm.open(str(Path(directory) / self._path.name), "r") as shelf:
                    raw = shelf[b"entries"]
                entries = _Unpickler(io.BytesIO(raw)).load()
            except KeyError:
                raise ConfigurationError(f"celery-shelve: {self._path} holds no schedule of Celery's") from None
            except Exception as exc:
                raise ConfigurationError(
                    f"celery-shelve: {self._path} cannot be read as a schedule of Celery's: {exc}"
                ) from exc
        if not isinstance(entries, dict):
            raise ConfigurationError(f"celery-shelve: {self._path} holds no schedule of Celery's")
        return entries


def _entry(name: str, entry: Any) -> Found | Left:
    if not isinstance(entry, ScheduleEntry) or not isinstance(entry.last_run_at, datetime):
        return Left(name, "it is no entry of Celery's own scheduler, but of a class that is not read")
    since = entry.last_run_at
    if since.tzinfo is None:
        return Left(name, "its last run is an instant without a time zone")
    # The file is not asked what the entry is: Celery, too, takes that from the configuration at each start.
    return Found(name, {"task": entry.task}, since=since, runs=int(entry.total_run_count or 0), of_config=True)


class _StandIn:
    """Takes the place of an instance of a class that is not built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> _StandIn:
        return self

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass


def _getattr(owner: Any, name: str) -> Any:
    """How a zone is pickled: by a class method, which is asked for in this roundabout way."""
    if (owner, name) != (zoneinfo.ZoneInfo, "_unpickle"):
        return _StandIn
    return zoneinfo.ZoneInfo._unpickle  # type: ignore[attr-defined]  # what pickles of zones name


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _getattr
        return super().find_class(module, name) if (module, name) in _ALLOWED else _StandIn
