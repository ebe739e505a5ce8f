"""Prepared messages: the first message of its shape goes Celery's full way and is kept; later ones are filled in.

Between two messages of one task under the same options only ids, times, the entry's name and its arguments differ, as
long as nobody listens to or changes what Celery does on the way. :func:`obstacle` and :meth:`Prepared.learn` make sure
of that, by looking at the very functions that would run; where they cannot, every message goes the full way. What is
kept gives the very message again that it was made from: see :class:`redbeat_lite.beat.dispatch.templates.Shape`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, timedelta
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

import celery.app.amqp
import celery.app.base
import celery.app.routes
import celery.app.task
import celery.beat
import kombu.messaging
import kombu.transport.redis
import kombu.transport.virtual.base
from celery import Celery, signals
from celery.utils.log import get_logger

from ...clock import wall_ms
from ...entries.entry import Entry
from ...entries.message import Occurrence, traceparent
from ...errors import InvalidEntry
from ...instants import MAX_MS, iso
from ...storage.json_values import dumps, pack
from ...storage.stored import Command
from .templates import Shape, mark

logger = get_logger("celery.beat")

_SIGNALS = ("before_task_publish", "after_task_publish", "task_sent")

#: Options that make each message another one in ways a template does not know.
_UNPREPARED_OPTIONS = frozenset(
    {"countdown", "eta", "stamped_headers", "link", "link_error", "chord", "declare", "producer"}
)

#: How messages expire, besides never and after some seconds: each after its own gap, and in a way not known here.
_WITH_GAP, _UNKNOWN = "interval", "unknown"

#: Shapes kept for others: more would mean that hardly two entries have task and options in common. Each keeps its own.
_MAX_SHAPES = 1000


def obstacle(scheduler: Any, own: ModuleType, app: Celery, channel: type) -> str | None:
    """Why no message over a channel of this class may be prepared, in words; ``None`` if messages may be.

    ``own`` is the module of our scheduler, which this one cannot import.
    """
    for name in _SIGNALS:
        if getattr(signals, name).receivers:
            return f"something listens to {name}"
    if not written_in(scheduler.apply_entry, celery.beat) or not written_in(scheduler.send_task, celery.beat):
        return "the scheduler's apply_entry or send_task is not Celery's own"
    if not written_in(scheduler.apply_async, own) or not written_in(type(scheduler).apply_async, own):
        return "the scheduler's apply_async is not redbeat_lite's own"
    if not written_in(celery.beat.Scheduler.apply_async, celery.beat):
        return "celery.beat.Scheduler.apply_async is not Celery's own"
    if not written_in(app.send_task, celery.app.base):
        return "app.send_task is not Celery's own"
    amqp = app.amqp
    making = (amqp.send_task_message, amqp.create_task_message, amqp.as_task_v2)
    if not all(written_in(function, celery.app.amqp) for function in making):
        return "app.amqp makes messages in a way of its own"
    if amqp.Producer is not kombu.messaging.Producer or not _is_kombus_own(channel):
        return "kombu's producer or channel is not its own"
    if not written_in(celery.app.task.Task.apply_async, celery.app.task):
        return "Task.apply_async is not Celery's own"
    if app.conf.task_protocol != 2:
        return "task_protocol is not 2"
    if not all(type(route) is celery.app.routes.MapRoute for route in amqp.router.routes):
        return "task_routes holds a function"
    if app.conf.task_send_sent_event or app.conf.task_always_eager:
        return "task_send_sent_event or task_always_eager is set"
    return None


class Prepared:
    """Shapes of messages, valid for one broker connection."""

    def __init__(self, app: Celery, tag: Callable[[], str], *, traced: bool) -> None:
        self._app = app
        self._tag = tag
        self._traced = traced
        self._shapes: dict[Hashable, Shape | None] = {}
        self._plain: dict[str, bool] = {}
        self._now = 0
        self._loud = True

    def begin(self) -> None:
        """A new batch: lifetimes count from now, and who has a say in messages is looked for anew."""
        self._now = wall_ms()
        self._loud = logger.isEnabledFor(logging.INFO)
        self._plain.clear()

    def commands(self, occurrence: Occurrence) -> list[Command] | None:
        """The commands that send this occurrence; ``None`` if no message of its shape is known."""
        entry, extra = occurrence.entry, occurrence.extra
        expiry = _expiry(entry, occurrence.life)
        common = (self, expiry, *(extra or ()))
        if not self._is_plain(entry.task):
            return None
        if (written := entry.written) is None or written[0].common != common:
            if (written := self._written(entry, common)) is None:
                return None
            entry.written = written
        shape, own = written
        values = {**own, "id": occurrence.id, "tag": self._tag(), "scheduled_at": iso(occurrence.nominal)}
        if extra:
            values |= _further(extra)
        if self._traced:
            values["traceparent"] = traceparent(occurrence.id)
        if expiry is _WITH_GAP:
            life = cast(int, occurrence.life)
            values["expires"] = iso(min(self._now + life, MAX_MS))
            values["expiration"] = str(life)
        elif expiry is not None:
            # In UTC and back, because adding to local time ignores its changes; Celery has a helper since 5.6.
            now = self._app.now()
            values["expires"] = (now.astimezone(UTC) + timedelta(seconds=expiry)).astimezone(now.tzinfo).isoformat()
        if self._loud:
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        return cast(list[Command], shape.fill(values))

    def _written(self, entry: Entry, common: tuple[object, ...]) -> tuple[Shape, dict[str, str]] | None:
        """The shape of an entry's messages, if it is known, and what the entry fills in."""
        shape = self._shapes.get(_kind(entry, common)) if self._shapes else None
        if shape is None:
            return None
        try:
            return shape, shape.own(entry)
        except Exception:  # noqa: BLE001 - the full way finds it too, and says it in Celery's words
            return None

    def learn(self, occurrence: Occurrence, commands: list[Command]) -> None:
        """Keep the shape of a message that went the full way for its entry and its like, if it may be one."""
        try:
            self._learn(occurrence, commands)
        except Exception as exc:  # noqa: BLE001 - the message is made; a shape only saves the next one some work
            logger.debug("beat: no shape of the message of %r: %r", occurrence.entry.name, exc)

    def _learn(self, occurrence: Occurrence, commands: list[Command]) -> None:
        entry, extra = occurrence.entry, occurrence.extra or {}
        common = (self, _expiry(entry, occurrence.life), *extra)
        kind = _kind(entry, common)
        if kind in self._shapes:
            return
        if _UNPREPARED_OPTIONS & entry.options.keys() or common[1] is _UNKNOWN or not self._is_plain(entry.task):
            return
        message, closed = _opened(commands)
        to = message["properties"]["delivery_info"]
        queue = self._app.amqp.queues.get(to["routing_key"])
        if to["exchange"] or queue is None or not queue.can_cache_declaration:
            return  # to the queues that are bound to it, which may be others each time; or it is declared each time
        values = _mark_gaps(message, occurrence, common[1])
        shape = Shape(common, message, closed, entry, self._app)
        own = shape.own(entry)
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        self._shapes[kind] = None  # but for this, whoever is like it need not try again
        if shape.fill({**values, **own}) == commands:
            self._shapes[kind] = shape
            entry.written = shape, own

    def _is_plain(self, name: str) -> bool:
        """Whether the task leaves the way of a message to Celery."""
        if (known := self._plain.get(name)) is None:
            task = self._app.tasks.get(name)
            own = () if task is None else (task.apply_async, task.shadow_name, task._get_exec_options)
            known = all(written_in(function, celery.app.task) for function in own)
            known = self._plain[name] = known and (task is None or task.expires is None)
        return known


