"""Message templates: Celery makes the first message of a kind, and later ones are copies of it.

Two messages of one task under the same options differ only in ids, times, the entry's name and its
arguments, as long as nothing listens to or changes what Celery does in between. :func:`obstacle`
and :meth:`Prepared.learn` check that on the functions that would run. If they cannot tell, every
message is made in full. A template is used only if it reproduces the message that it was made from.
This is 7.7 times faster than making each message in full.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from datetime import UTC, timedelta
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import celery.app.amqp
import celery.app.base
import celery.app.routes
import celery.app.task
import celery.beat
import kombu.messaging
import kombu.transport.redis
import kombu.transport.virtual.base
import kombu.utils.json
from celery import Celery, signals
from celery.beat import BeatLazyFunc
from celery.utils.log import get_logger
from celery.utils.saferepr import saferepr
from kombu.compression import compress
from kombu.serialization import dumps as serialize
from kombu.serialization import registry

from ..._base.clock import wall_ms
from ..._base.errors import InvalidEntry
from ..._base.times import MAX_MS, iso
from ...entries.entry import Entry
from ...entries.message import Occurrence, traceparent
from ...store.json_values import dumps, pack
from ...store.records import Command

logger = get_logger("celery.beat")

_SIGNALS = ("before_task_publish", "after_task_publish", "task_sent")

#: Options that make each message another one in ways a template does not know.
_UNPREPARED_OPTIONS = frozenset(
    {"countdown", "eta", "stamped_headers", "link", "link_error", "chord", "declare", "producer"}
)

#: Ways to expire besides never and after some seconds: with the gap to the next run, and in a way
#: not known here.
_WITH_GAP = "interval"
_UNKNOWN = "unknown"

#: Most templates that entries share. With more kinds, hardly two entries have task and options in
#: common.
_MAX_TEMPLATES = 1000

#: Headers about the arguments, which differ between entries.
_OWN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "compression"})


class OwnPart(NamedTuple):
    """The part of a message that is the same in all messages of one entry."""

    body: str
    headers: dict[str, str]


class Template:
    """Message of one task under given options, to be copied with other ids, times and arguments.

    Parameters:
        common: values that all occurrences of the template share, besides those of their entries.
        occurrence: the first occurrence.
        commands: the commands that send its message.
        app: the Celery app.

    Raises:
        Exception: the message is of a kind that is not known here.
    """

    def __init__(
        self, common: tuple[object, ...], occurrence: Occurrence, commands: list[Command], app: Any
    ) -> None:
        first, *self._others = commands
        name, self._queue, text = first
        if name != "lpush" or any(other != "pexpire" for other, *_ in self._others):
            raise ValueError("another message")
        self.common = common
        self._message = json.loads(text)
        self.headers = self._message["headers"]
        self.properties = self._message["properties"]
        if self.headers["id"] != occurrence.id:
            raise ValueError("another message")
        self._has_root_id = self.headers["root_id"] == occurrence.id
        self._has_correlation_id = self.properties["correlation_id"] == occurrence.id
        self._has_traceparent = self.headers.get("traceparent") == traceparent(occurrence.id)
        self._read_options(occurrence.entry, app)

    def _read_options(self, entry: Entry, app: Any) -> None:
        """Learn how the arguments of such an entry are checked, serialized and shown."""
        task = app.tasks.get(entry.task)
        content_type = self._message["content-type"]
        # Of two serializers of the same type, nobody can tell which one wrote this message.
        (self._serializer,) = (
            name for name, kind in registry.name_to_type.items() if kind == content_type
        )
        self._is_json = registry._encoders[self._serializer].encoder is kombu.utils.json.dumps
        self._compression = self.headers.get("compression")
        self._check: Any = task.__header__ if task is not None and task.typing else None
        self._dump: Any = getattr(task, "_dump_pydantic_arguments", None)
        if self._dump and self._serializer == "pickle":
            raise ValueError("made in a way that is not known here")
        if _OWN_HEADERS & (entry.options.get("headers") or {}).keys():
            raise ValueError("made in a way that is not known here")
        self._options = entry.options
        self._embed = {
            "callbacks": None,
            "errbacks": None,
            "chain": entry.options.get("chain"),
            "chord": None,
        }
        self._max_levels = app.conf.get("task_repr_maxlevels", 3)
        self._max_sizes = {
            "argsrepr": app.amqp.argsrepr_maxsize,
            "kwargsrepr": app.amqp.kwargsrepr_maxsize,
        }

    def own(self, entry: Entry) -> OwnPart:
        """Make the part that all messages of this entry have in common.

        Raises:
            Exception: the arguments do not fit the task, cannot be serialized, or differ from run
                to run.
        """
        args: Any = list(entry.args)
        kwargs = entry.kwargs
        if self._check is not None:
            self._check(*args, **kwargs)
        if self._dump is not None:
            args, kwargs = self._dump(args, kwargs)
        args = args or ()
        kwargs = kwargs or {}
        body = self._body(args, kwargs)
        if self._compression is not None:
            body, _ = compress(body, self._compression)  # type: ignore[no-untyped-call]
        headers = {
            "periodic_task_name": entry.name,
            "argsrepr": self._shown("argsrepr", args),
            "kwargsrepr": self._shown("kwargsrepr", kwargs),
        }
        encoded = body.encode() if isinstance(body, str) else body
        return OwnPart(base64.b64encode(encoded).decode(), headers)

    def _body(self, args: Any, kwargs: Any) -> Any:
        if self._is_json:
            with suppress(
                TypeError
            ):  # Kombu's encoder knows more types, and writes the others as Python's does.
                return json.dumps((args, kwargs, self._embed))
        if any(isinstance(value, BeatLazyFunc) for value in (*args, *kwargs.values())):
            raise ValueError("others at each run")
        parts = (args, kwargs, self._embed)
        _, _, body = serialize(parts, serializer=self._serializer)  # type: ignore[no-untyped-call]
        return body

    def _shown(self, key: str, value: Any) -> str:
        if (given := self._options.get(key)) is not None:
            return str(given)
        return str(saferepr(value, self._max_sizes[key], maxlevels=self._max_levels))

    def fill(
        self,
        own: OwnPart,
        occurrence: Occurrence,
        tag: str,
        expires: str | None,
        expiration: str | None,
    ) -> list[Command]:
        """Make the commands that send the message of an occurrence.

        Parameters:
            own: the part of its entry.
            occurrence: gives ids, nominal time and further headers.
            tag: the delivery tag.
            expires: the instant at which the message expires.
            expiration: how long the message lives, in ms; ``None`` for as long as the kept one.
        """
        headers = {**self.headers, **own.headers, **(occurrence.extra or {})}
        headers["id"] = occurrence.id
        headers["scheduled_at"] = iso(occurrence.nominal)
        headers["expires"] = expires
        if self._has_root_id:
            headers["root_id"] = occurrence.id
        if self._has_traceparent:
            headers["traceparent"] = traceparent(occurrence.id)
        properties = {**self.properties, "delivery_tag": tag}
        if self._has_correlation_id:
            properties["correlation_id"] = occurrence.id
        if expiration is not None:
            properties["expiration"] = expiration
        message = {**self._message, "body": own.body, "headers": headers, "properties": properties}
        return [("lpush", self._queue, json.dumps(message)), *self._others]


def obstacle(scheduler: Any, own: ModuleType, app: Celery, channel: type) -> str | None:
    """Return why messages over a channel of this class may not be prepared, if they may not.

    Parameters:
        scheduler: the scheduler that publishes.
        own: the module in which our scheduler is written; this one cannot import it.
        app: the Celery app.
        channel: class of the broker's channel.
    """
    for name in _SIGNALS:
        if getattr(signals, name).receivers:
            return f"something listens to {name}"
    if not written_in(scheduler.apply_entry, celery.beat) or not written_in(
        scheduler.send_task, celery.beat
    ):
        return "the scheduler's apply_entry or send_task is not Celery's own"
    if not written_in(scheduler.apply_async, own) or not written_in(
        type(scheduler).apply_async, own
    ):
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
    """Templates for one broker connection."""

    def __init__(self, app: Celery, tag: Callable[[], str]) -> None:
        self._app = app
        self._tag = tag
        self._templates: dict[Hashable, Template | None] = {}
        self._plain: dict[str, bool] = {}
        self._now = 0
        self._loud = True

    def begin(self) -> None:
        """Begin a batch: lifetimes count from now, and tasks are checked again."""
        self._now = wall_ms()
        self._loud = logger.isEnabledFor(logging.INFO)
        self._plain.clear()

    def commands(self, occurrence: Occurrence) -> list[Command] | None:
        """Return the commands that send an occurrence; ``None`` if there is no template for it."""
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
        template, own = entry.written
        if self._loud:
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        filled: list[Command] = template.fill(
            own, occurrence, self._tag(), *self._expires(expiry, occurrence.life)
        )
        return filled

    def _expires(self, expiry: Any, life: int | None) -> tuple[str | None, str | None]:
        """Return when a message expires, and its life if the template has no fixed one."""
        if expiry is None:
            return None, None
        if expiry is _WITH_GAP:
            assert life is not None
            return iso(min(self._now + life, MAX_MS)), str(life)
        # In UTC and back, because adding to local time ignores its changes; Celery has a helper
        # since 5.6.
        now = self._app.now()
        expires = now.astimezone(UTC) + timedelta(seconds=expiry)
        return expires.astimezone(now.tzinfo).isoformat(), None

    def _written(self, entry: Entry, common: tuple[object, ...]) -> tuple[Template, OwnPart] | None:
        """Return the template for an entry's messages and the entry's own part, if there is one."""
        template = self._templates.get(_kind(entry, common)) if self._templates else None
        if template is None:
            return None
        try:
            return template, template.own(entry)
        except Exception:  # noqa: BLE001 - making it in full raises the same, in Celery's words
            return None

    def learn(self, occurrence: Occurrence, commands: list[Command]) -> None:
        """Make a template from a message that was made in full, for entries of the same kind."""
        try:
            self._learn(occurrence, commands)
        except Exception as exc:  # noqa: BLE001 - the message is made; the next one takes longer
            logger.debug("beat: no template for messages of %r: %r", occurrence.entry.name, exc)

    def _learn(self, occurrence: Occurrence, commands: list[Command]) -> None:
        entry = occurrence.entry
        expiry = _expiry(entry, occurrence.life)
        common = (self, expiry, *(occurrence.extra or ()))
        kind = _kind(entry, common)
        if kind in self._templates:
            return
        if (
            _UNPREPARED_OPTIONS & entry.options.keys()
            or expiry is _UNKNOWN
            or not self._is_plain(entry.task)
        ):
            return
        template = Template(common, occurrence, commands, self._app)
        headers = template.headers
        properties = template.properties
        to = properties["delivery_info"]
        queue = self._app.amqp.queues.get(to["routing_key"])
        if to["exchange"] or queue is None or not queue.can_cache_declaration:
            # The queues that are bound to an exchange may change, or this one is declared each
            # time.
            return
        if (headers["expires"] is None) != (expiry is None):
            return
        own = template.own(entry)
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        self._templates[kind] = None  # If this fails, entries of the same kind need not try again.
        tag = properties["delivery_tag"]
        expiration = properties.get("expiration")
        if template.fill(own, occurrence, tag, headers["expires"], expiration) == commands:
            self._templates[kind] = template
            entry.written = template, own

    def _is_plain(self, name: str) -> bool:
        """Return whether messages of a task are made by Celery's own functions."""
        if (known := self._plain.get(name)) is None:
            task = self._app.tasks.get(name)
            own = (
                () if task is None else (task.apply_async, task.shadow_name, task._get_exec_options)
            )
            known = all(written_in(function, celery.app.task) for function in own)
            known = self._plain[name] = known and (task is None or task.expires is None)
        return known


