"""Prepared messages: Celery makes the first message of a shape, and later ones are copies of it.

Between two messages of one task under the same options only ids, times, the entry's name and its arguments differ, as
long as nobody listens to or changes what Celery does on the way. :func:`obstacle` and :meth:`Prepared.learn` make sure
of that, by looking at the very functions that would run; where they cannot, every message goes the full way. What is
kept gives the very message again that it was made from: see :class:`redbeat_lite.beat.dispatch.templates.Shape`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from datetime import UTC, timedelta
from types import FunctionType, MethodType, ModuleType
from typing import Any

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
from ...entries.message import Occurrence
from ...errors import InvalidEntry
from ...instants import MAX_MS, iso
from ...storage.json_values import dumps, pack
from ...storage.stored import Command
from .templates import OwnPart, Shape

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

    def __init__(self, app: Celery, tag: Callable[[], str]) -> None:
        self._app = app
        self._tag = tag
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
        entry = occurrence.entry
        expiry = _expiry(entry, occurrence.life)
        common = (self, expiry, *(occurrence.extra or ()))
        if not self._is_plain(entry.task):
            return None
        if entry.written is None or entry.written[0].common != common:
            written = self._written(entry, common)
            if written is None:
                return None
            entry.written = written
        shape, own = entry.written
        if self._loud:
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        filled: list[Command] = shape.fill(own, occurrence, self._tag(), *self._expires(expiry, occurrence.life))
        return filled

    def _expires(self, expiry: Any, life: int | None) -> tuple[str | None, str | None]:
        """Return when a message of this batch expires, and its life if a shape has several."""
        if expiry is None:
            return None, None
        if expiry is _WITH_GAP:
            assert life is not None
            return iso(min(self._now + life, MAX_MS)), str(life)
        # In UTC and back, because adding to local time ignores its changes; Celery has a helper since 5.6.
        now = self._app.now()
        expires = now.astimezone(UTC) + timedelta(seconds=expiry)
        return expires.astimezone(now.tzinfo).isoformat(), None

    def _written(self, entry: Entry, common: tuple[object, ...]) -> tuple[Shape, OwnPart] | None:
        """Return the shape of an entry's messages, if it is known, and the entry's part of them."""
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
        entry = occurrence.entry
        expiry = _expiry(entry, occurrence.life)
        common = (self, expiry, *(occurrence.extra or ()))
        kind = _kind(entry, common)
        if kind in self._shapes:
            return
        if _UNPREPARED_OPTIONS & entry.options.keys() or expiry is _UNKNOWN or not self._is_plain(entry.task):
            return
        shape = Shape(common, occurrence, commands, self._app)
        headers = shape.headers
        properties = shape.properties
        to = properties["delivery_info"]
        queue = self._app.amqp.queues.get(to["routing_key"])
        if to["exchange"] or queue is None or not queue.can_cache_declaration:
            return  # to the queues that are bound to it, which may be others each time; or it is declared each time
        if (headers["expires"] is None) != (expiry is None):
            return
        own = shape.own(entry)
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        self._shapes[kind] = None  # but for this, whoever is like it need not try again
        tag = properties["delivery_tag"]
        expiration = properties.get("expiration")
        if shape.fill(own, occurrence, tag, headers["expires"], expiration) == commands:
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
