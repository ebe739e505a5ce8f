"""Actions of the page, on one object or on many entries, and the form of an entry.

The form has the options of ``redbeat edit`` as its inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from .._base.clock import wall_ms
from .._base.errors import (
    ConfigOwned,
    EntryChanged,
    EntryExists,
    EntryNotFound,
    InvalidEntry,
    RedbeatError,
)
from .._base.fields import INSTANT
from ..api.selected import Selected
from ..entries import lifecycle
from ..entries.backfill import Backfill
from ..entries.configured import entry_with_defaults
from ..entries.entry import Entry
from ..entries.model import entry_fields
from ..entries.words import counted, listed
from ..once.locks import locks
from ..operate.coming_runs import ComingRun, next_runs
from ..operate.entry_options import (
    FIELD_OPTIONS,
    KINDS,
    REFINEMENTS,
    option_words,
    read_options,
    schedule_options,
)
from ..pipeline.pipeline_run import PipelineRun
from ..rules import every
from .call import ARGUMENTS, Call, SharedParts, filtered, selection_words, texts
from .http import Response
from .users import Right

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

#: Inputs of the form that make the schedule together: name of an option -> option.
_SCHEDULE = {**KINDS, **REFINEMENTS}

#: Number of next runs that the page shows for a changed schedule.
_RUNS = 5


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


def _thaw(call: Call) -> bool:
    """End the freeze that the page has shown; if the call has no ``since``, the one that holds.

    Return whether the freeze was ended by this call, and not before.
    """
    since = INSTANT.read("since", call.params.get("since") or None, optional=True)
    try:
        call.schedules.thaw(if_since=since)
    except EntryNotFound:
        if since is None:
            raise
        return False
    return True


def _control_backfill(call: Call) -> Backfill:
    """Pause, resume or cancel a backfill, as the last word of the path says."""
    method = call.request.path.rpartition("-")[2]
    return getattr(call.schedules.backfills, method)(call.id)  # type: ignore[no-any-return]


#: Name of an action, which is also its path -> the action. Resuming and acknowledging need the
#: right to pause.
ACTIONS = {
    "run": Action("run", "entry", lambda call: call.schedules.run_now(call.name, note=call.note)),
    "pause": Action(
        "pause",
        "entry",
        lambda call: call.schedules.pause(call.name, call.note, seconds=call.length or None),
    ),
    "resume": Action(
        "pause",
        "entry",
        lambda call: call.schedules.resume(call.name, catch_up="catch_up" in call.params),
    ),
    "remove": Action(
        "remove", "entries", lambda call: call.schedules.remove(call.name, note=call.note)
    ),
    "ack": Action("pause", "./", lambda call: call.schedules.acknowledge(call.id, call.note)),
    "freeze": Action("freeze", "./", lambda call: call.schedules.freeze(call.length, call.note)),
    "thaw": Action("freeze", "./", _thaw),
    **dict.fromkeys(
        ("backfills-pause", "backfills-resume", "backfills-cancel"),
        Action("run", "backfills", _control_backfill),
    ),
    "pipelines-resume": Action(
        "run", "pipeline", lambda call: PipelineRun(call.site.app, call.id).resume(note=call.note)
    ),
    "pipelines-cancel": Action(
        "run",
        "pipeline",
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

#: Name of an action that also exists for many entries -> the function that does it for a call.
BULK_ACTIONS: dict[str, Callable[[Call], object]] = {
    "pause": lambda call: _selected(call).pause(call.note, seconds=call.length or None),
    "resume": lambda call: _selected(call).resume("catch_up" in call.params),
    "run": lambda call: _selected(call).run_now(call.note),
    "remove": lambda call: _selected(call).remove(call.note),
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
        BULK_ACTIONS[name](call)
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
    """Return the ticked entries of a bulk action, or else the entries that match the filter.

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
    if action == "pause" and call.length:
        note = ["--for", call.length, *note]
    selections = [[name] for name in names]
    if not call.picked:
        pattern, *words = selection_words(_selected(call).selection)
        # A command that changes all entries needs a pattern, so that nobody does so by mistake.
        selections = [[pattern or "*", *words]]
    return [[action, *words, *note] for words in selections]


def show_form(call: Call) -> Response:
    """Show the form of an entry. After a refused post, it has what the user has typed."""
    entry = None if call.request.path == "/add" else _editable(call)
    return _Form(call, entry).page()


def edit(call: Call) -> Response:
    """Show what the form changes. Save it if the post has ``save``: the user has agreed.

    Raises:
        EntryChanged: the entry is not the one that the form was made of.
    """
    entry = _editable(call)
    form = _Form(call, entry)
    # An entry that was removed and added again has another generation, but may have the same
    # version. A post without a generation is accepted.
    generation = str(entry.state.generation)
    is_same_entry = call.params.get("generation", generation) == generation
    if not is_same_entry or call.params.get("version") != str(entry.version):
        raise EntryChanged("somebody else has changed this entry meanwhile; the form shows yours")
    options = form.options()
    changes = _changes(options, call.site)
    if "save" in call.params:
        call.schedules.update(entry.name, if_version=entry.version, note=call.note, **changes)
        return call.done("edit")
    after = entry.replace(**changes)
    return form.preview(options, _coming(call.site, after) if "schedule" in changes else [])


