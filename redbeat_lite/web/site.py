"""The page as a whole: from a request to a response, by way of who asks, what for, and what may go wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from .. import actors
from ..api.schedules import Schedules
from ..broker import given_up_soon
from ..errors import (
    ConfigOwned,
    ConfigurationError,
    CorruptEntry,
    EntryChanged,
    EntryExists,
    EntryNotFound,
    InvalidEntry,
    RedbeatError,
    text_of,
    without_values,
)
from ..pipeline.errors import NotResumable, PipelineNotFound
from ..schedules.zones import portable
from ..settings import Settings
from ..storage.connections import FAULTS, UNREACHABLE
from ..storage.lazy import lazy
from ..storage.store import Store
from .access import Access, from_this_machine, is_embedded, is_own
from .messages import MAX_BODY, Request, Response
from .rendering import assets, environment, link
from .shared import Shared

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(f"celery.{__name__}")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

#: Headers of every response. The browser loads nothing from elsewhere, guesses no type, and shows the page in no frame.
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
)

#: Browsers must not store pages on disk, because pages may show arguments of tasks.
_NOT_KEPT = ("Cache-Control", "private, no-store")

#: The status of what is wrong with a request; of everything else that we raise on purpose it is 400.
_STATUS: dict[type[Exception], int] = {
    **dict.fromkeys((EntryNotFound, PipelineNotFound), 404),
    **dict.fromkeys((EntryChanged, EntryExists, ConfigOwned, NotResumable), 409),
}

#: Pages of one thing, and the field that says which.
_ABOUT = {"entry": ["name"], "pipelines": ["id"]}

_AWAY: tuple[type[Exception], ...] = (OperationalError, *FAULTS)
_GONE = "Redis cannot be reached; what is shown may be old"


@dataclass(frozen=True, slots=True)
class Call:
    """A request of somebody who may make it.

    Parameters:
        given: the fields of its form or query.
        picked: the names of the entries that are ticked.
        error: why what was posted was not done, where its form is shown again; with the ``status`` of HTTP.
        invalid: the name of the field that is wrong in that form, as far as the error tells.
    """

    site: Site
    request: Request
    access: Access
    given: Mapping[str, str]
    picked: Sequence[str] = ()
    error: str = ""
    invalid: str = ""
    status: int = 200

    @property
    def name(self) -> str:
        """Of the entry that it is about."""
        return self.given.get("name", "")

    @property
    def id(self) -> str:
        """Of what else it is about."""
        return self.given.get("id", "")

    @property
    def note(self) -> str:
        """Why it is made."""
        return self.given.get("note", "")

    def texts(self, *fields: str) -> tuple[str, ...]:
        """What was typed into these fields, without the space around it; empty where nothing was."""
        return tuple(self.given.get(field, "").strip() for field in fields)

    def may(self, right: str) -> bool:
        """Whether this is granted."""
        return right in self.access.rights

    def wrong(self, error: str) -> str:
        """What is wrong with an entry, as far as whoever asks may see it."""
        return error if self.site.redact is None and self.may("edit") else without_values(error)

    def done(self, what: str | None, page: str = "entry", **query: str) -> Response:
        """Lead to the page that shows what was done; ``None``: it was not needed."""
        about = {field: self.given.get(field) for field in _ABOUT.get(page, ())}
        return Response.leading_to(link(page, **{**about, **query}, did=what))

    @property
    def wants_data(self) -> bool:
        """Whether a program asks, by ``as=json``."""
        return self.given.get("as") == "json"

    def data(self, told: Any, http: int = 200) -> Response:
        """An answer for programs."""
        headers = (("Content-Type", "application/json"), _NOT_KEPT)
        return Response(http, json.dumps(told).encode(), headers)

    def failed(self, http: int, what: str, why: str) -> Response:
        """Why there is no such page."""
        if self.wants_data:
            return self.data({"error": what, "why": why}, http)
        return replace(self, error="").page("failed.html", http, what=what, why=why)

    def page(self, template: str, http: int = 200, **data: Any) -> Response:
        """A page, with a tag of what it says to whoever asks; or that it is still as the browser has it."""
        http = self.status if self.error else http
        shown = {"here": self.request.path[1:], "given": self.given, "user": self.access.user, "may": self.may}
        shown |= {"wrong": self.wrong, "error": self.error, "invalid": self.invalid}
        # A script must not load the answer to a post again, because that would post again.
        shown |= {"live": self.request.method != "POST", **data}
        body = self.site.templates.get_template(template).render(shown).encode(errors="replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        headers = (("Content-Type", "text/html; charset=utf-8"), _NOT_KEPT, ("ETag", tag))
        if http == 200 and self.request.headers.get("if-none-match", "").removeprefix("W/") == tag:
            return Response(304, headers=headers[1:])
        return Response(http, body, headers)


Handler = Callable[[Call], Response]


def _field_of(exc: Exception) -> str:
    """Return the form field that an error names, with dashes; an empty text if there is none."""
    param = getattr(exc, "param", None)
    name = getattr(exc, "field", None) or getattr(param, "name", None) or ""
    return re.split(r"[.\[]", name)[0].strip("_").replace("_", "-")


class Site:
    """The page of one app's schedule.

    Parameters:
        app: the Celery app whose settings say where the schedule is. They are read at the first
            request.
        access: says who asks: an :class:`Access`; ``None`` for nobody, who is refused; or a :class:`Response`, such as
            one that leads to a login. Without it the page is read-only, and for those at this machine alone.
        redact: is given ``"args"``, ``"kwargs"`` or ``"options"`` and the value as JSON has it, and returns what those
            who may edit see instead. Others see no values.
        trusted_origins: of pages that may post here besides our own, ``https://ops.example.org``: where a proxy changes
            the name of the host on the way.
    """

    def __init__(
        self,
        app: Celery,
        *,
        access: Callable[[Request], Access | Response | None] = from_this_machine,
        redact: Callable[[str, Any], Any] | None = None,
        trusted_origins: Collection[str] = (),
    ) -> None:
        from .routes import FORMS, ROUTES

        self.app, self.redact, self.schedules, self.shared = app, redact, Schedules(app), Shared()
        self._access, self._trusted, self._assets = access, frozenset(trusted_origins), assets()
        self._routes, self._forms = ROUTES, FORMS
        self._has_logged_wrong_setting = False
        self.templates = environment(self.zone, app.main or "...", self._assets)

    @property
    def zone(self) -> tzinfo:
        """The app's."""
        return portable(self.app.timezone)

    @lazy
    def settings(self) -> Settings:
        """Settings of the app, read at the first request: a wrong one must not stop the host."""
        return Settings.from_app(self.app)

    @lazy
    def store(self) -> Store:
        """Store of the schedule."""
        return Store.of(self.settings)

    def handle(self, request: Request) -> Response:
        """Answer a whole request. Only errors of ``access`` are raised, for the host to handle."""
        admitted = self.admit(request)
        return admitted if isinstance(admitted, Response) else self.answer(request, admitted)

    def admit(self, request: Request) -> Access | Response:
        """Return the access of a request; or its answer, if its head suffices for that."""
        access = self._access(request)
        if access is None or (isinstance(access, Access) and "view" not in access.rights):
            access = Response.plain(403, "This page is not open to you. Its host says who may see it, by access=.")
        if isinstance(access, Response):
            return self.finished(request, access)
        answer = self._answer_to_head(request, access)
        return access if answer is None else self.finished(request, answer)

    def answer(self, request: Request, access: Access) -> Response:
        """Answer a request that :meth:`admit` lets in."""
        return self.finished(request, self._answer(request, access))

    def finished(self, request: Request, answer: Response) -> Response:
        """Return an answer with the headers that all have, and without its body for HEAD."""
        headers = [*answer.headers]
        if answer.status not in (204, 304):
            headers.append(("Content-Length", str(len(answer.body))))
        body = b"" if request.method == "HEAD" else answer.body
        return Response(answer.status, body, (*headers, *_HEADERS))

    def _answer_to_head(self, request: Request, access: Access) -> Response | None:
        """Return the answer that needs neither an entry nor the body; ``None`` if there is none."""
        path = request.path
        if not path:  # the links of the page count from its directory
            return Response.leading_to(f"{request.root.rpartition('/')[2]}/", 308)
        if path[1:] in self._assets:
            body, kind = self._assets[path[1:]]
            return Response(200, body, (("Content-Type", kind), ("Cache-Control", "max-age=31536000, immutable")))
        methods = [method for method, routed in self._routes if routed == path]
        if not methods:
            return Response.plain(404, "There is no such page.")
        allowed = ("Allow", ", ".join([*methods, "OPTIONS"]).replace("GET", "GET, HEAD"))
        if request.method == "OPTIONS":
            return Response(204, headers=(allowed,))
        if request.routed not in methods:
            return replace(Response.plain(405, "This page does not do that."), headers=(allowed,))
        if request.method == "POST" and not is_own(request, self._trusted):
            return Response.plain(403, "This did not come from the page itself. Behind a proxy, see trusted_origins.")
        if is_embedded(request, self._trusted):
            return Response.plain(403, "Another site may link to this page, but not load it.")
        right = self._routes[request.routed, path][1]
        if right not in access.rights:
            return Response.plain(403, f"You may not do this; it takes the right {right!r}.")
        return None

    def _answer(self, request: Request, access: Access) -> Response:
        if len(request.body) > MAX_BODY:
            return Response.plain(413, "This is too long.")
        try:
            given = request.given()
        except ValueError:
            return Response.plain(400, "These are too many fields.")
        picked = [value for name, value in given if name == "pick"]
        handler, _ = self._routes[request.routed, request.path]
        return self._handled(Call(self, request, access, dict(given), picked), handler)

    def _handled(self, call: Call, handler: Handler) -> Response:
        who, way = actors.acting_as(call.access.user), actors.by_way("web")
        try:
            with who, way, given_up_soon(self.app, self.settings.publish_timeout):
                return handler(call)
        except ConfigurationError as exc:
            if not self._has_logged_wrong_setting:
                self._has_logged_wrong_setting = True
                logger.error("page: a setting is wrong, so no page can be shown: %s", text_of(exc))
            return call.failed(500, "A setting of the app is wrong", call.wrong(text_of(exc)))
        except (RedbeatError, click.UsageError) as exc:
            said = exc.format_message() if isinstance(exc, click.UsageError) else text_of(exc)
            said = call.wrong(said) if isinstance(exc, CorruptEntry | InvalidEntry) else said
            http, form = _STATUS.get(type(exc), 400), self._forms.get(call.request.path)
            if form is None or call.error or call.request.method != "POST":
                return call.failed(http, "This cannot be done", said)
            status = 400 if http == 404 else http
            again = replace(call, error=said, invalid=_field_of(exc), status=status)
            return self._handled(again, form)
        except _AWAY as exc:
            refused = _GONE if isinstance(exc, UNREACHABLE) else "Redis refuses this"
            what = "The broker cannot be reached, or does not answer" if isinstance(exc, OperationalError) else refused
            # It may name the host and the port of the server.
            why = text_of(exc) if call.may("edit") else "those who may edit see why"
            return call.failed(503, what, why)
        finally:
            if call.request.method == "POST":
                self.shared.forget()
