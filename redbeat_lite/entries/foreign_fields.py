"""Fields that entries of other schedulers have, in our words.

django-celery-beat takes the columns of its table in ``beat_schedule``, and knows ``expire_seconds``
among the options; celery-redbeat and Celery itself take the state of an entry beside its
definition.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

#: Fields that are options here, each with its name there.
_OPTIONS = {name: name for name in ("queue", "exchange", "routing_key", "priority", "headers")}
_OPTIONS["expire_seconds"] = "expires"

_STATE = "Redis keeps it; leave it out"
_SCHEDULE = "it belongs into schedule"

#: What to do about the fields that are taken from nobody, or were given in our words, too.
INSTEAD = {
    **{theirs: f"it belongs into options: {{{ours!r}: ...}}" for theirs, ours in _OPTIONS.items()},
    "start_time": "write start_at instead",
    "disabled": "write enabled instead, which is the opposite",
    "one_off": "write max_runs instead: 1 for once",
    **dict.fromkeys(("last_run_at", "total_run_count", "date_changed", "owner"), _STATE),
    **dict.fromkeys(("interval", "crontab", "solar", "clocked"), _SCHEDULE),
    "name": "the key is the name; leave it out",
    "max_interval": "it is a setting of the beat: beat_max_loop_interval",
}


def translated(written: Mapping[str, Any]) -> dict[str, Any]:
    """The same entry with those fields in our words that have a meaning here.

    A field that has none, or whose place is taken, stays and is refused as any unknown one; one
    that is ``None`` is none. A mapping of a user's own class may raise anything.
    """
    fields = {
        field: value
        for field, value in written.items()
        if value is not None or field not in INSTEAD
    }
    options = {} if fields.get("options") is None else fields["options"]
    if isinstance(options, Mapping):
        options = dict(options)
        _move(options, "expire_seconds", options, "expires")
        for theirs, ours in _OPTIONS.items():
            if theirs == ours or fields.get(ours) is None:  # "expires" is a field here, too
                _move(fields, theirs, options, ours)
        if options:
            fields["options"] = options
    if isinstance(fields.get("one_off"), bool):  # another number would become one of runs
        fields["one_off"] = 1 if fields["one_off"] else None
        _move(fields, "one_off", fields, "max_runs")
    _move(fields, "start_time", fields, "start_at")
    return fields


def _move(
    source: MutableMapping[str, Any], theirs: str, target: MutableMapping[str, Any], ours: str
) -> None:
    """Move a value to where it belongs; ``None`` is none, and one that is there already stays."""
    if theirs in source and (source[theirs] is None or target.get(ours) is None):
        value = source.pop(theirs)
        if value is not None:
            target[ours] = value
