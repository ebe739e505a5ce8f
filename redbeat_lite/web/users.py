"""Users of the page with their rights, and the file of the users of ``redbeat web``.

A line of the file has the name, rights and password digest of a user.

``python -m redbeat_lite.web.users ada run,pause`` makes a password, shows it, and prints the line.
"""

from __future__ import annotations

import hmac
import secrets
import sys
from base64 import b64decode
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, get_args

from .._base.actors import check_actor
from .._base.errors import ConfigurationError, RedbeatError
from .._base.text import text_of
from .http import Request, Response

Right = Literal["view", "run", "pause", "edit", "remove", "locks", "freeze"]
RIGHTS: tuple[Right, ...] = get_args(Right)

#: Headers by which a proxy shows that it forwards a request.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


@dataclass(frozen=True, slots=True)
class Access:
    """A user of the page. The user may only view it, unless more rights are granted.

    Parameters:
        user: name that the record of changes shows; 1 to 100 characters.
        rights: some of ``"view"``, ``"run"``, ``"pause"``, ``"edit"``, ``"remove"``, ``"locks"``
            and ``"freeze"``.

    Raises:
        InvalidEntry: the record of changes cannot show this name.
        ValueError: a right is none of these.
    """

    user: str
    rights: Collection[str] = ("view",)

    def __post_init__(self) -> None:
        check_actor(self.user)
        unknown = set(self.rights).difference(RIGHTS)
        if unknown:
            expected = f"some of {', '.join(RIGHTS)}"
            raise ValueError(f"rights: expected {expected}, got {', '.join(sorted(unknown))}")


def from_this_machine(request: Request) -> Access | None:
    """Return read-only access for a request from this machine, and ``None`` for any other.

    This is the ``access`` of a page by default. The client and the ``Host`` of the request must be
    this machine. Otherwise another site could lead a browser here by a name that resolves to this
    machine. A request that a proxy has forwarded counts as one from elsewhere.
    """
    # Drop the port. An IPv6 address stands in brackets, because it has colons itself.
    host = request.headers.get("host", "")
    host_end = "]" if host.startswith("[") else ":"
    host = host.removeprefix("[").partition(host_end)[0]
    is_own_name = host == "localhost" or is_loopback(host)
    is_forwarded = any(name in request.headers for name in _FORWARDED)
    if is_loopback(request.client) and is_own_name and not is_forwarded:
        return Access("somebody at this machine")
    return None


def is_loopback(address: str) -> bool:
    """Return whether a text is an IP address by which this machine reaches itself."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


_SIGN_IN = Response(
    401,
    b"Sign in.",
    (("WWW-Authenticate", 'Basic realm="redbeat", charset="UTF-8"'),),
)


class Users:
    """The ``access`` of a site whose users sign in with their passwords.

    Parameters:
        path: file of the users, which is read once.

    Raises:
        ConfigurationError: the file cannot be read; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        self._users = _read_users(path)

    def __call__(self, request: Request) -> Access | Response:
        """Return the access of a user with the right password, or a response that asks for it."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = b64decode(credentials).decode().partition(":")
        except ValueError:
            return _SIGN_IN  # The credentials are not in Base64 or UTF-8.
        user = self._users.get(name)
        if scheme.lower() != "basic" or user is None:
            return _SIGN_IN
        access, digest = user
        return access if hmac.compare_digest(_digest(password), digest) else _SIGN_IN


def _read_users(path: Path) -> dict[str, tuple[Access, str]]:
    """Return the users of a file: name -> access of the user, and digest of the password.

    Empty lines and lines that begin with ``#`` are skipped.

    Raises:
        ConfigurationError: the file cannot be read, a line is wrong, or no user is in it.
    """
    users = {}
    where = str(path)
    try:
        for number, text in enumerate(path.read_text().splitlines(), 1):
            where = f"{path}, line {number}"
            if text.strip() and not text.startswith("#"):
                name, rights, digest = text.split()
                bytes.fromhex(digest)  # This only checks the digest.
                users[name] = _access(name, rights), digest
    except OSError as exc:
        raise ConfigurationError(f"--users: cannot read {path}: {exc.strerror}") from None
    except (ValueError, RedbeatError) as exc:
        expected = "lines of `python -m redbeat_lite.web.users NAME RIGHT,...`"
        raise ConfigurationError(f"--users: {where}: expected {expected}: {text_of(exc)}") from None
    if not users:
        expected = "a line for each user who may sign in"
        raise ConfigurationError(f"--users: {path}: expected {expected}, got none")
    return users


def _access(name: str, rights: str) -> Access:
    """Return the access of a user, from the rights with commas between them."""
    return Access(name, {"view", *rights.split(",")})


def line(name: str, rights: str, password: str) -> str:
    """Return the line of a user in the file."""
    return f"{name} {rights} {_digest(password)}"


def _digest(password: str) -> str:
    """Return the digest of a password. It needs no salt, because passwords are made at random."""
    return sha256(password.encode()).hexdigest()


def _main(*words: str) -> None:
    """Make a password, show it on stderr, and print the user's line for the file of users.

    The process exits if the arguments are wrong.
    """
    if len(words) != 2:
        sys.exit(__doc__)
    name, rights = words
    try:
        # Check the arguments before a password is made.
        _access(name, rights)
    except (RedbeatError, ValueError) as exc:
        sys.exit(f"Error: {exc}")
    if len(name.split()) != 1:
        sys.exit(f"Error: expected a name without spaces, got {name!r}")
    password = secrets.token_urlsafe(18)
    print(f"The password of {name} is {password}", file=sys.stderr)
    print(line(name, rights, password))


if __name__ == "__main__":
    _main(*sys.argv[1:])
