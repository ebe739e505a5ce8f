"""The page in real servers: Flask, FastAPI, Django and the command, each at ``/``, at ``/a/b`` and behind a proxy."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from redbeat_lite.web import RIGHTS
from redbeat_lite.web.users import line
from tests.support.processes import Process, celery

#: What the proxy takes away from a path.
_STRIPPED = "/p/q"


class Host(NamedTuple):
    """Where the page is, with a slash at the end, and by which headers somebody with all rights is known."""

    kind: str
    address: str
    headers: dict[str, str]


@contextmanager
def hosts(url: str, directory: Path) -> Iterator[list[Host]]:
    """The page of the schedule of this server, in all of them.

    Parameters:
        directory: for the file of users.
    """
    users = directory / "users.txt"
    users.write_text(line("ada", ",".join(RIGHTS), "secret"))
    signed = {"Authorization": "Basic " + base64.b64encode(b"ada:secret").decode()}
    words = ("redbeat", "web", "--port", "0", "--users", str(users))
    command = celery("tests.acceptance.proj", *words, PROJ_URL=url)
    others = Process([sys.executable, "-m", "tests.web.hosting"], {"PROJ_URL": url})
    with ExitStack() as stack:
        for process in (command, others):
            stack.callback(process.destroy)
        found = [tuple(each) for each in json.loads(others.says(r"^\[\["))]
        found.append(("command", command.says("The page is at").split()[4].rstrip("/"), "", signed))
        yield [
            *(Host(kind, f"{origin}{prefix}/", headers) for kind, origin, prefix, headers in found),
            *(
                Host(f"{kind} behind a proxy", stack.enter_context(_stripping(origin)), headers)
                for kind, origin, prefix, headers in found
                if not prefix
            ),
        ]


@contextmanager
def _stripping(origin: str) -> Iterator[str]:
    """A proxy that takes a prefix away and hands ``Host`` on, as that of web.md does; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream = HTTPConnection(origin.partition("://")[2], timeout=20)
            headers = {**self.headers, "X-Forwarded-For": self.client_address[0]}
            upstream.request(self.command, self.path.removeprefix(_STRIPPED), body, headers)
            answer = upstream.getresponse()
            text = answer.read()
            upstream.close()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}{_STRIPPED}/"
        finally:
            proxy.shutdown()
            thread.join()
