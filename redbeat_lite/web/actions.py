"""Actions of the page: on one object, such as an entry or a lock, and on many entries."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from .._base.errors import EntryNotFound, InvalidEntry, RedbeatError
from .._base.fields import length
from .._base.times import in_zone
from ..api.selected import Selected
from ..entries.words import counted, listed
from ..once.locks import locks
from ..operate.entry_options import start_arguments
from ..pipeline.pipeline_run import PipelineRun
from .access import Right
from .call import Call
from .http import Response

#: Option of the command ``backfill``, which is also a field of the form -> its default.
BACKFILL_OPTIONS = {
    "from": "",
    "to": "",
    "max-active": "1",
    "rate": "10",
    "again": "0",
    "note": "",
}

#: Maximum number of entries of one bulk action. With more, browsers and proxies would not wait for
#: the answer.
_MOST = 10_000

#: Maximum number of stored entries that a bulk action filters, for the same reason.
_STORED = 100_000

_TOO_MANY = (
    f"a page acts on {_MOST:,} entries at most, and filters {_STORED:,} stored ones; "
    "use the command line"
)


class Action(NamedTuple):
    """An action on one object.

    Parameters:
        right: right that the user needs.
        page: page that shows the outcome.
        do: function that does the action on the object of a call. It returns ``False`` if there was
            nothing left to do.
    """

    right: Right
    page: str
    do: Callable[[Call], object]


class BulkAction(NamedTuple):
    """An action on many entries.

    Parameters:
        right: right that the user needs.
        asks: parameter that the question to the user has an input for, such as the note.
        do: function that does the action on these entries.
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


#: Name of an action, which is also its path -> the right that it needs, the page that shows its
#: outcome, and the function that does it on the object of the call. Resuming and acknowledging need
#: the right to pause.
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

#: Name of an action -> the right that it needs, the parameter that its form asks for, and the
#: function that does it on many entries.
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
    """Do the action of the path, and redirect to the page that shows the outcome.

    If nothing was left to do, for example because another user has done it before, that page shows
    the present state without a message.
    """
    name = call.request.path[1:]
    action = ACTIONS[name]
    was_done = action.do(call) is not False
    return call.done(name if was_done else None, action.page)


def act_on_all(call: Call) -> Response:
    """Do the action of the path on the ticked entries, or else on those that match the filter.

    The first call shows the entries and asks the user to confirm. The confirmation contains a
    digest of their names. If other entries match by then, the confirmation has another digest, and
    the user is asked again.
    """
    name = call.request.path[1:].removesuffix("-all")
    entries = _selected(call)
    if not call.picked and len(call.schedules) > _STORED:
        raise RedbeatError(_TOO_MANY)
    # One more than allowed shows whether there are too many.
    names = [entry.name for entry in islice(entries, _MOST + 1)]
    if not names:
        raise EntryNotFound(f"no entry is selected by {entries.selection}")
    if len(names) > _MOST:
        raise RedbeatError(_TOO_MANY)
    digest = hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()
    if call.params.get("save") == digest:
        BULK_ACTIONS[name].do(entries, call)
        # The next page shows the list with the same filter. Of these actions, only a removal has a
        # message of its own.
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
    """Return the ticked entries, or else the entries that match the filter.

    Raises:
        InvalidEntry: the filter is empty, so it would select all entries by mistake; or it has a
            state, by which a bulk action cannot select.
    """
    if call.picked:
        return call.schedules.select().among(call.picked)
    if call.params.get("state", "").strip() or not any(call.filter):
        expected = (
            "the beginning of a name, a pattern, a tag or a task, and no state; "
            "or entries that are ticked"
        )
        raise InvalidEntry("q", expected, call.filter.name)
    return call.filter.select(call.schedules)


def _commands(call: Call, action: str, names: list[str]) -> list[list[str]]:
    """Return the command lines that do the same: one for a filter, or one for each ticked entry."""
    note = ["--note", "NOTE"] if BULK_ACTIONS[action].asks == "note" else []
    selections = [[name] for name in names] if call.picked else [call.filter.words()]
    return [[action, *words, *note] for words in selections]


def freeze(call: Call) -> Response:
    """Freeze the entries that the form selects, and say if it selects none."""
    pattern, tag, task, seconds, note = call.texts("pattern", "tag", "task", "for", "note")
    # A tag or a task alone selects all names. An empty form must not freeze everything.
    if not pattern and (tag or task):
        pattern = "*"
    made = call.schedules.freezes.add(
        pattern,
        tag=tag or None,
        task=task or "*",
        seconds=length(0.001, math.inf).read("for", seconds),
        note=note,
    )
    # If the sample is incomplete, an entry outside of it may match, so do not say that none does.
    sample = call.schedules.select(**made.selection._asdict()).sample()
    selects_none = sample.complete and next(iter(sample), None) is None
    return call.done("freeze-none" if selects_none else "freeze", "freezes")


def backfill(call: Call) -> Response:
    """Start a backfill, or show how many runs it has and ask the user to confirm.

    The question also shows the command that does the same.
    """
    texts = {}
    command = ["backfill", call.name]
    for option, default in BACKFILL_OPTIONS.items():
        text = call.params.get(option, default).strip()
        texts[option] = text
        if text != default:
            command += [f"--{option}", text]
    missing = "missing" in call.params
    if missing:
        command.append("--missing")
    options = {
        "start": texts["from"],
        "end": texts["to"],
        "max_active": texts["max-active"],
        "rate": texts["rate"],
        "again": texts["again"],
        "missing": missing,
        "note": texts["note"],
    }
    arguments = start_arguments(options, call.site.zone)
    is_confirmed = "save" in call.params
    plan = call.schedules.backfills.start(call.name, **arguments, dry_run=not is_confirmed)
    if is_confirmed:
        return call.done("backfill", "backfills")
    first = in_zone(plan.start, call.site.zone)
    last = in_zone(plan.end, call.site.zone)
    return call.page(
        "ask.html",
        what=f"Send {counted(plan.total, 'run', 'runs')} of {call.name}?",
        text=f"The first is that of {first}, the last that of {last}.",
        commands=[command],
        asks="",
        button="Start",
    )
