"""The server's protocol, version 2: commands read, replies written."""

from __future__ import annotations

from typing import Any

from tests.simulation.commands import Status
from tests.simulation.values import CommandError


def read_commands(data: bytes) -> tuple[list[list[bytes]], bytes]:
    """Return the commands that data holds, and what is left of it."""
    commands = []
    while data:
        read = _read_command(data)
        if read is None:
            break
        command, length = read
        commands.append(command)
        data = data[length:]
    return commands, data


def _read_command(data: bytes) -> tuple[list[bytes], int] | None:
    end = data.find(b"\r\n")
    if end < 0:
        return None
    count, at = int(data[1:end]), end + 2
    words = []
    for _ in range(count):
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        length = int(data[at + 1 : end])
        start = end + 2
        at = start + length + 2
        if at > len(data):
            return None
        words.append(data[start : start + length])
    return words, at


def written(reply: Any) -> bytes:
    """Return a reply as the server sends it."""
    if isinstance(reply, CommandError):
        return b"-%s\r\n" % str(reply).replace("\r", " ").replace("\n", " ").encode()
    if isinstance(reply, Status):
        return b"+%s\r\n" % bytes(reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(written(item) for item in reply)
