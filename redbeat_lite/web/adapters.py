"""Brings requests of WSGI and ASGI hosts to the page, and takes its responses back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from .messages import MAX_BODY, Request, Response
from .site import Site

if TYPE_CHECKING:
    from celery import Celery

#: Requests that are answered at once; most wait for another one's read.
_THREADS = 8

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


def wsgi(app: Celery, **options: Any) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """The page as a WSGI application, to be mounted in Flask, Pyramid or any other; options as for :class:`Site`."""
    site = Site(app, **options)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(_announced(environ))
        answer = site.handle(of_environ(environ, environ.get("PATH_INFO", ""), body, environ))
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", _headers(answer))
        return [answer.body]

    return application


def asgi(app: Celery, **options: Any) -> Callable[[_Message, _Receive, _Send], Awaitable[None]]:
    """The page as an ASGI application, for FastAPI, Starlette or any other; options as for :class:`Site`.

    It is answered in a thread of its own few, so that nothing else of the host waits for Redis.
    """
    site, threads = Site(app, **options), ThreadPoolExecutor(_THREADS, "redbeat-page")

    async def application(scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        body, more = bytearray(), True
        while more and len(body) <= MAX_BODY:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # what was cut off could name another entry
            body += message.get("body", b"")
            more = message.get("more_body", False)
        loop, request = asyncio.get_running_loop(), _of_scope(scope, bytes(body))
        answer = await loop.run_in_executor(threads, copy_context().run, site.handle, request)
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in _headers(answer)]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    return application


def of_environ(environ: Mapping[str, Any], path: str, body: bytes, native: Any) -> Request:
    """A request of WSGI, or of Django, whose ``META`` is one; see :class:`Request` for the parameters."""
    headers = {name[5:].replace("_", "-").lower(): text for name, text in environ.items() if name.startswith("HTTP_")}
    method, query, root = (environ.get(name, "") for name in ("REQUEST_METHOD", "QUERY_STRING", "SCRIPT_NAME"))
    whole = body if len(body) >= _announced(environ) else b""  # what was cut off could name another entry
    return Request(method, path, query, headers, whole, root, environ.get("REMOTE_ADDR", ""), native)


def _announced(environ: Mapping[str, Any]) -> int:
    """Bytes of the body that are read."""
    length = environ.get("CONTENT_LENGTH") or "0"
    return min(int(length), MAX_BODY + 1) if length.isdecimal() and len(length) < 20 else 0


def _of_scope(scope: _Message, body: bytes) -> Request:
    # Whoever mounts leaves the path whole, as the specification has it, or takes its own part away, as older ones did.
    root, path = scope.get("root_path", ""), scope["path"]
    path = path[len(root) :] if path == root or path.startswith(f"{root}/") else path
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query, client = scope.get("query_string", b"").decode("latin-1"), (scope.get("client") or ("",))[0] or ""
    return Request(scope["method"], path, query, headers, body, root, client, scope)


def _headers(answer: Response) -> list[tuple[str, str]]:
    return [*answer.headers, ("Content-Length", str(len(answer.body)))]
