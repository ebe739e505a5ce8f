"""Extra runs of entries, besides their plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from celery import Celery

from .._base.actors import Who
from .._base.celery_app import own_options
from .._base.clock import wall_ms
from .._base.errors import InvalidEntry
from .._base.times import delay_ms
from ..entries import lifecycle
from ..entries.entry import Entry
from ..entries.message import Occurrence, emission, evaluated, expires_with_gap, lock_life_ms
from ..entries.sendable import check_arguments, misfit, serializer_of
from ..once.canvas import CANVAS
from ..once.claims import ONCE_HEADER, Claim, give_back, once_header, queue_of, take
from ..once.lock_store import LockStore
from ..runs.run import Attempt, Fate
from ..runs.run_store import RunStore
from ..store.changes import line_of
from ..store.connections import FAULTS
from ..store.records import AT_ONCE, chunks
from ..store.time_limits import brief_walk
from .reader import Reader, check_complete

#: Milliseconds that the message of an extra run lives at least, whatever the entry's interval:
#: somebody waits for it.
_SHORTEST = 60_000

#: Message header: that arguments were given for this run alone.
ARGUMENTS_HEADER = "redbeat_other_arguments"


def run_by_hand(
    reader: Reader, who: Who, entries: Sequence[Entry], given: dict[str, Any], note: str
) -> dict[str, str]:
    """Publish one task of each entry, with its own options, and arguments where none are given;
    return their ids.

    Parameters:
        given: ``args`` and ``kwargs`` of this run, where it has others than the entry.

    Raises:
        InvalidEntry: what is given cannot be sent, is not what the task takes, or makes no key of
            the once-lock.
        ConfigOwned: an entry has arguments that cannot be stored, and this app's configuration does
            not have them; nothing was sent.
    """
    for entry in entries:
        check_complete(entry, *{"args", "kwargs", "options"} - given.keys())
    sent: dict[str, str] = {}
    try:
        for entry in entries:
            sent[entry.name] = _publish(reader, entry, given)
    finally:
        for names in chunks(sent, AT_ONCE):
            what = f"task {sent[names[0]]}" if len(names) == 1 else f"{len(names)} tasks"
            what += (" with other arguments" if given else "") + (f": {note}" if note else "")
            with suppress(*FAULTS):  # what is sent is sent, whether or not anybody is told
                reader.store.record(line_of(who, "run now", what), names)
    return sent


def _publish(reader: Reader, entry: Entry, given: dict[str, Any]) -> str:
    app, settings, task_id = reader.app, reader.settings, str(uuid4())
    task = app.tasks.get(entry.task)
    if given:
        _give(app, task, entry, given)
    now = wall_ms()
    nominal, zone = entry.known_state.nominal, app.timezone
    gap = (
        lifecycle.gap_ms(entry, nominal, now, zone, brief_walk())
        if expires_with_gap(entry)
        else None
    )
    life = None if gap is None else max(gap, _SHORTEST) + settings.slack_ms
    _evaluate(entry, entry)
    locks = LockStore(reader.store.backend.client, settings.key_prefix)
    with _once_lock(
        entry, task_id, task, locks, delay_ms(entry.options, now), lock_life_ms(entry, life, now)
    ) as headers:
        extra = {**(headers or {}), ARGUMENTS_HEADER: True} if given else headers
        emitted = emission(
            Occurrence(entry, task_id, now, life, extra), now, expect=settings.expect
        )
        options = {**emitted.options, "retry": entry.options.get("retry"), **own_options()}
        if task is not None:
            task.apply_async(entry.args, entry.kwargs, **options)
        else:
            app.send_task(entry.task, entry.args, entry.kwargs, **options)
    attempt = Attempt.of({**options["headers"], "id": task_id}, settings.history)
    if attempt is not None:
        with suppress(*FAULTS):  # The message is sent, whether or not its run is shown.
            RunStore(locks.client, settings.key_prefix).record([Fate(attempt, "waiting")])
    return task_id


def _evaluate(entry: Entry, source: Entry) -> None:
    """Give an entry the arguments of another one, or its own, as they are now."""
    args, kwargs = evaluated(source)
    entry._put(args=args, kwargs=kwargs)


def _give(app: Celery, task: Any, entry: Entry, given: dict[str, Any]) -> None:
    """Give an entry the arguments of one run, if they can be sent and its task takes them."""
    if entry.task == CANVAS:  # its argument says what is run
        expected = "none for a canvas, whose members have their own"
        raise InvalidEntry(next(iter(given)), expected, given, entry=entry.name)
    _evaluate(entry, entry.replace(**given))
    check_arguments(entry, serializer_of(entry, app))
    why = misfit(task, entry)
    if why is not None:
        raise InvalidEntry(
            next(iter(given)), f"what {entry.task} takes", given, entry=entry.name, hint=why
        )


@contextmanager
def _once_lock(
    entry: Entry, task_id: str, task: Any, locks: LockStore, delay: int, life: int
) -> Iterator[dict[str, Any] | None]:
    """Take the entry's once-lock if it is free; yields the headers that tell the worker of it."""
    if entry.once is None:
        yield None
        return
    queue = queue_of(task, entry.task, entry.args, entry.kwargs, entry.options)
    given = (entry.name, entry.task, entry.args, entry.kwargs, entry.once, task_id)
    claim = Claim(*given, task=task, queue=queue, delay_ms=delay, life_ms=life)
    [taken] = take(locks, [claim])
    try:
        yield {
            ONCE_HEADER: once_header(claim.key, claim.once, queued=claim.once.at_publish and taken)
        }
    except BaseException:
        if taken:
            give_back(locks, [claim])
        raise
