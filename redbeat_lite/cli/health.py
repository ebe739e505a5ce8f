"""``health``: a probe for Docker, Kubernetes and systemd."""

from __future__ import annotations

from typing import Any

import click

from ..errors import RedbeatError
from ..operate.health import cluster_health, incident_health
from ..operate.health import health as of_this_host
from ..settings import Settings
from .command import Command, Length, json_option
from .output import echo_json, say


@click.command(cls=Command)
@click.option("--cluster", is_flag=True, help="Ask whether any beat leads and ticks, wherever it is.")
@click.option("--incidents", is_flag=True, help="Ask whether an incident is open, of whatever kind.")
@click.option("--limit", type=Length(), help="For how long it may be silent; by default redbeat_lite_stall_timeout.")
@click.option("--pid", type=int, help="The beat's process, where several beats run on this host.")
@click.option("--timeout", type=Length(0.1), default="2s", show_default=True, help="How long the server is waited for.")
@json_option
def health(
    ctx: click.Context, cluster: bool, incidents: bool, limit: float | None, pid: int | None, timeout: float
) -> None:
    """Ask whether the beat of this host is well.

    It is, if its loop lives, be it the leader or a stand-by, and if it has not failed for longer than the limit to
    reach the server or the broker. Run it where the beat runs, in the same container. With redbeat_lite_heartbeat_file
    the file is asked, and Redis is not.

    Exit codes: 0 it is well; 1 it is not; 2 the server cannot be reached.

    \b
    Examples:
      celery -A proj redbeat health
      celery -A proj redbeat health --limit 10 --pid "$MAINPID"
      celery -A proj redbeat health --cluster
      celery -A proj redbeat health --incidents
    """
    if cluster and pid is not None:
        raise RedbeatError("--cluster asks for any beat, and --pid for one; give one of them")
    if incidents and (cluster or limit is not None or pid is not None):
        raise RedbeatError("--incidents asks for incidents alone; leave out --cluster, --limit and --pid")
    # Not the tasks of the app: a probe must be quick, and has no use for them.
    settings = Settings.from_app(ctx.obj.app)
    asked: dict[str, Any] = {"limit": limit, "timeout": timeout}
    if incidents:
        verdict = incident_health(settings, timeout=timeout)
    else:
        verdict = cluster_health(settings, **asked) if cluster else of_this_host(settings, pid=pid, **asked)
    echo_json(verdict._asdict())
    say(verdict.reason)
    ctx.exit(0 if verdict.healthy else 1)
