"""The log of one run: JSON lines that any process appends, in the format of `tests.support.audit`.

A process appends a record in one write, so records of several processes do not mix. All instants
are epoch milliseconds of the machine's clock.

A process that is killed notes nothing more. So a call and a body note themselves when they begin,
and bodies again while they live. Records with the same ``note`` are one record: the last one
counts, at the place of the first.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import redis

from tests.support.audit import Record, check

#: Environment variable with the path of the log, for processes that a test starts.
PATH_VARIABLE = "HARNESS_HISTORY"


def now_ms() -> int:
    """Return the machine's time in epoch ms, also where ``time.time`` is shifted for a test."""
    return time.time_ns() // 1_000_000


class Body:
    """One run of a task body, from its first sign of life to its last.

    It adds ``began``, ``ended`` and ``note`` to its record.
    """

    def __init__(self, log: HistoryLog, record: Record) -> None:
        now = now_ms()
        self._log = log
        self.record = {"kind": "body", **record, "began": now, "ended": now, "done": False}
        self.record["note"] = uuid4().hex
        self._log.append(self.record)

    def lives(self) -> None:
        """Note a sign of life. A body that is killed ended with its last one."""
        self.record["ended"] = now_ms()
        self._log.append(self.record)

    def ends(self, *, done: bool = True, **fields: Any) -> None:
        """Note the end. It is not done if the task has to run again, as for a retry."""
        self.record.update(fields, done=done)
        self.lives()


class Marks:
    """Small files, by which tests and bodies in other processes signal each other.

    They need no server, so they work while one is away.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, name: str, text: str = ".") -> int:
        """Add a mark of this name, and return how many characters all of its marks have by now."""
        self._directory.mkdir(exist_ok=True)
        return append(self._path(name), text)

    def count(self, name: str) -> int:
        """Return how many marks of one character there are of this name."""
        return len(self.read(name))

    def read(self, name: str) -> str:
        """Return the text of all marks of this name."""
        try:
            return self._path(name).read_text()
        except FileNotFoundError:
            return ""

    def clear(self) -> None:
        """Remove all marks."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self._directory / quote(name, safe="")


def append(path: Path, text: str) -> int:
    """Append a text to a file in one write, and return the size of the file after it."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, text.encode())
        return os.lseek(file, 0, os.SEEK_CUR)
    finally:
        os.close(file)


class HistoryLog:
    """A log in a file that its first record makes, with marks beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = Marks(Path(f"{path}.marks"))

    @classmethod
    def of_environment(cls) -> HistoryLog:
        """Return the log that the test which started this process has named."""
        return cls(Path(os.environ[PATH_VARIABLE]))

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a process that notes here."""
        return {PATH_VARIABLE: str(self.path)}

    def append(self, *records: Record) -> None:
        """Append these records in one write."""
        append(self.path, "".join(json.dumps(record) + "\n" for record in records))

    def body(self, task_id: str, key: str | None, **fields: Any) -> Body:
        """Note that a task body begins here. Bodies with the same key may not run at a time."""
        return Body(self, {"id": task_id, "key": key, "pid": os.getpid(), **fields})

    @contextmanager
    def call(
        self,
        act: str,
        entry: str | None = None,
        *,
        unsure: bool = False,
        **fields: Any,
    ) -> Iterator[Record]:
        """Note a call of the API around the block that makes it.

        A ``redis.RedisError`` leaves open whether the call took effect, any other exception says
        that it was refused. Both are raised again. The block may add fields to the record.

        Parameters:
            act: one of those in `tests.support.audit`.
            unsure: whether a call may be refused although it took effect: the reply was lost, and
                the client has repeated the call.
            fields: what the act needs, such as ``rule`` or ``if_version``.
        """
        record: Record = {"kind": "call", "act": act, "note": uuid4().hex, **fields}
        record |= {"began": now_ms(), "returned": None, "ok": None}
        if entry is not None:
            record["entry"] = entry
        self.append(record)
        try:
            yield record
        except redis.RedisError:
            self.append(record)
            raise
        except Exception:
            ok = None if unsure else False
            self.append(record | {"returned": now_ms(), "ok": ok})
            raise
        self.append(record | {"returned": now_ms(), "ok": True})

    @contextmanager
    def fault(self, **fields: Any) -> Iterator[Record]:
        """Note a fault that lasts as long as the block. The block may add fields to the record."""
        record: Record = {"kind": "fault", **fields, "began": now_ms()}
        yield record
        self.append({"ended": now_ms(), **record})

    def records(self) -> list[Record]:
        """Return all records so far, in the order in which they were first noted."""
        if not self.path.exists():
            return []
        records: dict[object, Record] = {}
        with self.path.open() as lines:
            for number, line in enumerate(lines):
                record = json.loads(line)
                records[record.get("note", number)] = record
        return list(records.values())

    def clear(self) -> None:
        """Begin a new history, without marks."""
        self.path.unlink(missing_ok=True)
        self.marks.clear()

    def audit(self) -> None:
        """Raise AssertionError if the history so far breaks a law."""
        check([*self.records(), {"kind": "end", "at": now_ms()}])

    def bodies(self, **fields: Any) -> list[Record]:
        """Return the bodies with these fields so far, in the order in which they began."""
        bodies = [record for record in self.records() if record["kind"] == "body"]
        for field, value in fields.items():
            bodies = [body for body in bodies if body.get(field) == value]
        return sorted(bodies, key=lambda body: int(body["began"]))

    def ended_bodies(self, **fields: Any) -> list[Record]:
        """Return the bodies with these fields that finished, in the order in which they did."""
        bodies = self.bodies(finished=True, **fields)
        return sorted(bodies, key=lambda body: int(body["ended"]))
