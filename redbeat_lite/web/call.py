"""One call of the page, and the parts that the handlers of all calls share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from threading import Lock
from typing import TYPE_CHECKING, Any

from .._base.clock import elapsed
from .._base.errors import ConfigurationError
from .._base.lazy import lazy
from .._base.text import without_values
from .._base.urls import address_of
from ..api.schedules import Schedules
from ..entries.selection import Selection, is_pattern
from ..operate.texts import value_text
from ..rules.zones import portable
from ..settings import Settings, key_root
from ..store.connections import UNREACHABLE
from ..store.store import Store
from .http import Request, Response
from .rendering import environment, link, load_assets
from .users import Access

if TYPE_CHECKING:
    from celery import Celery

    from ..api.selected import Selected

#: Fields of a posted form, or else of a query: name -> text.
Params = Mapping[str, str]

#: Content of a page that only shows something: name -> value for its template. The data are the
#: same for all users, and the template hides those that the present user may not see. ``status``
#: is the HTTP status, by default 200.
Data = Mapping[str, Any]

#: Names of the fields that a query of a page may have.
_QUERY = {
    "q",
    "tag",
    "task",
    "state",
    "offset",
    "name",
    "outcome",
    "since",
    "until",
    "id",
    "examine",
    "span",
}

#: Header that keeps browsers from storing a page on disk, because a page may show arguments of
#: tasks.
_NOT_KEPT = ("Cache-Control", "private, no-store")

#: Fields of an entry whose values the page may hide.
ARGUMENTS = ("args", "kwargs", "options")

#: Seconds for which a reply is fresh at least, and for which no page asks a server again that did
#: not answer.
_FRESH = 2.0

#: A reply whose read took N seconds is fresh for 10 N seconds. So pages that are left open use at
#: most a tenth of the time of the process.
_TIMES_AS_LONG = 10

#: Number of locks. Two keys with the same lock are read one after the other.
_LOCKS = 64

#: Page about one object -> the parameter that names the object.
_SUBJECTS = {"entry": "name", "pipeline": "id"}


class ReadCache:
    """Replies of the server that all requests to the page share for a few seconds."""

    def __init__(self) -> None:
        self._locks = [Lock() for _ in range(_LOCKS)]
        #: Key -> when its reply becomes stale, and the reply.
        self._replies: dict[tuple[object, ...], tuple[float, Data | Response]] = {}
        #: When a page may ask the server again, and the error of the last read; ``None``: no error.
        self._outage: tuple[float, Exception] | None = None

    def read(self, key: tuple[object, ...], ask: Callable[[], Data | Response]) -> Data | Response:
        """Return the reply for a key: the fresh one, or the result of ``ask``.

        If another request is asking for the same key, this call waits for its reply.

        Raises:
            Exception: the error that ``ask`` raised; or, shortly after the server did not answer,
                the error of that time.
        """
        with self._locks[hash(key) % _LOCKS]:
            began = elapsed()
            if self._outage is not None:
                ask_again_at, error = self._outage
                if began < ask_again_at:
                    raise error
            replies = self._replies
            # Drop all stale replies, so that the cache does not grow. Read a copy, because other
            # threads change the replies meanwhile.
            for other, (stale_at, _) in replies.copy().items():
                if stale_at <= began:
                    replies.pop(other, None)
            kept = replies.get(key)
            if kept is not None:
                return kept[1]
            try:
                reply = ask()
            except UNREACHABLE as exc:
                self._outage = (elapsed() + _FRESH, exc)
                raise
            fresh_for = max(_FRESH, _TIMES_AS_LONG * (elapsed() - began))
            # If a post has called forget() meanwhile, this reply may be older than the change. Then
            # ``replies`` is no longer in use, so nobody gets this old reply later.
            replies[key] = (elapsed() + fresh_for, reply)
            return reply

    def forget(self) -> None:
        """Drop all replies and the last error, because a post has changed something."""
        self._replies = {}
        self._outage = None


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
        """Settings of the app.

        They are read at the first request, so that a host starts even with a wrong setting.
        """
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
        # The address without its scheme: the host, the port and the number of the database.
        address = address_of(settings.url).partition("://")[2]
        if shows_server:
            return f"{name} on {address}, {keys}"
        database = re.search(r"/(\d+)$", address)
        return f"{name}, database {database[1]}, {keys}" if database else f"{name}, {keys}"

    @lazy
    def store(self) -> Store:
        """Store of the schedule."""
        return Store.of(self.settings)


def texts(params: Params, *names: str) -> tuple[str, ...]:
    """Return the values of these parameters without surrounding space.

    The value of a parameter that was not sent is empty.
    """
    return tuple(params.get(name, "").strip() for name in names)


def filtered(site: SharedParts, params: Params) -> Selected:
    """Return the entries that match the filter of a request; all entries if the filter is empty.

    The filter has the beginning of a name or a pattern of names, a tag, and a pattern of tasks.

    Raises:
        InvalidEntry: a text of the filter is wrong.
    """
    name, tag, task = texts(params, "q", "tag", "task")
    # A text without wildcards is the beginning of a name. An empty one matches all names.
    pattern = name if is_pattern(name) else f"{name}*"
    return site.schedules.select(pattern, tag=tag or None, task=task or None)


def selection_words(selection: Selection) -> list[str]:
    """Return the arguments that select the same entries on the command line.

    The first argument is the pattern of names, ``*`` if only a tag or a task is set. For all
    entries it is empty, because a list of all entries needs no pattern.
    """
    words = ["" if selection.is_all else selection.name]
    if selection.tag is not None:
        words += ["--tag", selection.tag]
    if selection.task != "*":
        words += ["--task", selection.task]
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

    @property
    def length(self) -> str:
        """Length of a pause or of a freeze, as typed; empty: none was typed."""
        return self.params.get("for", "").strip()

    def may(self, right: str) -> bool:
        """Return whether the user has this right."""
        return right in self.access.rights

    def visible_error(self, error: str) -> str:
        """Return the error of an entry, without the values that the user may not see."""
        # A user who may edit sees all values, unless a function hides parts of them.
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
        # With an error in the call, page() would answer 400 in place of this status.
        return replace(self, error="").page("failed.html", status, what=what, why=why)

    def page(self, template: str, status: int = 200, **data: Any) -> Response:
        """Return a page.

        Parameters:
            status: HTTP status. If a form is shown again with an error, it is 400 instead.
            data: name -> value for the template.
        """
        if self.error:
            status = 400
        context = {
            "here": self.request.path[1:],
            "call": self,
            "schedule": self.site.describe_schedule(shows_server=self.may("edit")),
            # The script reloads a live page. To reload the answer to a post would post again.
            "live": self.request.method != "POST",
            **data,
        }
        text = self.site.templates.get_template(template).render(context)
        headers = (("Content-Type", "text/html; charset=utf-8"), _NOT_KEPT)
        return Response(status, text.encode(errors="replace"), headers)


Handler = Callable[[Call], Response]

#: Function that reads the content of a page. It gets the fields of the query.
Page = Callable[[SharedParts, Params], Data | Response]


def show(page: Page, call: Call) -> Response:
    """Return a page. Its content is read at most once in two seconds for all users.

    The page gets no :class:`Call`, so that its content cannot depend on the user. It gets only the
    fields that pages know, so that a query with further fields does not cause another read.
    """
    fields = {name: value for name, value in call.params.items() if name in _QUERY}
    if "examine" in fields:
        fields["examine"] = ""  # Its value has no meaning, and must not make another key.
    data = call.site.cache.read((page, *sorted(fields.items())), lambda: page(call.site, fields))
    # A page may return a response instead, such as a redirect.
    if isinstance(data, Response):
        return data
    # The template of a page is named for its path.
    return call.page(f"{call.request.path[1:] or 'now'}.html", **data)