def add(call: Call) -> Response:
    """Show the new entry as it will be; store it once the user has agreed."""
    site = call.site
    name, task = texts(call.params, "name", "task")
    form = _Form(call, entry=None)
    options = form.options()
    # The task is an argument of the command ``add``, and no option.
    options.pop("task", None)
    fields = {"task": task, **_changes(options, site)}
    if name in call.schedules:
        raise EntryExists(f"entry {name!r} is stored already: edit that, or choose another name")
    if "save" in call.params:
        call.schedules.add(name, note=call.note, **fields)
        return call.done("add", name=name)
    after = entry_with_defaults(site.settings, name, fields, site.app)
    return form.preview(options, _coming(site, after))


class _Form:
    """Form of an entry: the texts of its inputs, as stored and as the user has typed them.

    Parameters:
        entry: the stored entry; ``None`` for a new entry, which has default values.
    """

    def __init__(self, call: Call, entry: Entry | None) -> None:
        self._call = call
        self._entry = entry
        self._before = _blank(call.site) if entry is None else _texts(entry)
        # Leave out the fields whose values are partly hidden.
        self._hidden = () if entry is None or call.site.redact is None else ARGUMENTS
        self._typed = dict(self._before)
        # A link must not fill in the form, so only a post does.
        if call.request.method == "POST":
            for name in self._before:
                if name in call.params and name not in self._hidden:
                    self._typed[name] = call.params[name]

    def _changed(self) -> list[tuple[str, str, str]]:
        """Return the inputs that differ, each with its text before and after."""
        typed = self._typed
        return [
            (name, old, typed[name]) for name, old in self._before.items() if old != typed[name]
        ]

    def options(self) -> dict[str, str | bool]:
        """Return the options of ``redbeat edit`` that change an entry as the user has typed it.

        The value of a flag is a truth value, and the value of any other option is a text. If one
        part of the schedule has changed, the result has the options of all parts, because
        ``redbeat edit`` makes the new schedule of these options alone.
        """
        typed = self._typed
        changed = [name for name, *_ in self._changed()]
        fields = [name for name in changed if name not in _SCHEDULE]
        schedule: list[str] = []
        if self._entry is None or len(fields) < len(changed):
            schedule = [name for name in _SCHEDULE if typed[name] not in ("", "false")]
            if KINDS.keys().isdisjoint(schedule):
                raise InvalidEntry("schedule", f"one of {', '.join(KINDS)}", "none")
        options: dict[str, str | bool] = {}
        for name in (*schedule, *fields):
            option = _SCHEDULE.get(name) or FIELD_OPTIONS[name]
            options[name] = typed[name] if option.metavar else typed[name] == "true"
        if self._before["tz"] and not typed["tz"] and ("cron" in options or "rrule" in options):
            # The user has emptied the time zone. Without --tz, the command would keep the old
            # zone. So name the app's zone.
            options["tz"] = str(self._call.site.zone)
        return options

    def page(self, **preview: Any) -> Response:
        """Return the page with the form; with a ``preview``, also what is to be confirmed."""
        hidden = self._hidden
        return self._call.page(
            "edit.html",
            entry=self._entry,
            texts=self._typed,
            schedule_options=_SCHEDULE,
            fields={name: option for name, option in FIELD_OPTIONS.items() if name not in hidden},
            **preview,
        )

    def preview(self, options: Mapping[str, str | bool], coming: Sequence[ComingRun]) -> Response:
        """Return the page that asks the user to confirm what the form changes.

        Parameters:
            options: options of the command that does the same.
            coming: next runs by a changed schedule.
        """
        words = option_words(options)
        return self.page(changed=self._changed(), command_words=words, coming=coming)


def _editable(call: Call) -> Entry:
    """Return the entry of a call; raise ConfigOwned if it belongs to a ``beat_schedule``."""
    entry = call.schedules[call.name]
    if entry.owner is not None:
        owner = f"the configuration of {entry.owner!r}"
        raise ConfigOwned(f"{call.name!r} belongs to {owner}; change it there")
    return entry


def _blank(site: SharedParts) -> dict[str, str]:
    """Return the texts of the form for a new entry: the default values of all fields."""
    # An entry cannot be made without a task and a schedule. Their texts are emptied below.
    fields = {"task": "any", "schedule": every(60)}
    entry = entry_with_defaults(site.settings, "name", fields, site.app)
    return {**_texts(entry), "task": "", "every": ""}


def _texts(entry: Entry) -> dict[str, str]:
    """Return an entry's definition as the texts of the form: name of an input -> its text.

    An option of the schedule that is not set has an empty text, or ``false`` if it is a flag.
    """
    options = schedule_options(entry.schedule)
    texts = {}
    for name, option in _SCHEDULE.items():
        texts[name] = _text(options.get(name, "" if option.metavar else False))
    for name, value in entry_fields(entry, defaults=True).items():
        if name != "schedule":
            texts[name] = _text(value)
    texts["tags"] = ",".join(entry.tags) or "none"
    return texts


def _text(value: Any) -> str:
    """Return the value of a field as the text of its input; ``none`` for ``None``."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _changes(options: Mapping[str, str | bool], site: SharedParts) -> dict[str, Any]:
    """Return the changes of an entry that these options mean.

    Raises:
        InvalidEntry: an option is wrong, or nothing changes.
    """
    changes = read_options(options, site.zone)
    if changes.get("calendar") is not None:
        changes["calendar"] = site.schedules.calendars[changes["calendar"]]
    if not changes:
        raise InvalidEntry("entry", "a change", "none")
    return changes


def _coming(site: SharedParts, entry: Entry) -> list[ComingRun]:
    """Return the next runs of an entry as it would be if it were stored now for the first time.

    The entry gets a new state and its due time, which :func:`next_runs` needs.
    """
    lifecycle.set_state(entry, lifecycle.created(entry, wall_ms()))
    return next_runs(entry, site.schedules.frozen(), _RUNS)
