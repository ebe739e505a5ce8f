"""An entry's definition as a form: the options of ``redbeat edit``, by which it is read and checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
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
from ..entries.entry import Entry
from ..entries.schedule_text import schedule_words
from ..errors import ConfigOwned, EntryChanged, InvalidEntry, RedbeatError, text_of
from .messages import Response
from .site import Call, Site

#: Fields whose values may be hidden.
ARGUMENTS = ("args", "kwargs", "options")

#: What a schedule may have beside its kind and its rule, as options, with what each is where it is not given.
_BESIDE = {"tz": "", "align": "false", "spread": "false", "cron_seconds": "", "rrule_start": ""}
_SCHEDULE = ("kind", "rule", *_BESIDE)

#: Options of which either is given.
_SWITCHES = {"enabled": ("--enabled", "--disabled"), "remove_when_done": ("--remove-when-done", "--keep-when-done")}


#: A line of the form: an option without its dashes, its text, its help, and what may be chosen, if not any text.
Field = tuple[str, str, str, tuple[str, ...]]


def form(call: Call) -> Response:
    """The form, as the entry is now."""
    entry = _editable(call)
    return _form(call, entry, _texts(entry))


def edit(call: Call) -> Response:
    """What a form changes: shown first, and saved when that is posted."""
    entry = _editable(call)
    before = _texts(entry)
    texts = before | {name: text for name, text in call.given.items() if name in before and name not in _hidden(call)}
    try:
        born = str(entry.known_state.generation)  # which of those that have borne its name
        if (str(entry.version), born) != (call.given.get("version"), call.given.get("born", born)):
            raise EntryChanged("somebody else has changed this entry meanwhile; what stands here is yours")
        words = _words(before, texts, str(call.site.zone))
        changes = _read(words, call.site)
        if "save" in call.given:
            call.site.schedules.update(entry.name, if_version=entry.version, **changes)
            return call.done("edit")
        after = entry.replace(**changes)
    except (RedbeatError, click.UsageError) as exc:
        said = exc.format_message() if isinstance(exc, click.UsageError) else text_of(exc)
        return _form(call, entry, texts, 409 if isinstance(exc, EntryChanged) else 400, wrong=said)
    coming = _coming(call.site, after) if "schedule" in changes else []
    changed = [(name, old, texts[name]) for name, old in before.items() if old != texts[name]]
    return _form(call, entry, texts, changed=changed, words=words, coming=coming)


def _editable(call: Call) -> Entry:
    entry = call.site.schedules[call.name]
    if entry.owner is not None:
        raise ConfigOwned(f"{call.name!r} belongs to the configuration of {entry.owner!r}; change it there")
    return entry


def _form(call: Call, entry: Entry, texts: Mapping[str, str], http: int = 200, **more: Any) -> Response:
    fields = [field for field in _fields(texts) if field[0] not in _hidden(call)]
    shown = {"wrong": None, "changed": None, **more}
    return call.page("edit.html", http, entry=entry, kinds=KINDS, fields=fields, beside=_BESIDE, texts=texts, **shown)


def _hidden(call: Call) -> Collection[str]:
    return ARGUMENTS if call.site.redact is not None else ()


def arguments(call: Call, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those among the fields of an entry, as whoever asks may see them."""
    found = {field: value for field, value in fields.items() if field in ARGUMENTS}
    if not call.may("edit"):
        return dict.fromkeys(found, "for those who may edit")
    redact = call.site.redact
    return found if redact is None else {field: redact(field, value) for field, value in found.items()}


def _fields(texts: Mapping[str, str]) -> Iterator[Field]:
    """The options of ``edit``, but for the kind of the schedule, which is chosen."""
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
    changes = fields_of(
        {name: value for name, value in given.items() if name not in ("name", "as_json", "note")}, site.zone
    )
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
