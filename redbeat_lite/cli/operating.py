"""Commands of operators: the beats, entries in quarantine, once-locks, and runs of pipelines."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import click

from ..beat.status import status as read_status
from ..entries.words import counted, span
from ..once.locks import locks as locks_of
from ..operate.health import cluster_health, incident_health
from ..operate.health import health as host_health
from ..operate.texts import distance, quarantined_since, status_lines
from ..pipeline import RunStatus, State, progress_line
from ..pipeline.pipeline_run import PipelineRun
from ..settings import Settings
from .command import (
    INCOMPLETE,
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
    name_argument,
    note_option,
    option,
    say,
)
from .entries import say_entry
from .group import Group

#: Severity of a finding -> exit code.
_DOCTOR_CODES = {"error": 4, "warning": 3, "note": 0}

_id_argument = click.argument("run_id")


@click.command()
@json_option
def status() -> None:
    """Show who leads, who stands by, and whether anything is late.

    RUNS SENT, RUNS LEFT OUT and FAILED PUBLISHES count from when the leader's process first led.
    LAG is how late the first entry in line is; OVERDUE counts entries that are late by more than a
    second. REFUSED are entries of beat_schedule with an error.

    \b
    Examples:
      celery -A proj redbeat status
      celery -A proj redbeat status --json
    """
    beats = read_status(load_app())
    echo_json(beats)
    echo_fields(status_lines(beats, app_zone()))


@click.command()
@option("--cluster", "Ask whether any beat leads, on whichever host.")
@option("--incidents", "Ask whether an incident is open.")
@option(
    "--limit",
    "Longest time without a sign of life. [default: redbeat_lite_stall_timeout]",
    type=Length(),
)
@option("--pid", "The process id of the beat, if several beats run on this host.", type=int)
@json_option
def health(
    cluster: bool,
    incidents: bool,
    limit: float | None,
    pid: int | None,
) -> None:
    """Ask whether the beat of this host is well.

    A beat is well if its loop lives, as leader or as stand-by, and if the server and the broker
    could be reached within the limit. Run this command where the beat runs, in the
    same container. With redbeat_lite_heartbeat_file it reads the file, and not Redis.

    Exit codes: 0 it is well; 1 it is not; 2 the server cannot be reached within two seconds.

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
        verdict = incident_health(settings)
    elif cluster:
        verdict = cluster_health(settings, limit=limit)
    else:
        verdict = host_health(settings, pid=pid, limit=limit)
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


@click.group(cls=Group)
def quarantine() -> None:
    """List, show, release or remove entries that the beat cannot use and has set aside.

    \b
    Examples:
      celery -A proj redbeat quarantine list
      celery -A proj redbeat quarantine release nightly
    """


@quarantine.command("list")
@json_option
def list_quarantined() -> None:
    """List the entries in quarantine, with what is wrong.

    \b
    Example:
      celery -A proj redbeat quarantine list --json
    """
    quarantined = load_schedules().quarantined()
    records = [_as_data(name, quarantined[name]) for name in sorted(quarantined)]
    echo_json(records)
    rows = [(record["name"], record["since"], record["error"]) for record in records]
    echo_table(("NAME", "SINCE", "ERROR"), rows, empty="No entry is in quarantine.")


@quarantine.command()
@name_argument
@json_option
def show(name: str) -> None:
    """Show one entry in quarantine, with all that Redis holds of it.

    \b
    Example:
      celery -A proj redbeat quarantine show nightly
    """
    records = load_schedules().quarantined()
    if name not in records:
        raise Failure(f"no entry {name!r} is in quarantine")
    record = _as_data(name, records[name])
    echo_json(record)
    echo_fields(record.items())


@quarantine.command()
@name_argument
@json_option
def release(name: str) -> None:
    """Put an entry back as a new one, once its fault is mended.

    \b
    Example:
      celery -A proj redbeat quarantine release nightly
    """
    say_entry(load_schedules().release(name), "released")


@quarantine.command()
@name_argument
def remove(name: str) -> None:
    """Remove an entry from quarantine, for good.

    \b
    Example:
      celery -A proj redbeat quarantine remove nightly
    """
    load_schedules().discard(name)
    say(f"removed {name!r} from quarantine")


