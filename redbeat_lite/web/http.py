"""Request and response of the page, in a form that does not depend on the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

#: Maximum number of bytes of a body. A definition has at most 64 KiB, and the encoding of a form
#: turns some bytes into three.
MAX_BODY = 1 << 20

#: Media type of a posted form. The page reads no other media type.
FORM_TYPE = "application/x-www-form-urlencoded"

#: Maximum number of fields of a form or a query. No form of the page has as many.
_FIELDS = 100


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the page.

    Parameters:
        method: HTTP method, in capitals.
        path: path below the place where the page is mounted, such as ``"/entries"``.
        query: text after the question mark.
        headers: name of a header, in lower case -> its value.
        body: form of a post.
        root: path where the page is mounted; empty if the host does not know it.
        client: address of the client; empty if the host does not know it.
        native: the host's own request: the environ of WSGI, the scope of ASGI, the
            ``HttpRequest`` of Django.
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
    def routed_method(self) -> str:
        """Method by which the route is found. HEAD is answered like GET."""
        return "GET" if self.method == "HEAD" else self.method

    def params(self) -> list[tuple[str, str]]:
        """Return the fields of the posted form, or else of the query.

        Raises:
            ValueError: there are too many fields.
        """
        text = self.query
        if self.method == "POST":
            text = self.body.decode("ascii", "replace")
        pairs = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_FIELDS)
        return [(name, value.replace("\r\n", "\n")) for name, value in pairs]


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the page.

    Parameters:
        status: HTTP status.
        body: content, in UTF-8 if it is text.
        headers: pairs of a name and a value.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def plain(cls, status: int, text: str) -> Response:
        """Return a response that is one sentence of plain text."""
        return cls(status, text.encode(), (("Content-Type", "text/plain; charset=utf-8"),))

    @classmethod
    def redirect(cls, location: str, status: int = 303) -> Response:
        """Return a response that sends the browser to another address.

        Parameters:
            location: the address, percent-encoded. If it is relative, it leads to a page of the
                same site, wherever the site is mounted.
        """
        return cls(status, headers=(("Location", location),))


def is_foreign(request: Request, trusted: Collection[str]) -> bool:
    """Return whether a page of another site posts here, or loads this page as a part of its own.

    Browsers say in ``Sec-Fetch-Site`` where a request comes from. Over plain http they leave it
    out; then the host in ``Origin`` of a post must be the ``Host`` of the request. A program sends
    neither of these headers, so it must send ``Authorization`` with a post. A cookie does not
    count, because a browser also attaches it to posts from pages of other sites.

    Parameters:
        trusted: origins whose pages may post here and load this page, as browsers name them, such
            as ``https://ops.example.org``.
    """
    header = request.headers.get
    origin = header("origin")
    site = header("sec-fetch-site")
    if origin in trusted or site in ("same-origin", "none"):
        return False
    if request.method != "POST":
        # A link on another site may lead a whole window here, because the user then sees the page
        # and its address. Programs, and browsers over plain http, send no ``Sec-Fetch-Site``.
        is_document = header("sec-fetch-dest", "document") == "document"
        is_navigation = header("sec-fetch-mode") == "navigate" and is_document
        return site is not None and not is_navigation
    if site is not None:
        return True  # The post is from another site, or from another host of the same site.
    if origin is None:
        return "authorization" not in request.headers
    host = header("host", "").lower()
    return not host or origin.partition("://")[2].lower() != host
