"""A Django project with the page in it, as web.md has it; prints its answers to a few requests, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import django
from celery import Celery
from django.conf import settings
from django.http import HttpRequest
from django.test import AsyncClient, Client

from tests.support.pages import blocks, document
from tests.web import templates

app = Celery("proj", broker=os.environ["PROJ_URL"], set_as_current=False)


class Somebody:
    """A user whose name says what they are."""

    is_active = True
    pk = 7

    def __init__(self, name: str) -> None:
        self.name, self.is_authenticated = name, bool(name)
        self.is_staff = name.strip("\x07") in ("staff", "runner", "root") or len(name) > 100

    def get_username(self) -> str:
        return self.name

    def has_perm(self, permission: str) -> bool:
        return self.name.startswith("root") or (self.name, permission) == ("runner", "redbeat_lite.run")


def signed_in(get_response: Any) -> Any:
    """A login: the name is in a header."""
    if asyncio.iscoroutinefunction(get_response):

        async def later(request: HttpRequest) -> Any:
            request.user = Somebody(request.headers.get("x-name", ""))  # type: ignore[attr-defined]
            return await get_response(request)

        return later

    def middleware(request: HttpRequest) -> Any:
        request.user = Somebody(request.headers.get("x-name", ""))  # type: ignore[attr-defined]
        return get_response(request)

    return middleware


signed_in.async_capable = signed_in.sync_capable = True  # type: ignore[attr-defined]


def told(answer: Any) -> list[Any]:
    text = answer.content.decode()
    return [answer.status_code, answer.headers.get("Location", ""), answer.headers.get("Content-Security-Policy"), text]


async def asked(requests: list[list[str]]) -> list[Any]:
    client = AsyncClient(enforce_csrf_checks=True)
    return [told(await getattr(client, method)(path, **_given(method, name))) for method, path, name in requests]


def _given(method: str, name: str) -> dict[str, Any]:
    kind = "application/x-www-form-urlencoded"
    form = {"data": "name=nightly&note=the+disk", "content_type": kind} if method == "post" else {}
    return {"headers": {"x-name": name, "sec-fetch-site": "same-origin"}, **form}


def configure(*prefixes: str) -> None:
    """Make this a Django project with the page of web.md at each of these prefixes."""
    host = "django.middleware"
    settings.configure(
        ROOT_URLCONF="urls",
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="x",
        LOGIN_URL="/login/",
        INSTALLED_APPS=[],  # the login is the project's own
        MIDDLEWARE=[f"{host}.common.CommonMiddleware", f"{host}.csrf.CsrfViewMiddleware", f"{__name__}.signed_in"],
    )
    django.setup()
    [block] = blocks(document("web.md"), "Django")
    sys.modules["proj"], sys.modules["proj.celery"] = type(sys)("proj"), type(sys)("proj.celery")
    sys.modules["proj.celery"].app = app  # type: ignore[attr-defined]
    sys.modules["urls"] = type(sys)("urls")
    patterns = sys.modules["urls"].urlpatterns = []  # type: ignore[attr-defined]
    for prefix in prefixes:
        names: dict[str, Any] = {"__package__": "proj"}
        exec(without_admin(block.text).replace('"redbeat/"', repr(prefix)), names)
        patterns += names["urlpatterns"]


def without_admin(text: str) -> str:
    """The urls.py without the admin, which the example in ``examples/django`` has."""
    lines = [line for line in text.splitlines(keepends=True) if "admin" not in line]
    assert len(text.splitlines()) - len(lines) == 2
    return "".join(lines)


if __name__ == "__main__":
    templates.share_as_told()
    configure("redbeat/")
    wanted = json.loads(sys.argv[1])
    client = Client(enforce_csrf_checks=True)
    sync = [told(getattr(client, method)(path, **_given(method, name))) for method, path, name in wanted]
    print(json.dumps([sync, asyncio.run(asked(wanted))]))
