"""Adapters of the page for WSGI and ASGI hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from .http import MAX_BODY, Request, Response
from .site import Site
from .users import Access

if TYPE_CHECKING:
    from celery import Celery

#: Threads that answer the requests of an ASGI host. Most of them wait for Redis, or for a read that
#: another request has begun.
_THREADS = 8

#: Seconds within which the body of a post must arrive.
_BODY_SECONDS = 10.0

_T = TypeVar("_T")
_Environ = dict[str, Any]
_StartResponse = Callable[..., Any]
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


def wsgi(app: Celery, **options: Any) -> Callable[[_Environ, _StartResponse], Iterable[bytes]]:
    """Return the page as a WSGI application, to be mounted in Flask, Pyramid or any other host.

    Parameters:
        app: the Celery app.
        options: as for :class:`Site`.
    """
    site = Site(app, **options)

    def application(environ: _Environ, start_response: _StartResponse) -> Iterable[bytes]:
        """Answer a request of the host."""
        request = environ_request(environ, environ.get("PATH_INFO", ""), environ)
        answer = site.handle(request, partial(_wsgi_body, environ))
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", [*answer.headers])
        return [answer.body]

    return application


def _wsgi_body(environ: _Environ) -> bytes | Response:
    """Return the body of a post; or the response that refuses a body of unknown length.

    A body that is sent in chunks (``Transfer-Encoding``) has no announced length. It can only be
    read if the server marks its end.
    """
    stream = environ["wsgi.input"]
    if not environ.get("HTTP_TRANSFER_ENCODING"):
        return complete_body(environ, stream.read(_announced(environ)))
    if environ.get("wsgi.input_terminated"):
        # One byte over the limit shows that the body is too long.
        return stream.read(MAX_BODY + 1)  # type: ignore[no-any-return]
    return Response.plain(411, "This server needs a Content-Length.")


def asgi(app: Celery, **options: Any) -> Callable[[_Message, _Receive, _Send], Awaitable[None]]:
    """Return the page as an ASGI application, for FastAPI, Starlette or any other host.

    Threads of the page answer the requests, so that the host's event loop never waits for Redis.

    Parameters:
        app: the Celery app.
        options: as for :class:`Site`.
    """
    site = Site(app, **options)
    threads = ThreadPoolExecutor(_THREADS, "redbeat-page")

    async def in_thread(function: Callable[..., _T], *args: Any) -> _T:
        """Call a function in a thread of the page, with the context variables of the request."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, copy_context().run, function, *args)

    async def application(scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer a request of the host: admit it, read its body, call its handler."""
        if scope["type"] != "http":
            return  # The page has no websockets, and needs no start or stop of the host.
        request = _scope_request(scope)
        # The result is the access of the user; or the answer, such as a refusal.
        answer = await in_thread(site.admit, request)
        is_unread = request.method == "POST"
        if is_unread and isinstance(answer, Access):
            # The event loop waits for the body, so that slow posts keep no thread busy.
            try:
                async with asyncio.timeout(_BODY_SECONDS):
                    body = await _body(receive)
            except TimeoutError:
                answer = Response.plain(408, f"The form did not come within {_BODY_SECONDS:g} s.")
            else:
                if body is None:
                    return  # The browser has gone, and waits for no answer.
                is_unread = len(body) > MAX_BODY
                request = replace(request, body=body)
        response = await in_thread(site.respond, request, answer)
        await _send(send, response, close=is_unread)

    return application


async def _body(receive: _Receive) -> bytes | None:
    """Return the body of a post; ``None`` if the browser disconnects before its end.

    A form that is cut off could name another entry than the user meant. Of a body that is too long,
    only a part is read. This part is longer than allowed, so the site refuses it.
    """
    body = bytearray()
    more = True
    while more and len(body) <= MAX_BODY:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


async def _send(send: _Send, answer: Response, *, close: bool) -> None:
    """Send an answer.

    Parameters:
        close: end the connection after the answer, because the server would take the unread body
            of a post for the next request.
    """
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def environ_request(environ: Mapping[str, Any], path: str, native: Any) -> Request:
    """Return a request without its body, from the environ of WSGI or the ``META`` of Django."""
    headers = {}
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            headers[name.removeprefix("HTTP_").replace("_", "-").lower()] = value
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    return Request(
        method=environ.get("REQUEST_METHOD", ""),
        path=path,
        query=environ.get("QUERY_STRING", ""),
        headers=headers,
        root=environ.get("SCRIPT_NAME", ""),
        client=environ.get("REMOTE_ADDR", ""),
        native=native,
    )


def complete_body(environ: Mapping[str, Any], body: bytes) -> bytes | Response:
    """Return the body of a request; the response that refuses it if it is shorter than announced.

    A form that is cut off could name another entry than the user meant.
    """
    if len(body) < _announced(environ):
        return Response.plain(400, "The form was cut off.")
    return body


def _announced(environ: Mapping[str, Any]) -> int:
    """Return how many bytes of the body to read: its announced length, or just over the limit.

    One byte over the limit shows that the body is too long. A length that is not a number, or that
    has more digits than any real length, counts as 0.
    """
    length = environ.get("CONTENT_LENGTH") or "0"
    if length.isdecimal() and len(length) < 20:
        return min(int(length), MAX_BODY + 1)
    return 0


def _scope_request(scope: _Message) -> Request:
    """Return a request without its body, from the scope of ASGI."""
    root = scope.get("root_path", "")
    path = scope["path"]
    # By the specification, ``path`` begins with the root. Older hosts leave the root out.
    if path == root or path.startswith(f"{root}/"):
        path = path[len(root) :]
    client = scope.get("client") or ("",)
    return Request(
        method=scope["method"],
        path=path,
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=_joined(scope["headers"]),
        root=root,
        client=client[0] or "",
        native=scope,
    )


def _joined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers: name in lower case -> value.

    Values of equal names are joined, as WSGI servers do: cookies by semicolons, all other values by
    commas.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1")
        if name in headers:
            separator = "; " if name == "cookie" else ","
            value = f"{headers[name]}{separator}{value}"
        headers[name] = value
    return headers
