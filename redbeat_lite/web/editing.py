"""Form of an entry's definition, with the options of ``redbeat edit`` as its inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .._base.clock import wall_ms
from .._base.errors import ConfigOwned, EntryChanged, EntryExists, InvalidEntry
from ..entries import lifecycle
from ..entries.configured import entry_with_defaults
from ..entries.entry import Entry
from ..entries.model import entry_fields
from ..operate.coming_runs import ComingRun, next_runs
from ..operate.entry_options import (
    FIELD_OPTIONS,
    KINDS,
    REFINEMENTS,
    option_words,
    read_options,
    schedule_options,
)
from ..rules import every
from .call import ARGUMENTS, Call, SharedParts, texts
from .http import Response

#: Refinement of a schedule -> the text of its input if the refinement is not set.
_UNSET = {name: "" if option.metavar else "false" for name, option in REFINEMENTS.items()}

#: Inputs of the form that make the schedule together.
_SCHEDULE = ("kind", "rule", *REFINEMENTS)

#: Number of next runs that the page shows for a changed schedule.
_RUNS = 5


def edit_form(call: Call) -> Response:
    """Show the form of an entry. After a refused post, it has what the user has typed."""
    return _Form(call, _editable(call)).page()


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


def add_form(call: Call) -> Response:
    """Show the form of a new entry. After a refused post, it has what the user has typed."""
    return _Form(call, entry=None).page()


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
        before = self._before
        typed = self._typed
        kind = typed["kind"]
        if kind not in KINDS:
            raise InvalidEntry("kind", f"one of {', '.join(KINDS)}", kind)
        changed = [name for name, *_ in self._changed()]
        options: dict[str, str | bool] = {}
        if any(name in _SCHEDULE for name in changed):
            # The kind "manual" is a flag, and so is each refinement whose unset text is "false".
            options[kind] = True if kind == "manual" else typed["rule"]
            for name, unset in _UNSET.items():
                if typed[name] != unset:
                    options[name] = True if unset == "false" else typed[name]
            if before["tz"] and not typed["tz"] and kind == before["kind"]:
                # The user has emptied the time zone. Without --tz, the command would keep the old
                # zone, because the kind of the rule is the same. So name the app's zone.
                options["tz"] = str(self._call.site.zone)
        for name in changed:
            if name not in _SCHEDULE:
                is_flag = not FIELD_OPTIONS[name].metavar
                options[name] = typed[name] == "true" if is_flag else typed[name]
        return options

    def page(self, **preview: Any) -> Response:
        """Return the page with the form; with a ``preview``, also what is to be confirmed."""
        hidden = self._hidden
        return self._call.page(
            "edit.html",
            entry=self._entry,
            texts=self._typed,
            kinds=KINDS,
            refinements=REFINEMENTS,
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
    return {**_texts(entry), "task": "", "kind": "", "rule": ""}


def _texts(entry: Entry) -> dict[str, str]:
    """Return an entry's definition as the texts of the form: name of an input -> its text.

    A refinement of the schedule, such as its time zone, that is not set has the text in ``_UNSET``.
    """
    options = schedule_options(entry.schedule)
    kind = next(iter(options))  # The first option is the kind of the schedule, such as "cron".
    texts = {"kind": kind, "rule": _text(options[kind])}
    if kind == "manual":
        texts["rule"] = ""
    for name, unset in _UNSET.items():
        texts[name] = _text(options.get(name, unset))
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
    return next_runs(entry, site.schedules.freezes.known(), _RUNS)
