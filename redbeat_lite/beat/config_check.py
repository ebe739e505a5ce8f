"""Comparison of an app's configuration with the stored schedule, for beats and for the doctor.

A config entry may be refused, missing in Redis, stored with another definition, or stored although
no beat of its owner runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from copy import copy
from typing import Any

from celery import Celery

from .._base.clock import wall_ms
from .._base.errors import RedbeatError
from .._base.text import describe, text_of
from ..entries import lifecycle
from ..entries.configured import config_entry, configured
from ..entries.definition import encode
from ..entries.entry import Entry
from ..entries.model import is_name
from ..entries.on_calendar import give_calendar
from ..entries.sendable import check_encoding
from ..entries.stored_entry import UNREADABLE, entry_of, readable_parts
from ..settings import Settings
from ..store.records import PAGE, Stored, chunks
from ..store.store import Store


class Configuration:
    """Configuration of one app, which can be compared with the stored schedule.

    Parameters:
        added: function that returns the entries that code has added to the scheduler, by name.
            Only a beat knows them.
    """

    def __init__(
        self,
        app: Celery,
        store: Store,
        settings: Settings,
        added: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self.added = added

    def read(self) -> dict[str, Any]:
        """Return the fields of all config entries, by name, as they are written."""
        written = configured(self._app, self.added())
        return {str(name): fields for name, fields in written.items()}

    def check(self, now: int) -> Iterator[tuple[str, Entry | Exception]]:
        """Yield the name of each config entry with the entry, or with the reason to refuse it.

        Parameters:
            now: epoch ms.
        """
        for name, fields in self.read().items():
            result: Entry | Exception
            try:
                result = self._entry(name, fields, now)
            except Exception as exc:  # noqa: BLE001 - A user's code may raise anything.
                result = exc
            yield name, result

    def _entry(self, name: str, fields: Any, now: int) -> Entry:
        """Return the entry of these fields after all checks; raise InvalidEntry if it is refused.

        A user's code may raise any other exception.
        """

        def stored_before() -> Entry | None:
            return readable_parts(self._store.read([name])[0])[0]

        entry = config_entry(self._settings, name, fields, app=self._app)
        entry.owner = self._settings.owner
        zone = self._app.timezone
        give_calendar(entry, self._store.calendars, now, zone, stored_before)
        lifecycle.check(entry, now, zone, stored_before)
        check_encoding(entry)
        encode(entry, placeholders=True)
        return entry

    def refused(self) -> dict[str, str]:
        """Return the name and the error of each config entry that a beat of this app would refuse.

        Entries whose name another owner has taken are not among them.
        """
        checked = self.check(wall_ms())
        return {
            name: fault_text(name, result)
            for name, result in checked
            if isinstance(result, Exception)
        }

    def not_stored(self) -> Iterator[tuple[str, Entry | None]]:
        """Yield the name of each config entry that is not refused and not stored.

        With it comes the stored entry of another owner that has this name, or ``None``. If that
        entry has the same definition, the config entry counts as stored.
        """
        for entry, stored in self._accepted():
            existing, _ = readable_parts(stored)
            if existing is None:
                yield entry.name, None
            elif existing.owner != entry.owner and not is_shared(entry, existing, stored):
                yield entry.name, existing

    def differing(self) -> Iterator[str]:
        """Yield the names of config entries that differ between this app and the store.

        An entry that only one side has differs, too. Entries that are refused, in quarantine or of
        another owner are left to other checks.
        """
        quarantined = self._store.quarantined()
        for entry, stored in self._accepted():
            existing, _ = readable_parts(stored)
            if existing is None:
                if entry.name not in quarantined:
                    yield entry.name
            elif existing.owner == entry.owner and not has_definition(stored, entry):
                yield entry.name
        names = self.read().keys()
        if not names:
            return  # A web process may have no configuration, and that is no difference.
        for name in _names_of_owner(self._store, self._settings.owner):
            if name not in names:
                yield name

    def _accepted(self) -> Iterator[tuple[Entry, Stored]]:
        """Yield each config entry that is not refused, with the stored entry of its name."""
        checked = self.check(wall_ms())
        accepted = (result for _, result in checked if isinstance(result, Entry))
        for entries in chunks(accepted, PAGE):
            names = [entry.name for entry in entries]
            yield from zip(entries, self._store.read(names), strict=True)


def fault_text(name: str, exc: Exception) -> str:
    """Return an error of the entry ``name`` in words, without the name."""
    text = text_of(exc) if isinstance(exc, RedbeatError) else describe(exc)
    return text.removeprefix(f"entry {name!r}: ")


def has_definition(stored: Stored, entry: Entry) -> bool:
    """Return whether the stored definition is that of ``entry``."""
    return encode(entry, placeholders=True).encode() == stored.definition


def is_shared(entry: Entry, existing: Entry, stored: Stored) -> bool:
    """Return whether another owner has stored an entry of this name with the same definition."""
    if existing.owner is None or existing.unstored:
        return False  # Only the configuration of that owner has the parts that cannot be stored.
    of_other_owner = copy(entry)
    of_other_owner.owner = existing.owner
    return has_definition(stored, of_other_owner)


def left_behind(store: Store, present_owners: Collection[str]) -> dict[str, list[str]]:
    """Return owner -> names of its config entries, for the owners without a running beat.

    Either the owner's app was renamed, or its beat is down for a while. Only a person can know.
    """
    names_by_owner: dict[str, list[str]] = {}
    for owner in sorted(store.owners()):
        names = [] if owner in present_owners else [*_names_of_owner(store, owner)]
        if names:
            names_by_owner[owner] = names
    return names_by_owner


def _names_of_owner(store: Store, owner: str) -> Iterator[str]:
    """Yield the names of the stored config entries of an owner."""
    for stored in store.present(sorted(filter(is_name, store.config_names(owner)))):
        with suppress(*UNREADABLE):
            entry = entry_of(stored)
            if entry.owner == owner:
                yield entry.name
