"""Heartbeat file: the last sign of life of one beat, for probes that do not connect to Redis.

The module imports little more than Python itself, so that a probe starts fast.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from .._base.atomic_files import write_whole
from .._base.clock import elapsed
from .._base.errors import ConfigurationError

#: Seconds between two writes.
PERIOD = 1.0

#: Maximum number of bytes that are read of a file. A beat writes some 400.
_MAX_BYTES = 65_536

#: Mode of the file, because the probe may run as another user.
_READABLE = 0o644


class Health(NamedTuple):
    """Whether a beat is healthy, and the reason in one sentence."""

    healthy: bool
    reason: str


def heartbeat_file(path: str | None) -> HeartbeatFile | None:
    """Return the writer of the heartbeat file; ``None`` if ``path`` is.

    Raises:
        ConfigurationError: the process may not write a file there.
    """
    if path is None:
        return None
    directory = Path(path).absolute().parent
    if not os.access(directory, os.W_OK | os.X_OK):
        expected = "a file in a directory that exists and may be written to"
        raise ConfigurationError(f"redbeat_lite_heartbeat_file: expected {expected}, got {path!r}")
    return HeartbeatFile(path)


class HeartbeatFile:
    """Writer of the heartbeat file. It writes at most once a second."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._written = float("-inf")

    def write(self, role: str, failing_since: float | None, why: str) -> bool:
        """Write a sign of life, unless the last one was written less than a second ago.

        Parameters:
            role: ``"leader"``, ``"stand-by"`` or ``"starting"``.
            failing_since: when the server or the broker began to fail, in seconds of
                :func:`~redbeat_lite._base.clock.elapsed`; ``None`` if both can be used.
            why: the failure in words.

        Returns:
            whether the file was written.

        Raises:
            OSError: the file cannot be written.
        """
        now = elapsed()
        if now - self._written < PERIOD:
            return False
        self._written = now
        record = {
            "pid": os.getpid(),
            "role": role,
            "at": now,
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
    """Return the value of a JSON file."""
    # With O_NONBLOCK, a pipe without a writer is read as an empty file. Without it, open() would
    # wait for a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return json.loads(file.read(_MAX_BYTES))


def judge(path: str, limit: float) -> Health:
    """Judge a beat by its heartbeat file.

    Parameters:
        limit: seconds without a sign of life, or without the server or the broker, that are still
            healthy.
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
    """Judge a beat by the record of its heartbeat file; ``limit`` as for :func:`judge`."""
    now = elapsed()
    at = _seconds(record["at"])
    failing_since = record["failing_since"]
    failing_for = 0.0
    if failing_since is not None:
        failing_for = now - _seconds(failing_since)
    who = f"{record['role']} (pid {record['pid']})"
    if at > now + PERIOD:
        # The clock began at the start of the machine, so an earlier start wrote this time.
        return Health(False, f"{who}: the file is from before the machine's last start")
    if now - at > limit:
        return Health(False, f"{who}: no sign of life for {now - at:.1f} s")
    if failing_for > limit:
        return Health(False, f"{who}: {record['why']}, for {failing_for:.1f} s")
    return Health(True, f"{who}: alive {max(now - at, 0.0):.1f} s ago")


def _seconds(value: Any) -> float:
    """Return a finite number, or raise ValueError."""
    seconds = float(value)
    if not isfinite(seconds):
        # Each comparison with NaN is false, so the beat would count as healthy.
        raise ValueError(f"{seconds} s")
    return seconds
