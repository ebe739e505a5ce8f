"""Commands about health: ``status``, ``incidents``, ``ack``, ``health`` and ``doctor``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from ..beat.status import status as read_status
from ..entries.words import counted, local
from ..operate.health import cluster_health, incident_health
from ..operate.health import health as host_health
from ..operate.texts import status_lines
from ..settings import Settings
from .command import (
    Failure,
    Length,
    app_zone,
    bare_app,
    echo_fields,
    echo_json,
    echo_table,
    exit_with,
    json_option,
    limit_option,
    load_app,
    load_schedules,
    option,
    say,
)

if TYPE_CHECKING:
    from ..runs.incident import Incident

#: Severity of a finding -> exit code.
_DOCTOR_CODES = {"error": 4, "warning": 3, "note": 0}


@click.command()
@option("--timeout", "How long to wait for the server.", type=Length(0.1), default="5s")
@json_option
def status(timeout: float) -> None:
    """Show who leads, who stands by, and whether anything is late.

    RUNS SENT, RUNS LEFT OUT and FAILED PUBLISHES count from when the leader's process first led.
    LAG is how late the first entry in line is; OVERDUE counts entries that are late by more than a
    second. REFUSED are entries of beat_schedule with an error.

    \b
    Examples:
      celery -A proj redbeat status
      celery -A proj redbeat status --json
    """
    beats = read_status(load_app(), timeout=timeout)
    echo_json(beats)
    echo_fields(status_lines(beats, app_zone()))


@click.command()
@option("--open only_open", "Only open incidents.")
@limit_option(100, "incidents")
@json_option
def incidents(only_open: bool, limit: int) -> None:
    """List the open incidents, the oldest first, then the latest closed ones.

    \b
    Examples:
      celery -A proj redbeat incidents --open
      celery -A proj redbeat incidents --json
    """
    schedules = load_schedules()
    # One incident more than the limit shows whether there are more.
    shown = [*schedules.incidents(limit=limit + 1)]
    if not only_open:
        shown += schedules.incidents(closed=True, limit=limit + 1)
    echo_json(shown[:limit])
    headers = ("ID", "KIND", "ENTRY", "SINCE", "STATE", "WHAT")
    empty = "No incident is open." if only_open else "No incident is open, and none was closed."
    echo_table(headers, map(_incident_row, shown), empty=empty, limit=limit)


def _incident_row(incident: Incident) -> tuple[object, ...]:
    """Return the cells of an incident in the table.

    ``incident.acknowledged`` is the note of the person who works on the incident; empty if nobody
    does. The note precedes the text of the incident.
    """
    text = local(incident.text, app_zone())
    if incident.acknowledged:
        text = f"({incident.acknowledged}) {text}"
    if incident.until is not None:
        state = "closed"
    elif incident.acknowledged:
        state = "taken up"
    else:
        state = "open"
    return incident.id, incident.kind, incident.entry, incident.since, state, text


@click.command()
@click.argument("incident_id", metavar="ID")
@option("--note TEXT", "Who works on it, and how.", required=True)
def ack(incident_id: str, note: str) -> None:
    """Say who works on an open incident. It stays open until its cause is gone.

    \b
    Example:
      celery -A proj redbeat ack 1f0c92ab --note "alice: they know"
    """
    incident = load_schedules().acknowledge(incident_id, note)
    say(f"acknowledged {incident.id}")


@click.command()
@option("--cluster", "Ask whether any beat leads, on whichever host.")
@option("--incidents", "Ask whether an incident is open.")
@option(
    "--limit",
    "Longest time without a sign of life. [default: redbeat_lite_stall_timeout]",
    type=Length(),
)
@option("--pid", "The process id of the beat, if several beats run on this host.", type=int)
@option("--timeout", "How long to wait for the server.", type=Length(0.1), default="2s")
@json_option
def health(
    cluster: bool,
    incidents: bool,
    limit: float | None,
    pid: int | None,
    timeout: float,
) -> None:
    """Ask whether the beat of this host is well.

    A beat is well if its loop lives, as leader or as stand-by, and if the server and the broker
    could be reached within the limit. Run this command where the beat runs, in the
    same container. With redbeat_lite_heartbeat_file it reads the file, and not Redis.

    Exit codes: 0 it is well; 1 it is not; 2 the server cannot be reached.

    \b
    Examples:
      celery -A proj redbeat health
      celery -A proj redbeat health --limit 10 --pid "$MAINPID"
      celery -A proj redbeat health --cluster
      celery -A proj redbeat health --incidents
    """
    if cluster + incidents + (pid is not None) > 1:
        raise Failure("give only one of --cluster, --incidents and --pid")
    if incidents and limit is not None:
        raise Failure("--limit does not go with --incidents")
    # Do not load the tasks of the app, because a probe must be quick.
    settings = Settings.from_app(bare_app())
    if incidents:
        verdict = incident_health(settings, timeout=timeout)
    elif cluster:
        verdict = cluster_health(settings, limit=limit, timeout=timeout)
    else:
        verdict = host_health(settings, pid=pid, limit=limit, timeout=timeout)
    echo_json(verdict._asdict())
    say(verdict.reason)
    exit_with(0 if verdict.healthy else 1)


@click.command()
@json_option
def doctor() -> None:
    """Check the server, the settings and the entries, and say what to mend.

    Each finding has an observation, why it matters, and what to do. Nothing is changed. Run the
    command where a beat runs, so that it looks at the clock of that machine.

    Exit codes: 0 nothing, or notes; 3 a warning; 4 an error; 1 the request is wrong; 2 the server
    cannot be reached.

    \b
    Examples:
      celery -A proj redbeat doctor
      celery -A proj redbeat doctor --json
    """
    # Import this module only here, because the command ``health`` would start more slowly with it.
    from ..operate.doctor import examine

    findings = examine(load_app())
    echo_json(findings)
    for finding in findings:
        headline = f"{finding.severity.upper()} {finding.check}: {finding.what}"
        for line in click.wrap_text(headline, subsequent_indent="  ").splitlines():
            say(line)
        echo_fields([("  why:", finding.why), ("  do:", finding.todo)])
        say()
    number_of = Counter(finding.severity for finding in findings)
    counts = [counted(number_of[severity], severity, f"{severity}s") for severity in _DOCTOR_CODES]
    say(", ".join(counts))
    # examine() returns the gravest finding first.
    exit_with(_DOCTOR_CODES[findings[0].severity] if findings else 0)
