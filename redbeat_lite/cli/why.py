"""``why``: why an entry did not run, or that it did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

import click

from ..errors import InvalidEntry
from ..schedules.zones import portable
from .command import Command, app_of, json_option, name_argument
from .entry_options import instant_of, time_of_day
from .output import echo_fields, echo_json

if TYPE_CHECKING:
    from ..operate.why.case import Explanation

#: In a text that names the seconds of an instant.
_SECONDS = re.compile(r":\d\d:\d\d")


@click.command(cls=Command)
@name_argument
@click.argument("instant", required=False)
@json_option
def why(ctx: click.Context, name: str, instant: str | None) -> None:
    """Say why an entry did not run at INSTANT, or that it did, with the evidence.

    Without INSTANT it is about the last time at which the entry should have run, and about the next. An instant without
    an offset is read in the zone of the entry's rule, or else the app's; a time of day, such as 03:00, is the last one
    that has passed. One that names no seconds stands for its minute.

    \b
    Examples:
      celery -A proj redbeat why nightly
      celery -A proj redbeat why nightly 03:00
      celery -A proj redbeat why nightly "2026-12-01 03:00"
    """
    from ..operate.why.explain import explain
    from ..operate.why.gather import gather

    app, now = app_of(ctx), datetime.now(UTC)
    zone = portable(app.timezone)
    case = gather(app, name, now, zone)
    own = zone if case.entry is None else case.entry.zone(zone)
    asked = None if instant is None else _instant(instant, own, now)
    found = explain(case, asked, to_second=_SECONDS.search(instant or "") is not None)
    echo_json({"name": name, **asdict(found)})
    echo_fields(_lines(found))


def _instant(text: str, zone: tzinfo, now: datetime) -> datetime:
    """What was asked about; a time of day is the last one that has passed."""
    try:
        found = time_of_day(text, zone, now) or instant_of("instant", text, zone)
    except ValueError:
        found = None
    if found is None or not 1970 < found.year < 9999:
        expected = "an instant such as 2026-12-01T09:00+01:00, or a time of day such as 03:00"
        raise InvalidEntry("instant", expected, text)
    return found


def _lines(found: Explanation) -> Iterator[tuple[str, object]]:
    yield "answer", found.verdict
    for label, wanted in (("because", False), ("next", True)):
        reasons = [reason for reason in found.reasons if (reason.kind == "next") is wanted]
        yield label, "\n".join(f"{reason.sentence} ({reason.evidence})" for reason in reasons) or None
