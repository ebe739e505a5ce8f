"""Which config entries are refused, and why: each is looked at as the leader does before it stores any."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import Celery

from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.configured import config_entry, configured
from ..entries.definition import encode
from ..entries.entry import Entry
from ..entries.expected import check_trust
from ..entries.on_calendar import give_calendar
from ..entries.sendable import check_options
from ..entries.stored_entry import readable_parts
from ..errors import InvalidEntry, describe, text_of
from ..settings import Settings
from ..storage.calendars import stored_calendars
from ..storage.store import Store


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
    check_trust(entry, app)
    check_options(entry)
    encode(entry, allow_local=True)
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
