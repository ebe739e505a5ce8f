"""Backfills: how far each has come, and how one is started."""

from __future__ import annotations

from ..cli.backfills import asked, status
from ..cli.backfills import backfill as command
from ..entries.words import counted, in_zone
from .messages import Response
from .site import Call

#: Options of the command, with what the form has at first.
_OPTIONS = {"from": "", "to": "", "max-active": "1", "rate": "10", "again": "0", "note": ""}

#: What the command alone asks for.
_OF_THE_COMMAND = ("tag", "task", "dry_run", "yes")


def page(call: Call) -> Response:
    """All of them, the newest first, and a form for one more."""
    found = call.site.shared.read("backfills", lambda: [*call.site.schedules.backfills][::-1])
    return call.page("backfills.html", backfills=[(each, status(each)) for each in found], options=_OPTIONS)


def start(call: Call) -> Response:
    """Have the past of an entry sent: said how much it is first, and started when that is posted."""
    texts = {name: call.given.get(name, text).strip() for name, text in _OPTIONS.items()}
    words = [word for name, text in texts.items() if text != _OPTIONS[name] for word in (f"--{name}", text)]
    words += ["--missing"] * ("missing" in call.given)
    given = command.make_context("backfill", [*words, "--", call.name]).params
    kept = {name: value for name, value in given.items() if name not in _OF_THE_COMMAND}
    wanted = call.site.schedules.backfills.start(**asked(kept, call.site.zone), dry_run="save" not in call.given)
    if wanted.id:
        return call.done("backfill", "backfills")
    what = f"Send {counted(wanted.total, 'run', 'runs')} of {call.name}?"
    first, last = (in_zone(instant, call.site.zone) for instant in (wanted.start, wanted.end))
    told, words = f"The first is that of {first}, the last that of {last}.", ["backfill", call.name, *words]
    return call.page("ask.html", what=what, told=told, lines=[words], asks="", button="Start")
