"""One call of the page, and what the handlers of all calls share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .._base.lazy import lazy
from .._base.text import without_values
from ..api.schedules import Schedules
from ..entries.selection import is_pattern
from ..rules.zones import portable
from ..settings import Settings
from ..store.store import Store
from .access import Access
from .http import Request, Response
from .read_cache import ReadCache
from .rendering import environment, link, load_assets

if TYPE_CHECKING:
    from celery import Celery

    from ..api.selected import Selected

_T = TypeVar("_T")

#: Browsers must not store pages on disk, because pages may show arguments of tasks.
_NOT_KEPT = ("Cache-Control", "private, no-store")

#: Pages about one thing -> the parameter that names the thing.
_SUBJECTS = {"entry": "name", "pipelines": "id"}


class SharedParts:
    """Parts that all handlers of a site use: its schedule, the cache of replies, the templates.

    Parameters:
        app: the Celery app whose settings say where the schedule is.
        redact: hides parts of arguments and options, as :class:`~redbeat_lite.web.Site` has it.
    """

    def __init__(self, app: Celery, redact: Callable[[str, Any], Any] | None) -> None:
        self.app = app
        self.redact = redact
        self.schedules = Schedules(app)
        self.cache = ReadCache()
        self.assets = load_assets()
        self.templates = environment(self.zone, app.main or "...", self.assets)

    @property
    def zone(self) -> tzinfo:
        """Time zone of the app."""
        return portable(self.app.timezone)

    @lazy
    def settings(self) -> Settings:
        """Settings of the app, read at the first request: a wrong one must not stop the host."""
        return Settings.from_app(self.app)

    @lazy
    def store(self) -> Store:
        """Store of the schedule."""
        return Store.of(self.settings)


class EntryFilter(NamedTuple):
    """Filter of a list of entries; an empty text means any.

    Parameters:
        name: the beginning of a name, or a pattern of names.
        tag: a tag that the entries have.
        task: a pattern of names of tasks.
    """

    name: str
    tag: str
    task: str

    @property
    def _pattern(self) -> str:
        return self.name if is_pattern(self.name) else f"{self.name}*"

    def select(self, schedules: Schedules) -> Selected:
        """Return the entries that the filter leaves; raises InvalidEntry if a text is wrong."""
        return schedules.select(self._pattern, tag=self.tag or None, task=self.task or None)

    def words(self) -> list[str]:
        """Return the words that select the same entries on the command line."""
        words = [self._pattern if any(self) else ""]
        if self.tag:
            words += ["--tag", self.tag]
        if self.task:
            words += ["--task", self.task]
        return words


@dataclass(frozen=True, slots=True)
class Call:
    """An admitted request, as a handler sees it.

    Parameters:
        site: the parts that all handlers share.
        request: the request of the host.
        access: the user with the rights of the user.
        params: the fields of the posted form, or else of the query.
        picked: the names of the entries that are ticked.
        error: the reason why a post was not done, if its form is shown again.
        invalid: the field of that form that is wrong, as far as the error names it.
        status: the HTTP status of that form.
    """

    site: SharedParts
    request: Request
    access: Access
    params: Mapping[str, str]
    picked: Sequence[str] = ()
    error: str = ""
    invalid: str = ""
    status: int = 200

    @property
    def schedules(self) -> Schedules:
        """Schedule of the app."""
        return self.site.schedules

    @property
    def name(self) -> str:
        """Name of the entry that the call is about."""
        return self.params.get("name", "")

    @property
    def id(self) -> str:
        """Id of anything else that the call is about."""
        return self.params.get("id", "")

    @property
    def note(self) -> str:
        """Reason of the user, for the record of changes."""
        return self.params.get("note", "")

    @property
    def filter(self) -> EntryFilter:
        """Filter of a list of entries."""
        return EntryFilter(*self.texts("q", "tag", "task"))

    def texts(self, *names: str) -> tuple[str, ...]:
        """Return the texts of these parameters without surrounding space; empty if not sent."""
        return tuple(self.params.get(name, "").strip() for name in names)

    def read(self, ask: Callable[..., _T], *args: Hashable) -> _T:
        """Return what ``ask`` reads with these arguments, at most once in two seconds.

        Parameters:
            ask: a function of a module, which takes the shared parts and the arguments.
        """
        return self.site.cache.read((ask, *args), lambda: ask(self.site, *args))

    def may(self, right: str) -> bool:
        """Return whether the user has this right."""
        return right in self.access.rights

    def visible_error(self, error: str) -> str:
        """Return the error of an entry, without values that the user may not see."""
        if self.site.redact is None and self.may("edit"):
            return error
        return without_values(error)

    @property
    def wants_json(self) -> bool:
        """Whether a program asks, by ``as=json``."""
        return self.params.get("as") == "json"

    def json(self, value: Any, status: int = 200) -> Response:
        """Return a response for programs."""
        headers = (("Content-Type", "application/json"), _NOT_KEPT)
        return Response(status, json.dumps(value).encode(), headers)

    def done(self, action: str | None, page: str = "entry", **query: str) -> Response:
        """Redirect to a page, with the action to report there.

        Parameters:
            action: ``None`` if there was nothing to do.
        """
        if page in _SUBJECTS:
            subject = _SUBJECTS[page]
            query = {subject: self.params.get(subject, ""), **query}
        return Response.redirect(link(page, **query, did=action))

    def failed(self, status: int, what: str, why: str) -> Response:
        """Return the page that explains why a call failed."""
        if self.wants_json:
            return self.json({"error": what, "why": why}, status)
        return replace(self, error="").page("failed.html", status, what=what, why=why)

    def page(self, template: str, status: int = 200, **data: Any) -> Response:
        """Return a page, or 304 if the browser has the same one already.

        Parameters:
            status: of HTTP; a form that is shown again with an error has a status of its own.
            data: names and values for the template.
        """
        if self.error:
            status = self.status
        context = {
            "here": self.request.path[1:],
            "params": self.params,
            "user": self.access.user,
            "may": self.may,
            "visible_error": self.visible_error,
            "error": self.error,
            "invalid": self.invalid,
            # A script must not load the answer to a post again, because that would post again.
            "live": self.request.method != "POST",
            **data,
        }
        text = self.site.templates.get_template(template).render(context)
        body = text.encode(errors="replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        headers = (("Content-Type", "text/html; charset=utf-8"), _NOT_KEPT, ("ETag", tag))
        browser_tag = self.request.headers.get("if-none-match", "").removeprefix("W/")
        if status == 200 and browser_tag == tag:
            return Response(304, headers=headers[1:])
        return Response(status, body, headers)


Handler = Callable[[Call], Response]
