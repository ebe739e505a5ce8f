"""Comparison of an app's configuration with the stored schedule, for beats and ``doctor``.

An entry of the configuration may be refused, missing in Redis, stored with another definition, or
stored although no beat of its owner is present.
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
from ..entries.sendable import check_options
from ..entries.stored_entry import UNREADABLE, entry_of, readable_parts
from ..entries.words import counted, listed
from ..settings import Settings
from ..store.records import PAGE, Stored, chunks
from ..store.store import Store
from .beat_token import Beat
from .status import present

logger = get_logger(f"celery.{__name__}")

# Entries that code gave to the scheduler, by name.
Added = Mapping[str, Any] | None


def checked_entry(
    app: Celery,
    store: Store,
    settings: Settings,
    name: str,
    fields: Any,
    now: int,
) -> Entry:
    """Return the entry that the configuration describes by ``fields``, at ``now`` (epoch ms).

    Raises:
        InvalidEntry: the entry is refused. Code of a user may raise any other exception.
    """

    def stored_before() -> Entry | None:
        return readable_parts(store.read([name])[0])[0]

    entry = config_entry(settings, name, fields, app=app)
    give_calendar(entry, store.calendars, now, app.timezone, stored_before)
    lifecycle.check(entry, now, app.timezone, stored_before)
    check_options(entry)
    encode(entry, placeholders=True)
    return entry


def fault_text(name: str, exc: Exception) -> str:
    """Return what is wrong with the entry ``name``, without its name."""
    text = text_of(exc) if isinstance(exc, InvalidEntry) else describe(exc)
    return text.removeprefix(f"entry {name!r}: ")


def refused_here(app: Celery, store: Store, settings: Settings) -> dict[str, str]:
    """Return the errors of the config entries that a beat of this app would refuse, by name.

    Names that somebody else has taken are not among them.
    """
    errors: dict[str, str] = {}
    now = wall_ms()
    for name, fields in configured(app).items():
        try:
            checked_entry(app, store, settings, str(name), fields, now)
        except Exception as exc:  # noqa: BLE001 - Code of a user may raise anything.
            errors[str(name)] = fault_text(str(name), exc)
    return errors


def not_stored(
    app: Celery,
    store: Store,
    settings: Settings,
) -> Iterator[tuple[str, Entry | None]]:
    """Yield the names of the app's config entries that are not stored.

    Each comes with the entry that has its name instead, if any. An entry that another owner has
    stored with the same definition counts as stored.
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
    """Yield the names of config entries that differ between this app and what its owner has stored.

    Either side may lack an entry. Other checks report entries that are refused, in quarantine or of
    another owner.

    Parameters:
        added: entries that code gave to the scheduler, by name; only a beat knows them.
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
        return  # A web process may have none, so this is no difference.
    for name in _of_owner(store, settings.owner):
        if name not in in_configuration:
            yield name


class _Accepted(NamedTuple):
    """A config entry that is not refused, with the entry of its name that is stored, if any."""

    wanted: Entry
    existing: Entry | None
    stored: Stored


def _accepted(
    app: Celery,
    store: Store,
    settings: Settings,
    added: Added = None,
) -> Iterator[_Accepted]:
    """Yield the config entries of an app that are not refused, with what is stored of each."""
    now = wall_ms()
    written = {name: fields for name, fields in configured(app, added).items() if is_name(name)}
    for chunk in chunks(written, PAGE):
        for stored in store.read(chunk):
            name = stored.name.decode()
            try:
                wanted = checked_entry(app, store, settings, name, written[name], now)
            except Exception:  # noqa: BLE001 - Code of a user may raise anything.
                continue
            yield _Accepted(wanted, readable_parts(stored)[0], stored)


def _differs(wanted: Entry, existing: Entry, stored: Stored) -> bool:
    """Return whether ``wanted`` would be stored with another definition. Changes ``wanted``."""
    wanted.owner = existing.owner
    return encode(wanted, placeholders=True).encode() != stored.definition


def is_shared(wanted: Entry, existing: Entry, stored: Stored) -> bool:
    """Return whether another owner has stored ``wanted`` with the same definition."""
    if existing.owner is None:
        return False
    twin = copy(wanted)
    twin.owner = existing.owner
    try:
        return encode(twin).encode() == stored.definition
    except InvalidEntry:  # A part that cannot be stored cannot be compared.
        return False


def left_behind(store: Store, present_owners: Collection[str]) -> dict[str, list[str]]:
    """Return, for each owner without a present beat, the names of its config entries.

    Either the owner's app was renamed, or its beat is down for a while. Only a person can know
    which.
    """
    names_by_owner: dict[str, list[str]] = {}
    for owner in sorted(store.owners()):
        names = [] if owner in present_owners else [*_of_owner(store, owner)]
        if names:
            names_by_owner[owner] = names
    return names_by_owner


def _of_owner(store: Store, owner: str) -> Iterator[str]:
    """Yield the names of the stored config entries of an owner."""
    for chunk in chunks(sorted(filter(is_name, store.config_names(owner))), PAGE):
        for stored in store.read(chunk):
            with suppress(*UNREADABLE):
                entry = entry_of(stored)
                if entry.owner == owner:
                    yield entry.name


def log_left_behind(store: Store, settings: Settings) -> None:
    """Log which config entries go on without a beat of their owner."""
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
    """Log which entries of the app wait until a beat of the app leads, if another owner leads."""
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
    """Log which entries of this process differ from those that the leader has stored."""
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
