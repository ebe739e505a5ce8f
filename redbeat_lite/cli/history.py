"""Commands about the past: ``runs``, ``log`` and ``why``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any

import click

from .._base.errors import InvalidEntry
from ..api.run_history import OUTCOMES
from ..entries.change_words import change_words
from ..operate.option_values import (
    parse_instant,
    parse_length,
    parse_span,
    parse_time_of_day,
    past_instant,
)
from ..operate.texts import remark, run_time
from ..rules.zones import portable
from ..runs.run import NOT_DONE, Outcome
from .command import (
    RECORDING,
    command,
    json_option,
    limit_option,
    load_app,
    load_schedules,
    name_argument,
    option,
)
from .options import names_of, selected, selecting
from .output import app_zone, echo_fields, echo_json, echo_table, when

if TYPE_CHECKING:
    from ..operate.why_case import Explanation

#: Kind of a reason -> its label, if the reason is no cause.
_LABELS = {"next": "next", "same minute": "also"}

#: Pattern of an instant that is written with seconds.
_SECONDS = re.compile(r":\d\d:\d\d")


@command()
@click.argument("name", required=False)
@selecting
@option("--failed", "Only runs that failed, expired, were revoked, rejected or lost.")
@option(
    "--outcome WORD",
    "Only runs with this outcome, such as succeeded or expired; repeatable.",
    type=click.Choice(OUTCOMES),
    multiple=True,
)
@option("--since TIME", "Only runs scheduled since: 22:00, an instant, or how long ago: 24h.")
@option("--until TIME", "Only runs scheduled until then.")
@limit_option(20, "runs")
@json_option
def runs(
    failed: bool,
    outcome: tuple[Outcome, ...],
    since: str | None,
    until: str | None,
    limit: int,
    **_selection: Any,
) -> None:
    """Show runs with their outcomes, the newest first.

    Of one entry, these are all recorded runs; of several or all entries, those that have ended. If
    an entry did not run, ask why.
    TOOK and TRIES count the task's body.

    \b
    Examples:
      celery -A proj redbeat runs nightly
      celery -A proj redbeat runs --failed --since 24h
      celery -A proj redbeat runs --since 22:00 --until 06:00
      celery -A proj redbeat runs 'report-*' --tag billing
    """
    schedules = load_schedules()
    outcomes = {*outcome, *(NOT_DONE if failed else ())} or None
    first, last = parse_span(("since", "until"), since, until, app_zone())
    entries = selected()
    name = None if entries.selection.is_all else names_of(entries)
    shown = schedules.runs(name, outcome=outcomes, since=first, until=last, limit=limit + 1)
    echo_json(shown[:limit])
    rows = []
    for run in shown:
        tries = run.attempts or None
        took = run_time(run)
        note = remark(run)
        rows.append((run.scheduled_at, run.name, run.outcome, took, tries, run.worker, note))
    headers = ("SCHEDULED", "ENTRY", "OUTCOME", "TOOK", "TRIES", "WORKER", "NOTE")
    empty = "No run matches." if outcomes or first or last else "No run is recorded."
    echo_table(headers, rows, empty=f"{empty} {RECORDING}", limit=limit)


@command()
@click.argument("name", required=False)
@option("--since TIME", "Only changes since: an instant, or how long ago, such as 24h.")
@limit_option(20, "changes")
@json_option
def log(name: str | None, since: str | None, limit: int) -> None:
    """Show who changed what, when and why, the newest first.

    NAME may be an entry that is gone. About the last 10,000 changes are recorded, and the last one
    of each entry for as long as the entry is stored.

    \b
    Examples:
      celery -A proj redbeat log --since 24h
      celery -A proj redbeat log nightly --limit 5
    """
    schedules = load_schedules()
    zone = portable(app_zone())
    first = None if since is None else past_instant("since", since, zone)
    changes = schedules.changes(name, since=first, limit=limit + 1)
    echo_json(changes[:limit])
    rows = [(when(change.at, zone), change_words(change, zone, named=True)) for change in changes]
    echo_table(("AT", "CHANGE"), rows, empty="Nothing is recorded.", limit=limit)


@command()
@name_argument
@click.argument("instant", required=False)
@json_option
def why(name: str, instant: str | None) -> None:
    """Say why an entry did not run at INSTANT, or that it did.

    Without INSTANT it explains the last time at which the entry should have run, and the next. An
    instant without an offset is in the zone of the entry's rule, or else in the app's. A time of
    day, such as 03:00, is the last one that has passed; 3m is the minute three minutes ago. Of a
    minute, the answer explains the first run, and names the others.

    \b
    Examples:
      celery -A proj redbeat why nightly
      celery -A proj redbeat why nightly 03:00
      celery -A proj redbeat why nightly 3m
      celery -A proj redbeat why nightly "2026-12-01 03:00"
    """
    # Import these only here, because they would slow down the other commands.
    from ..operate.why import explain
    from ..operate.why_case import gather

    app = load_app()
    now = datetime.now(UTC)
    zone = portable(app.timezone)
    case = gather(app, name, now, zone)
    asked = None
    if instant is not None:
        entry_zone = zone if case.entry is None else case.entry.zone(zone)
        asked = _parse_asked(instant, entry_zone, now)
    names_seconds = _SECONDS.search(instant or "") is not None
    explanation = explain(case, asked, to_second=names_seconds)
    echo_json({"name": name, **asdict(explanation)})
    echo_fields(_lines(explanation))


def _parse_asked(text: str, zone: tzinfo, now: datetime) -> datetime:
    """Return the instant that a text names: a time of day, how long ago, or an instant.

    Raises:
        InvalidEntry: the text is none of these.
    """
    length = parse_length(text)
    if length is not None:
        then = now - length
        # A length in seconds stands for a second, and any other one for a minute.
        return then if text.endswith("s") else then.replace(second=0, microsecond=0)
    try:
        instant = parse_time_of_day(text, zone, now) or parse_instant("instant", text, zone)
    except ValueError:
        instant = None
    if instant is None or not 1970 < instant.year < 9999:
        expected = (
            "an instant such as 2026-12-01T09:00+01:00, a time of day such as 03:00, or how long "
            "ago, such as 3m"
        )
        raise InvalidEntry("instant", expected, text)
    return instant


def _lines(explanation: Explanation) -> Iterator[tuple[str, object]]:
    """Yield an explanation as pairs of a label and a text."""
    yield "answer", explanation.verdict
    texts: dict[str, list[str]] = {"because": [], "also": [], "next": []}
    for reason in explanation.reasons:
        label = _LABELS.get(reason.kind, "because")
        texts[label].append(reason.sentence)
    for label, sentences in texts.items():
        yield label, "\n".join(sentences) or None
