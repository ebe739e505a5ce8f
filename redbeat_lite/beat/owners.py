"""The owners that share a prefix: of whom a beat is there, and a word of warning about entries left behind."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from celery import Celery
from celery.utils.log import get_logger

from ..entries.fields import is_name
from ..entries.stored_entry import UNREADABLE, entry_of
from ..entries.words import counted, listed
from ..settings import Settings
from ..storage.store import Store
from ..storage.stored import PAGE, chunks
from .config_entries import not_stored
from .status import read

logger = get_logger(__name__)


class Owners:
    """The owners that share a schedule with one app."""

    def __init__(self, app: Celery, store: Store, settings: Settings) -> None:
        self._app = app
        self._store = store
        self._settings = settings

    def present(self) -> set[str]:
        """The owners of whom a beat is there.

        A leader that died has been silent for a whole lease when another leads; one that gave its lease back is in no
        list.
        """
        return read(self._store).owners(within=self._settings.lease / 2)

    def tell_left_behind(self) -> None:
        """Say which entries go on without a beat that knows them."""
        for owner, names in left_behind(self._store, {*self.present(), self._settings.owner}).items():
            logger.warning(
                "beat: %s of the configuration of %r without a beat of %r: %s; if that app was renamed, set "
                "redbeat_lite_owner = %r, or remove what is not wanted: celery -A ... redbeat remove NAME",
                counted(len(names), "entry", "entries"),
                owner,
                owner,
                listed(names),
                owner,
            )

    def tell_not_stored(self, leading: str) -> None:
        """Say which entries of the app wait for its own beat to lead, if one of the owner ``leading`` does."""
        owner = self._settings.owner
        names = [name for name, _ in not_stored(self._app, self._store, self._settings)] if owner != leading else []
        if names:
            logger.warning(
                "beat: not stored until a beat of %r leads, while one of %r does: %s; a redbeat_lite_key_prefix for "
                "each app keeps the two apart",
                owner,
                leading,
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
