"""An entry's definition as a form: the options of ``redbeat edit``, by which it is read and checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import click

from ..cli.add_edit_remove import edit as command
from ..cli.entry_options import KINDS, fields_of, schedule_of
from ..cli.next import runs_between
from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.as_json import entry_fields
from ..entries.configured import entry_with_defaults
from ..entries.entry import Entry
from ..entries.schedule_text import schedule_words
from ..errors import ConfigOwned, EntryChanged, EntryExists, InvalidEntry
from ..schedules import every
from .messages import Response
from .site import Call, Site

#: Fields whose values may be hidden.
ARGUMENTS = ("args", "kwargs", "options")

#: What a schedule may have beside its kind and its rule, as options, with what each is where it is not given.
_BESIDE = {"tz": "", "align": "false", "spread": "false", "cron_seconds": "", "rrule_start": ""}
_SCHEDULE = ("kind", "rule", *_BESIDE)

#: What a command says besides: why.
_NOTE = ("--note", "NOTE")

#: Options of which either is given.
_SWITCHES = {"enabled": ("--enabled", "--disabled"), "remove_when_done": ("--remove-when-done", "--keep-when-done")}


def form(call: Call) -> Response:
    """The form, as the entry is now, but for what was typed."""
    entry = _editable(call)
    return _form(call, entry, _typed(call, _texts(entry), _hidden(call)))


def edit(call: Call) -> Response:
    """What a form changes: shown first, and saved when that is posted."""
    entry = _editable(call)
    before = _texts(entry)
    texts = _typed(call, before, _hidden(call))
    born = str(entry.known_state.generation)  # which of those that have borne its name
    if (str(entry.version), born) != (call.given.get("version"), call.given.get("born", born)):
        raise EntryChanged("somebody else has changed this entry meanwhile; what stands here is yours")
    words = _words(before, texts, str(call.site.zone))
    changes = _read(words, call.site)
    if "save" in call.given:
        call.site.schedules.update(entry.name, if_version=entry.version, note=call.note, **changes)
        return call.done("edit")
    after = entry.replace(**changes)
    words = ["edit", entry.name, *words, *_NOTE]
    return _form(call, entry, texts, before, words, after if "schedule" in changes else None)


def blank(call: Call) -> Response:
    """The form of one more entry, but for what was typed."""
    return _form(call, None, _typed(call, _blank(call.site)))


def add(call: Call) -> Response:
    """One more entry: shown first, and stored when that is posted."""
    site, (name, task), before = call.site, call.texts("name", "task"), _blank(call.site)
    texts = _typed(call, before)
    words = _words(before, {**texts, "task": ""}, str(site.zone))
    fields = {"task": task, **_read(words, site)}
    if name in site.schedules:
        raise EntryExists(f"entry {name!r} is stored already: edit that, or choose another name")
    if "save" in call.given:
        site.schedules.add(name, note=call.note, **fields)
        return call.done("add", name=name)
    after, own = entry_with_defaults(site.settings, name, fields, app=site.app), (name, task)
    dashed = any(each.startswith("-") for each in own)
    words = ["add", "", *words, *_NOTE, "--", *own] if dashed else ["add", *own, *words, *_NOTE]
    return _form(call, None, texts, before, words, after)


def _blank(site: Site) -> dict[str, str]:
    """The texts of an entry of which nothing was said."""
    any_ = entry_with_defaults(site.settings, "name", {"task": "any", "schedule": every(60)}, app=site.app)
    return {**_texts(any_), "task": "", "kind": "", "rule": ""}


def _typed(call: Call, texts: Mapping[str, str], hidden: Collection[str] = ()) -> dict[str, str]:
    """These texts, but for those that are posted."""
    given = call.given if call.request.method == "POST" else {}  # nobody's link shall fill in a form
    return {name: text if name in hidden else given.get(name, text) for name, text in texts.items()}


def _editable(call: Call) -> Entry:
    entry = call.site.schedules[call.name]
    if entry.owner is not None:
        raise ConfigOwned(f"{call.name!r} belongs to the configuration of {entry.owner!r}; change it there")
    return entry


def _form(
    call: Call,
    entry: Entry | None,
    texts: Mapping[str, str],
    before: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    after: Entry | None = None,
) -> Response:
    """The form of an entry, or of a new one; where it was posted, what it makes of what stood there ``before``, the
    ``words`` of the command that does the same, and the next runs of the entry as it is ``after``."""
    fields = [field for field in _fields(texts) if entry is None or field[0] not in _hidden(call)]
    changed = [(name, old, texts[name]) for name, old in (before or {}).items() if old != texts[name]]
    coming = [] if after is None else _coming(call.site, after)
    shown: dict[str, Any] = {"entry": entry, "texts": texts, "fields": fields, "changed": changed, "words": words}
    return call.page("edit.html", kinds=KINDS, beside=_BESIDE, coming=coming, **shown)


def _hidden(call: Call) -> Collection[str]:
    return ARGUMENTS if call.site.redact is not None else ()


def arguments(call: Call, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those among the fields of an entry, as whoever asks may see them."""
    found = {field: value for field, value in fields.items() if field in ARGUMENTS}
    if not call.may("edit"):
        return dict.fromkeys(found, "for those who may edit")
    redact = call.site.redact
    return found if redact is None else {field: redact(field, value) for field, value in found.items()}


