"""The page in Flask, FastAPI and Django, as web.md mounts it, at ``/`` and ``/a/b``; prints where, in JSON.

Somebody who may do everything is signed in by a cookie, or, in Django, by a header.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import itsdangerous
import uvicorn
from celery import Celery
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from flask.sessions import SecureCookieSessionInterface
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.pages import blocks, document
from tests.web import djangosite, templates

PREFIXES = ("", "/a/b")
SESSION, SECRET = {"user": "ada"}, "a secret of your own"

app = Celery("proj", broker=os.environ["PROJ_URL"], set_as_current=False)


class Quiet(WSGIRequestHandler):
    """Writes no line for each request."""

    def log(self, *args: Any) -> None:
        pass


def recipe(heading: str, name: str, prefix: str) -> Any:
    """What a recipe of the page comes to when it mounts at this prefix."""
    names: dict[str, Any] = {"app": app}
    [block] = blocks(document("web.md"), heading)
    exec(block.text.replace('"/redbeat"', repr(prefix)), names)
    return names[name]


def by_wsgi(application: Any) -> str:
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    return _serving(server.port, server.serve_forever)


def by_asgi(application: Any) -> str:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="error", ws="none"))
    return _serving(listening.getsockname()[1], lambda: server.run(sockets=[listening]))


def _serving(port: int, serve: Callable[[], None]) -> str:
    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    templates.share_as_told()
    found: list[tuple[str, str, str, dict[str, str]]] = []
    signer = itsdangerous.TimestampSigner(SECRET)
    starlette = signer.sign(base64.b64encode(json.dumps(SESSION).encode())).decode()
    for prefix in PREFIXES:
        shop = recipe("Flask and other WSGI", "shop", prefix)
        flask = SecureCookieSessionInterface().get_signing_serializer(shop).dumps(SESSION)  # type: ignore[union-attr]
        found.append(("flask", by_wsgi(shop), prefix, {"Cookie": f"session={flask}"}))
        api = recipe("FastAPI and other ASGI", "api", prefix)
        found.append(("fastapi", by_asgi(api), prefix, {"Cookie": f"session={starlette}"}))
    djangosite.configure("a/b/", "")
    for kind, origin in (
        ("django by wsgi", by_wsgi(get_wsgi_application())),
        ("django by asgi", by_asgi(get_asgi_application())),
    ):
        found += [(kind, origin, prefix, {"X-Name": "root"}) for prefix in PREFIXES]
    print(json.dumps(found), flush=True)
    threading.Event().wait()
