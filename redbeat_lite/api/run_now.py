"""One extra run of an entry, besides its plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import tzinfo
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.entry import Entry
from ..entries.message import Occurrence, emission, evaluated, expires_with_gap, lock_life_ms
from ..entries.sendable import check_arguments
from ..errors import InvalidEntry
from ..instants import delay_ms
from ..once.claims import ONCE_HEADER, Claim, give_back, once_header, queue_of, take
from ..once.store import LockStore
from ..settings import Settings
from ..storage.patience import briefly
from .reader import check_complete

if TYPE_CHECKING:
    from celery import Celery

#: Milliseconds that the message of an extra run lives at least, whatever the entry's interval: somebody waits for it.
_SHORTEST = 60_000

#: Message header: that arguments were given for this run alone.
ARGUMENTS_HEADER = "redbeat_other_arguments"


def publish_extra(
    app: Celery, entry: Entry, locks: LockStore, zone: tzinfo, settings: Settings, given: dict[str, Any]
) -> str:
    """Publish one task with the entry's own options, and arguments where none are given; return its id.

    Parameters:
        given: ``args`` and ``kwargs`` of this run, where it has others than the entry.
        zone: the app's time zone. A message that says ``"interval"`` lives for the gap after the entry's next run, and
            for a minute at least.
        settings: of the app.

    Raises:
        InvalidEntry: what is given cannot be sent, is not what the task takes, or makes no key of the once-lock.
        ConfigOwned: the entry holds what cannot be stored, and this app's configuration does not have it.
    """
    check_complete(entry, *set(entry.local) - given.keys())
    task_id, task = str(uuid4()), app.tasks.get(entry.task)
    if given:
        _give(app, task, entry, given)
    now = wall_ms()
    gap = lifecycle.gap_ms(entry, entry.known_state.nominal, now, zone, briefly()) if expires_with_gap(entry) else None
    life = None if gap is None else max(gap, _SHORTEST) + settings.slack_ms
    entry.args, entry.kwargs = evaluated(entry)
    with _once_lock(
        entry, task_id, task, locks, delay_ms(entry.options, now), lock_life_ms(entry, life, now)
    ) as headers:
        extra = {**(headers or {}), ARGUMENTS_HEADER: True} if given else headers
        emitted = emission(Occurrence(entry, task_id, now, life, extra), now, expect=settings.expect)
        options = {**emitted.options, "retry": entry.options.get("retry")}
        if task is not None:
            task.apply_async(entry.args, entry.kwargs, **options)
        else:
            app.send_task(entry.task, entry.args, entry.kwargs, **options)
    return task_id


def _give(app: Celery, task: Any, entry: Entry, given: dict[str, Any]) -> None:
    """Give an entry the arguments of one run, if they can be sent and its task takes them."""
    entry.args, entry.kwargs = evaluated(entry.replace(**given))
    check_arguments(entry, app)
    try:
        if task is not None and task.typing:
            task.__header__(*entry.args, **entry.kwargs)
    except TypeError as exc:
        field, expected = next(iter(given)), f"what {entry.task} takes"
        raise InvalidEntry(field, expected, given, entry=entry.name, hint=str(exc)) from None


@contextmanager
def _once_lock(
    entry: Entry, task_id: str, task: Any, locks: LockStore, delay: int, life: int
) -> Iterator[dict[str, Any] | None]:
    """Take the entry's once-lock if it is free; yields the headers that tell the worker of it."""
    if entry.once is None:
        yield None
        return
    queue = queue_of(task, entry.task, entry.args, entry.kwargs, entry.options)
    claim = Claim(
        entry.name,
        entry.task,
        entry.args,
        entry.kwargs,
        entry.once,
        task_id,
        task=task,
        queue=queue,
        delay_ms=delay,
        life_ms=life,
    )
    [taken] = take(locks, [claim])
    try:
        yield {ONCE_HEADER: once_header(claim.key, claim.once, queued=claim.once.at_publish and taken)}
    except BaseException:
        if taken:
            give_back(locks, [claim])
        raise
