"""Messages of an entry: their headers, expiry and arguments, and whether they can be sent."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs
from kombu.compression import get_encoder
from kombu.serialization import dumps as dump_message
from kombu.serialization import registry

from .._base import times
from .._base.errors import InvalidEntry
from .._base.json_values import all_plain, pack
from ..policies import Expect
from ..rules import Question
from ..rules.celery_schedules import as_crontab
from ..rules.cron import cron
from ..rules.misfire import DEFAULT_GRACE_MS, Plan
from .entry import Entry
from .lifecycle import expected_of
from .run import EXPECT_HEADER, HISTORY_HEADER, INTERVAL_EXPIRES_HEADER


class Occurrence(NamedTuple):
    """Occurrence of an entry that is to be sent.

    Parameters:
        entry: the entry.
        id: task id.
        nominal: nominal time, in epoch ms.
        life: ms until its message expires, as :func:`life_ms` returns them.
        extra: further headers.
    """

    entry: Entry
    id: str
    nominal: int
    life: int | None
    extra: Mapping[str, Any] | None = None


def life_ms(entry: Entry, plan: Plan, now: int, slack: int) -> int | None:
    """Return after how many ms a plan's messages expire, from their sending or their ``eta`` on.

    A message lives for the gap from the last run of the plan to the next one, so that the next run
    replaces one that no worker has taken.

    Return ``None`` if the messages do not expire by this rule: if the entry has its own
    ``expires``, if the next run is not known, or if ``misfire="all"`` makes up for missed runs,
    because then every missed run has to run. A run that is late by less than the default grace
    time, as when a stand-by takes over, was not missed.

    Parameters:
        slack: maximum number of milliseconds by which clocks of beats and workers may differ; it
            is added to the result.
    """
    # A Question is no occurrence, but the time at which to ask the schedule for the next one.
    if not expires_with_gap(entry) or plan.next is None or isinstance(plan.next, Question):
        return None
    # The plan makes up for missed runs if its first run is too late, or if the run after the plan
    # is due already. Jitter is an intended delay, so it does not make a run late.
    late = now - plan.emit[0] - entry.jitter_ms
    if entry.misfire.policy == "all" and (late > DEFAULT_GRACE_MS or plan.next <= now):
        return None
    return plan.next - plan.emit[-1] + slack


def expires_with_gap(entry: Entry) -> bool:
    """Return whether the messages of an entry expire when its next run is due."""
    return entry.expires == "interval" and "expires" not in entry.options


def may_lose_retries(entry: Entry, task: Any) -> bool:
    """Return whether a worker without ``install()`` may discard retries of the task as expired.

    Celery's ``retry`` copies the ``expires`` that the beat has added. Only ``redbeat_lite.Task``
    (its attribute ``guarded`` is true) and workers with ``install()`` remove it before a retry.

    Parameters:
        task: the entry's task; ``None`` if the app does not know it.
    """
    if task is None or getattr(task, "guarded", False) or not expires_with_gap(entry):
        return False
    # Without bind=True, Celery keeps the function of a task as a static method. Such a function has
    # no ``self`` by which it could retry.
    is_bound = not isinstance(inspect.getattr_static(type(task), "run", None), staticmethod)
    return is_bound or bool(getattr(task, "autoretry_for", ()))


def lock_life_ms(entry: Entry, life: int | None, now: int) -> int:
    """Return for how many ms a message may keep its once-lock; 0 for no limit.

    The time counts from the earliest instant at which the message may run.

    Parameters:
        life: as :func:`life_ms` returns it.
        now: epoch ms.
    """
    if expires_with_gap(entry):
        # Such a message expires when the next occurrence is due, and `life` is the time until then.
        # Without a next occurrence (None) it never expires.
        return life or 0
    expires = entry.options.get("expires", entry.expires)
    if expires is None:
        return 0
    if isinstance(expires, str | datetime):
        until = times.message_ms(expires)
    else:
        until = now + round(1000 * expires)
    # `expires` counts from the sending of the message, so a delay shortens the time that is left. A
    # message that expires within its delay never runs, so its lock may end at once.
    return max(until - now - times.delay_ms(entry.options, now), 1)


def emission(occurrence: Occurrence, own_headers: Mapping[str, Any], now: int) -> Entry:
    """Return a copy of the entry with the options for one occurrence, for Celery to publish.

    Parameters:
        own_headers: headers from :func:`all_headers`.
        now: time of sending, in epoch ms.
    """
    entry = occurrence.entry
    options = dict(entry.options)
    options["task_id"] = occurrence.id
    options["headers"] = dict(own_headers)
    # The dispatcher retries. Celery's own retry inside a publish could take longer than
    # publish_timeout.
    options["retry"] = False
    if expires_with_gap(entry):
        # The message expires when the next run is due, and ``life`` is the time until then.
        if occurrence.life is not None:
            end = now + times.delay_ms(options, now) + occurrence.life
            options["expires"] = times.from_ms(min(end, times.MAX_MS))
            # This header tells a worker that the beat has set the expiry, and not the user. So the
            # worker sends a retry of the task without an expiry.
            options["headers"][INTERVAL_EXPIRES_HEADER] = True
    elif entry.expires is not None:
        # An option of the entry prevails over its field.
        options.setdefault("expires", entry.expires)
    emitted = copy.copy(entry)
    emitted._put(options=options)
    if isinstance(entry.schedule, cron):
        # Only integrations read the schedule of a sent entry. Sentry takes the rule of its monitor
        # from this schedule, and knows Celery's crontab.
        emitted._put(schedule=as_crontab(entry.schedule) or entry.schedule)
    return emitted


def all_headers(
    occurrence: Occurrence, expect: Expect | None, traced: bool = False
) -> dict[str, Any]:
    """Return the headers of a message. Ours replace the entry's own, except for ``traceparent``.

    Parameters:
        expect: default expectation of the app.
        traced: add the header of :func:`traceparent`.
    """
    entry = occurrence.entry
    headers: dict[str, Any] = {}
    if traced:
        headers["traceparent"] = traceparent(occurrence.id)
    own = entry.options.get("headers")
    if own:
        headers.update(own)
    headers |= run_headers(entry.name, occurrence.nominal)
    if entry.history is not None:
        headers[HISTORY_HEADER] = entry.history
    if entry.on_failure or expected_of(entry, expect):
        headers[EXPECT_HEADER] = True
    if occurrence.extra:
        headers.update(occurrence.extra)  # The further headers name the once-lock of the run.
    return headers


def evaluated(entry: Entry) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, with the result of each ``BeatLazyFunc`` in its place."""
    return tuple(_evaluate_entry_args(entry.args)), _evaluate_entry_kwargs(entry.kwargs)


