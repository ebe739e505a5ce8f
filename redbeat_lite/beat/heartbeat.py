"""Heartbeat file: the last sign of life of one beat, for probes that do not connect to Redis.

The module does not import Celery, so that a probe starts fast.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from .._base.atomic_files import write_whole
from .._base.clock import elapsed
from .._base.errors import ConfigurationError

#: Seconds between two writes.
PERIOD = 1.0

#: Maximum number of bytes that are read from a file. A beat writes some 400.
_MAX_BYTES = 65_536

#: Mode of the file. Everybody may read it, because the probe may run as another user.
_READABLE = 0o644

#: Errors that decoding raises for a text that is not the record of a beat.
_NOT_A_RECORD = (msgspec.MsgspecError, RecursionError)


class Health(NamedTuple):
    """Whether a beat is healthy, and the reason in one sentence."""

    healthy: bool
    reason: str


class _Record(msgspec.Struct):
    """Sign of life of a beat, as the file holds it. Instants are in seconds of ``elapsed``."""

    pid: int
    role: str
    at: float
    failing_since: float | None
    why: str


class HeartbeatFile:
    """Writer of the heartbeat file. It writes at most once a second.

    Raises:
        ConfigurationError: the directory of the file does not exist or is not writable.
    """

    def __init__(self, path: str) -> None:
        directory = Path(path).absolute().parent
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigurationError(
                "redbeat_lite_heartbeat_file: expected a file in a directory that exists and may "
                f"be written to, got {path!r}"
            )
        self.path = Path(path)
        #: When the file was last written, in seconds of :func:`elapsed`.
        self._written_at = float("-inf")

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
        if now - self._written_at < PERIOD:
            return False
        self._written_at = now
        record = _Record(os.getpid(), role, now, failing_since, why)
        write_whole(self.path, [msgspec.json.encode(record).decode(), "\n"], _READABLE)
        return True

    def remove(self) -> None:
        """Remove the file, if this process wrote it last."""
        with suppress(OSError, *_NOT_A_RECORD):
            if _read(self.path).pid == os.getpid():
                self.path.unlink()


def _read(path: Path | str) -> _Record:
    """Return the record in a file."""
    # If the file is a pipe without a writer, open() would wait for a writer. With O_NONBLOCK, the
    # pipe is read as an empty file.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return msgspec.json.decode(file.read(_MAX_BYTES), type=_Record)


def judge(path: str, limit: float) -> Health:
    """Judge a beat by its heartbeat file.

    Parameters:
        limit: if a beat gives no sign of life, or cannot use the server or the broker, for more
            than so many seconds, it is not healthy.
    """
    try:
        record = _read(path)
    except FileNotFoundError:
        return Health(False, f"{path} does not exist: no beat runs, or none has begun")
    except OSError as exc:
        return Health(False, f"{path} cannot be read: {exc.strerror or exc}")
    except _NOT_A_RECORD:
        return Health(False, f"{path} is not the heartbeat file of a beat")
    now = elapsed()
    who = f"{record.role} (pid {record.pid})"
    if record.at > now + PERIOD:
        # elapsed() counts from the start of the machine. So a time in the future was written before
        # the last start.
        return Health(False, f"{who}: the file is from before the machine's last start")
    silence = max(now - record.at, 0.0)
    failing_for = None if record.failing_since is None else now - record.failing_since
    return verdict(who, silence, failing_for, record.why, limit)


def verdict(who: str, silence: float, failing_for: float | None, why: str, limit: float) -> Health:
    """Judge a beat by its last sign of life, and by its failures.

    Parameters:
        who: the beat in words.
        silence: seconds since its last sign of life.
        failing_for: seconds for which it has been unable to use the server or the broker; ``None``
            if it can use both.
        why: the failure in words.
        limit: as for :func:`judge`.
    """
    if silence > limit:
        return Health(False, f"{who}: no sign of life for {silence:.1f} s")
    if failing_for is not None and failing_for > limit:
        return Health(False, f"{who}: {why}, for {failing_for:.1f} s")
    return Health(True, f"{who}: alive {silence:.1f} s ago")
