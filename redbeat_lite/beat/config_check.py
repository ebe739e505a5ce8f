"""Comparison of an app's configuration with the stored schedule, for beats and for the doctor.

A config entry may be refused, missing in Redis, stored with another definition, or stored although
no beat of its owner runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.log import get_logger

from .._base.clock import wall_ms
from .._base.errors import InvalidEntry
from .._base.text import describe, text_of
from ..entries import lifecycle
from ..entries.configured import config_entry, configured
from ..entries.definition import encode
from ..entries.entry import Entry
from ..entries.model import is_name
from ..entries.on_calendar import give_calendar
from ..entries.sendable import check_encoding
from ..entries.stored_entry import UNREADABLE, entry_of, readable_parts
from ..entries.words import counted, listed
from ..settings import Settings
from ..store.records import PAGE, Stored, chunks
from ..store.store import Store
from .beat_token import Beat
from .status import present

logger = get_logger(f"celery.{__name__}")

#: Name of an entry that code has added to the scheduler -> its fields; ``None``: none are known.
Added = Mapping[str, Any] | None


def checked_entry(
    app: Celery,
    store: Store,
    settings: Settings,
    name: str,
    fields: Any,
    now: int,
) -> Entry:
    """Return the entry that the configuration describes, after all checks.

    Parameters:
        fields: fields of the entry in ``beat_schedule``.
        now: epoch ms.

    Raises:
        InvalidEntry: the entry is refused. A user's code may raise any other exception.
    """

    def stored_before() -> Entry | None:
        return readable_parts(store.read([name])[0])[0]

    entry = config_entry(settings, name, fields, app=app)
    give_calendar(entry, store.calendars, now, app.timezone, stored_before)
    lifecycle.check(entry, now, app.timezone, stored_before)
    check_encoding(entry)
    encode(entry, placeholders=True)
    return entry


def check_entries(
    app: Celery, store: Store, settings: Settings, written: Mapping[Any, Any], now: int
) -> Iterator[tuple[str, Entry | Exception]]:
    """Yield the name of each entry of a configuration, with the entry, or why it is refused."""
    for key, fields in written.items():
        name = str(key)
        result: Entry | Exception
        try:
            result = checked_entry(app, store, settings, name, fields, now)
        except Exception as exc:  # noqa: BLE001 - A user's code may raise anything.
            result = exc
        yield name, result


def fault_text(name: str, exc: Exception) -> str:
    """Return an error of the entry ``name`` in words, without the name."""
    text = text_of(exc) if isinstance(exc, InvalidEntry) else describe(exc)
    return text.removeprefix(f"entry {name!r}: ")


def refused_here(app: Celery, store: Store, settings: Settings) -> dict[str, str]:
    """Return the name and the error of each config entry that a beat of this app would refuse.

    Entries whose name another owner has taken are not among them.
    """
    checked = check_entries(app, store, settings, configured(app), wall_ms())
    return {
        name: fault_text(name, result) for name, result in checked if isinstance(result, Exception)
    }


def not_stored(
    app: Celery,
    store: Store,
    settings: Settings,
) -> Iterator[tuple[str, Entry | None]]:
    """Yield the name of each config entry of the app that is not stored.

    With it comes the stored entry of another owner that has this name, or ``None``. If that entry
    has the same definition, the config entry counts as stored.
    """
    for wanted, existing, stored in _accepted(app, store, settings):
        if existing is None:
            yield wanted.name, None
        elif existing.owner != settings.owner and not is_shared(wanted, existing, stored):
            yield wanted.name, existing


def differing(
    app: Celery,
    store: Store,
    settings: Settings,
    added: Added = None,
) -> Iterator[str]:
    """Yield the names of config entries that differ between this app and the store.

    An entry that only one side has differs, too. Entries that are refused, in quarantine or of
    another owner are left to other checks.

    Parameters:
        added: entries that code has added to the scheduler. Only a beat knows them.
    """
    quarantined = store.quarantined().keys()
    for wanted, existing, stored in _accepted(app, store, settings, added):
        if existing is None:
            if wanted.name not in quarantined:
                yield wanted.name
        elif existing.owner == settings.owner and _differs(wanted, existing, stored):
            yield wanted.name
    in_configuration = configured(app, added).keys()
    if not in_configuration:
        return  # A web process may have no configuration, and that is no difference.
    for name in _of_owner(store, settings.owner):
        if name not in in_configuration:
            yield name


class _Accepted(NamedTuple):
    """A config entry that is not refused.

    Parameters:
        wanted: the entry by the configuration.
        existing: the stored entry of this name; ``None`` if there is none, or it is unreadable.
        stored: the stored texts of that entry.
    """

    wanted: Entry
    existing: Entry | None
    stored: Stored


def _accepted(
    app: Celery,
    store: Store,
    settings: Settings,
    added: Added = None,
) -> Iterator[_Accepted]:
    """Yield the config entries of an app that are not refused, with the stored entries."""
    checked = check_entries(app, store, settings, configured(app, added), wall_ms())
    accepted = (result for _, result in checked if isinstance(result, Entry))
    for entries in chunks(accepted, PAGE):
        names = [entry.name for entry in entries]
        for wanted, stored in zip(entries, store.read(names), strict=True):
            yield _Accepted(wanted, readable_parts(stored)[0], stored)


def _differs(wanted: Entry, existing: Entry, stored: Stored) -> bool:
    """Return whether ``wanted`` would be stored with another definition."""
    of_same_owner = copy(wanted)
    of_same_owner.owner = existing.owner
    return encode(of_same_owner, placeholders=True).encode() != stored.definition


def is_shared(wanted: Entry, existing: Entry, stored: Stored) -> bool:
    """Return whether another owner has stored ``wanted`` with the same definition."""
    if existing.owner is None:
        return False
    of_other_owner = copy(wanted)
    of_other_owner.owner = existing.owner
    try:
        return encode(of_other_owner).encode() == stored.definition
    except InvalidEntry:
        return False  # A part of the entry cannot be stored, so it cannot be compared.


def left_behind(store: Store, present_owners: Collection[str]) -> dict[str, list[str]]:
    """Return owner -> names of its config entries, for the owners without a running beat.

    Either the owner's app was renamed, or its beat is down for a while. Only a person can know.
    """
    names_by_owner: dict[str, list[str]] = {}
    for owner in sorted(store.owners()):
        names = [] if owner in present_owners else [*_of_owner(store, owner)]
        if names:
            names_by_owner[owner] = names
    return names_by_owner


def _of_owner(store: Store, owner: str) -> Iterator[str]:
    """Yield the names of the stored config entries of an owner."""
    for stored in store.present(sorted(filter(is_name, store.config_names(owner)))):
        with suppress(*UNREADABLE):
            entry = entry_of(stored)
            if entry.owner == owner:
                yield entry.name


def log_left_behind(store: Store, settings: Settings) -> None:
    """Log which config entries run although no beat of their owner runs."""
    for owner, names in left_behind(store, {*present(store, settings), settings.owner}).items():
        logger.warning(
            "beat: %s to the configuration of %r, which has no beat: %s; "
            "if that app was renamed, set redbeat_lite_owner = %r, "
            "or remove them: celery -A ... redbeat remove NAME",
            counted(len(names), "entry belongs", "entries belong"),
            owner,
            listed(names),
            owner,
        )


def log_not_stored(app: Celery, store: Store, settings: Settings, leading_owner: str) -> None:
    """If the leading beat has another owner, log which config entries of this app are not stored.

    They are stored when a beat of this app leads.
    """
    if settings.owner == leading_owner:
        return
    names = [name for name, _ in not_stored(app, store, settings)]
    if names:
        logger.warning(
            "beat: a beat of %r leads, so these entries of %r are not stored yet: %s; "
            "a redbeat_lite_key_prefix for each app keeps the two apart",
            leading_owner,
            settings.owner,
            listed(names),
        )


def log_differing(
    app: Celery,
    store: Store,
    settings: Settings,
    leader: Beat,
    added: Added,
) -> None:
    """Log which config entries of this process differ from those that the leader has stored."""
    names = sorted(differing(app, store, settings, added))
    if names:
        logger.warning(
            "beat: %s from the definition of the leader, %s, which counts: %s",
            counted(
                len(names),
                "entry of beat_schedule differs",
                "entries of beat_schedule differ",
            ),
            leader,
            listed(names),
        )
