"""The page: look at the schedule in a browser, and act on it, beside whatever else a host serves.

``handle()`` of a :class:`Site` knows no host; :func:`wsgi`, :func:`asgi` and :mod:`redbeat_lite.web.django` bring it
what they are asked. Names are handed on lazily: the users' file needs no templates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..public import handed_on

if TYPE_CHECKING:
    from .access import RIGHTS, Access
    from .adapters import asgi, wsgi
    from .messages import Request, Response
    from .site import Site

_HOME = {
    **dict.fromkeys(("Access", "RIGHTS"), ".access"),
    **dict.fromkeys(("asgi", "wsgi"), ".adapters"),
    **dict.fromkeys(("Request", "Response"), ".messages"),
    "Site": ".site",
}

__all__ = ["RIGHTS", "Access", "Request", "Response", "Site", "asgi", "wsgi"]

__getattr__ = handed_on(__name__, _HOME)
