"""Users of ``redbeat web``, from a file. A line has the name, rights, salt and digest of a user.

``python -m redbeat_lite.web.users ada run,pause`` asks for a password and prints the line.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from base64 import b64decode
from getpass import getpass
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import NamedTuple

from .._base.errors import ConfigurationError, RedbeatError
from .._base.text import text_of
from .access import Access
from .http import Request, Response

#: Most passwords that are checked at a time. Each occupies one of the page's eight threads.
_SIGN_INS = 4

_BUSY = Response(
    429,
    b"Too many people sign in just now.",
    (("Retry-After", "1"), ("Content-Type", "text/plain")),
)
_SIGN_IN = Response(
    401,
    b"Sign in.",
    (("WWW-Authenticate", 'Basic realm="redbeat", charset="UTF-8"'),),
)


class _User(NamedTuple):
    access: Access
    salt: bytes
    digest: bytes


class Users:
    """The ``access`` of a site whose users sign in with their passwords.

    Parameters:
        path: file of the users, which is read once.

    Raises:
        ConfigurationError: the file cannot be read; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        self._users = _read_users(path)
        #: Fingerprints of names with their right passwords, made with a key of this process.
        self._checked = set[bytes]()
        self._key = os.urandom(32)
        self._places = BoundedSemaphore(_SIGN_INS)
        self._one_by_one = Lock()

    def __call__(self, request: Request) -> Access | Response:
        """Return the access of a user with the right password, or a response that asks for it."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = b64decode(credentials).decode().partition(":")
        except ValueError:
            return _SIGN_IN
        if scheme.lower() != "basic":
            return _SIGN_IN
        # A page loads every two seconds. So do the slow check of a password only once.
        fingerprint = hmac.digest(self._key, f"{name}:{password}".encode(), "sha256")
        if fingerprint not in self._checked:
            if not self._places.acquire(blocking=False):
                return _BUSY
            try:
                if not self._is_password(name, password):
                    return _SIGN_IN
            finally:
                self._places.release()
            self._checked.add(fingerprint)
        return self._users[name].access

    def _is_password(self, name: str, password: str) -> bool:
        """Return whether a password is right.

        The check takes as long for an unknown name, so that nobody can find out which names exist.
        """
        user = self._users.get(name)
        salt = user.salt if user is not None else b""
        digest = user.digest if user is not None else b""
        # Check one password at a time, so that guesses in many threads use at most one core.
        with self._one_by_one:
            return hmac.compare_digest(_digest(password, salt), digest)


def _read_users(path: Path) -> dict[str, _User]:
    """Return the users of a file by name."""
    users = {}
    where = str(path)
    try:
        for number, text in enumerate(path.read_text().splitlines(), 1):
            where = f"{path}, line {number}"
            if text.strip() and not text.startswith("#"):
                name, rights, salt, digest = text.split()
                access = Access(name, {"view", *rights.split(",")})
                users[name] = _User(access, bytes.fromhex(salt), bytes.fromhex(digest))
    except OSError as exc:
        raise ConfigurationError(f"--users: cannot read {path}: {exc.strerror}") from None
    except (ValueError, RedbeatError) as exc:
        expected = "lines of `python -m redbeat_lite.web.users NAME RIGHT,...`"
        raise ConfigurationError(f"--users: {where}: expected {expected}: {text_of(exc)}") from None
    if not users:
        expected = "a line for each user who may sign in"
        raise ConfigurationError(f"--users: {path}: expected {expected}, got none")
    return users


def line(name: str, rights: str, password: str) -> str:
    """Return the line of a user in the file."""
    salt = os.urandom(16)
    return f"{name} {rights} {salt.hex()} {_digest(password, salt).hex()}"


def _digest(password: str, salt: bytes) -> bytes:
    """Return the digest of a password. It takes about 50 ms and 16 MiB, to make guesses slow."""
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << 14, r=8, p=1)


def _main(*words: str) -> str:
    """Ask for a password, and return the line of a user.

    The process exits if the arguments are wrong, or the password is not typed twice.
    """
    if len(words) != 2:
        sys.exit(__doc__)
    name, rights = words
    try:
        Access(name, {"view", *rights.split(",")})
    except (RedbeatError, ValueError) as exc:
        sys.exit(f"Error: {exc}")
    if len(name.split()) == 1:
        try:
            password = getpass()
            if password and password == getpass("Once more: "):
                return line(name, rights, password)
        except EOFError:
            # The input is a pipe that has the password only once.
            pass
    sys.exit("Error: expected a name without spaces, and twice the same password")


if __name__ == "__main__":
    print(_main(*sys.argv[1:]))
