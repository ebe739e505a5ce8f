"""Extra runs of entries by hand, in addition to their schedule."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from celery import Celery

from .._base.actors import Who
from .._base.celery_app import own_options
from .._base.clock import wall_ms
from .._base.errors import InvalidEntry
from ..entries.canvas import CANVAS
from ..entries.changes import line_of
from ..entries.entry import Entry
from ..entries.message import (
    Occurrence,
    all_headers,
    check_arguments,
    emission,
    evaluated,
    expires_with_gap,
    misfit,
    serializer_of,
)
from ..entries.run import Attempt, Fate
from ..once.claims import ONCE_HEADER, claim_of, once_header
from ..once.lock_store import LockStore
from ..rules import shortest_gap_ms
from ..store.connections import FAULTS
from ..store.records import AT_ONCE, chunks
from .reader import Reader, check_complete

#: Shortest life of an extra run's message, in milliseconds, even if the entry's interval is
#: shorter. A user waits for this run, so a short backlog must not let it expire.
_SHORTEST = 60_000

#: Message header: true for a run with other arguments than the entry's.
ARGUMENTS_HEADER = "redbeat_other_arguments"


def run_by_hand(
    reader: Reader, who: Who, entries: Sequence[Entry], arguments: dict[str, Any], note: str
) -> dict[str, str]:
    """Publish one task of each entry, with the entry's options. Return name -> task id.

    Parameters:
        arguments: ``args`` and ``kwargs`` for this run alone. If one of them is missing, the
            entry's is sent.
        note: reason, for the record of changes.

    Raises:
        InvalidEntry: arguments cannot be sent, or their task does not take them; nothing was sent.
            Or no key of the once-lock can be made of them.
        ConfigOwned: an entry has arguments that cannot be stored, and this app's configuration does
            not have them; nothing was sent.
    """
    for entry in entries:
        check_complete(entry, *{"args", "kwargs", "options"} - arguments.keys())
        _set_arguments(reader.app, entry, arguments)
    task_ids: dict[str, str] = {}
    try:
        for entry in entries:
            task_ids[entry.name] = _publish(reader, entry, arguments)
    finally:
        # Do this also if the broker fails, because tasks may have been sent before.
        for names in chunks(task_ids, AT_ONCE):
            text = f"task {task_ids[names[0]]}" if len(names) == 1 else f"{len(names)} tasks"
            if arguments:
                text += " with other arguments"
            if note:
                text += f": {note}"
            # The messages have been sent already, so the call must not fail if the line is lost.
            with suppress(*FAULTS):
                reader.store.record(line_of(who, "run now", text), names)
    return task_ids


def _publish(reader: Reader, entry: Entry, arguments: dict[str, Any]) -> str:
    """Publish one task of an entry, and return its id.

    Parameters:
        arguments: ``args`` and ``kwargs`` that replace the entry's; empty: the entry's are sent.
    """
    app = reader.app
    settings = reader.settings
    task_id = str(uuid4())
    task = app.tasks.get(entry.task)
    now = wall_ms()
    life = _life(reader, entry, now)
    # This collects further headers of the message.
    extra: dict[str, Any] = {ARGUMENTS_HEADER: True} if arguments else {}
    locks = LockStore(reader.store.backend.client, settings.key_prefix)
    # A claim is the request for the once-lock of a message.
    claim = None
    if entry.once is not None:
        claim = claim_of(entry, entry.once, task, task_id=task_id, life=life, now=now)
        extra[ONCE_HEADER] = once_header(claim.key, entry.once)
        if not entry.once.at_publish:
            claim = None  # The worker acquires the lock.
    occurrence = Occurrence(entry, task_id, now, life, extra)
    emitted = emission(occurrence, all_headers(occurrence, settings.expect), now)
    # emission() forbids Celery's own retry, because the beat retries. Here, nobody else retries.
    options = {**emitted.options, "retry": entry.options.get("retry"), **own_options()}
    # This process may not have imported the task.
    publish = partial(app.send_task, entry.task) if task is None else task.apply_async
    try:
        if claim is not None:
            # Ignore the result. If another task has the once-lock, publish nevertheless, because
            # the worker follows the policy of the lock.
            locks.take(claim)
        publish(entry.args, entry.kwargs, **options)
    except BaseException:
        # No message was sent, so no worker would release the lock.
        if claim is not None:
            with suppress(*FAULTS):
                locks.leave(claim.key, task_id)
        raise
    # The result is ``None`` if runs of the entry are not recorded.
    attempt = Attempt.of({**options["headers"], "id": task_id}, settings.history)
    if attempt is not None:
        # The message has been sent already, so the call must not fail if the record is lost.
        with suppress(*FAULTS):
            reader.runs.record([Fate(attempt, "waiting")])
    return task_id


def _set_arguments(app: Celery, entry: Entry, arguments: dict[str, Any]) -> None:
    """Set the arguments of an entry for one run, and call each ``BeatLazyFunc`` among them.

    Parameters:
        arguments: ``args`` and ``kwargs`` that replace the entry's.

    Raises:
        InvalidEntry: the arguments cannot be sent, or do not fit the task.
    """
    args, kwargs = evaluated(entry.replace(**arguments) if arguments else entry)
    entry._put(args=args, kwargs=kwargs)
    # The errors below name only one of the arguments.
    field = next(iter(arguments), "args")
    if arguments and entry.task == CANVAS:
        # The argument of this task is the canvas itself.
        expected = "none for a canvas, whose members have their own"
        raise InvalidEntry(field, expected, arguments, entry=entry.name)
    check_arguments(entry, serializer_of(entry))
    error = misfit(app.tasks.get(entry.task), entry)
    if error is not None:
        expected = f"what {entry.task} takes"
        raise InvalidEntry(field, expected, arguments or args, entry=entry.name, hint=error)


def _life(reader: Reader, entry: Entry, now: int) -> int | None:
    """Return the ms until the next run makes the message expire; ``None`` if no run does so."""
    # An entry that is finished has no next run.
    if not expires_with_gap(entry) or entry.state.finished:
        return None
    # The gap is the time from the next occurrence to the one after it.
    gap = shortest_gap_ms(entry.rule, now, among=2)
    return None if gap is None else max(gap, _SHORTEST) + reader.settings.slack_ms
