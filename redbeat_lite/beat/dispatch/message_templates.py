"""Message templates: Celery makes the first message of a kind, and later ones are copies of it.

Messages of one task under the same options differ in their ids and times, and in the name and the
arguments of their entry. That holds as long as nothing listens to Celery's publishing or changes
it, which :func:`obstacle` checks once per batch. A template serves plain JSON arguments and the
options of :data:`COPIED_OPTIONS`, and must reproduce the message that it was made from. Every other
message is made in full, which takes 7.7 times as long.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Hashable, Iterator
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
from celery.utils.log import get_logger
from celery.utils.saferepr import saferepr
from kombu.serialization import registry

from ..._base.times import MAX_MS, iso
from ...entries.entry import Entry
from ...entries.message import Occurrence, expires_with_gap, traceparent
from ...store.records import Command

logger = get_logger("celery.beat")

_SIGNALS = ("before_task_publish", "after_task_publish", "task_sent")

#: Options that make the same difference to all messages of a kind.
COPIED_OPTIONS = frozenset(
    {
        "expires",
        "headers",
        "ignore_result",
        "priority",
        "queue",
        "routing_key",
        "serializer",
        "shadow",
        "soft_time_limit",
        "time_limit",
    }
)

#: Headers that differ between messages of a kind, so a user's own header must not replace them.
_CHANGED_HEADERS = frozenset({"argsrepr", "kwargsrepr", "expires", "id", "root_id"})

#: Expiry of a message that ends its life with the gap to the next run.
_WITH_GAP = "interval"

#: Most templates that entries share. With more kinds, hardly two entries have task and options in
#: common.
_MAX_TEMPLATES = 1000

_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class OwnPart(NamedTuple):
    """The part of a message that is the same in all messages of one entry."""

    body: str
    headers: dict[str, str]


class Template(NamedTuple):
    """A message that was made in full. ``terms`` are equal for all occurrences that it serves."""

    terms: tuple[object, ...]
    queue: str
    message: dict[str, Any]
    is_traced: bool

    def fill(
        self,
        own: OwnPart,
        occurrence: Occurrence,
        tag: str,
        expires: str | None,
        expiration: str | None,
    ) -> list[Command]:
        """Make the command that sends the message of an occurrence.

        Parameters:
            own: the part of its entry.
            occurrence: gives ids, nominal time and further headers.
            tag: the delivery tag.
            expires: the instant at which the message expires.
            expiration: how long the message lives, in ms; ``None`` for as long as the kept one.
        """
        task_id = occurrence.id
        headers = {**self.message["headers"], **own.headers, **(occurrence.extra or {})}
        headers["id"] = task_id
        headers["root_id"] = task_id
        headers["scheduled_at"] = iso(occurrence.nominal)
        headers["expires"] = expires
        if self.is_traced:
            headers["traceparent"] = traceparent(task_id)
        properties = {**self.message["properties"], "delivery_tag": tag, "correlation_id": task_id}
        if expiration is not None:
            properties["expiration"] = expiration
        message = {**self.message, "body": own.body, "headers": headers, "properties": properties}
        return [("lpush", self.queue, json.dumps(message))]


class Templates:
    """Templates for one broker connection.

    Parameters:
        tag: returns a new delivery tag.
    """

    def __init__(self, app: Celery, tag: Callable[[], str]) -> None:
        self._app = app
        self._tag = tag
        #: By kind; ``None`` if the messages of a kind cannot be copied.
        self._templates: dict[Hashable, Template | None] = {}
        self._plain_tasks: dict[str, bool] = {}
        # Read once, because a look into Celery's settings takes 3.5 us.
        self._repr_levels = app.conf.get("task_repr_maxlevels", 3)
        self._now = 0

    def begin(self, now: int) -> None:
        """Begin a batch at ``now`` (epoch ms), from which lifetimes count; check tasks again."""
        self._now = now
        self._plain_tasks.clear()

    def copy_message(self, occurrence: Occurrence) -> list[Command] | None:
        """Return the command that sends an occurrence; ``None`` if no template serves it."""
        entry = occurrence.entry
        if not self._is_plain(entry.task):
            return None
        terms = self._terms(occurrence)
        if entry.message_template is None or entry.message_template[0].terms != terms:
            try:
                template = self._templates.get(_kind(entry, terms))
                if template is None:
                    return None
                entry.message_template = template, self._own_part(entry)
            except Exception:  # noqa: BLE001 - making it in full raises the same, in Celery's words
                return None
        template, own = entry.message_template
        logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        expires, expiration = self._expires(terms[1], occurrence.life)
        copied: list[Command] = template.fill(own, occurrence, self._tag(), expires, expiration)
        return copied

    def learn(self, occurrence: Occurrence, commands: list[Command]) -> None:
        """Keep a message that was made in full as the template of its kind, if it can be one."""
        try:
            self._learn(occurrence, commands)
        except Exception as exc:  # noqa: BLE001 - the message is made; the next one takes longer
            logger.debug("beat: no template for messages of %r: %r", occurrence.entry.name, exc)

    def _learn(self, occurrence: Occurrence, commands: list[Command]) -> None:
        entry = occurrence.entry
        terms = self._terms(occurrence)
        kind = _kind(entry, terms)
        if kind in self._templates:
            return
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        self._templates[kind] = None  # If this fails, entries of the same kind need not try again.
        if not _has_copied_options(entry) or not self._is_plain(entry.task):
            return
        [(name, queue, text)] = commands  # A queue that expires needs another command.
        message = json.loads(text)
        if name != "lpush" or not self._is_bound_for_good(message["properties"]["delivery_info"]):
            return
        headers = message["headers"]
        is_traced = headers.get("traceparent") == traceparent(occurrence.id)
        template = Template(terms, queue, message, is_traced)
        own = self._own_part(entry)
        tag = message["properties"]["delivery_tag"]
        if template.fill(own, occurrence, tag, headers["expires"], None) == commands:
            self._templates[kind] = template
            entry.message_template = template, own

    def _is_bound_for_good(self, to: dict[str, Any]) -> bool:
        """Return whether a destination is one queue, which is declared once per connection.

        The queues that are bound to an exchange may change.
        """
        queue = self._app.amqp.queues.get(to["routing_key"])
        return not to["exchange"] and queue is not None and queue.can_cache_declaration

    def _is_plain(self, name: str) -> bool:
        """Return whether Celery's own functions make the messages of a task from its arguments."""
        is_plain = self._plain_tasks.get(name)
        if is_plain is None:
            task = self._app.tasks.get(name)
            is_plain = task is None or _makes_plain_messages(task)
            self._plain_tasks[name] = is_plain
        return is_plain

    def _terms(self, occurrence: Occurrence) -> tuple[object, ...]:
        """Return what a template must have in common with an occurrence, besides its entry.

        The second term says how the message expires: never, after seconds, or with the gap.
        """
        entry = occurrence.entry
        expiry: object
        if not expires_with_gap(entry):
            expiry = entry.options.get("expires", entry.expires)
        elif occurrence.life is None:
            expiry = None
        else:
            expiry = _WITH_GAP
        return self, expiry, *(occurrence.extra or ())

    def _expires(self, expiry: Any, life: int | None) -> tuple[str | None, str | None]:
        """Return when a message expires, and its life if the template has no fixed one."""
        if expiry is None:
            return None, None
        if expiry == _WITH_GAP:
            assert life is not None
            return iso(min(self._now + life, MAX_MS)), str(life)
        # In UTC and back, because adding to local time ignores its changes; Celery has a helper
        # since 5.6.
        now = self._app.now()
        expires = now.astimezone(UTC) + timedelta(seconds=expiry)
        return expires.astimezone(now.tzinfo).isoformat(), None

    def _own_part(self, entry: Entry) -> OwnPart:
        """Make the part that all messages of an entry have in common.

        Raises:
            Exception: the arguments do not fit the task, or are not plain JSON.
        """
        args: Any = list(entry.args)
        kwargs = entry.kwargs
        task = self._app.tasks.get(entry.task)
        if task is not None and task.typing:
            task.__header__(*args, **kwargs)
        body = json.dumps((args, kwargs, _EMBED))
        amqp = self._app.amqp
        levels = self._repr_levels
        headers = {
            "periodic_task_name": entry.name,
            "argsrepr": saferepr(args or (), amqp.argsrepr_maxsize, maxlevels=levels),
            "kwargsrepr": saferepr(kwargs, amqp.kwargsrepr_maxsize, maxlevels=levels),
        }
        return OwnPart(base64.b64encode(body.encode()).decode(), headers)


