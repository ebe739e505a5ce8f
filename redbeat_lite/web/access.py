"""Users of the page with their rights, and the checks of where a request comes from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, get_args

from .._base.actors import check_actor
from .http import Request

Right = Literal["view", "run", "pause", "edit", "remove", "locks", "freeze"]
RIGHTS: tuple[Right, ...] = get_args(Right)

#: Headers in which a proxy names its client.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


@dataclass(frozen=True, slots=True)
class Access:
    """A user of the page, read-only unless more rights are granted.

    Parameters:
        user: the name that the record of changes shows; 1 to 100 characters.
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
    """Return read-only access for a request from this machine, and None for any other.

    This is the rule of a page without ``access``. The host name must be one of this machine, too,
    so that no other site's name can lead a browser here. A request that a proxy forwards comes
    from elsewhere.
    """
    host = request.headers.get("host", "")
    host_end = "]" if host.startswith("[") else ":"
    host = host.removeprefix("[").partition(host_end)[0]
    here = is_loopback(request.client) and (host == "localhost" or is_loopback(host))
    forwarded = any(name in request.headers for name in _FORWARDED)
    return Access("somebody at this machine") if here and not forwarded else None


def is_loopback(address: str) -> bool:
    """Return whether an address is one of this machine's own; False for a text that is none."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def is_embedded(request: Request, trusted: Collection[str]) -> bool:
    """Return whether a page of another site embeds this page, as an image or a frame.

    Parameters:
        trusted: origins whose pages may embed it, as browsers name them.
    """
    header = request.headers.get
    if header("sec-fetch-site", "none") in ("same-origin", "none") or header("origin") in trusted:
        return False
    is_document = header("sec-fetch-dest", "document") == "document"
    is_navigation = header("sec-fetch-mode") == "navigate" and is_document
    return request.method != "POST" and not is_navigation


def is_own_post(request: Request, trusted: Collection[str]) -> bool:
    """Return whether the page itself made a post, or a program that sends its credentials.

    Browsers say where a post comes from. Over plain http, they leave ``Sec-Fetch-Site`` out; then
    the host of ``Origin`` must be the ``Host`` of the request. A cookie alone is never enough.

    Parameters:
        trusted: origins whose pages may post, as browsers name them,
            ``https://ops.example.org``.
    """
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if origin is not None and origin in trusted:
        return True
    if site is not None:
        return site in ("same-origin", "none")
    if origin is not None:
        host = request.headers.get("host", "").lower()
        return bool(host) and origin.partition("://")[2].lower() == host
    return "authorization" in request.headers
