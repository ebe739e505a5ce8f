"""Config entries that are refused, not stored or left behind, for the leader and for the doctor."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.log import get_logger

from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.configured import config_entry, configured
from ..entries.definition import encode
from ..entries.entry import Entry
from ..entries.fields import is_name
from ..entries.on_calendar import give_calendar
from ..entries.sendable import check_options
from ..entries.stored_entry import UNREADABLE, entry_of, readable_parts
from ..entries.words import counted, listed
from ..errors import InvalidEntry, describe, text_of
from ..settings import Settings
from ..storage.calendars import stored_calendars
from ..storage.store import Store
from ..storage.stored import PAGE, Stored, chunks
from .status import present
from .tokens import Beat

logger = get_logger(f"celery.{__name__}")

#: Entries that code gave to the scheduler, by name.
Added = Mapping[str, Any] | None


def checked(app: Celery, store: Store, settings: Settings, name: str, fields: Any, now: int) -> Entry:
    """The entry of this name, by what the configuration of an app has of it, at ``now`` (epoch ms).

    Raises:
        InvalidEntry: it is refused. What a user wrote may raise anything else, too.
    """

    def replaced() -> Entry | None:
        return readable_parts(store.read([name])[0])[0]

    entry = config_entry(settings, name, fields, app=app)
    give_calendar(entry, partial(stored_calendars, store), now, app.timezone, replaced)
    lifecycle.check(entry, now, app.timezone, replaced)
    check_options(entry)
    encode(entry, placeholders=True)
    return entry


def refused_here(app: Celery, store: Store, settings: Settings) -> dict[str, str]:
    """The config entries that a beat of this app would refuse, each with what is wrong, apart from taken names."""
    errors, now = {}, wall_ms()
    for name, fields in configured(app).items():
        try:
            checked(app, store, settings, str(name), fields, now)
        except Exception as exc:  # noqa: BLE001 - what a user wrote may raise anything
            errors[str(name)] = fault(str(name), exc)
    return errors


def fault(name: str, exc: Exception) -> str:
    """What is wrong with the entry of this name, for those who see the name beside it."""
    text = text_of(exc) if isinstance(exc, InvalidEntry) else describe(exc)
    return text.removeprefix(f"entry {name!r}: ")


def not_stored(app: Celery, store: Store, settings: Settings) -> Iterator[tuple[str, Entry | None]]:
    """The entries of an app's configuration that are not stored, by name, each with what has its name instead.

    An entry that another owner has with the same definition counts as stored.
    """
    for wanted, existing, stored in _accepted(app, store, settings):
        if existing is None:
            yield wanted.name, None
        elif existing.owner != settings.owner and not differs_in_owner_alone(wanted, existing, stored):
            yield wanted.name, existing


def differing(app: Celery, store: Store, settings: Settings, added: Added = None) -> Iterator[str]:
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


def _accepted(app: Celery, store: Store, settings: Settings, added: Added = None) -> Iterator[_Accepted]:
    """Yield the config entries of an app that are not refused, with what is stored of each."""
    now = wall_ms()
    written = {name: fields for name, fields in configured(app, added).items() if is_name(name)}
    for chunk in chunks(written, PAGE):
        for stored in store.read(chunk):
            name = stored.name.decode()
            try:
                wanted = checked(app, store, settings, name, written[name], now)
            except Exception:  # noqa: BLE001 - a user's code may raise anything; ``refused`` has it
                continue
            yield _Accepted(wanted, readable_parts(stored)[0], stored)


def _differs(wanted: Entry, existing: Entry, stored: Stored) -> bool:
    """Return whether ``wanted`` would be stored with another definition. Changes ``wanted``."""
    lifecycle.keep_resolved(existing, wanted)
    wanted.owner = existing.owner
    return encode(wanted, placeholders=True).encode() != stored.definition


def differs_in_owner_alone(wanted: Entry, existing: Entry, stored: Stored) -> bool:
    """Whether the entry that is stored is the very same but for whose it is."""
    twin = copy(wanted)
    twin.owner = existing.owner
    try:
        return existing.owner is not None and encode(twin).encode() == stored.definition
    except InvalidEntry:  # it holds what cannot be stored, and so cannot be compared
        return False


def tell_left_behind(store: Store, settings: Settings) -> None:
    """Say which entries go on without a beat that knows them."""
    for owner, names in left_behind(store, {*present(store, settings), settings.owner}).items():
        logger.warning(
            "beat: %s of the configuration of %r without a beat of %r: %s; if that app was renamed, set "
            "redbeat_lite_owner = %r, or remove what is not wanted: celery -A ... redbeat remove NAME",
            counted(len(names), "entry", "entries"),
            owner,
            owner,
            listed(names),
            owner,
        )


def tell_not_stored(app: Celery, store: Store, settings: Settings, leading: str) -> None:
    """Say which entries of the app wait for its own beat to lead, if one of the owner ``leading`` does."""
    names = [name for name, _ in not_stored(app, store, settings)] if settings.owner != leading else []
    if names:
        logger.warning(
            "beat: not stored until a beat of %r leads, while one of %r does: %s; a redbeat_lite_key_prefix for "
            "each app keeps the two apart",
            settings.owner,
            leading,
            listed(names),
        )


def tell_differing(app: Celery, store: Store, settings: Settings, leader: Beat, added: Added) -> None:
    """Log which entries of this process differ from those that the leader has stored."""
    names = sorted(differing(app, store, settings, added))
    if names:
        logger.warning(
            "beat: %s of beat_schedule differ here from what %s has stored, whose configuration counts: %s",
            counted(len(names), "entry", "entries"),
            leader,
            listed(names),
        )


def left_behind(store: Store, present: Collection[str]) -> dict[str, list[str]]:
    """The config entries of owners of whom no beat is there, by owner.

    Their app was renamed, or its beat is down for a while: nobody but a person can tell.
    """
    found = {owner: [*_of_owner(store, owner)] for owner in sorted(store.owners()) if owner not in present}
    return {owner: names for owner, names in found.items() if names}


def _of_owner(store: Store, owner: str) -> Iterator[str]:
    for chunk in chunks(sorted(filter(is_name, store.config_names(owner))), PAGE):
        for stored in store.read(chunk):
            with suppress(*UNREADABLE):
                if (entry := entry_of(stored)).owner == owner:
                    yield entry.name