def _kind(entry: Entry, terms: tuple[object, ...]) -> Hashable:
    """Return a key that entries share if one template serves all of them.

    Raises:
        TypeError: the options are not plain JSON.
    """
    return (
        entry.task,
        terms,
        entry.history,
        entry.expect is None and not entry.remove_when_done,
        bool(entry.expect or entry.on_failure),
        json.dumps(entry.options) if entry.options else "",
    )


def _has_copied_options(entry: Entry) -> bool:
    options = entry.options
    expires = options.get("expires")
    has_instant = expires is not None and not isinstance(expires, (int, float))
    changed = _CHANGED_HEADERS & (options.get("headers") or {}).keys()
    return options.keys() <= COPIED_OPTIONS and not has_instant and not changed


def _makes_plain_messages(task: Any) -> bool:
    making = (task.apply_async, task.shadow_name, task._get_exec_options)
    takes_models = getattr(task, "_dump_pydantic_arguments", None) is not None
    is_celerys_own = all(written_in(function, celery.app.task) for function in making)
    return is_celerys_own and task.expires is None and not takes_models


def obstacle(scheduler: Any, own: ModuleType, app: Celery, channel: type) -> str | None:
    """Return why messages over a channel of this class may not be copied, if they may not.

    Parameters:
        scheduler: the scheduler that publishes.
        own: the module in which our scheduler is written; this one cannot import it.
        app: the Celery app.
        channel: class of the broker's channel.
    """
    for name in _SIGNALS:
        if getattr(signals, name).receivers:
            return f"something listens to {name}"
    for text, module, functions in _functions_used(scheduler, own, app, channel):
        if not all(written_in(function, module) for function in functions):
            return text
    if app.amqp.Producer is not kombu.messaging.Producer:
        return "kombu's producer or channel is not its own"
    if app.conf.task_protocol != 2:
        return "task_protocol is not 2"
    if not all(type(route) is celery.app.routes.MapRoute for route in app.amqp.router.routes):
        return "task_routes holds a function"
    if app.conf.task_send_sent_event or app.conf.task_always_eager:
        return "task_send_sent_event or task_always_eager is set"
    writers = [name for name, kind in registry.name_to_type.items() if kind == "application/json"]
    if writers != ["json"] or registry._encoders["json"].encoder is not kombu.utils.json.dumps:
        return "JSON is not written by kombu's own serializer alone"
    return None


