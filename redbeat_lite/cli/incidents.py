"""``incidents`` and ``ack``: what is expected and does not hold, and who has taken it up."""

from __future__ import annotations

from datetime import tzinfo

import click

from ..entries.words import local
from ..errors import EntryNotFound
from ..runs.incident import Incident
from .command import Command, json_option, schedules_of
from .exit_codes import unknown
from .output import echo_json, echo_table, say, when


@click.command(cls=Command)
@click.option("--open", "only_open", is_flag=True, help="Only those that are open.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@json_option
def incidents(ctx: click.Context, only_open: bool, limit: int) -> None:
    """List incidents: those that are open, the oldest first, and then those that were closed last.

    \b
    Examples:
      celery -A proj redbeat incidents --open
      celery -A proj redbeat incidents --json
    """
    schedules = schedules_of(ctx)
    found = schedules.incidents(limit=limit + 1)
    if not only_open:
        found += schedules.incidents(closed=True, limit=limit + 1)
    echo_json(found[:limit])
    zone = ctx.obj.app.timezone
    headers = ("ID", "KIND", "ENTRY", "SINCE", "STATE", "WHAT")
    rows = (_row(incident, zone) for incident in found)
    empty = "No incident is open" + ("." if only_open else ", and none was.")
    echo_table(headers, rows, empty=empty, rigid=("ID", "KIND", "SINCE", "STATE"), limit=limit, below=True)


@click.command(cls=Command)
@click.argument("incident_id", metavar="ID")
@click.option("--note", required=True, help="Who sees to it, and how.")
def ack(ctx: click.Context, incident_id: str, note: str) -> None:
    """Say who has taken up an open incident. It stays open until what is wrong is not any more.

    \b
    Example:
      celery -A proj redbeat ack 1f0c92ab --note "alice: they know"
    """
    schedules = schedules_of(ctx)
    try:
        found = schedules.acknowledge(incident_id, note)
    except EntryNotFound as exc:
        raise unknown(str(exc), incident_id, [each.id for each in schedules.incidents(limit=1000)]) from None
    say(f"acknowledged {found.id}, {found.kind}" + (f" of {found.entry!r}" if found.entry else ""))


def _row(incident: Incident, zone: tzinfo) -> tuple[object, ...]:
    note = f"({incident.acknowledged}) " if incident.acknowledged else ""
    state = "closed" if incident.until is not None else "taken up" if note else "open"
    what = note + local(incident.text, zone)
    return incident.id, incident.kind, incident.entry, when(incident.since, zone), state, what
