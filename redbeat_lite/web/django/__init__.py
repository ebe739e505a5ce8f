"""The page in a Django project, behind Django's own login and permissions.

Add ``path("redbeat/", include(urls(app)))`` to the ``urlpatterns``. If this module is one of the
``INSTALLED_APPS``, it adds the page's rights to the permissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, re_path, reverse
from django.views.decorators.csrf import csrf_exempt

from ..._base.actors import MAX_ACTOR
from ..._base.text import is_short_text
from ..adapters import complete_body, environ_request
from ..http import Request, Response
from ..site import Site
from ..users import RIGHTS, Access

if TYPE_CHECKING:
    from celery import Celery


def urls(app: Celery, **options: Any) -> list[Any]:
    """Return the URL patterns of the page, for ``include()``.

    Parameters:
        app: the Celery app.
        options: as for :class:`redbeat_lite.web.Site`; ``access`` is :func:`access` by default.
    """
    site = Site(app, **{"access": access, **options})

    def page(request: HttpRequest, path: str) -> HttpResponse:
        """Answer a request of Django with the response of the page."""
        answer = site.handle(
            environ_request(request.META, f"/{path}", request),
            lambda: complete_body(request.META, request.body),
        )
        return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))

    # Django's check is not needed, because the page itself refuses posts of other sites.
    return [re_path(r"^(?P<path>.*)$", csrf_exempt(page), name="redbeat")]


def access(request: Request) -> Access | Response:
    """Return the access of a Django user.

    Staff may view the page. Superusers have all rights, and staff have each right for which they
    have the permission ``redbeat_lite.<right>``. A visitor who has not signed in is redirected to
    the login of the admin, or to ``LOGIN_URL``.
    """
    user = request.native.user
    if not user.is_authenticated:
        return _redirect_to_login(request)
    name = user.get_username()
    # The record of changes refuses a name of more than 100 characters, or with control characters.
    # In place of such a name use the user's key, because two shortened names could be equal.
    actor = name if is_short_text(name, MAX_ACTOR) else f"user {user.pk}"
    if not (user.is_active and user.is_staff):
        return Response.plain(403, f"This page is for staff. You are signed in as {actor}.")
    granted = [right for right in RIGHTS if user.has_perm(f"redbeat_lite.{right}")]
    return Access(actor, {"view", *granted})


def _redirect_to_login(request: Request) -> Response:
    """Return the redirect to the login, which then leads back to the page.

    The login is that of the admin, or ``LOGIN_URL`` if the project has no admin.
    """
    native = request.native
    back = native.get_full_path()
    if request.method not in ("GET", "HEAD"):
        # The address of a post shows no page, so lead to the first page.
        back = f"{native.path.removesuffix(request.path)}/"
    try:
        login = str(reverse("admin:login"))
    except NoReverseMatch:
        login = str(resolve_url(settings.LOGIN_URL))
    separator = "&" if "?" in login else "?"
    # Django's own function for this needs django.contrib.auth, and a middleware of the project's
    # own may give the users instead.
    return Response.redirect(f"{login}{separator}{urlencode({'next': back}, safe='/')}")
