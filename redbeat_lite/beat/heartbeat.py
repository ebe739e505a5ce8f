"""The heartbeat file: signs of life of one beat for probes that do not ask Redis. Needs nothing but Python itself."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ..clock import elapsed
from ..errors import ConfigurationError
from ..storage.whole_files import write_whole

#: Seconds between two writes.
PERIOD = 1.0

#: Most that is read of a file; a beat writes some 400 bytes.
_MAX_BYTES = 65_536

_READABLE = 0o644


class Health(NamedTuple):
    """Whether a beat is well, and why, in one sentence."""

    healthy: bool
    reason: str


def heartbeat_file(path: str | None) -> HeartbeatFile | None:
    """The writer of a heartbeat file, if there shall be one; raises ConfigurationError if it may not be written."""
    if path is None:
        return None
    directory = Path(path).absolute().parent
    if not os.access(directory, os.W_OK | os.X_OK):
        expected = "a file in a directory that exists and may be written to"
        raise ConfigurationError(f"redbeat_lite_heartbeat_file: expected {expected}, got {path!r}")
    return HeartbeatFile(path)


class HeartbeatFile:
    """Writes the file, at most once a second. A beat removes it when it ends."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._written = float("-inf")

    def write(self, role: str, failing_since: float | None, why: str) -> bool:
        """Say that the loop is alive; ``False`` if that was said just now. Raises OSError if it cannot be written.

        Parameters:
            role: ``"leader"``, ``"stand-by"`` or ``"starting"``.
            failing_since: since when (:func:`~redbeat_lite.clock.elapsed`) the server or the broker is out of reach.
            why: which one, and what it said.
        """
        now = elapsed()
        if now - self._written < PERIOD:
            return False
        self._written = now
        record = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "role": role,
            "at": now,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "failing_since": failing_since,
            "why": why,
        }
        write_whole(self.path, [json.dumps(record), "\n"], _READABLE)  # the probe may be another user's
        return True

    def remove(self) -> None:
        """Remove the file, if this process wrote it last."""
        if self._written == float("-inf"):
            return
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            if _read(self.path).get("pid") == os.getpid():
                self.path.unlink()


def _read(path: Path | str) -> Any:
    # A pipe, of which nobody knows when its writer comes, is read as an empty file.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as read:
        return json.loads(read.read(_MAX_BYTES))


def judge(path: str, limit: float) -> Health:
    """Judge a beat by its heartbeat file.

    For ``limit`` seconds its loop may be silent, and it may fail to reach the server or the broker.
    """
    try:
        return _judge(_read(path), limit)
    except FileNotFoundError:
        return Health(False, f"{path} does not exist: no beat runs, or none has begun")
    except OSError as exc:
        return Health(False, f"{path} cannot be read: {exc.strerror or exc}")
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return Health(False, f"{path} is not the heartbeat file of a beat")


def _judge(record: dict[str, Any], limit: float) -> Health:
    now, at = elapsed(), _seconds(record["at"])
    since = None if record["failing_since"] is None else _seconds(record["failing_since"])
    who = f"{record['role']} (pid {record['pid']})"
    if at > now + PERIOD:  # this clock counts from the start of the machine
        return Health(False, f"{who}: the file is from before the machine's last start")
    if now - at > limit:
        return Health(False, f"{who}: no sign of life for {now - at:.1f} s")
    if since is not None and now - since > limit:
        return Health(False, f"{who}: {record['why']}, for {now - since:.1f} s")
    return Health(True, f"{who}: alive {max(now - at, 0.0):.1f} s ago")


def _seconds(value: Any) -> float:
    found = float(value)
    if not isfinite(found):  # no silence is longer than that
        raise ValueError(f"{found} s")
    return found
