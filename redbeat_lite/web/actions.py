"""Actions of the page: on one thing, such as an entry or a lock, and on many entries."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, TypeVar

from .._base.errors import EntryNotFound, InvalidEntry
from .._base.fields import Length
from ..api.selected import Selected
from ..entries.words import counted, in_zone, listed
from ..once.locks import locks
from ..operate.option_values import start_arguments
from ..pipeline.pipeline_run import PipelineRun
from .access import Right
from .call import Call
from .http import Response

_N = TypeVar("_N", int, float)

#: Options of the form of a backfill, with their defaults.
BACKFILL_OPTIONS = {
    "from": "",
    "to": "",
    "max-active": "1",
    "rate": "10",
    "again": "0",
    "note": "",
}

#: Most entries of one bulk action. Browsers and proxies give up if an answer takes longer.
_MOST = 10_000

#: Most stored entries that a filter of a bulk action looks through, for the same reason.
_STORED = 100_000


class Action(NamedTuple):
    """An action on one thing.

    Parameters:
        right: the right that it takes.
        page: the page to lead to afterwards.
        do: acts; False if there was nothing to do any more.
    """

    right: Right
    page: str
    do: Callable[[Call], object]


class BulkAction(NamedTuple):
    """An action on many entries.

    Parameters:
        right: the right that it takes.
        asks: the parameter that the user is asked for.
        do: acts on these entries.
    """

    right: Right
    asks: str
    do: Callable[[Selected, Call], object]


def _resume(call: Call) -> object:
    return call.schedules.resume(call.name, catch_up="catch_up" in call.params)


def _resume_pipeline(call: Call) -> object:
    return PipelineRun(call.site.app, call.id).resume(note=call.note)


def _cancel_pipeline(call: Call) -> object:
    run = PipelineRun(call.site.app, call.id)
    return run.cancel(terminate="terminate" in call.params, note=call.note)


#: Action -> how it is done on the thing that the call is about.
ACTIONS = {
    "run": Action("run", "entry", lambda call: call.schedules.run_now(call.name, note=call.note)),
    "pause": Action("pause", "entry", lambda call: call.schedules.pause(call.name, call.note)),
    "resume": Action("pause", "entry", _resume),
    "remove": Action(
        "remove",
        "entries",
        lambda call: call.schedules.remove(call.name, note=call.note),
    ),
    "ack": Action("pause", "./", lambda call: call.schedules.acknowledge(call.id, call.note)),
    "thaw": Action("freeze", "freezes", lambda call: call.schedules.freezes.thaw(call.id)),
    "backfills-pause": Action(
        "run",
        "backfills",
        lambda call: call.schedules.backfills.pause(call.id),
    ),
    "backfills-resume": Action(
        "run",
        "backfills",
        lambda call: call.schedules.backfills.resume(call.id),
    ),
    "backfills-cancel": Action(
        "run",
        "backfills",
        lambda call: call.schedules.backfills.cancel(call.id),
    ),
    "pipelines-resume": Action("run", "pipelines", _resume_pipeline),
    "pipelines-cancel": Action("run", "pipelines", _cancel_pipeline),
    "locks-clear": Action("locks", "locks", lambda call: locks(call.site.app).clear(call.id)),
    "quarantine-release": Action("edit", "entry", lambda call: call.schedules.release(call.name)),
    "quarantine-remove": Action(
        "remove",
        "quarantine",
        lambda call: call.schedules.discard(call.name),
    ),
}

#: Action -> how it is done on many entries.
BULK_ACTIONS = {
    "pause": BulkAction("pause", "note", lambda entries, call: entries.pause(call.note)),
    "resume": BulkAction(
        "pause",
        "catch_up",
        lambda entries, call: entries.resume("catch_up" in call.params),
    ),
    "run": BulkAction("run", "note", lambda entries, call: entries.run_now(call.note)),
    "remove": BulkAction("remove", "note", lambda entries, call: entries.remove(call.note)),
}


def act(call: Call) -> Response:
    """Do the action of the path, and lead to the page that shows the outcome.

    If somebody else was first, that page shows the present state.
    """
    name = call.request.path[1:]
    action = ACTIONS[name]
    was_done = action.do(call) is not False
    return call.done(name if was_done else None, action.page)


def act_on_all(call: Call) -> Response:
    """Do the action of the path with the entries that are ticked, or that the filter leaves.

    The user is shown the entries first, and again if they are others by the time of agreement.
    """
    name = call.request.path[1:].removesuffix("-all")
    entries = _selected(call)
    can_list = bool(call.picked) or len(call.schedules) <= _STORED
    names = [entry.name for entry in islice(entries, _MOST + 1)] if can_list else []
    if can_list and not names:
        if call.picked:
            raise EntryNotFound("none of these is stored")
        raise EntryNotFound(f"no entry is selected by {entries.selection}")
    if not 0 < len(names) <= _MOST:
        return _too_many(call, _commands(call, name, names))
    digest = hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()
    if call.params.get("save") == digest:
        BULK_ACTIONS[name].do(entries, call)
        q, tag, task, state = call.texts("q", "tag", "task", "state")
        done = "remove" if name == "remove" else "all"
        return call.done(done, "entries", q=q, tag=tag, task=task, state=state)
    return call.page(
        "ask.html",
        what=f"{name.capitalize()} {counted(len(names), 'entry', 'entries')}?",
        text=listed(names, 10),
        commands=_commands(call, name, names),
        asks=BULK_ACTIONS[name].asks,
        picked=call.picked,
        button=name.capitalize(),
        digest=digest,
    )


def _selected(call: Call) -> Selected:
    """Return the entries that are ticked, or else those that the filter leaves."""
    if call.picked:
        return call.schedules.select().among(call.picked)
    if call.params.get("state", "").strip() or not any(call.filter):
        a_filter = "the beginning of a name, a pattern, a tag or a task, and no state"
        raise InvalidEntry("q", f"{a_filter}; or entries that are ticked", call.filter.name)
    return call.filter.select(call.schedules)


def _commands(call: Call, action: str, names: list[str]) -> list[list[str]]:
    """Return the commands that do the same: one for a filter, or one for each ticked entry."""
    note = ["--note", "NOTE"] if BULK_ACTIONS[action].asks == "note" else []
    selections = [[name] for name in names] if call.picked else [call.filter.words()]
    return [[action, *words, *note] for words in selections]


def _too_many(call: Call, commands: list[list[str]]) -> Response:
    limits = f"{_MOST:,} entries at once, and where no more than {_STORED:,} are stored."
    return call.page(
        "ask.html",
        what="Too many for a page",
        text=f"A page takes {limits}",
        commands=commands,
        asks="",
        button="",
    )


def freeze(call: Call) -> Response:
    """Keep entries from firing for a time."""
    pattern, tag, task, length, note = call.texts("pattern", "tag", "task", "for", "note")
    if not pattern and (tag or task):
        pattern = "*"
    made = call.schedules.freezes.add(
        pattern,
        tag=tag or None,
        task=task or "*",
        seconds=Length(0.001, math.inf).read("for", length),
        note=note,
    )
    sample = call.schedules.select(**made.selection._asdict()).sample()
    holds_none = sample.complete and next(iter(sample), None) is None
    return call.done("freeze-none" if holds_none else "freeze", "freezes")


def backfill(call: Call) -> Response:
    """Say how many runs of the past a backfill has; start it once the user has agreed."""
    texts = {}
    words = []
    for option, default in BACKFILL_OPTIONS.items():
        text = call.params.get(option, default).strip()
        texts[option] = text
        if text != default:
            words += [f"--{option}", text]
    missing = "missing" in call.params
    if missing:
        words.append("--missing")
    options = {
        "start": texts["from"],
        "end": texts["to"],
        "max_active": texts["max-active"],
        "rate": _number(float, "rate", texts["rate"]),
        "again": _number(int, "again", texts["again"]),
        "missing": missing,
        "note": texts["note"],
    }
    arguments = start_arguments(options, call.site.zone)
    is_agreed = "save" in call.params
    started = call.schedules.backfills.start(call.name, **arguments, dry_run=not is_agreed)
    if is_agreed:
        return call.done("backfill", "backfills")
    first = in_zone(started.start, call.site.zone)
    last = in_zone(started.end, call.site.zone)
    return call.page(
        "ask.html",
        what=f"Send {counted(started.total, 'run', 'runs')} of {call.name}?",
        text=f"The first is that of {first}, the last that of {last}.",
        commands=[["backfill", call.name, *words]],
        asks="",
        button="Start",
    )


def _number(kind: type[_N], field: str, text: str) -> _N:
    try:
        return kind(text)
    except ValueError:
        raise InvalidEntry(field, "a number", text) from None
