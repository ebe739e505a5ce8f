"""Brings requests of WSGI and ASGI hosts to the page, and takes its responses back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from .access import Access
from .messages import MAX_BODY, Request, Response
from .site import Site

if TYPE_CHECKING:
    from celery import Celery

#: Requests that are answered at once; most wait for another one's read.
_THREADS = 8

#: Seconds within which the body of a post has to arrive.
_BODY_SECONDS = 10.0

_T = TypeVar("_T")
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


def wsgi(app: Celery, **options: Any) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """The page as a WSGI application, to be mounted in Flask, Pyramid or any other; options as for :class:`Site`."""
    site = Site(app, **options)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        head = of_environ(environ, environ.get("PATH_INFO", ""), environ)
        answer = site.admit(head)
        if isinstance(answer, Access):
            answer = _answer_by_wsgi(site, head, answer)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", [*answer.headers])
        return [answer.body]

    return application


def _answer_by_wsgi(site: Site, head: Request, access: Access) -> Response:
    environ = head.native
    if head.method != "POST":
        return site.answer(head, access)
    if environ.get("HTTP_TRANSFER_ENCODING"):
        if not environ.get("wsgi.input_terminated"):
            return site.finished(head, Response.plain(411, "This server needs a Content-Length."))
        return site.answer(replace(head, body=environ["wsgi.input"].read(MAX_BODY + 1)), access)
    body = environ["wsgi.input"].read(_announced(environ))
    return site.answer(replace(head, body=whole(environ, body)), access)


def asgi(app: Celery, **options: Any) -> Callable[[_Message, _Receive, _Send], Awaitable[None]]:
    """The page as an ASGI application, for FastAPI, Starlette or any other; options as for :class:`Site`.

    It is answered in a thread of its own few, so that nothing else of the host waits for Redis.
    """
    site, threads = Site(app, **options), ThreadPoolExecutor(_THREADS, "redbeat-page")

    async def application(scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        head = _of_scope(scope)

        async def run(function: Callable[..., _T], *args: Any) -> _T:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads, copy_context().run, function, *args)

        if head.method != "POST":
            await _send(send, await run(site.handle, head))
            return
        admitted = await run(site.admit, head)
        if isinstance(admitted, Response):
            await _send(send, admitted, close=True)
            return
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _body(receive)
        except TimeoutError:
            late = Response.plain(408, f"The form did not come within {_BODY_SECONDS:g} s.")
            await _send(send, site.finished(head, late), close=True)
            return
        if body is not None:
            await _send(send, await run(site.answer, replace(head, body=body), admitted))

    return application


async def _body(receive: _Receive) -> bytes | None:
    """Return the body of a post, one byte too long at most.

    Returns ``None`` if the browser disconnects, because a form that is cut off could name another
    entry.
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


async def _send(send: _Send, answer: Response, *, close: bool = False) -> None:
    """Send an answer; ``close`` ends the connection, because the rest of the body is not read."""
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def of_environ(environ: Mapping[str, Any], path: str, native: Any) -> Request:
    """Return the head of a request, by the environ of WSGI or the ``META`` of Django."""
    headers = {name[5:].replace("_", "-").lower(): text for name, text in environ.items() if name.startswith("HTTP_")}
    method, query, root = (environ.get(name, "") for name in ("REQUEST_METHOD", "QUERY_STRING", "SCRIPT_NAME"))
    return Request(method, path, query, headers, b"", root, environ.get("REMOTE_ADDR", ""), native)


def whole(environ: Mapping[str, Any], body: bytes) -> bytes:
    """Return the body, or nothing if it was cut off, because it could name another entry then."""
    return body if len(body) >= _announced(environ) else b""


def _announced(environ: Mapping[str, Any]) -> int:
    """Bytes of the body that are read."""
    length = environ.get("CONTENT_LENGTH") or "0"
    return min(int(length), MAX_BODY + 1) if length.isdecimal() and len(length) < 20 else 0


def _of_scope(scope: _Message) -> Request:
    # Whoever mounts leaves the path whole, as the specification has it, or takes its own part away, as older ones did.
    root, path = scope.get("root_path", ""), scope["path"]
    path = path[len(root) :] if path == root or path.startswith(f"{root}/") else path
    query, client = scope.get("query_string", b"").decode("latin-1"), (scope.get("client") or ("",))[0] or ""
    return Request(scope["method"], path, query, _joined(scope["headers"]), b"", root, client, scope)


def _joined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names in lower case; equal names are joined as WSGI servers do."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1")
        if name in headers:
            separator = "; " if name == "cookie" else ","
            value = f"{headers[name]}{separator}{value}"
        headers[name] = value
    return headers
