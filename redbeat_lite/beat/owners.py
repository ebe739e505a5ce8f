"""The owners that share a prefix: a word of warning about entries that have no beat of theirs."""

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
from .status import present

logger = get_logger(__name__)


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
