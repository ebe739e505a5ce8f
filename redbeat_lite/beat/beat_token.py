"""Token of a beat: its name in the lease and among the stand-bys."""

from __future__ import annotations

import os
import re
import secrets
import socket
from typing import NamedTuple

#: ``host:pid:random:owner``. A host has no colon, an owner may have any.
_TOKEN = re.compile(rb"(.+?):([0-9]{1,18}):[0-9a-f]+:(.*)", re.DOTALL)


class Beat(NamedTuple):
    """A beat, as its token names it."""

    host: str
    pid: int
    owner: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


def token_of(owner: str) -> str:
    """Return a new token for a beat of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}:{owner}"


def beat_of(token: bytes) -> Beat | None:
    """Return the beat of a token; ``None`` if no beat wrote it."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    host, pid, owner = (part.decode(errors="backslashreplace") for part in match.groups())
    return Beat(host, int(pid), owner)
