"""The page of an app, asked in this process, without a browser."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from celery import Celery

from redbeat_lite.web import RIGHTS, Access, Request, Response, Site
from tests.cli.conftest import run_cli
from tests.support.in_process import clock, inner_beat, make_app, make_beat, no_leaks, schedules
from tests.web import templates

__all__ = ["clock", "inner_beat", "make_app", "make_beat", "no_leaks", "run_cli", "schedules"]

#: What a browser says of a form that is posted from the page itself.
OWN = {"sec-fetch-site": "same-origin"}


@pytest.fixture(scope="session", autouse=True)
def templates_are_shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All tests of a run have the same compiled templates."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    templates.share(directory / "templates")


class Seen(NamedTuple):
    """What the page answers."""

    status: int
    html: str
    headers: dict[str, str]

    @classmethod
    def of(cls, answer: Response) -> Seen:
        return cls(answer.status, answer.body.decode(), dict(answer.headers))

    @property
    def text(self) -> str:
        """What is read on it."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.html)).split())

    @property
    def location(self) -> str:
        return self.headers["Location"]


class Visitor:
    """Somebody who looks and clicks.

    Parameters:
        site: the page.
        rights: theirs.
    """

    def __init__(self, app: Celery, *rights: str, **options: Any) -> None:
        access = Access("ada", frozenset({"view", *rights}))
        self.site = Site(app, **{"access": lambda request: access, **options})

    def get(self, page: str = "", headers: dict[str, str] | None = None, **query: Any) -> Seen:
        self.site.parts.cache.forget()
        return Seen.of(self.site.handle(Request("GET", f"/{page}", urlencode(query), headers or {})))

    def confirm(self, page: str, **form: Any) -> Seen:
        """Post a form that is asked about, and then what it was asked to agree to."""
        asked = re.search(r'name="save" value="(\w+)"', self.post(page, **form).html)
        return self.post(page, **form, save=asked[1] if asked else "nothing was asked")

    def post(self, page: str, headers: dict[str, str] = OWN, **form: Any) -> Seen:
        return Seen.of(self.site.handle(Request("POST", f"/{page}", "", headers, urlencode(form, doseq=True).encode())))


@pytest.fixture
def visitor(app: Celery) -> Visitor:
    """Somebody with all rights."""
    return Visitor(app, *RIGHTS)


@pytest.fixture
def look(app: Celery) -> Callable[..., Visitor]:
    """Makes visitors with these rights."""
    return lambda *rights, **options: Visitor(app, *rights, **options)
