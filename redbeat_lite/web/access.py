"""Who may do what on the page, and whether a post comes from the page itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, get_args

from ..actors import check_actor
from .messages import Request

Right = Literal["view", "run", "pause", "edit", "remove", "locks", "freeze"]
RIGHTS: tuple[Right, ...] = get_args(Right)


@dataclass(frozen=True, slots=True)
class Access:
    """Somebody who may use the page, read-only unless more is granted.

    Parameters:
        user: who the record of changes says it was; 1 to 100 characters.
        rights: of ``"view"``, ``"run"``, ``"pause"``, ``"edit"``, ``"remove"``, ``"locks"`` and ``"freeze"``.

    Raises:
        InvalidEntry: the user has no such name.
        ValueError: a right is none of these.
    """

    user: str
    rights: Collection[str] = ("view",)

    def __post_init__(self) -> None:
        check_actor(self.user)
        if unknown := set(self.rights).difference(RIGHTS):
            raise ValueError(f"rights: expected some of {', '.join(RIGHTS)}, got {', '.join(sorted(unknown))}")


def from_this_machine(request: Request) -> Access | None:
    """Who sits at this machine may look, and nobody else: what holds where nobody has said who may do what.

    The name that was asked for counts too, so that no other site's name can lead a browser here; and what a proxy
    hands on comes from elsewhere.
    """
    forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
    name = request.headers.get("host", "")
    host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    here = _is_loopback(request.client) and (host == "localhost" or _is_loopback(host))
    return Access("somebody at this machine") if here and not forwarded else None


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def is_embedded(request: Request, trusted: Collection[str]) -> bool:
    """Return whether a page of another site loads this into itself, as an image or a frame.

    Parameters:
        trusted: origins whose pages may do so, as browsers name them.
    """
    header = request.headers.get
    if header("sec-fetch-site", "none") in ("same-origin", "none") or header("origin") in trusted:
        return False
    is_document = header("sec-fetch-dest", "document") == "document"
    is_navigation = header("sec-fetch-mode") == "navigate" and is_document
    return request.method != "POST" and not is_navigation


def is_own(request: Request, trusted: Collection[str]) -> bool:
    """Whether a post was made by the page itself, or by a program that brings its credentials with it.

    Browsers say where a post comes from. Those that know ``Sec-Fetch-Site`` leave it out over plain http, and then the
    name of the origin has to be the one that was asked for. A cookie alone is never enough.

    Parameters:
        trusted: origins as browsers name them, ``https://ops.example.org``.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if origin is not None and origin in trusted:
        return True
    if site is not None:
        return site in ("same-origin", "none")
    if origin is not None:
        host = request.headers.get("host", "").lower()
        return bool(host) and origin.partition("://")[2].lower() == host
    return "authorization" in request.headers
