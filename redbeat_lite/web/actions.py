"""What is done by a post: to an entry, a lock, a freeze, a backfill or a run of a pipeline, or about an incident."""

from __future__ import annotations

from collections.abc import Callable

from ..cli.backfills import asked
from ..cli.backfills import backfill as command
from ..durations import length_of
from ..entries.words import counted, in_zone
from ..once.lock_listing import locks
from ..pipeline.run import PipelineRun
from .access import Right
from .messages import Response
from .site import Call

#: Options of the command that backfills, with what the form has at first.
OPTIONS = {"from": "", "to": "", "max-active": "1", "rate": "10", "again": "0", "note": ""}

#: What the command alone asks for.
_OF_THE_COMMAND = ("tag", "task", "everything", "dry_run", "yes")


def _cancelled(call: Call) -> bool:
    return PipelineRun(call.site.app, call.id).cancel(terminate="terminate" in call.given, note=call.note)


#: What a path does: the right that it takes, the page that shows it then, and how it is done; False: there was nothing
#: to do any more.
ACTIONS: dict[str, tuple[Right, str, Callable[[Call], object]]] = {
    "run": ("run", "entry", lambda call: call.site.schedules.run_now(call.name, note=call.note)),
    "pause": ("pause", "entry", lambda call: call.site.schedules.pause(call.name, call.note)),
    "resume": ("pause", "entry", lambda call: call.site.schedules.resume(call.name, catch_up="catch_up" in call.given)),
    "remove": ("remove", "entries", lambda call: call.site.schedules.remove(call.name, note=call.note)),
    "ack": ("pause", "./", lambda call: call.site.schedules.acknowledge(call.id, call.note)),
    "thaw": ("freeze", "freezes", lambda call: call.site.schedules.freezes.thaw(call.id)),
    "backfills-pause": ("run", "backfills", lambda call: call.site.schedules.backfills.pause(call.id)),
    "backfills-resume": ("run", "backfills", lambda call: call.site.schedules.backfills.resume(call.id)),
    "backfills-cancel": ("run", "backfills", lambda call: call.site.schedules.backfills.cancel(call.id)),
    "pipelines-resume": ("run", "pipelines", lambda call: PipelineRun(call.site.app, call.id).resume(note=call.note)),
    "pipelines-cancel": ("run", "pipelines", _cancelled),
    "locks-clear": ("locks", "locks", lambda call: locks(call.site.app).clear(call.id)),
    "quarantine-release": ("edit", "entry", lambda call: call.site.schedules.release(call.name)),
    "quarantine-remove": ("remove", "quarantine", lambda call: call.site.schedules.discard(call.name)),
}


def act(call: Call) -> Response:
    """Do what the path says, and lead to where it shows; where somebody else was first, that tells how it stands."""
    does = call.request.path[1:]
    _, page, do = ACTIONS[does]
    return call.done(does if do(call) is not False else None, page)


def freeze(call: Call) -> Response:
    """Keep entries from firing for a time."""
    pattern, tag, task, length, note = call.texts("pattern", "tag", "task", "for", "note")
    made = call.site.schedules.freezes.add(
        pattern or ("*" if tag or task else ""),
        tag=tag or None,
        task=task or "*",
        seconds=length_of("for", length, "at least 0.001 s", 0.001),
        note=note,
    )
    which = made.selection
    sample = call.site.schedules.select(which.name, tag=which.tag, task=which.task).sample()
    holds_none = sample.complete and next(iter(sample), None) is None
    return call.done("freeze-none" if holds_none else "freeze", "freezes")


def backfill(call: Call) -> Response:
    """Have the past of an entry sent: said how much it is first, and started when that is posted."""
    texts = {name: call.given.get(name, text).strip() for name, text in OPTIONS.items()}
    words = [word for name, text in texts.items() if text != OPTIONS[name] for word in (f"--{name}", text)]
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
