"""Site of the page: admits requests, calls their handlers, and turns errors into pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from .._base.actors import acting_as, by_way
from .._base.celery_app import short_publish_timeout
from .._base.errors import ConfigurationError, CorruptEntry, InvalidEntry, RedbeatError
from .._base.text import text_of
from ..store.connections import FAULTS, UNREACHABLE
from . import actions, pages
from .call import Call, Handler, Page, SharedParts, show
from .http import FORM_TYPE, MAX_BODY, Request, Response, is_foreign
from .users import Access, Right, from_this_machine

if TYPE_CHECKING:
    from celery import Celery

#: Page -> the function that reads its content. All of these need the right to view.
_PAGES: dict[str, Page] = {
    "": pages.now,
    "entries": pages.entries,
    "entry": pages.entry,
    "why": pages.why,
    "runs": pages.runs,
    "changes": pages.changes,
    "timeline": pages.timeline,
    "backfills": pages.backfills,
    "pipelines": pages.pipelines,
    "pipeline": pages.pipeline,
    "locks": pages.locks,
    "quarantine": pages.quarantine,
    "doctor": pages.doctor,
}

#: Method and path -> the handler, and the right that the user needs. A form is posted to the path
#: of its page. If the form is wrong, that page shows it again.
ROUTES: dict[tuple[str, str], tuple[Handler, Right]] = {
    ("GET", "/edit"): (actions.show_form, "edit"),
    ("POST", "/edit"): (actions.edit, "edit"),
    ("GET", "/add"): (actions.show_form, "edit"),
    ("POST", "/add"): (actions.add, "edit"),
}
for _path, _page in _PAGES.items():
    ROUTES["GET", f"/{_path}"] = (partial(show, _page), "view")
for _name, _action in actions.ACTIONS.items():
    ROUTES["POST", f"/{_name}"] = (actions.act, _action.right)
for _name in actions.BULK_ACTIONS:
    ROUTES["POST", f"/{_name}-all"] = (actions.act_on_all, actions.ACTIONS[_name].right)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

#: Headers of every response. With them, a browser loads nothing from other sites, guesses no media
#: type, and shows the page in no frame.
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
)

_CACHE_FOREVER = ("Cache-Control", "max-age=31536000, immutable")

#: Errors of a broker or a Redis server that does not answer or refuses a command.
_AWAY: tuple[type[Exception], ...] = (OperationalError, *FAULTS)


class Site:
    """The page of one app's schedule.

    Parameters:
        app: the Celery app whose settings say where the schedule is. They are read at the first
            request.
        access: function that returns the :class:`Access` of a request; or ``None`` to refuse the
            request; or a :class:`Response` to it, such as a redirect to a login. By default the
            page is read-only, and for this machine alone.
        redact: function that returns the value which users with the right ``edit`` see of arguments
            and options. It is called with ``"args"``, ``"kwargs"`` or ``"options"`` and the value
            in the types of JSON. Other users see no values.
        trusted_origins: further origins whose pages may post here, such as
            ``https://ops.example.org``. A proxy that changes the name of the host needs this.
    """

    def __init__(
        self,
        app: Celery,
        *,
        access: Callable[[Request], Access | Response | None] = from_this_machine,
        redact: Callable[[str, Any], Any] | None = None,
        trusted_origins: Collection[str] = (),
    ) -> None:
        self.parts = SharedParts(app, redact)
        self._access = access
        self._trusted = frozenset(trusted_origins)

    def handle(
        self, request: Request, read_body: Callable[[], bytes | Response] | None = None
    ) -> Response:
        """Answer a request. Only errors of ``access`` and of ``read_body`` are raised.

        Parameters:
            read_body: function that reads the body of a post, once the user is admitted. It may
                return a response instead, which refuses the body. By default the request has its
                body already.
        """
        answer = self.admit(request)
        if isinstance(answer, Access) and read_body is not None and request.method == "POST":
            body = read_body()
            if isinstance(body, Response):
                answer = body
            else:
                request = replace(request, body=body)
        return self.respond(request, answer)

    def respond(self, request: Request, answer: Access | Response) -> Response:
        """Return the response to a request that :meth:`admit` has checked.

        Parameters:
            answer: access of the user, whom the handler then answers; or the answer without the
                headers that all responses have.
        """
        if isinstance(answer, Access):
            answer = self._answer(request, answer)
        size = ("Content-Length", str(len(answer.body)))
        content = b"" if request.method == "HEAD" else answer.body
        return Response(answer.status, content, (*answer.headers, size, *_HEADERS))

    def admit(self, request: Request) -> Access | Response:
        """Return the access of a request, or its answer if neither handler nor body is needed.

        Such an answer is a redirect, an asset, or a refusal. It still lacks the headers that all
        responses have.
        """
        access = self._access(request)
        if isinstance(access, Response):
            return access
        if access is None or "view" not in access.rights:
            text = "You may not see this page. The site that hosts it decides that, by access=."
            return Response.plain(403, text)
        if not request.path:
            # Add the slash, because the links of the page are relative to its directory. The
            # location is relative, too: the last part of the path where the page is mounted.
            return Response.redirect(f"{request.root.rpartition('/')[2]}/", 308)
        asset = self.parts.assets.get(request.path[1:])
        if asset is not None:
            content, media_type = asset
            return Response(200, content, (("Content-Type", media_type), _CACHE_FOREVER))
        if (request.routed_method, request.path) not in ROUTES:
            return Response.plain(404, "There is no such page.")
        return self._refusal(request, access) or access

    def _refusal(self, request: Request, access: Access) -> Response | None:
        """Return the response that refuses a request of a known route; ``None``: it is allowed."""
        if is_foreign(request, self._trusted):
            text = "Another site may link to this page, but not load it."
            if request.method == "POST":
                hint = "A program must send Authorization. Behind a proxy, see trusted_origins."
                text = f"This did not come from the page itself. {hint}"
            return Response.plain(403, text)
        media_type = request.headers.get("content-type", FORM_TYPE)
        if request.method == "POST" and not media_type.startswith(FORM_TYPE):
            return Response.plain(415, f"Send the form as {FORM_TYPE}.")
        _, right = ROUTES[request.routed_method, request.path]
        if right not in access.rights:
            return Response.plain(403, f"You may not do this. It needs the right {right!r}.")
        return None

    def _answer(self, request: Request, access: Access) -> Response:
        """Let the handler answer a request of a user who has the right for it.

        The boxes that the user has ticked are fields with the same name, ``pick``.
        """
        if len(request.body) > MAX_BODY:
            return Response.plain(413, "This is too long.")
        try:
            params = request.params()
        except ValueError:
            return Response.plain(400, "These are too many fields.")
        picked = [value for name, value in params if name == "pick"]
        handler, _ = ROUTES[request.routed_method, request.path]
        return self._run(Call(self.parts, request, access, dict(params), picked), handler)

    def _run(self, call: Call, handler: Handler) -> Response:
        """Return the response of a handler, or the page for its error.

        The record of changes names the user, and that the change was made by the page.
        """
        app = self.parts.app
        try:
            timeout = self.parts.settings.publish_timeout
            with acting_as(call.access.user), by_way("web"), short_publish_timeout(app, timeout):
                return handler(call)
        except ConfigurationError as exc:
            reason = call.visible_error(text_of(exc))
            return call.failed(500, "A setting of the app is wrong", reason)
        except RedbeatError as exc:
            return self._wrong_request(call, exc)
        except _AWAY as exc:
            return _unreachable(call, exc)
        finally:
            if call.request.method == "POST":
                self.parts.cache.forget()  # Even a post that failed may have changed something.

    def _wrong_request(self, call: Call, exc: RedbeatError) -> Response:
        """Return the response to a wrong request.

        The page of a form shows the form again, with the error. If the request was no form, a page
        of its own shows the error.
        """
        reason = text_of(exc)
        if isinstance(exc, CorruptEntry | InvalidEntry):
            reason = call.visible_error(reason)
        page = ROUTES.get(("GET", call.request.path))
        # If ``call.error`` is set, this call was to show the form again, and has failed as well.
        if call.request.method == "POST" and page is not None and not call.error:
            field = exc.field if isinstance(exc, InvalidEntry) else ""
            # An error may name a part of a field, such as args[0]. The form has the whole field.
            invalid = re.split(r"[.\[]", field)[0]
            return self._run(replace(call, error=reason, invalid=invalid), page[0])
        # An error about an object that is not stored is a LookupError, too.
        status = 404 if isinstance(exc, LookupError) else 400
        return call.failed(status, "This cannot be done", reason)


def _unreachable(call: Call, exc: Exception) -> Response:
    """Return the response while Redis or the broker does not answer, or refuses a command."""
    if isinstance(exc, OperationalError):
        what = "The broker cannot be reached, or does not answer"
    elif isinstance(exc, UNREACHABLE):
        what = "Redis cannot be reached; what is shown may be old"
    else:
        what = "Redis refuses this"
    # Hide the error from other users, because it may name the host and the port of the server.
    why = text_of(exc) if call.may("edit") else "those who may edit see why"
    return call.failed(503, what, why)