def _opened(commands: list[Command]) -> tuple[dict[str, Any], Callable[[str], list[Command]]]:
    """The one message of these commands, and what makes them of its text."""
    (name, target, payload), *others = commands
    if name != "lpush" or any(other != "pexpire" for other, *_ in others):
        raise ValueError("another message")
    return json.loads(payload), lambda text: [(name, target, text), *others]


def _mark_gaps(message: dict[str, Any], occurrence: Occurrence, expiry: object) -> dict[str, str]:
    """Put marks where a message holds ids and times; returns what was there. Raises if it is another message."""
    headers, properties = message["headers"], message["properties"]
    values = {"id": occurrence.id, "scheduled_at": iso(occurrence.nominal)}
    if headers["id"] != occurrence.id or (headers["expires"] is None) != (expiry is None):
        raise ValueError("another message")
    for where, key in ((headers, "root_id"), (properties, "correlation_id")):
        if where[key] == occurrence.id:
            where[key] = mark("id")
    if headers.get("traceparent") == traceparent(occurrence.id):
        values["traceparent"], headers["traceparent"] = headers["traceparent"], mark("traceparent")
    if expiry is not None:
        values["expires"], headers["expires"] = headers["expires"], mark("expires")
    if expiry is _WITH_GAP:
        values["expiration"], properties["expiration"] = properties["expiration"], mark("expiration")
    headers["id"], headers["scheduled_at"] = mark("id"), mark("scheduled_at")
    values["tag"], properties["delivery_tag"] = properties["delivery_tag"], mark("tag")
    for number, key in enumerate(occurrence.extra or ()):
        headers[key] = mark(number)
    return values | _further(occurrence.extra or {})


def _further(extra: Mapping[str, Any]) -> dict[str, str]:
    """What further headers fill in, by their number."""
    return {str(number): json.dumps(value) for number, value in enumerate(extra.values())}


def _expiry(entry: Entry, life: int | None) -> Any:
    """How a message expires: seconds after publishing, after the gap to the next one, never (``None``), or else."""
    if "expires" in entry.options:
        expires = entry.options["expires"]
    elif entry.expires == "interval":
        return None if life is None else _WITH_GAP
    else:
        expires = entry.expires
    return expires if expires is None or isinstance(expires, (int, float)) else _UNKNOWN


def _kind(entry: Entry, common: tuple[object, ...]) -> Hashable:
    """What entries have in common whose messages differ only in names, arguments, ids and times."""
    own = entry.history, entry.expect is None and not entry.remove_when_done, bool(entry.expect or entry.on_failure)
    options: object = ""
    if entry.options:
        try:
            options = dumps(pack(entry.options, "options"))
        except InvalidEntry:  # of a config entry; its shape keeps them
            options = id(entry.options)
    return entry.task, common, own, options


def _is_kombus_own(channel: Any) -> bool:
    """Whether nobody, a tracing library say, has put a hand on what makes messages below Celery."""
    # Looked up at the class that is used, so that what was put in front of an inherited function is seen too.
    producer, virtual = kombu.messaging.Producer, kombu.transport.virtual.base
    own = all(written_in(function, kombu.messaging) for function in (producer.publish, producer._publish))
    making = (channel.basic_publish, channel.prepare_message, channel._inplace_augment_message)
    own = own and all(written_in(function, virtual) for function in making)
    return own and written_in(channel._put, kombu.transport.redis)


def written_in(function: Any, module: ModuleType) -> bool:
    """Whether the code of ``function`` stands in ``module``; a wrapper's does not, whatever it says of itself."""
    # What is no plain function may be a proxy, as tracing libraries use, which has the attributes of what it wraps.
    if type(function) is MethodType:
        function = function.__func__
    return type(function) is FunctionType and function.__code__.co_filename == module.__file__