def _as_data(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an entry in quarantine as the commands show it.

    A field that the record lacks is ``None``.
    """
    fields = {field: record.get(field) for field in ("error", "definition", "state")}
    return {"name": name, "since": quarantined_since(record), **fields}


@click.group(cls=Group)
def locks() -> None:
    """Show once-locks, with their holders and waiting tasks, or free one.

    \b
    Examples:
      celery -A proj redbeat locks list
      celery -A proj redbeat locks clear reindex
    """


@locks.command("list")
@json_option
def list_locks() -> None:
    """List the locks that are held or waited for.

    The first lock to expire comes first. HOLDER of a running task is host:pid of its process. LEASE
    is the time until the lock expires if nobody renews it. A worker renews it while the task runs.

    \b
    Example:
      celery -A proj redbeat locks list
    """
    all_locks = locks_of(load_app()).list()
    echo_json(all_locks)
    now = datetime.now(UTC)
    rows = []
    for lock in all_locks:
        since = None if lock.since is None else distance(lock.since, now)
        lease = None if lock.expires_in is None else span(lock.expires_in)
        holder = lock.holder or None
        rows.append((lock.key, lock.state, holder, since, lease, len(lock.waiters), lock.task_id))
    headers = ("KEY", "STATE", "HOLDER", "SINCE", "LEASE", "WAIT", "TASK")
    echo_table(headers, rows, empty="No lock is held or waited for.")


@locks.command()
@click.argument("key")
def clear(key: str) -> None:
    """Free a lock and wake a task that waits for it.

    A task that held the lock goes on running, and learns of the loss within a third of its lease.

    \b
    Example:
      celery -A proj redbeat locks clear reindex
    """
    if not locks_of(load_app()).clear(key):
        raise Failure(f"no lock {key!r} is held")
    say(f"cleared {key!r}")


@click.group(cls=Group)
def pipelines() -> None:
    """List, show, await, cancel or resume runs of pipelines.

    \b
    Examples:
      celery -A proj redbeat pipelines list
      celery -A proj redbeat pipelines wait nightly-7
    """


@pipelines.command("list")
@option("--running", "Only runs that have not ended.")
@option("--failed", "Only runs that have failed.")
@limit_option(50, "runs")
@json_option
def list_runs(running: bool, failed: bool, limit: int) -> None:
    """List the runs that have not ended, then the latest that have.

    \b
    Examples:
      celery -A proj redbeat pipelines list --running
      celery -A proj redbeat pipelines list --failed
      celery -A proj redbeat pipelines list --json
    """
    states: list[State] = []
    if running:
        states += [State.RUNNING, State.WAITING]
    if failed:
        states.append(State.FAILED)
    # Without a filter, list runs in all states. One run over the limit shows whether more exist.
    runs = PipelineRun.list(load_app(), states or tuple(State), limit=limit + 1)
    echo_json([run.as_json() for run in runs[:limit]])
    rows = []
    for run in runs:
        steps = f"{run.done}/{run.total}" if run.total else None
        what = ": ".join(filter(None, (run.entry, run.why))) or None
        rows.append((run.id, run.state, _stage(run), steps, run.created_at, what))
    headers = ("RUN", "STATE", "STAGE", "STEPS", "STARTED", "WHAT")
    empty = "No run matches." if states else "No run is recorded."
    echo_table(headers, rows, empty=empty, limit=limit)


@pipelines.command("show")
@_id_argument
@json_option
def show_run(run_id: str) -> None:
    """Show one run with its steps.

    \b
    Example:
      celery -A proj redbeat pipelines show nightly-7
    """
    run = PipelineRun(load_app(), run_id).status()
    echo_json(run.as_json())
    progress = f"{run.percent} %, {run.done} of {run.total} steps" if run.total else None
    echo_fields(
        [
            ("run", run.id),
            ("state", run.state),
            ("stage", _stage(run)),
            ("progress", progress),
            ("started", run.created_at),
            ("ended", run.ended_at),
            ("deadline", run.deadline),
            ("entry", run.entry),
            ("why", run.why),
        ]
    )
    say()
    rows = []
    for step in run.steps:
        progress = " ".join(filter(None, (step.how_far, step.note))) or None
        rows.append((step.stage + 1, step.name, step.state, step.started_at, step.worker, progress))
    echo_table(("STAGE", "STEP", "STATE", "STARTED", "WORKER", "PROGRESS"), rows)


@pipelines.command()
@_id_argument
@option("--timeout", "How long to wait at most: 90s, 5m. [default: for ever]", type=Length())
@json_option
def wait(run_id: str, timeout: float | None) -> None:
    """Wait until a run has ended, and print a line for each change.

    Exit codes: 0 the run succeeded; 1 the request is wrong; 2 the server or the broker cannot be
    reached; 3 the run did not succeed, or has not ended in time.

    \b
    Example:
      celery -A proj redbeat pipelines wait nightly-7 --timeout 600
    """
    run = PipelineRun(load_app(), run_id)
    try:
        status = run.wait(timeout, lambda status: say(progress_line(status)))
    except TimeoutError as exc:
        say(f"Error: {exc}", err=True)
        exit_with(INCOMPLETE)
    echo_json(status.as_json())
    if status.state is not State.SUCCEEDED:
        exit_with(INCOMPLETE)


@pipelines.command()
@_id_argument
@option("--terminate", "Kill the steps that run. Without it, they run to their ends.")
@note_option
def cancel(run_id: str, terminate: bool, note: str) -> None:
    """End a run before its time. No further step of it starts.

    \b
    Example:
      celery -A proj redbeat pipelines cancel nightly-7 --terminate
    """
    run = PipelineRun(load_app(), run_id)
    if not run.cancel(terminate=terminate, note=note):
        raise Failure(f"pipeline {run_id} has ended already: {run.status().state}")
    say(f"cancelled {run_id}")


@pipelines.command()
@_id_argument
@note_option
def resume(run_id: str, note: str) -> None:
    """Resume a run that failed or was cancelled. Steps that have succeeded do not run again.

    \b
    Example:
      celery -A proj redbeat pipelines resume nightly-7
    """
    resumed = PipelineRun(load_app(), run_id).resume(note=note)
    say(f"resumed {run_id}" if resumed else f"{run_id} goes on already")


def _stage(run: RunStatus) -> str | None:
    """Return the number of the present stage, from 1, and the count of stages, such as ``2/3``.

    ``None`` if the stages are not known.
    """
    return f"{run.stage + 1}/{run.stages}" if run.stages else None