def _expiry(entry: Entry, life: int | None) -> Any:
    """Return how a message expires: after seconds, with the gap to the next run, or never."""
    if "expires" in entry.options:
        expires = entry.options["expires"]
    elif entry.expires == "interval":
        return None if life is None else _WITH_GAP
    else:
        expires = entry.expires
    return expires if expires is None or isinstance(expires, (int, float)) else _UNKNOWN


def _kind(entry: Entry, common: tuple[object, ...]) -> Hashable:
    """Return a key that entries share if one template serves all of them."""
    own = (
        entry.history,
        entry.expect is None and not entry.remove_when_done,
        bool(entry.expect or entry.on_failure),
    )
    options: object = ""
    if entry.options:
        try:
            options = dumps(pack(entry.options, "options"))
        except (
            InvalidEntry
        ):  # Options of a config entry; its template keeps them alive, so the id is unique.
            options = id(entry.options)
    return entry.task, common, own, options


def _is_kombus_own(channel: Any) -> bool:
    """Return whether kombu's functions that make messages are its own, and not a tracer's."""
    # Looked up on the class that is used, to see a function that was put in front of an inherited
    # one.
    producer = kombu.messaging.Producer
    publishing = (producer.publish, producer._publish)
    making = (channel.basic_publish, channel.prepare_message, channel._inplace_augment_message)
    return (
        all(written_in(function, kombu.messaging) for function in publishing)
        and all(written_in(function, kombu.transport.virtual.base) for function in making)
        and written_in(channel._put, kombu.transport.redis)
    )


def written_in(function: Any, module: ModuleType) -> bool:
    """Return whether a function is written in ``module``; a wrapper of it is not."""
    # A proxy, as tracing libraries use it, is no plain function, but has the attributes of one.
    if type(function) is MethodType:
        function = function.__func__
    return type(function) is FunctionType and function.__code__.co_filename == module.__file__
