"""Heartbeat file: signs of life of one beat, for probes that do not ask Redis.

The module needs only Python itself, so that a probe starts fast.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from .._base.atomic_files import write_whole
from .._base.clock import elapsed
from .._base.errors import ConfigurationError

#: Seconds between two writes.
PERIOD = 1.0

#: Most bytes that are read of a file. A beat writes some 400.
_MAX_BYTES = 65_536

#: Mode of the file. The probe may run as another user.
_READABLE = 0o644


class Health(NamedTuple):
    """Whether a beat is well, and why, in one sentence."""

    healthy: bool
    reason: str


def heartbeat_file(path: str | None) -> HeartbeatFile | None:
    """Return the writer of the heartbeat file; ``None`` if none is set.

    Raises:
        ConfigurationError: the file cannot be written there.
    """
    if path is None:
        return None
    directory = Path(path).absolute().parent
    if not os.access(directory, os.W_OK | os.X_OK):
        expected = "a file in a directory that exists and may be written to"
        raise ConfigurationError(f"redbeat_lite_heartbeat_file: expected {expected}, got {path!r}")
    return HeartbeatFile(path)


class HeartbeatFile:
    """The file, written at most once a second. A beat removes it when it ends."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._written = float("-inf")

    def write(self, role: str, failing_since: float | None, why: str) -> bool:
        """Write a sign of life; return ``False`` if that was done less than a second ago.

        Parameters:
            role: ``"leader"``, ``"stand-by"`` or ``"starting"``.
            failing_since: since when the server or the broker is out of reach, in seconds of
                :func:`~redbeat_lite._base.clock.elapsed`; ``None`` if both can be used.
            why: which of the two, and its error.

        Raises:
            OSError: the file cannot be written.
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
        write_whole(self.path, [json.dumps(record), "\n"], _READABLE)
        return True

    def remove(self) -> None:
        """Remove the file, if this process wrote it last."""
        if self._written == float("-inf"):
            return
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            if _read(self.path).get("pid") == os.getpid():
                self.path.unlink()


def _read(path: Path | str) -> Any:
    # If the path is a pipe without a writer, O_NONBLOCK reads it as an empty file instead of
    # waiting.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return json.loads(file.read(_MAX_BYTES))


def judge(path: str, limit: float) -> Health:
    """Judge a beat by its heartbeat file.

    Parameters:
        limit: seconds for which the loop may be silent, or the server or the broker out of reach.
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
    """Judge a beat by the record in its heartbeat file.

    Parameters:
        limit: seconds that the beat may be silent, or may be failing.
    """
    now = elapsed()
    at = _seconds(record["at"])
    failing_since = record["failing_since"]
    failing_for = 0.0
    if failing_since is not None:
        failing_for = now - _seconds(failing_since)
    who = f"{record['role']} (pid {record['pid']})"
    if at > now + PERIOD:  # This clock begins at the start of the machine.
        return Health(False, f"{who}: the file is from before the machine's last start")
    if now - at > limit:
        return Health(False, f"{who}: no sign of life for {now - at:.1f} s")
    if failing_for > limit:
        return Health(False, f"{who}: {record['why']}, for {failing_for:.1f} s")
    return Health(True, f"{who}: alive {max(now - at, 0.0):.1f} s ago")


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not isfinite(seconds):  # A comparison with NaN would call the beat healthy.
        raise ValueError(f"{seconds} s")
    return seconds
