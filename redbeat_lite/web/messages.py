"""What the page is asked, and what it answers, in a form that every host's adapter can make and send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

#: Bytes of a body that are read: a definition has at most 64 KiB, which a form may write three times as long.
MAX_BODY = 1 << 20

#: Fields of a form or a query that are read: more than any of ours has.
_FIELDS = 100


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the page.

    Parameters:
        method: in capitals.
        path: below where the page is mounted, ``"/entries"``.
        query: what follows the question mark.
        headers: by their names in lower case.
        body: of a form.
        root: where the page is mounted, as far as its host knows.
        client: the address of whoever asks; empty where the host does not tell.
        native: the host's own: the environ of WSGI, the scope of ASGI, the ``HttpRequest`` of Django.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    root: str = ""
    client: str = ""
    native: Any = None

    @property
    def routed(self) -> str:
        """The method of the route that answers: HEAD is answered like GET."""
        return "GET" if self.method == "HEAD" else self.method

    def given(self) -> list[tuple[str, str]]:
        """The fields of the form that is posted, or else of the query.

        Raises:
            ValueError: they are too many.
        """
        text = self.body.decode("ascii", "replace") if self.method == "POST" else self.query
        found = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_FIELDS)
        return [(name, value.replace("\r\n", "\n")) for name, value in found]


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the page.

    Parameters:
        status: of HTTP.
        body: in UTF-8, where it is text.
        headers: names and values.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def plain(cls, status: int, text: str) -> Response:
        """A sentence."""
        return cls(status, text.encode(), (("Content-Type", "text/plain; charset=utf-8"),))

    @classmethod
    def leading_to(cls, where: str, status: int = 303) -> Response:
        """Send the browser on.

        Parameters:
            where: percent-encoded; relative where it is the page, which need not know where it is mounted.
        """
        return cls(status, headers=(("Location", where),))
