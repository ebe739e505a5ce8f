"""Translation of fields that entries of other schedulers have.

In ``beat_schedule``, django-celery-beat accepts the columns of its table, and ``expire_seconds``
among the options. celery-redbeat and Celery itself accept the state of an entry beside its
definition.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

#: Field of another scheduler -> option of ``apply_async`` that has its meaning here.
_OPTIONS = {name: name for name in ("queue", "exchange", "routing_key", "priority", "headers")}
_OPTIONS["expire_seconds"] = "expires"

_STATE = "Redis keeps it; leave it out"
_SCHEDULE = "it belongs into schedule"

#: Field of another scheduler -> hint in the error about that field. The field cannot be translated,
#: or the entry also has the field of ours with the same meaning.
FOREIGN_HINTS = {
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
    """Return the entry with the fields of other schedulers replaced by ours.

    A field without a counterpart here stays, and so does a field whose counterpart is set already;
    both are then refused as unknown. A field of theirs that is ``None`` counts as missing. A
    mapping of a user's own class may raise any exception.
    """
    # Drop fields of other schedulers (FOREIGN_HINTS has them all) that are ``None``.
    fields = {
        field: value
        for field, value in written.items()
        if value is not None or field not in FOREIGN_HINTS
    }
    options = {} if fields.get("options") is None else fields["options"]
    # Options of another type stay as they are, and are refused later.
    if isinstance(options, Mapping):
        options = dict(options)
        # django-celery-beat accepts this name among the options, too.
        _move(options, "expire_seconds", options, "expires")
        for theirs, ours in _OPTIONS.items():
            # Move a field of theirs into the options, where it has the name ``ours``. The names
            # differ only for "expire_seconds", and its counterpart "expires" is also a field of our
            # entries. If the user has set that field, "expire_seconds" stays, and is refused later.
            if theirs == ours or fields.get(ours) is None:
                _move(fields, theirs, options, ours)
        if options:
            fields["options"] = options
    # True is one run; False is no limit, and _move() drops the None for it. A number in "one_off"
    # stays and is refused later, because it would be taken for a number of runs.
    if isinstance(fields.get("one_off"), bool):
        fields["one_off"] = 1 if fields["one_off"] else None
        _move(fields, "one_off", fields, "max_runs")
    _move(fields, "start_time", fields, "start_at")
    return fields


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
