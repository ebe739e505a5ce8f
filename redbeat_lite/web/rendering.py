"""From what was read to HTML: the templates, and the words that they share. Whatever comes from outside stays text."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..cli.outcomes import MARKS
from ..cli.output import clean
from ..cli.runs import how_long, remark
from ..entries.change_words import change_details, change_words
from ..entries.schedule_text import schedule_text
from ..entries.words import in_zone, local, span
from ..pipeline.keys import START
from ..runs.run import NOT_DONE

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

#: Days so near need no year.
_NEARBY = timedelta(days=180)

#: What was done, as the next page says it.
_DONE = {
    "run": "One extra run was sent.",
    "pause": "Paused.",
    "resume": "Resumed.",
    "remove": "Removed. If it is in beat_schedule, the beat that has it stores it again.",
    "edit": "Saved. It counts from now on.",
    "add": "Added. It counts from now on.",
    "ack": "Acknowledged. It stays open until what is wrong is not any more.",
    "freeze": "Frozen. Messages that were sent before are not held.",
    "freeze-none": "Frozen, but no entry was found that it holds: is the name whole, or does a * end it?",
    "all": "Done with each of them.",
    **dict.fromkeys(("thaw", "backfill", "backfills-pause", "backfills-resume", "backfills-cancel"), "Done."),
    "pipelines-resume": "It goes on, at the stage in which it ended.",
    "pipelines-cancel": "Cancelled. Nothing of it starts any more.",
    "locks-clear": "Cleared, and who waits is woken.",
    "quarantine-release": "Put back, as new.",
    "quarantine-remove": "Forgotten, for good.",
}


def environment(zone: tzinfo, app_name: str, assets: Iterable[str]) -> Environment:
    """The templates, with what they may call.

    Parameters:
        zone: of all times.
        app_name: as ``-A`` has it in the command lines.
        assets: names of what the browser loads besides.
    """
    env = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(typed=escape, how_long=how_long, remark=remark, span=span, time=partial(_time, zone))
    env.filters.update(change=partial(change_words, zone=zone), details=partial(change_details, zone=zone))
    env.filters.update(local=partial(local, zone=zone), rule=lambda schedule: schedule_text(schedule, zone))
    env.filters["outcome"] = lambda outcome: "bad" if outcome in NOT_DONE else str(outcome).replace(" ", "-")
    named, command = {name.partition("-")[0]: name for name in assets}, partial(_command, app_name)
    env.globals.update(marks=MARKS, dones=_DONE, link=link, command=command, assets=named, starts=START)
    return env


def assets() -> dict[str, tuple[bytes, str]]:
    """What the browser loads besides: name, with a digest of the content -> content, media type."""
    found = {}
    for each in files(__package__).joinpath("static").iterdir():
        stem, _, kind = each.name.rpartition(".")
        content = each.read_bytes()
        found[f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{kind}"] = (content, _TYPES[kind])
    return found


def link(page: str, **query: object) -> str:
    """Where a page is, from any other, wherever all of them are mounted."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{page}?{urlencode(given, errors='replace')}" if given else page


def _command(app_name: str, does: str, name: str = "", *words: str) -> str:
    """The command line that does the same."""
    named = [*words, "--", name] if name.startswith("-") else [name, *words] if name else words
    return shlex.join(["celery", "-A", app_name, "redbeat", *does.split("-"), *named])


def _shown(value: Any) -> Any:
    """Text on its line, and without what turns the direction of what follows."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _time(zone: tzinfo, instant: datetime | None) -> Markup:
    if instant is None:
        return Markup("–")
    exact, full = instant.astimezone(UTC).isoformat(timespec="milliseconds"), in_zone(instant, zone)
    shown = short_time(instant.astimezone(zone), datetime.now(zone))
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, full, shown)


def short_time(instant: datetime, now: datetime) -> str:
    """An instant without the day if that is today, the year if it is near, and the offset if it is that of now."""
    nearby = f"{instant.day} {instant:%b} " if abs(instant - now) < _NEARBY else f"{instant:%Y-%m-%d} "
    offset = "" if instant.utcoffset() == now.utcoffset() else f" {instant.isoformat()[-6:]}"
    return ("" if instant.date() == now.date() else nearby) + f"{instant:%H:%M:%S}" + offset
