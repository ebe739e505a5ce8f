"""Templates of the page, with the filters and functions that they call.

The templates escape text from outside, and remove characters that would change the direction of
the text around it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from .._base.text import clean
from .._base.times import in_zone
from ..entries.run import NOT_DONE
from ..entries.words import change_details, change_words, local, span
from ..operate.texts import MARKS, remark, run_time
from ..pipeline.pipeline_keys import START
from ..rules import schedule_text

_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

#: An instant that is less than this from now is shown without its year.
_NEARBY = timedelta(days=180)

#: Name of an action -> the sentence by which the next page confirms it; by default "Done.".
_DONE = {
    "run": "One extra run was sent.",
    "pause": "Paused.",
    "resume": "Resumed.",
    "remove": "Removed. If it is in beat_schedule, the beat that has it stores it again.",
    "edit": "Saved. It counts from now on.",
    "add": "Added. It counts from now on.",
    "ack": "Acknowledged. The incident stays open until its cause is gone.",
    "freeze": "Frozen. Messages that were sent before are not held.",
    "thaw": "Thawed. The entries run again.",
    "pipelines-resume": "The run goes on at the stage in which it ended.",
    "pipelines-cancel": "Cancelled. No further step of the run starts.",
    "locks-clear": "Cleared. The next task that waits for it is woken.",
    "quarantine-release": "Released. The entry starts as a new one.",
    "quarantine-remove": "Removed from quarantine, for good.",
}


def load_assets() -> dict[str, tuple[bytes, str]]:
    """Return the style sheet, scripts and images: name of the asset -> content and media type.

    The name has a digest, so that browsers may keep the asset.
    """
    assets = {}
    for file in files(__package__).joinpath("static").iterdir():
        stem, _, suffix = file.name.rpartition(".")
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        assets[f"{stem}-{digest}.{suffix}"] = (content, _MEDIA_TYPES[suffix])
    return assets


def environment(zone: tzinfo, app_name: str, assets: Iterable[str]) -> Environment:
    """Return the environment of the templates, with the filters and functions that they call.

    Parameters:
        zone: time zone in which all instants are shown.
        app_name: name that follows ``-A`` in command lines.
        assets: names of the assets.
    """
    env = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_on_one_line,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        # Text that a user has typed is only escaped. All other text is put on one line by finalize.
        typed=escape,
        run_time=run_time,
        remark=remark,
        span=span,
        # The CSS class of a run's outcome.
        outcome=lambda outcome: "bad" if outcome in NOT_DONE else outcome.replace(" ", "-"),
        time=partial(_time, zone),
        change=partial(change_words, zone=zone),
        details=partial(change_details, zone=zone),
        local=partial(local, zone=zone),
        rule=lambda schedule: schedule_text(schedule, zone),
    )
    env.globals.update(
        marks=MARKS,
        dones=_DONE,
        link=link,
        command=partial(_command, app_name),
        assets={name.partition("-")[0]: name for name in assets},
        starts=START,
    )
    return env


def link(page: str, **query: object) -> str:
    """Return the relative address of a page. Parameters without a value are left out."""
    params = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{page}?{urlencode(params, errors='replace')}" if params else page


def _command(app_name: str, command: str, name: str = "", *words: str, task: str = "") -> str:
    """Return the command line that does the same as an action of the page.

    Parameters:
        command: the command; a dash stands for the space in the command of a group, such as
            ``locks-clear``.
        name: argument of the command; empty for none.
        words: options of the command.
        task: further argument, of the command ``add``.
    """
    names = [*filter(None, (name, task))]
    arguments = [*names, *words]
    if name.startswith("-") or task.startswith("-"):
        # After "--", the command line does not take the names for options.
        arguments = [*words, "--", *names]
    line = ["celery", "-A", app_name, "redbeat", *command.split("-"), *arguments]
    return " ".join(map(_quoted, line))


def _quoted(word: str) -> str:
    """Return a word as a shell reads it. Only between ``$'`` and ``'`` may it have escapes."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = json.dumps(word, ensure_ascii=False)[1:-1].replace("'", r"\'")
    return f"$'{escaped}'"


def _on_one_line(value: Any) -> Any:
    """Return a text on one line and without unprintable characters, and other values unchanged."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return clean(value) if is_text else value


def _time(zone: tzinfo, instant: datetime | None) -> Markup:
    """Return an instant in short form as HTML, with the full form as its tooltip."""
    if instant is None:
        return Markup("–")
    exact = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    full = in_zone(instant, zone)
    short = short_time(instant.astimezone(zone), datetime.now(zone))
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, full, short)


def short_time(instant: datetime, now: datetime) -> str:
    """Return an instant without the parts that are the same as now.

    The day is left out if it is today, the year if the instant is near, and the UTC offset if it is
    the present offset. Both instants are in the zone in which the instant is shown.
    """
    text = f"{instant:%H:%M:%S}"
    if instant.utcoffset() != now.utcoffset():
        text += f" {instant.isoformat()[-6:]}"  # The offset, such as +02:00, ends the ISO form.
    if instant.date() == now.date():
        return text
    if abs(instant - now) < _NEARBY:
        return f"{instant.day} {instant:%b} {text}"
    return f"{instant:%Y-%m-%d} {text}"
