"""Comparison of an app's configuration with the stored schedule, for beats and for the doctor.

A config entry may be refused, missing in Redis, stored with another definition, or stored although
no beat of its owner runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from celery import Celery
from redis.exceptions import RedisError

from .._base.clock import wall_ms
from .._base.errors import RedbeatError
from .._base.text import describe, text_of
from ..entries import lifecycle
from ..entries.changes import Stored
from ..entries.configured import config_entry, configured, name_taken
from ..entries.entry import Entry
from ..entries.message import check_encoding
from ..entries.model import encode, is_name
from ..entries.on_calendar import ReadCalendars, give_calendar
from ..entries.stored_entry import UNREADABLE, entry_of, readable_parts
from ..settings import Settings
from ..store.records import PAGE, chunks
from ..store.store import Store


@dataclass
class Differences:
    """Differences between the configuration of an app and the stored schedule.

    Parameters:
        refused: name of an entry that a beat of the app would refuse -> the error.
        missing: names of entries that are not stored.
        changed: names of entries that are stored with another definition, or that are not in the
            configuration.
    """

    refused: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def differing_names(self) -> list[str]:
        """Sorted names of the entries that the leader has not stored as this app has them."""
        return sorted((*self.missing, *self.changed))


@dataclass(eq=False)
class Configuration:
    """Configuration of one app, which can be compared with the stored schedule.

    Parameters:
        added: function that returns the entries that code has added to the scheduler, by name. No
            process but a beat has such entries.
    """

    app: Celery
    store: Store
    settings: Settings
    added: Callable[[], Mapping[str, Any]] = dict

    def check(self, now: int) -> Iterator[tuple[str, Entry | Exception]]:
        """Check all config entries. Yield each name and entry, or the exception that refuses it.

        Parameters:
            now: epoch ms.
        """
        # Read the calendars once for all entries. A sync finds out if they change meanwhile.
        read_calendars = cache(self.store.calendars)
        for written_name, fields in configured(self.app, self.added()).items():
            name = str(written_name)
            try:
                yield name, self._entry(name, fields, now, read_calendars)
            except RedisError:
                raise  # The server is at fault, and no entry.
            except Exception as exc:  # noqa: BLE001 - A user's code may raise anything.
                yield name, exc

    def _entry(self, name: str, fields: Any, now: int, read_calendars: ReadCalendars) -> Entry:
        """Return the entry of these fields, after all checks.

        Raises:
            InvalidEntry: a check has failed.
            Exception: a user's code may raise any other exception.
        """

        def replaced() -> Entry | None:
            """Return the stored entry of this name; ``None`` if none is stored and readable.

            Each call costs a round trip. So the checks below call this function only when they are
            about to report a fault, or to search a year for a run. They accept a value that the
            stored entry has already, because it was valid when it was stored.
            """
            [stored] = self.store.read([name])
            existing, _ = readable_parts(stored, self.app)
            return existing

        entry = config_entry(self.settings, name, fields, self.app)
        entry.owner = self.settings.owner
        # Each call below checks the entry, and raises InvalidEntry if it is wrong.
        give_calendar(entry, read_calendars, now, replaced)
        lifecycle.check(entry, now, replaced)
        check_encoding(entry)
        encode(entry)  # This raises if the definition is too long.
        return entry

    def differences(self) -> Differences:
        """Return the differences between this configuration and the stored schedule."""
        differences = Differences()
        checked = dict(self.check(wall_ms()))
        quarantined = self.store.quarantined()
        for names in chunks(checked, PAGE):
            for name, stored in zip(names, self.store.read(names), strict=True):
                result = checked[name]
                existing, _ = readable_parts(stored, self.app)
                if isinstance(result, Exception):
                    differences.refused[name] = fault_text(name, result)
                elif existing is None:
                    # The entry is not stored, or cannot be read. An entry in quarantine is not
                    # reported here, because the doctor has a check of its own for the quarantine.
                    if name not in quarantined:
                        differences.missing.append(name)
                elif existing.owner == self.settings.owner:
                    if not has_definition(stored, result):
                        differences.changed.append(name)
                elif not is_shared(result, existing, stored):
                    differences.refused[name] = name_taken(existing)
        # Report the stored entries of this app that its configuration does not have. A process of
        # the web page may have no configuration at all, and must not report every stored entry.
        if checked:
            own_names = _names_of_owner(self.store, self.settings.owner)
            differences.changed.extend(name for name in own_names if name not in checked)
        return differences


def fault_text(name: str, exc: Exception) -> str:
    """Return the text of an error of the entry ``name``, without this name.

    If the error comes from a user's code, the text begins with the type of the error.
    """
    text = text_of(exc) if isinstance(exc, RedbeatError) else describe(exc)
    # The text of an InvalidEntry may begin with the name. Whoever shows the error shows the name.
    return text.removeprefix(f"entry {name!r}: ")


def has_definition(stored: Stored, entry: Entry) -> bool:
    """Return whether the stored definition is that of ``entry``."""
    return encode(entry).encode() == stored.definition


def is_shared(entry: Entry, existing: Entry, stored: Stored) -> bool:
    """Return whether another owner has stored an entry of this name with the same definition.

    Parameters:
        existing: the stored entry of another owner or of none, decoded from ``stored``.
    """
    if existing.owner is None:
        return False  # It is a runtime entry, so no app has it in its configuration.
    if existing.unstored:
        # Some fields cannot be stored, such as a schedule class of a user. Redis does not hold
        # their values, so these cannot be compared.
        return False
    # The owner is a part of the definition, so compare as if both had the same one.
    twin = copy(entry)
    twin.owner = existing.owner
    return has_definition(stored, twin)


def left_behind(store: Store, present_owners: set[str]) -> dict[str, list[str]]:
    """Return owner -> names of its config entries, for the owners without a running beat.

    The owner's app was renamed or removed, or its beat is down for a while. Only a person can know
    which of these is true.

    Parameters:
        present_owners: the owners with a running beat.
    """
    names_by_owner: dict[str, list[str]] = {}
    for owner in sorted(store.owners() - present_owners):
        names = [*_names_of_owner(store, owner)]
        if names:
            names_by_owner[owner] = names
    return names_by_owner


def _names_of_owner(store: Store, owner: str) -> Iterator[str]:
    """Yield the names of the stored config entries of an owner.

    Redis has a list of these names. Some of the listed entries may be gone, and others may belong
    to another owner by now. So each entry is read.
    """
    # Another program may have written anything into the list. Skip what cannot be a name.
    for stored in store.present(sorted(filter(is_name, store.config_names(owner)))):
        with suppress(*UNREADABLE):
            entry = entry_of(stored, app=None)  # Only its owner matters.
            if entry.owner == owner:
                yield entry.name
