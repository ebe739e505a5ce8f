"""The page: a browser's view of the schedule with actions, beside whatever else a host serves.

:class:`Site` answers requests and knows no host. :func:`wsgi`, :func:`asgi` and
:mod:`redbeat_lite.web.django` bring it the requests of their hosts. The names are imported at
their first use, because the file of users needs no templates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.public import lazy_names

if TYPE_CHECKING:
    from .access import RIGHTS, Access
    from .adapters import asgi, wsgi
    from .http import Request, Response
    from .site import Site

__all__ = ["RIGHTS", "Access", "Request", "Response", "Site", "asgi", "wsgi"]

_HOMES = {
    "RIGHTS": ".access",
    "Access": ".access",
    "Request": ".http",
    "Response": ".http",
    "Site": ".site",
    "asgi": ".adapters",
    "wsgi": ".adapters",
}

__getattr__ = lazy_names(__name__, _HOMES)
