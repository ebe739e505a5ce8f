"""The file of users of ``redbeat web``: a line each with name, rights, and what their password comes to by scrypt.

``python -m redbeat_lite.web.users ada run,pause`` asks for a password and prints the line.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from base64 import b64decode
from contextlib import suppress
from getpass import getpass
from pathlib import Path
from threading import BoundedSemaphore, Lock

from ..errors import ConfigurationError, RedbeatError, text_of
from .access import Access
from .messages import Request, Response

#: Most sign-ins at once, because each takes one of the eight threads that serve the page.
_AT_ONCE = 4

_BUSY = Response(429, b"Too many people sign in just now.", (("Retry-After", "1"), ("Content-Type", "text/plain")))
_WHO = Response(401, b"Sign in.", (("WWW-Authenticate", 'Basic realm="redbeat", charset="UTF-8"'),))


class Users:
    """Lets those in who are in a file and know their password; an ``access`` for a site.

    Parameters:
        path: of the file, which is read once.

    Raises:
        ConfigurationError: it cannot be read; names the line.
    """

    def __init__(self, path: Path) -> None:
        self._users: dict[str, tuple[Access, bytes, bytes]] = {}
        self._key, self._known, self._one_by_one = os.urandom(32), set[bytes](), Lock()
        self._places = BoundedSemaphore(_AT_ONCE)
        where = str(path)
        try:
            for number, text in enumerate(path.read_text().splitlines(), 1):
                where = f"{path}, line {number}"
                if text.strip() and not text.startswith("#"):
                    name, rights, salt, digest = text.split()
                    access = Access(name, {"view", *rights.split(",")})
                    self._users[name] = (access, bytes.fromhex(salt), bytes.fromhex(digest))
        except (OSError, ValueError, RedbeatError) as exc:
            hint = "lines of `python -m redbeat_lite.web.users NAME RIGHT,...`"
            raise ConfigurationError(f"--users: {where}: expected {hint}: {text_of(exc)}") from None
        if not self._users:
            raise ConfigurationError(f"--users: {path}: expected a line for each who may sign in, got none")

    def __call__(self, request: Request) -> Access | Response:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = b64decode(given).decode().partition(":")
        except ValueError:
            return _WHO
        if kind.lower() != "basic":
            return _WHO
        fingerprint = hmac.digest(self._key, f"{name}:{password}".encode(), "sha256")
        # A page asks every two seconds, so a password is checked in full only once.
        if fingerprint not in self._known:
            if not self._places.acquire(blocking=False):
                return _BUSY
            try:
                if not self._is(name, password):
                    return _WHO
            finally:
                self._places.release()
            self._known.add(fingerprint)
        return self._users[name][0]

    def _is(self, name: str, password: str) -> bool:
        """Whether this is their password. It costs as much where there is nobody of that name."""
        _, salt, digest = self._users.get(name, (None, b"", b""))
        with self._one_by_one:  # so that guesses in many threads take one core at most
            return hmac.compare_digest(_digest(password, salt), digest)


def line(name: str, rights: str, password: str) -> str:
    """A line of the file."""
    salt = os.urandom(16)
    return f"{name} {rights} {salt.hex()} {_digest(password, salt).hex()}"


def _digest(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << 14, r=8, p=1)  # some 50 ms and 16 MiB


def _main(*words: str) -> str:
    """The line that is asked for; ends the process where it would be wrong."""
    if len(words) != 2:
        sys.exit(__doc__)
    try:
        Access(words[0], {"view", *words[1].split(",")})
    except (RedbeatError, ValueError) as exc:
        sys.exit(f"Error: {exc}")
    with suppress(EOFError):  # where it is piped in, but once
        if len(words[0].split()) == 1 and (password := getpass()) == getpass("Once more: "):
            return line(*words, password)
    sys.exit("Error: expected a name without spaces, and twice the same password")


if __name__ == "__main__":
    print(_main(*sys.argv[1:]))
