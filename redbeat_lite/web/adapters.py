"""Adapters of the page for WSGI and ASGI hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from .http import MAX_BODY, Request
from .site import Site

if TYPE_CHECKING:
    from celery import Celery

#: Threads that answer the requests of an ASGI host. Most of them wait for Redis, or for a read that
#: another request has begun.
_THREADS = 8

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
        length = announced_length(environ)
        # Without an announced length, a body can only be read if the server marks its end.
        if environ.get("HTTP_TRANSFER_ENCODING") and environ.get("wsgi.input_terminated"):
            length = MAX_BODY + 1
        body = environ["wsgi.input"].read(length) if length else b""
        answer = site.handle(environ_request(environ, environ.get("PATH_INFO", ""), environ, body))
        status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
        start_response(status, [*answer.headers])
        return [answer.body]

    return application


def asgi(app: Celery, **options: Any) -> Callable[[_Message, _Receive, _Send], Awaitable[None]]:
    """Return the page as an ASGI application, for FastAPI, Starlette or any other host.

    Threads of the page answer the requests, so that the host's event loop never waits for Redis.

    Parameters:
        app: the Celery app.
        options: as for :class:`Site`.
    """
    site = Site(app, **options)
    threads = ThreadPoolExecutor(_THREADS, "redbeat-page")

    async def application(scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        body = await _body(receive)
        if body is None:
            return
        request = _scope_request(scope, body)
        loop = asyncio.get_running_loop()
        run = copy_context().run
        answer = await loop.run_in_executor(threads, run, site.handle, request)
        headers = [(name.lower().encode(), text.encode("latin-1")) for name, text in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    return application


async def _body(receive: _Receive) -> bytes | None:
    """Return the body of a request. If it is too long, return a part that is longer than allowed.

    ``None`` if the browser disconnects, because a form that is cut off could name another entry.
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


def environ_request(environ: Mapping[str, Any], path: str, native: Any, body: bytes) -> Request:
    """Return a request from the environ of WSGI or the ``META`` of Django.

    A body that is cut off counts as empty, because it could name another entry.
    """
    headers = {}
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            headers[name.removeprefix("HTTP_").replace("_", "-").lower()] = value
    return Request(
        method=environ.get("REQUEST_METHOD", ""),
        path=path,
        query=environ.get("QUERY_STRING", ""),
        headers=headers,
        body=body if len(body) >= announced_length(environ) else b"",
        root=environ.get("SCRIPT_NAME", ""),
        client=environ.get("REMOTE_ADDR", ""),
        native=native,
    )


def announced_length(environ: Mapping[str, Any]) -> int:
    """Return how many bytes of the body to read: its announced length, or one byte too many."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if length.isdecimal() and len(length) < 20:
        return min(int(length), MAX_BODY + 1)
    return 0


def _scope_request(scope: _Message, body: bytes) -> Request:
    """Return a request from the scope of ASGI."""
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
        body=body,
        root=root,
        client=client[0] or "",
        native=scope,
    )


def _joined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names in lower case. Values of equal names are joined, as in WSGI."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1")
        if name in headers:
            separator = "; " if name == "cookie" else ","
            value = f"{headers[name]}{separator}{value}"
        headers[name] = value
    return headers
