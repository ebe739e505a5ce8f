"""What each worker with ``install()`` says of itself every ten seconds, for other workers and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

#: Seconds between two reports of a worker, after how many of them it counts as gone, and is forgotten.
REPORT = 10.0
_GONE_AFTER = 60.0
FORGOTTEN_AFTER = 3600.0


class WorkerReport(NamedTuple):
    """What a worker says.

    Parameters:
        queues: that it consumes.
        visibility_timeout: of its broker in seconds; ``None`` where that has none, or the worker does not mark its
            messages.
        at: when it said so, epoch seconds of the server.
        ahead: by how many seconds its clock is ahead of the server's; negative if it is behind.
        records: whether it records what becomes of runs, their begin too where something is expected.
    """

    queues: list[str]
    visibility_timeout: float | None
    at: float
    ahead: float = 0.0
    records: bool = False

    def encode(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: bytes) -> WorkerReport:
        """What :meth:`encode` made; fields that are not known are passed over."""
        said = json.loads(text)
        timeout = said["visibility_timeout"]
        return cls(
            [str(each) for each in said["queues"]],
            None if timeout is None else float(timeout),
            float(said["at"]),
            float(said.get("ahead", 0.0)),
            bool(said.get("records", False)),
        )


def heard_of(found: Mapping[bytes, bytes], now: float) -> dict[str, WorkerReport]:
    """The workers that were heard of in the minute before ``now`` (epoch seconds of the server), by their node names.

    What is no report is passed over.
    """
    heard = {}
    for name, text in found.items():
        with suppress(ValueError, TypeError, AttributeError, KeyError):  # what a text raises that is none
            said = WorkerReport.decode(text)
            if now - said.at <= _GONE_AFTER:
                heard[name.decode(errors="backslashreplace")] = said
    return heard
