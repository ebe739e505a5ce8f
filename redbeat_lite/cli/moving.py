"""Commands ``import``, for exports and for other schedulers, and ``shadow``."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from celery import Celery

from .._base.clock import wall_ms
from ..entries.entry import Entry
from ..entries.words import span
from ..interchange.import_step import Step
from ..interchange.move_in import Carrier, MoveIn, Source, Unreadable
from ..interchange.shadow import Difference, Shadow
from ..operate.texts import next_run
from ..rules import schedule_text
from ..settings import NO_SERVER, Settings
from .command import (
    INCOMPLETE,
    Failure,
    Length,
    command,
    exit_with,
    json_option,
    load_app,
    option,
    together,
)
from .documents import import_export
from .output import app_zone, echo_json, echo_table, in_json, say, when

#: Other schedulers whose entries can be imported.
_ORIGINS = ("redbeat", "django-celery-beat")

_redbeat_options = together(
    option("--url TEXT", "The server of celery-redbeat. [default: that of its settings]"),
    option(
        "--prefix TEXT", "The redbeat_key_prefix of celery-redbeat. [default: that of its settings]"
    ),
)


@command("import")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@option(
    "--from origin",
    "The scheduler to move in from. [default: a file of export]",
    type=click.Choice(_ORIGINS),
)
@_redbeat_options
@option("--apply", "Write. Without it, only show what would be written.")
@option("--replace", "Overwrite entries that are stored here already.")
@json_option
def import_(
    path: Path | None,
    origin: str | None,
    url: str | None,
    prefix: str | None,
    apply: bool,
    replace: bool,
) -> None:
    """Restore a file of export, or move in from another scheduler.

    PATH is a file that export has written. Entries keep their last runs. Without --apply, nothing
    is written. The store of the other scheduler is never changed. Stop the other beat before
    --apply.

    \b
    Examples:
      celery -A proj redbeat import backup.json --apply
      celery -A proj redbeat import --from redbeat
      celery -A proj redbeat import --from redbeat --apply
      celery -A proj redbeat import --from django-celery-beat --apply

    Exit codes: 0 fine; 1 the request is wrong, or the other scheduler has no entry; 2 the server or
    the broker cannot be reached; 3 some entries are left out.
    """
    if origin is None:
        if path is None:
            raise Failure("name the file that export has written, or say --from which scheduler")
        _refuse_redbeat_options(url, prefix)
        import_export(path, apply=apply, replace=replace)
        return
    if path is not None:
        raise Failure(f"PATH: expected nothing with --from {origin}, got {str(path)!r}")
    app = load_app()
    with (
        closing(_source(app, origin, url, prefix)) as source,
        closing(MoveIn(app, replace=replace)) as mover,
    ):
        entries = [*source.read()]
        if not entries:
            raise _no_entry(source)
        moves = mover.plan(entries)
        if apply:
            mover.apply(moves)
        echo_json(map(_move_data, moves))
        # The report asks both servers for more, so JSON does without it.
        if not in_json():
            _report(source, mover, moves, applied=apply)
    if any(move.action == "left out" for move in moves):
        exit_with(INCOMPLETE)


def _no_entry(source: Source) -> Failure:
    """Return the Failure for an empty store, with its place, which may be the wrong one."""
    advice = f"; {source.advice}" if source.advice else ""
    return Failure(f"no entry of {source.title} in {source.where}{advice}")


def _move_data(move: Step) -> dict[str, Any]:
    """Return the import of one entry as JSON has it."""
    entry = None if move.entry is None else move.entry.as_dict()
    return {"name": move.name, "action": move.action, "notes": [*move.notes], "entry": entry}


def _report(source: Source, mover: MoveIn, moves: list[Step], *, applied: bool) -> None:
    """Print which entries are imported and which are left out, and warn of a second beat.

    Parameters:
        applied: whether the entries were written.
    """
    say(f"From {source.title}: {source.where}")
    say(f"Into {mover.where}")
    say()
    carried = [move.entry for move in moves if move.entry is not None]
    if carried:
        rows = []
        for entry in carried:
            schedule = schedule_text(entry.schedule)
            rows.append((entry.name, entry.task, schedule, entry.total_run_count, _next(entry)))
        echo_table(("NAME", "TASK", "SCHEDULE", "RUNS", "NEXT RUN"), rows)
        say()
    _list_notes("Left out:", [move for move in moves if move.action == "left out"])
    _list_notes("To know:", [move for move in moves if move.entry is not None])
    if any(entry.expires == "interval" and "expires" not in entry.options for entry in carried):
        hint = "redbeat_lite_expires = None turns that off"
        say(f"Messages will expire about when the next one comes; {hint}.")
    if mover.led:
        other = f"No beat of {source.title} may run any more"
        say(f"A beat of redbeat_lite leads, and sends these entries. {other}.")
    counts = Counter(move.action for move in moves)
    done = "carried over" if applied else "to be carried over"
    hint = " Nothing was written; --apply does it." if carried and not applied else ""
    say(f"{len(carried)} {done}, {counts['left out']} left out.{hint}")
    if counts["stored"]:
        say(f"{counts['stored']} stored here already; --replace carries over these, too.")
    if applied and source.lock_seconds is not None:
        _say_lock(source.title, source.lock_seconds)


def _say_lock(title: str, seconds: float) -> None:
    """Print that the lock of the other scheduler's beat is held, and what to do.

    Parameters:
        seconds: time until the lock expires; negative if it does not expire.
    """
    end = f"expires in {span(seconds)}" if seconds >= 0 else "does not expire"
    say(f"The lock of {title} is held; it {end}.")
    say(f"If a beat of {title} still runs, stop it: both would send.")
    say("A beat that was killed leaves its lock behind. If none runs, go on.")


def _next(entry: Entry) -> str:
    """Return in words when an imported entry runs next."""
    if entry.next_run_at is not None and entry.next_run_at <= datetime.now(UTC):
        return "at once"
    return next_run(entry, app_zone())


def _list_notes(heading: str, moves: Iterable[Step]) -> None:
    """Print the notes on some entries below a heading; nothing if there are no notes."""
    lines = [f"  {move.name or repr('')}: {'; '.join(move.notes)}" for move in moves if move.notes]
    if lines:
        for line in (heading, *lines, ""):
            say(line)


@command()
@option(
    "--from origin", "The scheduler whose beat runs.", type=click.Choice(_ORIGINS), required=True
)
@_redbeat_options
@option("--for length", "How long to watch, such as 1h; by default until Ctrl-C.", type=Length())
@option("--every", "How often to look.", type=Length(0.1), default="1s")
@option(
    "--tolerance",
    "Largest difference between two instants that agree.",
    type=Length(),
    default="2s",
)
@json_option
def shadow(
    origin: str,
    url: str | None,
    prefix: str | None,
    length: float | None,
    every: float,
    tolerance: float,
) -> None:
    """Watch another beat, and show where redbeat_lite would have sent otherwise.

    The command sends nothing, leads nothing and writes nothing. It reads from the other beat's
    store what that beat has sent: celery-redbeat stores each run as it sends it; django-celery-beat
    stores runs every three minutes, or at once with beat_sync_every = 1.

    \b
    Examples:
      celery -A proj redbeat shadow --from redbeat --for 24h
      celery -A proj redbeat shadow --from django-celery-beat --json

    With --json, each difference is a line of JSON, and so is the summary at the end.

    Exit codes: 0 no difference; 1 the request is wrong; 2 the server cannot be reached; 3 there
    were differences.
    """
    app = load_app()
    end = None if length is None else time.monotonic() + length
    source = _source(app, origin, url, prefix)
    lag = source.lag
    if app.conf.beat_sync_every == 1:
        # With this setting, the other beat stores each run at once. It has the same app.
        lag = min(every, lag)
    settings = Settings.from_app(app, url=NO_SERVER)
    carrier = Carrier(app, settings)
    watch = Shadow(carrier, app.timezone, tolerance=tolerance, lag=lag)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for difference in _differences(source, watch, every, end):
            echo_json(difference._asdict(), indent=None)
            where = f"{difference.kind}  {difference.name}: {difference.text}"
            say(f"{when(difference.at)}  {where}")
    except KeyboardInterrupt:
        pass
    finally:
        source.close()
    _summary(watch)
    if watch.counts:
        exit_with(INCOMPLETE)


def _differences(
    source: Source, watch: Shadow, pause: float, end: float | None
) -> Iterator[Difference]:
    """Compare again and again, and yield the differences.

    Parameters:
        pause: seconds between two comparisons.
        end: time of the monotonic clock at which to stop; ``None``: never.
    """
    is_first = True
    while True:
        try:
            entries = [*source.read()]
        except Unreadable as exc:
            if is_first:
                raise
            say(f"{exc}; looking again", err=True)
        else:
            differences = [*watch.look(entries, wall_ms())]
            if is_first:
                say(f"Watching {watch.watched} entries of {source.title}: {source.where}")
            is_first = False
            yield from differences
        left = pause if end is None else end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))


def _summary(watch: Shadow) -> None:
    """Print the figures of the whole comparison."""
    undecided = watch.undecided(wall_ms())
    summary = {
        "watched": watch.watched,
        "agreed": watch.agreed,
        "undecided": undecided,
        "differences": watch.counts,
    }
    echo_json(summary, indent=None)
    differing = ", ".join(f"{number} {kind}" for kind, number in watch.counts.items()) or "none"
    not_known = f"due, outcome not yet seen: {undecided}"
    say(f"{watch.agreed} runs agreed; differences: {differing}; {not_known}")


def _source(app: Celery, origin: str, url: str | None, prefix: str | None) -> Source:
    """Return the reader of another scheduler's store. Only this reader is imported."""
    if origin == "redbeat":
        from ..interchange.redbeat_source import RedBeatSource

        return RedBeatSource(app, url=url, prefix=prefix)
    _refuse_redbeat_options(url, prefix)
    from ..interchange.djangobeat_source import DjangoBeatSource

    return DjangoBeatSource()


def _refuse_redbeat_options(url: str | None, prefix: str | None) -> None:
    """Raise Failure if an option is used that only celery-redbeat has."""
    if url is not None or prefix is not None:
        raise Failure("--url and --prefix go with --from redbeat alone")
