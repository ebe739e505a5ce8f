"""The stored JSON of an entry, written and read: a new field that is no plain JSON goes into the table here."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime
from operator import attrgetter
from typing import Any

from ..errors import CorruptEntry, InvalidEntry, UnsupportedFormat, text_of
from ..expect import Expect, Pause
from ..once.policy import Once
from ..schedules import Cron, Every, decode_schedule, encode_schedule
from ..schedules.calendars import Calendar
from ..schedules.misfire import Misfire
from ..storage.json_values import MAX_BYTES, dumps, is_plain, loads, pack, unpack
from ..storage.keys import FORMAT
from .entry import Entry
from .fields import as_args, as_mapping, check_name
from .unstored import UnstoredSchedule, readable_text

# Fields of a config entry that may hold what cannot be stored.
_MAY_BE_UNSTORED = ("schedule", "args", "kwargs", "options")

#: Entries that are kept for others to be made of.
ALIKE = 1000

_DEFAULTS = Entry("defaults", "defaults", 60).definition()

#: What need not be stored: a field that has its default. A task and a schedule have none.
_OMITTED = {field: value for field, value in _DEFAULTS.items() if field not in ("task", "schedule")}

#: What entries of one shape may differ in, besides their names; and what their texts have before and behind these.
_ARGUMENTS = ("args", "kwargs")
Around = tuple[str, str]

#: In what entries of one shape have the very same objects, and in what the same values; see :func:`shape`.
_OBJECTS = ("misfire", "start_at", "end_at", "expect")
_VALUES = [each for each in _OMITTED if each not in (*_OBJECTS, *_ARGUMENTS, "options")]
_SAME, _THE_SAME = attrgetter("task", *_VALUES), attrgetter(*_OBJECTS)


def stored_value(value: Any, field: str) -> Any:
    """A field of a definition as it is stored; raises InvalidEntry if it cannot be."""
    return None if value is None else _CODECS.get(field, (_keep, _keep))[0](value, field)


def encode(entry: Entry, *, placeholders: bool = False) -> str:
    """Return the JSON text of an entry's definition.

    Parameters:
        placeholders: store a text for people in place of a schedule or of arguments that cannot be stored.

    Raises:
        InvalidEntry: a field cannot be stored, or the whole is over 64 KiB.
    """
    stored: dict[str, Any] = {"v": FORMAT, "task": entry.task}
    unstored = dict(entry.unstored)
    for field in _DECODERS:
        value = getattr(entry, field)
        if field in unstored or (field in _OMITTED and value == _OMITTED[field]):
            continue
        try:
            stored[field] = stored_value(value, field)
        except InvalidEntry as exc:
            if not (placeholders and field in _MAY_BE_UNSTORED):
                raise exc.of(entry.name) from None
            unstored[field] = readable_text(exc.value)
    if unstored:
        stored["unstored"] = unstored
    if entry.owner is not None:
        stored["owner"] = entry.owner
    return _checked_size(entry, dumps(stored))


def encode_like(entry: Entry, like: Around, *, plain: bool) -> str:
    """The same of one that has the :func:`shape` of another.

    Parameters:
        like: what that has around its arguments.
        plain: whether its own are, as :func:`all_plain` tells.
    """
    stored = {field: value for field in _ARGUMENTS if (value := getattr(entry, field))}
    try:
        text = dumps(stored if plain else {field: stored_value(value, field) for field, value in stored.items()})
    except InvalidEntry as exc:
        raise exc.of(entry.name) from None
    return _checked_size(entry, text[1:-1].join(like))


def _checked_size(entry: Entry, text: str) -> str:
    if len(text.encode()) > MAX_BYTES:
        raise InvalidEntry("entry", f"a definition of at most {MAX_BYTES} bytes", len(text.encode()), entry=entry.name)
    return text


def around(text: str) -> Around:
    """What the text of a definition has before and behind its arguments."""
    stored = loads(text)
    given = dumps({field: stored[field] for field in _ARGUMENTS if field in stored})[1:-1]
    before, behind = text.split(given, 1) if given else (text, "")
    return before, behind


def shape(entry: Entry) -> Hashable:
    """What entries have in common that differ in names and arguments alone; ``None`` for one that is to be looked at
    by itself. It holds for as long as one of them is kept.
    """
    schedule, options = entry.schedule, entry.options
    if entry.calendar is not None or entry.owner is not None:
        return None
    # Not what derives from them: that may answer otherwise, and is stored by a name of its own or not at all.
    rule = repr(schedule) if type(schedule) in (Every, Cron) and not schedule.spread else id(schedule)
    given = repr(options) if not options or all(map(is_plain, options.values())) else id(options)
    return rule, given, not entry.args, not entry.kwargs, *_SAME(entry), *map(id, _THE_SAME(entry))


def decode(name: str, raw: bytes, alike: dict[str, Entry] | None = None) -> Entry:
    """The entry whose definition this is, without state.

    Parameters:
        alike: entries that were decoded with it before, for who changes none: one that differs from another in name and
            arguments alone shares the rest with it, and is there in a third of the time.

    Raises:
        CorruptEntry: it is not a definition.
        UnsupportedFormat: a newer version of this package wrote it.
    """
    if len(raw) > MAX_BYTES:  # none was ever written so long, and reading it could take all the time there is
        raise CorruptEntry(f"definition has over {MAX_BYTES} bytes")
    stored = loads(raw)
    if not isinstance(stored, dict):
        raise CorruptEntry(f"definition is not an object but {type(stored).__name__}")
    version = stored.get("v")
    if isinstance(version, int) and version > FORMAT:
        raise UnsupportedFormat(f"definition has format {version}; this redbeat_lite reads up to {FORMAT}")
    try:
        args, kwargs = stored.pop("args", None), stored.pop("kwargs", None)
        kind = "" if alike is None else str(stored)
        known = alike.get(kind) if alike else None
        entry = _bare(name, stored) if known is None else known.__copy__()  # copy() takes as long as all it does
        given = {"args": as_args(unpack(args)), "kwargs": as_mapping("kwargs", unpack(kwargs))}
        entry._put(name=check_name("name", name), written=None, **given)
        # A schedule of somebody's own may keep what it was asked, and a spread one goes by the name.
        own = "custom" in stored.get("schedule", ()) or getattr(entry.schedule, "spread", False)
        if alike is not None and known is None and not own:
            if len(alike) >= ALIKE:
                alike.clear()
            alike[kind] = entry
    except CorruptEntry:
        raise
    except Exception as exc:
        raise CorruptEntry(f"definition is not usable: {text_of(exc)}") from exc
    return entry


def _bare(name: str, stored: dict[str, Any]) -> Entry:
    unstored = {str(field): str(text) for field, text in stored.get("unstored", {}).items()}
    fields = {field: decoder(stored[field]) for field, decoder in _DECODERS.items() if field in stored}
    if "schedule" in unstored:
        fields["schedule"] = UnstoredSchedule(unstored["schedule"])
    entry = Entry.from_mapping(name, {"task": stored.get("task"), **fields})
    entry.unstored = unstored
    entry.owner = None if stored.get("owner") is None else str(stored["owner"])
    return entry


def _keep(value: Any, field: str = "") -> Any:
    return value


def _calendar(value: Any, field: str) -> Any:
    if not isinstance(value, Calendar):
        raise InvalidEntry(field, "a calendar that is stored", value)
    return value.encode()


#: How a value is written, unless it is None, and read.
_CODECS: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any], Any]]] = {
    "schedule": (lambda value, field: encode_schedule(value), decode_schedule),
    "args": (lambda value, field: pack([*value], field), unpack),
    "kwargs": (pack, unpack),
    "options": (pack, unpack),
    "once": (lambda value, field: value.encode(), Once.decode),
    "misfire": (lambda value, field: value.encode(), Misfire.of),
    "start_at": (lambda value, field: value.isoformat(), datetime.fromisoformat),
    "end_at": (lambda value, field: value.isoformat(), datetime.fromisoformat),
    "description": (pack, _keep),
    "expect": (lambda value, field: value and value.encode(), Expect.decode),
    "on_failure": (lambda value, field: str(value), Pause.of),
    "calendar": (_calendar, Calendar.decode),
    "tags": (lambda value, field: pack([*value], field), _keep),
}
_DECODERS = {field: _CODECS.get(field, (_keep, _keep))[1] for field in _DEFAULTS if field != "task"}

#: The stored form of each default; a task and a schedule have none.
DEFAULTS = {field: stored_value(value, field) for field, value in _OMITTED.items()}
