"""Users of the page with their rights, and checks of the origin of a request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, get_args

from .._base.actors import check_actor
from .http import Request

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