def _functions_used(
    scheduler: Any, own: ModuleType, app: Celery, channel: Any
) -> Iterator[tuple[str, ModuleType, tuple[object, ...]]]:
    """Yield an obstacle, and the module and the functions of it that must not be replaced."""
    text = "the scheduler's apply_entry or send_task is not Celery's own"
    yield text, celery.beat, (scheduler.apply_entry, scheduler.send_task)
    text = "the scheduler's apply_async is not redbeat_lite's own"
    yield text, own, (scheduler.apply_async, type(scheduler).apply_async)
    text = "celery.beat.Scheduler.apply_async is not Celery's own"
    yield text, celery.beat, (celery.beat.Scheduler.apply_async,)
    text = "app.send_task is not Celery's own"
    yield text, celery.app.base, (app.send_task,)
    text = "app.amqp makes messages in a way of its own"
    amqp = app.amqp
    making = (amqp.send_task_message, amqp.create_task_message, amqp.as_task_v2)
    yield text, celery.app.amqp, making
    text = "Task.apply_async is not Celery's own"
    yield text, celery.app.task, (celery.app.task.Task.apply_async,)
    # Looked up on the class that is used, to see a function that was put in front of an inherited
    # one.
    text = "kombu's producer or channel is not its own"
    producer = kombu.messaging.Producer
    yield text, kombu.messaging, (producer.publish, producer._publish)
    making = (channel.basic_publish, channel.prepare_message, channel._inplace_augment_message)
    yield text, kombu.transport.virtual.base, making
    yield text, kombu.transport.redis, (channel._put,)


def written_in(function: Any, module: ModuleType) -> bool:
    """Return whether a function is written in ``module``; a wrapper of it is not."""
    # A proxy, as tracing libraries use it, is no plain function, but has the attributes of one.
    if type(function) is MethodType:
        function = function.__func__
    return type(function) is FunctionType and function.__code__.co_filename == module.__file__
