"""What a message of an entry carries besides its arguments: id, headers, expiry; prepared messages
repeat the last.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from celery.beat import BeatLazyFunc

from .._base import times
from ..expect import Expect
from ..rules import Every, Question
from ..rules.celery_schedules import familiar
from ..rules.cron import Cron
from ..rules.misfire import DEFAULT_GRACE_MS, Plan
from ..runs.run import EXPECT_HEADER, HISTORY_HEADER, INTERVAL_EXPIRES_HEADER
from .entry import Entry
from .expected import expected_of


class Occurrence(NamedTuple):
    """One firing of an entry: task id, nominal time (epoch ms), its life as of :func:`life_ms`,
    further headers.
    """

    entry: Entry
    id: str
    nominal: int
    life: int | None
    extra: Mapping[str, Any] | None = None


def life_ms(entry: Entry, plan: Plan, now: int, slack: int) -> int | None:
    """For how many milliseconds the messages of a plan live, from when they are sent, or from their
    ``eta``.

    For the gap that follows their nominal time, so that the next run takes the place of one that
    nobody took, and for ``slack`` ms, by which clocks of beats and workers may differ. ``None``,
    without end: where no next run is known, and what ``misfire="all"`` makes up for, all of which
    is to run. A stand-by that takes over makes up for nothing.
    """
    if not expires_with_gap(entry) or plan.next is None or isinstance(plan.next, Question):
        return None
    late = now - plan.emit[0] - (entry.jitter_ms or 0)
    if entry.misfire.policy == "all" and (late > DEFAULT_GRACE_MS or plan.next <= now):
        return None
    return plan.next - plan.emit[-1] + slack


def expires_with_gap(entry: Entry) -> bool:
    """Whether the messages of an entry expire when the next one comes, rather than as somebody has
    set.
    """
    return entry.expires == "interval" and "expires" not in entry.options


def may_lose_retries(entry: Entry, task: Any) -> bool:
    """Whether a worker without ``install()`` may discard retries of an entry's task as expired.

    Celery's ``retry`` copies the ``expires`` that the beat has added. Only ``redbeat_lite.Task``
    and workers with ``install()`` clear it first.

    Parameters:
        task: the entry's task as the app knows it; ``None`` if it does not.
    """
    if task is None or getattr(task, "guarded", False) or not expires_with_gap(entry):
        return False
    # Celery keeps the function of a task without bind=True as a static method, which cannot call
    # retry().
    is_bound = not isinstance(inspect.getattr_static(type(task), "run", None), staticmethod)
    return is_bound or bool(getattr(task, "autoretry_for", ()))


def alive_at_once(entry: Entry, zone: tzinfo, slack: int) -> int:
    """How many messages of an entry that runs at intervals are alive at most while nobody takes
    them.

    1 where a once-lock keeps it so, and where no interval says. ``slack`` as for :func:`life_ms`.
    """
    one = entry.once is not None and entry.once.at_publish
    if one or not expires_with_gap(entry) or not isinstance(rule := entry.rule(zone), Every):
        return 1
    return 1 + math.ceil(slack / rule.ms)


def lock_life_ms(entry: Entry, life: int | None, now: int) -> int:
    """For how many milliseconds, from when it may run, a message may keep its once-lock; 0 where it
    has no end.

    ``life`` is as :func:`life_ms` says, ``now`` in epoch ms.
    """
    if expires_with_gap(entry):
        return life or 0
    expires = entry.options.get("expires", entry.expires)
    until = (
        times.message_ms(expires)
        if isinstance(expires, str | datetime)
        else now + round(1000 * (expires or 0))
    )
    # It counts from when the message is sent, whatever its delay.
    return max(until - now - times.delay_ms(entry.options, now), 0)


def emission(
    occurrence: Occurrence, now: int, *, expect: Expect | None, traced: bool = False
) -> Entry:
    """The entry as Celery is to publish it for one occurrence at ``now`` (epoch ms).

    Where ``traced``, its message carries :func:`traceparent`, unless the entry's own headers have
    one.
    """
    entry = occurrence.entry
    options = dict(entry.options)
    options["task_id"] = occurrence.id
    options["headers"] = {
        **({"traceparent": traceparent(occurrence.id)} if traced else {}),
        **(options.get("headers") or {}),
        **headers(entry.name, occurrence.nominal),
        **({} if entry.history is None else {HISTORY_HEADER: entry.history}),
        **({EXPECT_HEADER: True} if entry.on_failure or expected_of(entry, expect) else {}),
        **(occurrence.extra or {}),
    }
    # A retry inside the publish could go on for longer than publish_timeout; the dispatcher has its
    # own.
    options["retry"] = False
    if "expires" not in options and entry.expires is not None:
        expires = _expires(entry, occurrence.life, now)
        if expires is not None:
            options["expires"] = expires
            if entry.expires == "interval":
                options["headers"][INTERVAL_EXPIRES_HEADER] = True
    emitted = copy.copy(entry)
    emitted._put(options=options)
    if isinstance(entry.schedule, Cron):
        # Nobody plans with it: Sentry, for one, reads the rule of a monitor from the entry that is
        # sent.
        emitted._put(schedule=familiar(entry.schedule) or entry.schedule)
    return emitted


def evaluated(entry: Entry) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, those of Celery's ``BeatLazyFunc`` called."""
    args = tuple(_evaluated(value) for value in entry.args)
    return args, {key: _evaluated(value) for key, value in entry.kwargs.items()}


def _evaluated(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def headers(name: str, nominal: int) -> dict[str, Any]:
    """The headers that tell which entry a message comes from, and for which nominal time (epoch
    ms).

    ``periodic_task_name`` is the name django-celery-beat uses, which result backends record.
    """
    return {"periodic_task_name": name, "scheduled_at": times.iso(nominal)}


def traceparent(task_id: str) -> str:
    """The header of this name, of W3C's Trace Context, for a task that begins a trace of its own.

    The trace has the id of the task, so that one is found by the other, and a message that is sent
    twice is one trace. The header has to name a span above the task's, too; none of that id is
    recorded anywhere. 01 says: keep the trace.

    Parameters:
        task_id: a UUID in its usual form. Its version stands in the half that becomes the span's
            id, which must not be zero.
    """
    trace = task_id.replace("-", "")
    return f"00-{trace}-{trace[:16]}-01"


def _expires(entry: Entry, life: int | None, now: int) -> Any:
    if entry.expires != "interval":
        return entry.expires
    if life is None:
        return None
    return times.from_ms(min(now + times.delay_ms(entry.options, now) + life, times.MAX_MS))
