"""Tokens: by what name a beat is known to the others, while it leads and while it stands by."""

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
    """A new token for a beat of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}:{owner}"


def beat_of(token: bytes) -> Beat | None:
    """The beat of a token; ``None`` if no beat wrote that."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        return None
    host, pid, owner = found.groups()
    return Beat(host.decode(errors="backslashreplace"), int(pid), owner.decode(errors="backslashreplace"))