def _fields(texts: Mapping[str, str]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """The options of ``edit``, but for the kind of the schedule: each without its dashes, with its text, its help, and
    what may be chosen, if not any text."""
    for option in command.params:
        name = str(option.name)
        if isinstance(option, click.Option) and name in texts:
            choices = ("", *option.type.choices) if isinstance(option.type, click.Choice) else ()
            yield name, texts[name], option.help or "", ("true", "false") if option.is_flag else choices


def _texts(entry: Entry) -> dict[str, str]:
    """An entry's definition as the texts of the form."""
    written = entry_fields(entry, defaults=True)
    kind, *words = schedule_words(entry.schedule)
    texts = {"kind": kind[2:], "rule": words.pop(0) if words else "", **_BESIDE}
    while words:
        name = words.pop(0)[2:].replace("-", "_")
        texts[name] = "true" if _BESIDE[name] == "false" else words.pop(0)
    return texts | {name: _text(name, value) for name, value in written.items() if name != "schedule"}


def _text(name: str, value: Any) -> str:
    if value is None:
        return "false" if name == "once" else "none"
    if name == "tags":
        return ",".join(value) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _words(before: Mapping[str, str], texts: Mapping[str, str], zone: str) -> list[str]:
    """The options that make the one the other; ``zone`` is the app's."""
    words: list[str] = []
    changed = [name for name, text in texts.items() if text != before[name]]
    if texts["kind"] not in KINDS:  # it becomes an option
        raise InvalidEntry("kind", f"one of {', '.join(KINDS)}", texts["kind"])
    if not {*changed}.isdisjoint(_SCHEDULE):
        words += [f"--{texts['kind']}", *([texts["rule"]] if texts["kind"] != "manual" else [])]
        for name in (name for name, default in _BESIDE.items() if texts[name] != default):
            words += [_option(name), *([texts[name]] if _BESIDE[name] != "false" else [])]
        # Left out, a rule of the same kind keeps its own on the command line.
        words += ["--tz", zone] if before["tz"] and not texts["tz"] and texts["kind"] == before["kind"] else []
    for name in (name for name in changed if name not in _SCHEDULE):
        words += [_SWITCHES[name][texts[name] != "true"]] if name in _SWITCHES else [_option(name), texts[name]]
    return words


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(words: list[str], site: Site) -> dict[str, Any]:
    """The changes that these options mean, read as the command line reads them.

    Raises:
        click.UsageError, InvalidEntry: one of them is wrong.
    """
    given = command.make_context("edit", [*words, "--", "name"]).params
    schedule = schedule_of(given, site.zone)
    rest = {name: value for name, value in given.items() if name not in ("name", "note")}
    changes = fields_of(rest, site.zone)
    if schedule is not None:
        changes["schedule"] = schedule
    if changes.get("calendar") is not None:
        changes["calendar"] = site.schedules.calendars[changes["calendar"]]
    if not changes:
        raise InvalidEntry("entry", "a change", "none")
    return changes


def _coming(site: Site, after: Entry) -> list[Any]:
    """The next runs of an entry whose schedule is another from now on."""
    after.state = lifecycle.created(after, wall_ms(), site.zone)
    after.due = lifecycle.due_time(after, after.state, site.zone)
    at, known = datetime.now(UTC), site.schedules.freezes.known()
    return [*islice(runs_between([after], at, at + timedelta(days=3653), site.zone, None, known), 5)]
