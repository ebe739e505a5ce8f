"""The stored JSON of an entry, written and read: a new field goes into both tables here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..errors import CorruptEntry, InvalidEntry, UnsupportedFormat, text_of
from ..expect import Expect, Pause
from ..once.policy import Once
from ..schedules import decode_schedule, encode_schedule
from ..schedules.calendars import Calendar
from ..schedules.misfire import Misfire
from ..storage.json_values import MAX_BYTES, dumps, loads, pack, unpack
from ..storage.keys import FORMAT
from .entry import Entry

#: Fields of a config entry that may hold what cannot be stored; the owner's beat keeps the object itself.
_LOCAL_FIELDS = ("schedule", "args", "kwargs", "options")

_DEFAULTS = Entry("defaults", "defaults", 60).definition()

#: What need not be stored: a field that has its default. A schedule has none.
_OMITTED = {field: value for field, value in _DEFAULTS.items() if field != "schedule"}


def encode(entry: Entry, *, allow_local: bool = False) -> str:
    """The JSON text of an entry's definition.

    Parameters:
        allow_local: leave out a schedule or arguments that cannot be stored, and name them under ``local``. What was
            left out when the entry was stored stays so: what it has in those places only stands for it.

    Raises:
        InvalidEntry: a field cannot be stored, or the whole is over 64 KiB.
    """
    stored: dict[str, Any] = {"v": FORMAT, "task": entry.task}
    local = []
    for field, encoder in _ENCODERS.items():
        if field in entry.local:
            local.append(field)
            continue
        value = getattr(entry, field)
        if field in _OMITTED and value == _OMITTED[field]:
            continue
        try:
            stored[field] = encoder(value, field)
        except InvalidEntry as exc:
            if not (allow_local and field in _LOCAL_FIELDS):
                raise exc.of(entry.name) from None
            local.append(field)
    if local:
        stored["local"] = local
    if entry.runs and "schedule" in local:
        stored["runs"] = entry.runs
    if entry.owner is not None:
        stored["owner"] = entry.owner
    text = dumps(stored)
    if len(text.encode()) > MAX_BYTES:
        raise InvalidEntry("entry", f"a definition of at most {MAX_BYTES} bytes", len(text.encode()), entry=entry.name)
    return text


def decode(name: str, raw: bytes) -> Entry:
    """The entry whose definition this is, without state.

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
        local = tuple(str(field) for field in stored.get("local", ()))
        fields = {field: decoder(stored[field]) for field, decoder in _DECODERS.items() if field in stored}
        if "schedule" in local:
            fields["schedule"] = _DEFAULTS["schedule"]
        entry = Entry.from_mapping(name, {"task": stored.get("task"), **fields})
        entry.local = local
        entry.runs = tuple(int(ms) for ms in stored.get("runs", ()))
        entry.owner = None if stored.get("owner") is None else str(stored["owner"])
    except CorruptEntry:
        raise
    except Exception as exc:
        raise CorruptEntry(f"definition is not usable: {text_of(exc)}") from exc
    return entry


def _keep(value: Any, field: str = "") -> Any:
    return value


def _calendar(value: Any, field: str) -> Any:
    if not isinstance(value, Calendar):
        raise InvalidEntry(field, "a calendar that is stored", value)
    return value.encode()


_ENCODERS: dict[str, Callable[[Any, str], Any]] = {
    "schedule": lambda value, field: encode_schedule(value),
    "args": lambda value, field: pack([*value], field),
    "kwargs": pack,
    "options": pack,
    "expires": _keep,
    "once": lambda value, field: value.encode(),
    "misfire": lambda value, field: value.encode(),
    "jitter": _keep,
    "start_at": lambda value, field: value.isoformat(),
    "end_at": lambda value, field: value.isoformat(),
    "max_runs": _keep,
    "enabled": _keep,
    "description": pack,
    "remove_when_done": _keep,
    "history": _keep,
    "expect": lambda value, field: value and value.encode(),
    "on_failure": lambda value, field: str(value),
    "calendar": _calendar,
    "tags": lambda value, field: pack([*value], field),
}

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "schedule": decode_schedule,
    "args": unpack,
    "kwargs": unpack,
    "options": unpack,
    "expires": _keep,
    "once": Once.decode,
    "misfire": Misfire.decode,
    "jitter": _keep,
    "start_at": datetime.fromisoformat,
    "end_at": datetime.fromisoformat,
    "max_runs": _keep,
    "enabled": _keep,
    "description": _keep,
    "remove_when_done": _keep,
    "history": _keep,
    "expect": Expect.decode,
    "on_failure": Pause.of,
    "calendar": Calendar.decode,
    "tags": _keep,
}
