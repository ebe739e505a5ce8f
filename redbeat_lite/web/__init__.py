"""The page: shows the schedule in a browser and has buttons for actions, within any web server.

:class:`Site` answers requests, and is independent of the host. A host is the web application in
which the page is mounted. :func:`wsgi`, :func:`asgi` and :mod:`redbeat_lite.web.django` pass the
requests of their hosts to the site. The names are imported at first use, because the module of
users needs no templates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.public import lazy_names

if TYPE_CHECKING:
    from .adapters import asgi, wsgi
    from .http import Request, Response
    from .site import Site
    from .users import RIGHTS, Access

__all__ = ["RIGHTS", "Access", "Request", "Response", "Site", "asgi", "wsgi"]

_HOMES = {
    "RIGHTS": ".users",
    "Access": ".users",
    "Request": ".http",
    "Response": ".http",
    "Site": ".site",
    "asgi": ".adapters",
    "wsgi": ".adapters",
}

__getattr__ = lazy_names(__name__, _HOMES)
