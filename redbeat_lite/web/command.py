"""Command ``redbeat web``, which serves the page with its own web server."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click

from .._base.celery_app import load_tasks
from .._base.errors import ConfigurationError
from ..settings import Settings, check_timezone


@click.command()
@click.option(
    "--host",
    help="The IP address to serve on.",
    default="127.0.0.1",
    show_default=True,
)
@click.option(
    "--port",
    help="The port; 0 takes any that is free.",
    type=click.IntRange(0, 65535),
    default=5556,
    show_default=True,
)
@click.option(
    "--users", help="The file of users with their rights.", type=click.Path(path_type=Path)
)
def web(host: str, port: int, users: Path | None) -> None:
    """Serve the page, which shows the schedule in a browser and has buttons to act.

    Without --users the page is read-only, and for this machine alone. The command
    `python -m redbeat_lite.web.users NAME RIGHT,...` prints a line for the file of users.
    Rights are view, run, pause, edit, remove, locks and freeze. The page speaks plain http: beyond
    this machine, put a proxy with TLS before it.

    \b
    Examples:
      celery -A proj redbeat web
      celery -A proj redbeat web --host 0.0.0.0 --users users.txt
    """
    try:
        import uvicorn

        from .adapters import asgi
        from .users import Users, from_this_machine, is_loopback
    except ImportError as exc:
        extra = "pip install 'redbeat-lite[web]', or '.[web]' in a checkout"
        raise ConfigurationError(f"the page needs the extra web: {extra} ({exc})") from None
    if users is None and not is_loopback(host):
        expected = "an IP address of this machine, unless you give --users FILE"
        raise ConfigurationError(f"--host: expected {expected}, got {host!r}")
    app = click.get_current_context().obj.app
    check_timezone(app)
    load_tasks(app)
    # Report a wrong setting now. The page would report it only at the first request.
    Settings.from_app(app)
    page = asgi(app, access=from_this_machine if users is None else Users(users))
    is_ipv6 = ":" in host
    with _listen(host, port, is_ipv6=is_ipv6) as listening:
        name = f"[{host}]" if is_ipv6 else host
        note = " (read-only)" if users is None else ""
        click.echo(f"The page is at http://{name}:{listening.getsockname()[1]}/{note}")
        # With proxy_headers, any client could claim another address by a header.
        config = uvicorn.Config(
            page,
            lifespan="off",
            log_level="warning",
            proxy_headers=False,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int, *, is_ipv6: bool) -> socket.socket:
    """Return a socket that listens on the port.

    Raises:
        ConfigurationError: the system refuses to listen there.
    """
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        why = os.strerror(exc.errno) if exc.errno else exc
        raise ConfigurationError(
            f"cannot serve the page on {host}, port {port}: {why}; --port names another port"
        ) from exc
