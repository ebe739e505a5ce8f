"""``redbeat web``: the page, served by itself."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import click

from ..cli.command import Command, app_of
from ..cli.exit_codes import Failure
from ..cli.output import say


@click.command("web", cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, help="The IP address to serve on.")
@click.option("--port", type=click.IntRange(0, 65535), default=5556, show_default=True, help="0: any that is free.")
@click.option("--users", type=click.Path(path_type=Path), help="Who may sign in, and do what.")
def web(ctx: click.Context, host: str, port: int, users: Path | None) -> None:
    """Serve the page: what runs when, what became of it, what is wrong; and the buttons to act.

    Without --users it is read-only, and for this machine alone. A line of that file is made by
    `python -m redbeat_lite.web.users NAME RIGHT,...`; rights are view, run, pause, edit, remove, locks, freeze. It
    speaks plain http: beyond this machine, put a proxy with TLS before it.

    \b
    Examples:
      celery -A proj redbeat web
      celery -A proj redbeat web --host 0.0.0.0 --users users.txt
    """
    try:
        import uvicorn

        from ..settings import Settings
        from .access import from_this_machine
        from .adapters import asgi
        from .users import Users
    except ImportError as exc:
        raise Failure(f"the page needs more: pip install 'redbeat-lite[web]' ({exc})") from None
    if users is None and not _is_loopback(host):
        raise Failure(f"--host {host} is open to others: say who may do what by --users FILE")
    app = app_of(ctx)
    # Fail at once: the page would report a wrong setting only at the first request.
    Settings.from_app(app)
    access = from_this_machine if users is None else Users(users)
    page = asgi(app, access=access)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        name = f"[{host}]" if ":" in host else host
        say(f"The page is at http://{name}:{listening.getsockname()[1]}/{'' if users else ' (read-only)'}")
        # Whom a proxy says that it speaks for is nobody's business here: who is near is told by the connection.
        config = uvicorn.Config(page, lifespan="off", log_level="warning", proxy_headers=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        raise Failure(f"--host: expected an IP address, got {host!r}") from None