def run_headers(name: str, nominal: int) -> dict[str, Any]:
    """Return the headers that name the entry and the nominal time (epoch ms) of a message.

    django-celery-beat uses ``periodic_task_name`` too, and result backends record it.
    """
    return {"periodic_task_name": name, "scheduled_at": times.iso(nominal)}


def traceparent(task_id: str) -> str:
    """Return the header ``traceparent`` of W3C's Trace Context, so that a task begins its own
    trace.

    The trace id is the task id, so each can be found by the other, and a message that is sent twice
    belongs to one trace. The header must also name a parent span; no span with that id is recorded
    anywhere. The flag 01 means that the trace is kept.

    Parameters:
        task_id: a UUID in its usual form. Its first half becomes the span id; it is never zero,
            because it contains the version of the UUID.
    """
    trace = task_id.replace("-", "")
    return f"00-{trace}-{trace[:16]}-01"


# -- Checks before the first run: whether the messages can be sent, and to which queue -------------


def check_encoding(entry: Entry) -> None:
    """Refuse a serializer or a compression that this process does not have.

    Raises:
        InvalidEntry: names the option.
    """
    serializer = entry.options.get("serializer")
    serializers = registry.name_to_type
    if serializer not in (None, *serializers):
        expected = f"one of {', '.join(sorted(serializers))}"
        raise InvalidEntry("options.serializer", expected, serializer, entry=entry.name)
    compression = entry.options.get("compression")
    if compression is not None:
        try:
            get_encoder(compression)  # type: ignore[no-untyped-call]  # untyped in kombu
        except (KeyError, TypeError):
            expected = "a compression that kombu has"
            raise InvalidEntry(
                "options.compression", expected, compression, entry=entry.name
            ) from None


def serializer_of(entry: Entry) -> Any:
    """Return the serializer of the entry's messages, as far as this process knows."""
    app = entry.app
    # Reading ``tasks`` would finalize the app.
    task = app.tasks.get(entry.task) if app.finalized else None
    return (
        entry.options.get("serializer")
        or getattr(task, "serializer", None)
        or app.conf.task_serializer
    )


def misfit(task: Any, entry: Entry) -> str | None:
    """Return why the task cannot be called with the arguments of the entry; ``None`` if it can."""
    try:
        if task is not None and task.typing:
            # Celery checks the arguments of each call by this function.
            task.__header__(*entry.args, **entry.kwargs)
    except TypeError as exc:
        return str(exc)
    return None


def check_arguments(entry: Entry, serializer: Any) -> None:
    """Refuse arguments that this serializer cannot write.

    Raises:
        InvalidEntry: names the argument, and the place inside it if that is known.
    """
    if serializer == "json" and all_plain(entry.args, entry.kwargs):
        return  # They are JSON values already. This saves most entries the checks below.
    arguments = {f"args[{index}]": value for index, value in enumerate(entry.args)}
    arguments |= {f"kwargs.{key}": value for key, value in entry.kwargs.items()}
    for field, value in arguments.items():
        try:
            dump_message(value, serializer=serializer)  # type: ignore[no-untyped-call]
        except Exception as exc:
            try:
                # This only checks: if the value cannot even be stored, pack() raises an error that
                # names the place inside it.
                pack(value, field)
            except InvalidEntry as exact:
                raise exact.of(entry.name) from None
            expected = f"a value that the serializer {serializer!r} can write"
            raise InvalidEntry(field, expected, value, entry=entry.name) from exc


def queue_of(entry: Entry) -> str:
    """Return the queue of an entry's messages."""
    app = entry.app
    try:
        task = app.tasks.get(entry.task)
        # As in Celery, the options of the entry prevail over those of the task.
        own = {} if task is None else task._get_exec_options()
        routed = app.amqp.router.route(
            {**own, **entry.options}, entry.task, entry.args, entry.kwargs
        )
    except Exception:  # noqa: BLE001 - code of the user's tasks and routers
        # Without an answer, the default queue applies.
        routed = {}
    queue = routed.get("queue")
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue)
