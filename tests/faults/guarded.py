"""Servers that ask for a password, so that every process of the suite has one that it could show."""

from __future__ import annotations

from tests.support.server import Server

SECRET = "secret-of-the-faults"


class Guarded(Server):
    """A server with a password, and the same one for its master, should it get one."""

    def __init__(self, **options: str) -> None:
        super().__init__(requirepass=SECRET, masterauth=SECRET, **options)

    @property
    def url(self) -> str:
        return self.behind(self.port)

    def behind(self, port: int) -> str:
        """The URL by way of a proxy."""
        return f"redis://:{SECRET}@127.0.0.1:{port}/0"
