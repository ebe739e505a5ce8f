"""Brings requests of WSGI and ASGI hosts to the page, and takes its responses back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from .messages import MAX_BODY, Request, Response
from .site import Site

if TYPE_CHECKING:
    from celery import Celery

Message = MutableMapping[str, Any]


def wsgi(app: Celery, **options: Any) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """The page as a WSGI application, to be mounted in Flask, Pyramid or any other; options as for :class:`Site`."""
    site = Site(app, **options)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = site.handle(_of_environ(environ))
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers_of(answer))
        return [answer.body]

    return application


def asgi(
    app: Celery, **options: Any
) -> Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]:
    """The page as an ASGI application, for FastAPI, Starlette or any other; options as for :class:`Site`.

    It is answered in a thread, so that no other request waits for Redis.
    """
    site = Site(app, **options)

    async def application(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        body, more = bytearray(), True
        while more and len(body) <= MAX_BODY:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = await asyncio.to_thread(site.handle, _of_scope(scope, bytes(body)))
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers_of(answer)]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    return application


def environ_headers(environ: Mapping[str, Any]) -> dict[str, str]:
    """The headers that an environ of WSGI, or ``META`` of Django, holds."""
    named = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
    return {name.replace("_", "-").lower(): str(value) for name, value in named.items()}


def headers_of(answer: Response) -> list[tuple[str, str]]:
    """The headers of a response, with its length."""
    return [*answer.headers, ("Content-Length", str(len(answer.body)))]


def _of_environ(environ: dict[str, Any]) -> Request:
    length = environ.get("CONTENT_LENGTH") or "0"
    size = min(int(length), MAX_BODY + 1) if length.isdigit() else 0
    return Request(
        environ["REQUEST_METHOD"],
        environ.get("PATH_INFO", ""),
        environ.get("QUERY_STRING", ""),
        environ_headers(environ),
        environ["wsgi.input"].read(size) if size else b"",
        environ.get("SCRIPT_NAME", ""),
        environ.get("REMOTE_ADDR", ""),
        environ,
    )


def _of_scope(scope: Message, body: bytes) -> Request:
    # Whoever mounts leaves the path whole, as the specification has it, or takes its own part away, as older ones did.
    root, path = scope.get("root_path", ""), scope["path"]
    return Request(
        scope["method"],
        path[len(root) :] if path == root or path.startswith(f"{root}/") else path,
        scope.get("query_string", b"").decode("latin-1"),
        {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
        body,
        root,
        (scope.get("client") or ("",))[0] or "",
        scope,
    )
