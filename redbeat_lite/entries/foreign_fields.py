"""Translation of fields that entries of other schedulers have.

In ``beat_schedule``, django-celery-beat accepts the columns of its table, and ``expire_seconds``
among the options. celery-redbeat and Celery itself accept the state of an entry beside its
definition.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

#: Fields of other schedulers that are options of ``apply_async`` here, under the same name.
_OPTIONS = ("queue", "exchange", "routing_key", "priority", "headers")

_STATE = "Redis keeps it; leave it out"
_SCHEDULE = "it belongs into schedule"

#: Field of another scheduler -> hint in the error about that field. The field cannot be translated,
#: or the entry also has the field of ours with the same meaning.
FOREIGN_HINTS = {
    **{name: f"it belongs into options: {{{name!r}: ...}}" for name in _OPTIONS},
    "expire_seconds": "it belongs into options: {'expires': ...}",
    "start_time": "write start_at instead",
    "disabled": "write enabled instead, which is the opposite",
    "one_off": "write max_runs instead: 1 for once",
    **dict.fromkeys(("last_run_at", "total_run_count", "date_changed", "owner"), _STATE),
    **dict.fromkeys(("interval", "crontab", "solar", "clocked"), _SCHEDULE),
    "name": "the key is the name; leave it out",
    "max_interval": "it is a setting of the beat: beat_max_loop_interval",
}


def translate_fields(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry, with the fields of other schedulers replaced by ours.

    A field without a counterpart here stays, and so does a field whose counterpart is set already;
    both are then refused as unknown. A field of theirs that is ``None`` counts as missing. A
    mapping of a user's own class may raise any exception.
    """
    fields = {}
    for field, value in written.items():
        # FOREIGN_HINTS has all fields of other schedulers.
        is_missing = value is None and field in FOREIGN_HINTS
        if not is_missing:
            fields[field] = value
    _move_into_options(fields)
    # A number in "one_off" stays, because it would be taken for a number of runs.
    if fields.get("one_off") is True:
        fields["one_off"] = 1
        _move(fields, "one_off", fields, "max_runs")
    elif fields.get("one_off") is False:
        del fields["one_off"]  # The number of runs has no limit.
    _move(fields, "start_time", fields, "start_at")
    return fields


def _move_into_options(fields: dict[str, Any]) -> None:
    """Move the fields of other schedulers that are options here into ``fields["options"]``."""
    options = fields.get("options")
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        return  # They are refused later.
    options = dict(options)
    # django-celery-beat accepts this name among the options, too.
    _move(options, "expire_seconds", options, "expires")
    for name in _OPTIONS:
        _move(fields, name, options, name)
    # Our entries also have a field "expires". If the user has set it, "expire_seconds" stays.
    if fields.get("expires") is None:
        _move(fields, "expire_seconds", options, "expires")
    if options:
        fields["options"] = options


def _move(
    source: MutableMapping[str, Any], theirs: str, target: MutableMapping[str, Any], ours: str
) -> None:
    """Move a value from field ``theirs`` to ``ours``. If the value is ``None``, drop the field.

    If ``ours`` has a value already, ``theirs`` stays, so that it is refused later.
    """
    if theirs not in source:
        return
    if source[theirs] is None:
        del source[theirs]
    elif target.get(ours) is None:
        target[ours] = source.pop(theirs)
