"""Actions of the page: on one object, such as an entry or a lock, and on many entries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from .._base.errors import EntryNotFound, InvalidEntry, RedbeatError
from .._base.times import in_zone
from ..api.selected import Selected
from ..entries.words import counted, listed
from ..once.locks import locks
from ..operate.entry_options import option_word, start_arguments
from ..pipeline.pipeline_run import PipelineRun
from .access import Right
from .call import Call, filtered, selection_words, texts
from .http import Response

#: Option of the command ``backfill``, which is also a field of the form -> its default.
BACKFILL_OPTIONS = {
    "from": "",
    "to": "",
    "max_active": "1",
    "rate": "10",
    "again": "0",
    "note": "",
}

#: Maximum number of entries of one bulk action. With more, browsers and proxies would not wait for
#: the answer.
_MOST = 10_000

#: Maximum number of stored entries that a bulk action filters. To filter more would take longer
#: than browsers and proxies wait.
_STORED = 100_000

_TOO_MANY = (
    f"a page acts on {_MOST:,} entries at most, and filters {_STORED:,} stored ones; "
    "use the command line"
)


class Action(NamedTuple):
    """An action on one object, or on the entries that a call selects.

    Parameters:
        right: right that the user needs.
        page: page that shows the outcome.
        do: function that does the action for a call. It returns ``False`` if there was nothing left
            to do.
    """

    right: Right
    page: str
    do: Callable[[Call], object]


#: Name of an action, which is also its path -> the action. Resuming and acknowledging need the
#: right to pause.
ACTIONS = {
    "run": Action("run", "entry", lambda call: call.schedules.run_now(call.name, note=call.note)),
    "pause": Action("pause", "entry", lambda call: call.schedules.pause(call.name, call.note)),
    "resume": Action(
        "pause",
        "entry",
        lambda call: call.schedules.resume(call.name, catch_up="catch_up" in call.params),
    ),
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
    "pipelines-resume": Action(
        "run",
        "pipelines",
        lambda call: PipelineRun(call.site.app, call.id).resume(note=call.note),
    ),
    "pipelines-cancel": Action(
        "run",
        "pipelines",
        lambda call: PipelineRun(call.site.app, call.id).cancel(
            terminate="terminate" in call.params, note=call.note
        ),
    ),
    "locks-clear": Action("locks", "locks", lambda call: locks(call.site.app).clear(call.id)),
    "quarantine-release": Action("edit", "entry", lambda call: call.schedules.release(call.name)),
    "quarantine-remove": Action(
        "remove",
        "quarantine",
        lambda call: call.schedules.discard(call.name),
    ),
}

#: Name of an action on many entries -> the action.
BULK_ACTIONS = {
    "pause": Action("pause", "entries", lambda call: _selected(call).pause(call.note)),
    "resume": Action(
        "pause",
        "entries",
        lambda call: _selected(call).resume("catch_up" in call.params),
    ),
    "run": Action("run", "entries", lambda call: _selected(call).run_now(call.note)),
    "remove": Action("remove", "entries", lambda call: _selected(call).remove(call.note)),
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

    The first call shows the entries and asks the user to confirm. The form of the confirmation has
    a digest of their names. If other entries match when the user confirms, their digest differs,
    and the user is asked again.
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
        BULK_ACTIONS[name].do(call)
        # The next page shows the list with the same filter. Only a removal has a message of its
        # own. Any other action of many entries is confirmed by "Done.".
        kept = {field: call.params.get(field) for field in ("q", "tag", "task", "state")}
        return call.done("remove" if name == "remove" else "all", "entries", **kept)
    return call.page(
        "ask.html",
        what=f"{name.capitalize()} {counted(len(names), 'entry', 'entries')}?",
        text=listed(names, 10),
        commands=_commands(call, name, names),
        asks="catch_up" if name == "resume" else "note",
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
        # among() narrows the selection of all entries to those with these names.
        return call.schedules.select().among(call.picked)
    name, tag, task, state = texts(call.params, "q", "tag", "task", "state")
    if state or not (name or tag or task):
        expected = (
            "the beginning of a name, a pattern, a tag or a task, and no state; "
            "or entries that are ticked"
        )
        raise InvalidEntry("q", expected, name)
    return filtered(call.site, call.params)


def _commands(call: Call, action: str, names: list[str]) -> list[list[str]]:
    """Return the commands that do a bulk action: one for a filter, or one for each ticked entry.

    Parameters:
        names: names of the selected entries.
    """
    # The command ``resume`` takes no note.
    note = [] if action == "resume" else ["--note", "NOTE"]
    selections = [[name] for name in names]
    if not call.picked:
        pattern, *words = selection_words(_selected(call).selection)
        # A command that changes all entries needs a pattern, so that nobody does so by mistake.
        selections = [[pattern or "*", *words]]
    return [[action, *words, *note] for words in selections]


def freeze(call: Call) -> Response:
    """Freeze the entries that the form selects (hold them for a time), and say if there is none."""
    pattern, tag, task, seconds = texts(call.params, "pattern", "tag", "task", "for")
    # With a tag or a task but no pattern, select all names. With neither, the pattern stays empty,
    # so that an empty form does not freeze everything.
    if not pattern and (tag or task):
        pattern = "*"
    made = call.schedules.freezes.add(
        pattern,
        tag=tag or None,
        task=task or "*",
        seconds=seconds,
        note=call.note,
    )
    # If the sample is incomplete, an entry outside of it may match, so do not say that none does.
    sample = call.schedules.select(**made.selection._asdict()).sample()
    selects_none = sample.complete and next(iter(sample), None) is None
    return call.done("freeze-none" if selects_none else "freeze", "freezes")


def backfill(call: Call) -> Response:
    """Start a backfill, which sends past runs, once the user has confirmed.

    The first call shows how many runs would be sent, and the command that does the same.
    """
    options: dict[str, Any] = {}
    command = ["backfill", call.name]
    for option, default in BACKFILL_OPTIONS.items():
        options[option] = call.params.get(option, default).strip()
        if options[option] != default:
            command += [option_word(option), options[option]]
    if "missing" in call.params:
        command.append("--missing")
    # start_arguments() expects the parameter names of the method ``start`` below.
    options["start"] = options.pop("from")
    options["end"] = options.pop("to")
    options["missing"] = "missing" in call.params
    arguments = start_arguments(options, call.site.zone)
    # With dry_run, start() returns the backfill as it would be, and sends nothing.
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
