"""One call of the page, and the parts that the handlers of all calls share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.errors import ConfigurationError
from .._base.lazy import lazy
from .._base.text import without_values
from .._base.urls import without_passwords
from ..api.schedules import Schedules
from ..entries.selection import is_pattern
from ..operate.texts import value_text
from ..rules.zones import portable
from ..settings import Settings, key_root
from ..store.store import Store
from .access import Access
from .http import Request, Response
from .read_cache import ReadCache
from .rendering import environment, link, load_assets

if TYPE_CHECKING:
    from celery import Celery

    from ..api.selected import Selected

#: Fields of a posted form, or else of a query: name -> text.
Params = Mapping[str, str]

#: Header that keeps browsers from storing a page on disk. It may show arguments of tasks.
_NOT_KEPT = ("Cache-Control", "private, no-store")

#: Fields of an entry whose values the page may hide.
ARGUMENTS = ("args", "kwargs", "options")

#: Page about one object -> the parameter that names the object.
_SUBJECTS = {"entry": "name", "pipelines": "id"}


class SharedParts:
    """Parts that all handlers of a site use: its schedule, the cache of replies, the templates.

    Parameters:
        app: the Celery app whose settings say where the schedule is.
        redact: function that hides parts of arguments, as for :class:`~redbeat_lite.web.Site`;
            ``None``: users with the right ``edit`` see all of them.
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
        """Settings of the app. They are read at the first request, so a wrong one stops no host."""
        return Settings.from_app(self.app)

    def describe_schedule(self, *, shows_server: bool) -> str:
        """Return which schedule this is: the name of its app, and where Redis holds it.

        If the settings are wrong, only the name is known.

        Parameters:
            shows_server: name the host and the port, too. Other users see only the number of the
                database.
        """
        name = self.app.main or "..."
        try:
            settings = self.settings
        except ConfigurationError:
            return name
        keys = f"keys {key_root(settings.key_prefix)}:*"
        address = without_passwords(settings.url).partition("://")[2].rpartition("@")[2]
        if shows_server:
            return f"{name} on {address}, {keys}"
        database = re.search(r"/(\d+)$", address)
        return f"{name}, database {database[1]}, {keys}" if database else f"{name}, {keys}"

    @lazy
    def store(self) -> Store:
        """Store of the schedule."""
        return Store.of(self.settings)


def texts(params: Params, *names: str) -> tuple[str, ...]:
    """Return the values of these parameters without surrounding space; empty if not sent."""
    return tuple(params.get(name, "").strip() for name in names)


class EntryFilter(NamedTuple):
    """Filter of a list of entries; an empty text means any.

    Parameters:
        name: beginning of a name, or pattern of names.
        tag: tag that the entries have.
        task: pattern of task names.
    """

    name: str
    tag: str
    task: str

    @classmethod
    def of(cls, params: Params) -> EntryFilter:
        """Return the filter of a request."""
        return cls(*texts(params, "q", "tag", "task"))

    @property
    def _pattern(self) -> str:
        return self.name if is_pattern(self.name) else f"{self.name}*"

    def select(self, schedules: Schedules) -> Selected:
        """Return the entries that match the filter.

        Raises:
            InvalidEntry: a text of the filter is wrong.
        """
        return schedules.select(self._pattern, tag=self.tag or None, task=self.task or None)

    def words(self) -> list[str]:
        """Return the arguments that select the same entries on the command line.

        The first is the pattern of names, ``*`` if only a tag or a task is set. For an empty filter
        it is empty, because a list of all entries needs no pattern.
        """
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
        site: parts that all handlers share.
        request: request of the host.
        access: user with the user's rights.
        params: fields of the posted form, or else of the query.
        picked: names of the ticked entries.
        error: if a post failed and its form is shown again, the reason; else empty.
        invalid: the wrong field of that form; empty if the error names none.
    """

    site: SharedParts
    request: Request
    access: Access
    params: Params
    picked: Sequence[str] = ()
    error: str = ""
    invalid: str = ""

    @property
    def schedules(self) -> Schedules:
        """Schedule of the app."""
        return self.site.schedules

    @property
    def name(self) -> str:
        """Name of the entry of this call."""
        return self.params.get("name", "")

    @property
    def id(self) -> str:
        """Id of the object of this call, if the object is no entry."""
        return self.params.get("id", "")

    @property
    def note(self) -> str:
        """Reason of the user, for the record of changes."""
        return self.params.get("note", "")

    def may(self, right: str) -> bool:
        """Return whether the user has this right."""
        return right in self.access.rights

    def visible_error(self, error: str) -> str:
        """Return the error of an entry, without the values that the user may not see."""
        if self.site.redact is None and self.may("edit"):
            return error
        return without_values(error)

    def visible_arguments(self, fields: Mapping[str, Any]) -> dict[str, str]:
        """Return the arguments and options of an entry as texts, as the user may see them."""
        arguments = {name: value for name, value in fields.items() if name in ARGUMENTS}
        if not self.may("edit"):
            return dict.fromkeys(arguments, "for those who may edit")
        redact = self.site.redact
        if redact is not None:
            arguments = {name: redact(name, value) for name, value in arguments.items()}
        return {name: value_text(value) for name, value in arguments.items()}

    def done(self, action: str | None, page: str = "entry", **query: str | None) -> Response:
        """Return the redirect to a page that confirms an action.

        Parameters:
            action: name of the action; ``None`` if there was nothing to do.
            query: further parameters of the page.
        """
        if page in _SUBJECTS:
            # The page is about the same object as this call, such as an entry.
            subject = _SUBJECTS[page]
            query = {subject: self.params.get(subject, ""), **query}
        return Response.redirect(link(page, **query, did=action))

    def failed(self, status: int, what: str, why: str) -> Response:
        """Return the page that explains why a call failed."""
        return replace(self, error="").page("failed.html", status, what=what, why=why)

    def page(self, template: str, status: int = 200, **data: Any) -> Response:
        """Return a page, or status 304 without a body if the browser has the same page already.

        Parameters:
            status: HTTP status. If a form is shown again with an error, it is 400 instead.
            data: name -> value for the template.
        """
        if self.error:
            status = 400
        context = {
            "here": self.request.path[1:],
            "params": self.params,
            "user": self.access.user,
            "schedule": self.site.describe_schedule(shows_server=self.may("edit")),
            "rights": self.access.rights,
            "may": self.may,
            "visible_error": self.visible_error,
            "visible_arguments": self.visible_arguments,
            "error": self.error,
            "invalid": self.invalid,
            # The script reloads a live page. To reload the answer to a post would post again.
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


class View(NamedTuple):
    """Content of a page that only shows something. It is the same for all users.

    Parameters:
        template: the file of its template, which hides what the user may not see.
        data: name -> value for the template.
        status: HTTP status.
    """

    template: str
    data: Mapping[str, Any]
    status: int = 200


Handler = Callable[[Call], Response]

#: Function that reads the content of a page. It gets the fields of the query.
Page = Callable[[SharedParts, Params], View | Response]


def show(page: Page, call: Call) -> Response:
    """Return a page. Its content is read at most once in two seconds for all users.

    The page gets no :class:`Call`, so that its content cannot depend on the user.
    """
    key = (page, *sorted(call.params.items()))
    view = call.site.cache.read(key, lambda: page(call.site, call.params))
    if isinstance(view, Response):
        return view
    return call.page(view.template, view.status, **view.data)
