"""Carrying entries over: what would be stored, and storing it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Literal

from celery import Celery

from ...actors import who
from ...clock import wall_ms
from ...entries.configured import configured
from ...entries.differences import line_of_write
from ...entries.entry import Entry
from ...entries.stored_entry import edit_of, readable_parts
from ...settings import Settings
from ...storage.store import Store
from ...storage.stored import PAGE, Edit, Stored, chunks
from .carrier import Carried, Carrier
from .source import Found, Left


@dataclass(slots=True)
class Move:
    """What becomes of one entry of the other scheduler, by its name there.

    The entry is as it will be stored here, with its state; None where nothing will be, of which the notes say why.
    """

    name: str
    action: Literal["add", "replace", "stored", "left out"]
    entry: Entry | None
    notes: tuple[str, ...]
    edit: Edit | None = None


class MoveIn:
    """Carries the entries of another scheduler over into the schedule of a finalized app, which has all of its tasks.

    An entry that the app's ``beat_schedule`` has keeps the definition it has there, and becomes a config entry with
    the history of the old one. All others become runtime entries. ``replace`` carries those over that are stored here
    already, too; for a second run right before the switch.
    """

    def __init__(self, app: Celery, *, replace: bool = False) -> None:
        self._replace = replace
        self._settings = Settings.from_app(app)
        self._store = Store.of(self._settings)
        self._zone: tzinfo = app.timezone
        self._carrier = Carrier(app, self._settings, configured(app), self._zone)

    @property
    def where(self) -> str:
        """The place that is written, for people."""
        return f"{self._store.backend.display_url}, keys {self._store.keys.prefix}:*"

    @property
    def led(self) -> bool:
        """Whether a beat of ours leads at the moment."""
        return bool(self._store.backend.client.exists(self._store.keys.leader))

    def plan(self, found: Iterable[Found | Left]) -> list[Move]:
        """What :meth:`apply` would do with the entries that a reader found. Writes nothing."""
        now = wall_ms()
        carried = [self._carrier.carry(each, now) for each in found]
        moves: list[Move] = []
        for chunk in chunks(carried, PAGE):
            names = [each.entry.name for each in chunk if isinstance(each, Carried)]
            stored = {each.name.decode(): each for each in self._store.read(names)}
            moves += [self._move(each, stored) for each in chunk]
        return moves

    def apply(self, moves: Iterable[Move]) -> None:
        """Store what :meth:`plan` planned, 1,000 entries in a round trip.

        A move whose entry was changed meanwhile becomes ``"left out"``.
        """
        planned = [move for move in moves if move.edit is not None]
        ours = {move.name for move in planned if move.entry is not None and move.entry.owner is not None}
        if ours:
            self._store.add_config_names(self._settings.owner, ours)
        done = self._store.put(move.edit for move in planned if move.edit is not None)
        for move, ok in zip(planned, done, strict=True):
            if not ok:
                move.action, move.entry, move.notes = "left out", None, ("somebody else changed it at this moment",)

    def close(self) -> None:
        """Close the connections."""
        self._store.backend.close()

    def _move(self, found: Carried | Left, stored: dict[str, Stored]) -> Move:
        if isinstance(found, Left):
            return Move(found.name, "left out", None, (found.reason,))
        entry, here = found.entry, stored[found.entry.name]
        action: Literal["add", "replace"] = "add"
        if here.definition is not None:
            action = "replace"
            existing, state = readable_parts(here)
            if existing is not None and existing.owner not in (None, self._settings.owner):
                reason = f"the name is taken by the configuration of {existing.owner!r}"
                return Move(entry.name, "left out", None, (reason,))
            if not self._replace:
                return Move(entry.name, "stored", None, ("it is stored here already; --replace carries it over again",))
            if state is not None:
                # Who has the entry at hand shall notice the change; a pause that somebody made here stays.
                entry.state = replace(entry.known_state, version=state.version + 1, generation=state.generation)
                if state.paused:
                    entry.state = replace(entry.state, paused=True, note=state.note)
        line = line_of_write(who(), here, found.definition, "carried over")
        after, definition = entry.known_state, found.definition
        edit = edit_of(entry, after, self._zone, expected=here.state, definition=definition, line=line)
        entry.due = edit.score
        return Move(entry.name, action, entry, found.notes, edit)
