"""The file of users of ``redbeat web``: a line each with name, rights, and what their password comes to by scrypt.

``python -m redbeat_lite.web.users ada view,run,pause`` asks for a password and prints the line.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import sys
from getpass import getpass
from pathlib import Path
from threading import Lock

from ..errors import ConfigurationError, RedbeatError, text_of
from .access import Access
from .messages import Request, Response

#: Cost of scrypt: some 50 ms and 16 MiB for each try.
_COST = {"n": 1 << 14, "r": 8, "p": 1}

_WHO = Response(
    401, b"Sign in.", (("WWW-Authenticate", 'Basic realm="redbeat", charset="UTF-8"'), ("Content-Type", "text/plain"))
)


class Users:
    """Lets those in who are in a file and know their password; an ``access`` for a site.

    Parameters:
        path: of the file, which is read once.

    Raises:
        ConfigurationError: it cannot be read; names the line.
    """

    def __init__(self, path: Path) -> None:
        self._users: dict[str, tuple[Access, bytes, bytes]] = {}
        self._seen: set[bytes] = set()
        self._key, self._one_by_one = os.urandom(32), Lock()
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeError) as exc:
            raise ConfigurationError(f"--users: cannot read {path}: {text_of(exc)}") from None
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                self._add(f"{path}, line {number}", line)

    def _add(self, where: str, line: str) -> None:
        try:
            name, rights, salt, digest = line.split()
            access = Access(name, frozenset({"view", *rights.split(",")}))
            self._users[name] = (access, bytes.fromhex(salt), bytes.fromhex(digest))
        except (ValueError, RedbeatError) as exc:
            hint = "a line of `python -m redbeat_lite.web.users NAME RIGHT,...`"
            raise ConfigurationError(f"{where}: expected {hint}: {text_of(exc)}") from None

    def __call__(self, request: Request) -> Access | Response:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = base64.b64decode(given).decode().partition(":")
        except ValueError:
            return _WHO
        if kind.lower() != "basic":
            return _WHO
        return self._users[name][0] if self._knows(name, password) else _WHO

    def _knows(self, name: str, password: str) -> bool:
        """Whether this is their password. It costs as much where there is nobody of that name."""
        _, salt, digest = self._users.get(name, (None, b"nobody", b""))
        once = hmac.digest(self._key, f"{name}:{password}".encode(), "sha256")
        if once in self._seen:  # a page asks every two seconds
            return True
        with self._one_by_one:  # whoever guesses, in however many threads, takes one core at most
            right = hmac.compare_digest(_digest(password, salt), digest)
        if right:
            self._seen.add(once)
        return right


def line(name: str, rights: str, password: str) -> str:
    """A line of the file."""
    salt = os.urandom(16)
    return f"{name} {rights} {salt.hex()} {_digest(password, salt).hex()}"


def _digest(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, **_COST)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(line(sys.argv[1], sys.argv[2], getpass()))
