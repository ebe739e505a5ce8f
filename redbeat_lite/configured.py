"""Config entries: what ``beat_schedule`` says, brought into Redis by the leader at the moment it becomes leader.

The configuration owns the definition of its entries, Redis owns their state. Entries that left the configuration are
removed; one that is in it but wrong keeps what Redis holds of it, its last good definition and its state, so that a
slip of the pen costs no history and no pause. Entries of other owners and those made at runtime are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.schedules import crontab
from celery.utils.log import get_logger

from . import lifecycle
from .arguments import check_options
from .definition import decode, encode
from .entry import Entry
from .errors import CorruptEntry, InvalidEntry, UnsupportedFormat
from .once.policy import Once
from .settings import Settings
from .state import State
from .store import Edit, Store, Stored, Term

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)


class ConfigEntries:
    """The config entries of one app.

    Parameters:
        app: its ``beat_schedule`` is read anew at each :meth:`sync`.
        store: where they go.
        settings: the owner, and the defaults of entries that leave a field out.
        zone: the app's time zone.
    """

    def __init__(self, app: Celery, store: Store, settings: Settings, zone: tzinfo) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._zone = zone
        self._entries: dict[str, Entry] = {}
        self._set_aside: set[str] = set()
        self._rejected: set[str] = set()

    def get(self, name: str) -> Entry | None:
        """The config entry of this name as the configuration holds it, with what cannot be stored."""
        return self._entries.get(name)

    def __len__(self) -> int:
        """How many of them Redis should hold."""
        return len(self._entries) - len(self._set_aside)

    def sync(self, term: Term, now: int) -> None:
        """Bring Redis in line with the configuration. What is wrong with one entry is logged and leaves the others.

        Parameters:
            term: of the leader that does so.
            now: epoch milliseconds.

        Raises:
            Lost: the term is over.
        """
        known = self._store.config_names(self._settings.owner)
        written = {str(name): fields for name, fields in configured(self._app).items()}
        self._entries = dict(self._read(written, known, now))
        self._set_aside = self._quarantined()
        names = [*self._entries, *(known - written.keys())]
        self._store.rewrite(names, lambda stored: self._edits(stored, now), term)
        ours = self._entries.keys() | (known & self._rejected)
        if known != ours:
            self._store.set_config_names(self._settings.owner, ours, term)

    def _read(self, written: dict[str, Any], known: set[str], now: int) -> Iterator[tuple[str, Entry]]:
        self._rejected = set()
        for name, fields in written.items():
            try:
                entry = entry_with_defaults(self._settings, name, fields, app=self._app)
                lifecycle.check(entry, now, self._zone, partial(self._stored, name))
                check_options(entry)
                encode(entry, allow_local=True)
            except Exception as exc:  # noqa: BLE001 - what a user wrote may raise anything; the others must run
                self._reject(name, name in known, exc)
            else:
                entry.owner = self._settings.owner
                yield name, entry

    def _reject(self, name: str, is_known: bool, exc: Exception) -> None:
        self._rejected.add(name)
        trace = None if isinstance(exc, InvalidEntry) else exc
        if is_known:
            logger.error("beat: config entry %r is wrong and goes on as stored before: %s", name, exc, exc_info=trace)
        else:
            logger.error("beat: config entry %r is left out: %s", name, exc, exc_info=trace)

    def _stored(self, name: str) -> Entry | None:
        return _decoded(name, self._store.read([name])[0])[0]

    def _quarantined(self) -> set[str]:
        """Those that were set aside as they are configured now. Stored again, they would only be set aside again."""
        records = self._store.quarantined()
        return {name for name in records.keys() & self._entries.keys() if self._is_to_blame(name, records[name])}

    def _is_to_blame(self, name: str, record: dict[str, Any]) -> bool:
        """Whether a record of the quarantine blames the definition, and not a state that only this record has."""
        state = record.get("state")
        if not isinstance(state, str) or record.get("definition") != encode(self._entries[name], allow_local=True):
            return False
        try:
            State.decode(state.encode())
        except CorruptEntry:
            return False
        return True

    def _edits(self, stored: Stored, now: int) -> list[Edit]:
        name = stored.name.decode()
        wanted = self._entries.get(name)
        existing, state = _decoded(name, stored)
        if stored.definition is not None and (existing is None or existing.owner != self._settings.owner):
            return self._clash(name, wanted, stored, existing, now)
        if wanted is None:
            return [Edit(name, stored.state, None)] if stored.definition is not None else []
        if stored.definition is None and name in self._set_aside:
            return []
        definition = encode(wanted, allow_local=True)
        if existing is None or state is None:
            fresh = lifecycle.created(wanted, now, self._zone)
            return [self._write(wanted, stored, fresh, definition)]
        if definition.encode() == stored.definition:
            return []
        for field in existing.local:  # not stored, so nobody can tell whether it changed
            setattr(existing, field, getattr(wanted, field))
        wanted_state = lifecycle.revised(existing, state, wanted, now, self._zone)
        return [self._write(wanted, stored, wanted_state, definition)]

    def _clash(self, name: str, wanted: Entry | None, stored: Stored, existing: Entry | None, now: int) -> list[Edit]:
        if wanted is None:
            return []
        if existing is None:
            logger.error("beat: what Redis holds for config entry %r cannot be read and is replaced", name)
            fresh = lifecycle.created(wanted, now, self._zone)
            return [self._write(wanted, stored, fresh, encode(wanted, allow_local=True))]
        owner = "a runtime entry" if existing.owner is None else f"the configuration of {existing.owner!r}"
        logger.error("beat: config entry %r is left out: the name is taken by %s", name, owner)
        del self._entries[name]
        return []

    def _write(self, entry: Entry, stored: Stored, state: State, definition: str) -> Edit:
        score = lifecycle.due_time(entry, state, self._zone)
        return Edit(entry.name, stored.state, state.encode(), definition, score)


def configured(app: Celery) -> dict[str, Any]:
    """What the app's configuration holds: ``beat_schedule``, and the entry that Celery adds to it by itself."""
    found = dict(app.conf.beat_schedule or {})
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        # Celery's own schedulers add this entry too, for result backends that do not expire by themselves.
        cleanup = {
            "task": "celery.backend_cleanup",
            "schedule": crontab("0", "4", "*"),
            "options": {"expires": 12 * 3600},
        }
        found.setdefault("celery.backend_cleanup", cleanup)
    return found


def entry_with_defaults(settings: Settings, name: str, fields: Any, *, app: Any = None) -> Entry:
    """An entry from a user's dict, with the defaults of the settings for what it leaves out.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong.
    """
    if isinstance(fields, dict):
        fields = {"expires": settings.expires, "misfire": settings.misfire, **fields}
        if fields.get("once") is True:
            fields["once"] = Once.of(True, lease=settings.once_lease)
    return Entry.from_mapping(name, fields, app=app)


def _decoded(name: str, stored: Stored) -> tuple[Entry | None, State | None]:
    try:
        entry = decode(name, stored.definition) if stored.definition is not None else None
    except (CorruptEntry, UnsupportedFormat):
        entry = None
    try:
        state = State.decode(stored.state) if stored.state is not None else None
    except CorruptEntry:
        state = None
    return entry, state
