"""The page in a Django project, behind Django's own login and permissions.

``path("redbeat/", include(urls(app)))`` among the ``urlpatterns`` is all that it takes.
As one of the ``INSTALLED_APPS``, it adds the page to the menu of the admin, and its rights to the permissions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, re_path, reverse
from django.views.decorators.csrf import csrf_exempt

from ...actors import MAX_ACTOR
from ...errors import is_plain
from ..access import RIGHTS, Access
from ..adapters import of_environ, whole
from ..messages import Request, Response
from ..site import Site

if TYPE_CHECKING:
    from celery import Celery


def urls(app: Celery, **options: Any) -> list[Any]:
    """The patterns to include where the page shall be; options as for :class:`redbeat_lite.web.Site`.

    Who may do what is up to :func:`access`, unless the options say otherwise.
    """
    return [re_path(r"^(?P<path>.*)$", view(app, **options), name="redbeat")]


def view(app: Celery, **options: Any) -> Callable[..., HttpResponse]:
    """The page as a view, which is given the ``path`` below it."""
    site = Site(app, **{"access": access, **options})

    def page(request: HttpRequest, path: str = "") -> HttpResponse:
        head = of_environ(request.META, f"/{path}", request)
        answer = site.admit(head)
        if isinstance(answer, Access):
            body = whole(request.META, request.body) if request.method == "POST" else b""
            answer = site.answer(replace(head, body=body), answer)
        response = HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))
        if answer.status == 304:
            del response["Content-Type"]
        return response

    # Forms carry no token: the page refuses what other sites post by itself.
    exempt: Callable[..., HttpResponse] = csrf_exempt(page)
    return exempt


def access(request: Request) -> Access | Response | None:
    """Staff may look; superusers, and who has the permission ``redbeat_lite.<right>``, may do more.

    Who has not signed in is led to the login of the admin, or to ``LOGIN_URL``.
    """
    user = request.native.user
    if not user.is_authenticated:
        native, posted = request.native, request.method not in ("GET", "HEAD")
        # Where a post goes there is nothing to look at.
        back = f"{native.path.removesuffix(request.path)}/" if posted else native.get_full_path()
        login = _login()
        return Response.leading_to(f"{login}{'&' if '?' in login else '?'}{urlencode({'next': back})}")
    if not (user.is_active and user.is_staff):
        return None
    rights = {right for right in RIGHTS if right == "view" or user.has_perm(f"redbeat_lite.{right}")}
    name = user.get_username()
    # The record takes at most 100 characters, none of them a control character. Two names that are
    # cut could be equal.
    actor = name if is_plain(name, MAX_ACTOR) else f"user {user.pk}"
    return Access(actor, rights)


def _login() -> str:
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(resolve_url(settings.LOGIN_URL))
