"""Token of a beat, by which the lease and the list of stand-bys name it."""

from __future__ import annotations

import os
import re
import secrets
import socket
from typing import NamedTuple

#: Form of a token: ``host:pid:random:owner``. A host has no colon, an owner may have colons.
_TOKEN = re.compile(rb"(.+?):([0-9]{1,18}):[0-9a-f]+:(.*)", re.DOTALL)


class Beat(NamedTuple):
    """The host, the process and the owner that a beat's token names."""

    host: str
    pid: int
    owner: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


def token_of(owner: str) -> str:
    """Return a new token for a beat of this process and this owner."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}:{owner}"


def beat_of(token: bytes) -> Beat | None:
    """Return the beat that a token names; ``None`` if it has not the form of a token."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    host, pid, owner = (part.decode(errors="backslashreplace") for part in match.groups())
    return Beat(host, int(pid), owner)
