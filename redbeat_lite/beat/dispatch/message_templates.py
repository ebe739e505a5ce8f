"""Message templates: Celery makes the first message of a kind, and later ones are copies of it.

To make a copy takes a seventh of the time that Celery takes. Messages of one kind have the same
task and options. They differ in their ids, times, arguments, and in the values of their entry's
headers. A message is copied only under these conditions:

- No signal handler, wrapper or setting could change or watch messages (:func:`obstacle`).
- The arguments are plain JSON, and all options are among :data:`COPIED_OPTIONS`.
- A trial copy of Celery's message is equal to it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Hashable
from contextlib import suppress
from functools import cache
from itertools import count
from types import FunctionType, MethodType
from typing import Any

import celery.beat
import msgspec
from celery import Celery, Task, signals
from celery.app.routes import MapRoute
from celery.utils.log import get_logger
from kombu.serialization import registry
from kombu.utils.json import dumps as kombu_dumps

from ..._base.ids import random_hex
from ..._base.times import MAX_MS, iso
from ...entries.entry import Entry
from ...entries.message import Occurrence, expires_with_gap, misfit
from ...store.records import Command
from ..server_clock import ServerClock

logger = get_logger("celery.beat")

#: Options of an entry with which its messages may be copied. They change all messages of a kind in
#: the same way, so a copy of a message has their effect already.
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

#: Maximum number of templates, which take some 10 MB. If there are more, all are dropped. To drop
#: only the oldest one would not help, because it would be the next to be needed.
_MAX_TEMPLATES = 5000

#: Beginnings of the names of modules. A message is copied only if all functions that make it are
#: from these modules. Any other function may do more to a message, and a copy would be without it.
#: The module of our task class is not listed, because this class may add a once-lock.
_LIBRARIES = ("celery.", "kombu.", "redbeat_lite.scheduler")

#: Encoded body, and the headers that show the arguments. All messages of an entry share them.
OwnPart = tuple[str, dict[str, str]]

#: Headers that the beat gives to a message.
Headers = dict[str, Any]

#: Queue and content of a message that Celery has made.
Template = tuple[str, dict[str, Any]]


class Templates:
    """Templates for one broker connection."""

    def __init__(self, app: Celery, clock: ServerClock) -> None:
        self._app = app
        self._clock = clock
        #: Kind of a message -> its template; ``None`` if messages of this kind cannot be copied.
        self._templates: dict[Hashable, Template | None] = {}
        # The tag of a message is this text and a number, which takes 0.2 us. kombu draws a random
        # text for each message, which takes 1.2 us.
        self._tag_prefix = random_hex()
        self._numbers = count()
        self.begin_batch()  # This sets ``_is_plain``.

    def begin_batch(self) -> None:
        """Forget which tasks were found to make plain messages.

        Only a plain message may be copied. A tracing library may wrap a method of a task at any
        time, and then its messages are not plain any more.
        """
        # A check takes 1.7 us, and a message 30 us. So check a task only once in a batch.
        self._is_plain = cache(self._makes_plain_messages)

    def copy_message(self, occurrence: Occurrence, headers: Headers) -> list[Command] | None:
        """Return the command that sends a copy for an occurrence; ``None`` if Celery must make it.

        The command is the only item of the list.
        """
        entry = occurrence.entry
        try:
            template = self._templates.get(_kind(occurrence, headers))
            # A wrapper may have been put around the task since the template was made.
            if template is None or not self._is_plain(entry.task):
                return None
            own_part = entry.own_part or self._make_own_part(entry)
            entry.own_part = own_part
            command = self._fill(template, own_part, headers, occurrence)
        except Exception:  # noqa: BLE001 - Celery then makes the message, and raises its own error
            return None
        # Log what Celery logs for a message that it makes.
        logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        return [command]

    def learn(self, occurrence: Occurrence, headers: Headers, commands: list[Command]) -> None:
        """Keep a message that Celery has made as the template of its kind, if it can be one.

        Parameters:
            commands: commands that send the message.
        """
        # Ignore every error. This message is made already, and without a template, it only takes
        # longer to make the next message of its kind.
        with suppress(Exception):
            kind = _kind(occurrence, headers)
            # The kind has a template already, or cannot have one.
            if kind in self._templates:
                return
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            # If making the template raises an error, the value stays ``None``, and no other message
            # of the kind is tried.
            self._templates[kind] = None
            self._templates[kind] = self._make_template(occurrence, headers, commands)

    def _make_template(
        self, occurrence: Occurrence, headers: Headers, commands: list[Command]
    ) -> Template | None:
        """Return the template of a message; ``None`` if a copy could not reproduce the message.

        An error means the same, so :meth:`learn` ignores it.
        """
        entry = occurrence.entry
        if not entry.options.keys() <= COPIED_OPTIONS or not self._is_plain(entry.task):
            return None
        # A copy sets the header ``expires``, so it would replace a user's own header of this name.
        if "expires" in headers:
            return None
        # Some messages need several commands. For example, a queue that expires needs an EXPIRE
        # beside the push. If there are several, the next line raises a ValueError.
        [(_, queue, text)] = commands
        message = json.loads(text)
        properties = message["properties"]
        # A message to a named exchange may go to other queues the next time.
        if properties["delivery_info"]["exchange"]:
            return None
        template = queue, message
        own_part = self._make_own_part(entry)
        # Make a trial copy, and compare it with Celery's message.
        _, _, copied = self._fill(template, own_part, headers, occurrence)
        if _comparable(copied) != _comparable(text):
            return None
        entry.own_part = own_part
        return template

    def _fill(
        self,
        template: Template,
        own_part: OwnPart,
        own_headers: Headers,
        occurrence: Occurrence,
    ) -> Command:
        """Fill a template in for an occurrence. Return the command that sends the message.

        Parameters:
            own_part: body and headers that show the arguments.
            own_headers: headers that the beat gives to the message.
        """
        queue, made = template
        body, shown = own_part
        task_id = occurrence.id
        life = _life_ms(occurrence)
        headers = {**made["headers"], **own_headers, **shown}
        headers["id"] = task_id
        headers["root_id"] = task_id
        headers["expires"] = None  # This is replaced below if the message expires.
        properties = {**made["properties"]}
        # kombu's consumers acknowledge a message by its tag.
        properties["delivery_tag"] = f"{self._tag_prefix}{next(self._numbers)}"
        properties["correlation_id"] = task_id
        if life is not None:
            headers["expires"] = iso(min(self._clock.now_ms() + life, MAX_MS))
            properties["expiration"] = str(life)
        message = {**made, "body": body, "headers": headers, "properties": properties}
        # msgspec encodes in 1 us, and kombu's encoder in 10 us. Unlike kombu's, it does not escape
        # characters beyond ASCII. Its text is valid JSON, too.
        return "lpush", queue, msgspec.json.encode(message).decode()

    def _make_own_part(self, entry: Entry) -> OwnPart:
        """Make the body and the headers that show the arguments.

        Making them takes 40 us, more than the rest of a message, so they are kept with the entry.

        Raises:
            Exception: the arguments do not fit the task, or are not plain JSON. The error needs no
                text, because both callers catch it, and leave the message to Celery.
        """
        if misfit(self._app.tasks.get(entry.task), entry) is not None:
            raise ValueError
        # The task id is empty, because neither the body nor these two headers contain it.
        made = self._app.amqp.as_task_v2("", entry.task, [*entry.args], entry.kwargs)
        body = base64.b64encode(json.dumps(made.body).encode()).decode()
        return body, {name: made.headers[name] for name in ("argsrepr", "kwargsrepr")}

    def _makes_plain_messages(self, name: str) -> bool:
        """Return whether no code of the user takes part in making the messages of a task."""
        task = self._app.tasks.get(name)
        # If this process does not have the task, Celery sends its name, and calls none of its code.
        if task is None:
            return True
        # A task with ``pydantic=True`` converts its arguments itself.
        if getattr(task, "_dump_pydantic_arguments", None) is not None:
            return False
        making = (task.apply_async, task.shadow_name, task._get_exec_options)
        return all(is_of_library(function) for function in making)


def _kind(occurrence: Occurrence, headers: Headers) -> Hashable:
    """Return the kind of an occurrence's message. All messages of a kind share a template.

    Each copy gets its own values of the headers, so only their names belong to the kind. But a copy
    takes its other properties from the template, which has an ``expiration`` only if its message
    expires. So ``expires`` and ``life``, which decide this, belong to the kind, too.

    Raises:
        TypeError: the options are not plain JSON.
    """
    entry = occurrence.entry
    return (
        entry.task,
        entry.expires,
        occurrence.life is None,
        tuple(headers),
        json.dumps(entry.options) if entry.options else "",
    )


def _life_ms(occurrence: Occurrence) -> int | None:
    """Return after how many ms a message expires; ``None`` if it never does."""
    entry = occurrence.entry
    if expires_with_gap(entry):
        # The messages of this entry expire when its next run is due.
        return occurrence.life
    seconds = entry.options.get("expires", entry.expires)
    return None if seconds is None else int(1000 * seconds)


def _comparable(text: str) -> Any:
    """Return a decoded message, to compare a copy with Celery's message.

    The result says whether the message has a tag and expires, but not which tag it has, and when
    it expires. Each message has its own tag, and the copy is made later than Celery's message.
    """
    message = json.loads(text)
    properties = message["properties"]
    message["headers"]["expires"] = message["headers"]["expires"] is not None
    properties["expiration"] = "expiration" in properties
    properties["delivery_tag"] = "delivery_tag" in properties
    return message


def obstacle(scheduler: Any, app: Celery, channel: Any) -> str | None:
    """Return why messages must not be copied; ``None`` if copies are safe.

    Parameters:
        channel: class of the channel that messages go through.
    """
    for name in ("before_task_publish", "after_task_publish", "task_sent"):
        if getattr(signals, name).receivers:
            return f"something listens to {name}"
    amqp = app.amqp
    # The functions that take part in making a message: an object, and the names of its functions.
    # Somebody may have replaced one of them by a wrapper. The scheduler's apply_async() is listed
    # three times, because a wrapper may sit on the object, on our class or on Celery's class.
    functions = (
        (scheduler, "apply_entry apply_async send_task"),
        (type(scheduler), "apply_async"),
        (celery.beat.Scheduler, "apply_async"),
        (app, "send_task"),
        (amqp, "send_task_message create_task_message as_task_v2"),
        (Task, "apply_async"),
        (amqp.Producer, "publish _publish _prepare"),
        (channel, "basic_publish prepare_message _inplace_augment_message _put"),
    )
    for owner, names in functions:
        for name in names.split():
            if not is_of_library(getattr(owner, name)):
                return f"{name} is not the function of Celery or kombu"
    if app.conf.task_protocol != 2:
        return "task_protocol is not 2"
    if not all(type(route) is MapRoute for route in amqp.router.routes):
        return "task_routes holds a function"
    if app.conf.task_send_sent_event or app.conf.task_always_eager:
        return "task_send_sent_event or task_always_eager is set"
    writers = [name for name, kind in registry.name_to_type.items() if kind == "application/json"]
    if writers != ["json"] or registry._encoders["json"].encoder is not kombu_dumps:
        return "JSON is not written by kombu's own serializer alone"
    return None


def is_of_library(function: Any) -> bool:
    """Return whether a function is from :data:`_LIBRARIES`, and is no wrapper of another one."""
    # Check the type, because the proxies of tracing libraries have the attributes of a function.
    if type(function) is MethodType:
        function = function.__func__
    # If a user's function has a decorator of Celery or kombu, the result is a function of Celery or
    # kombu that calls the user's. Such a function has ``__wrapped__``.
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return False
    # A wrapper may have the ``__module__`` of the function that it wraps, but has its own globals.
    # A function made by exec() may have globals without ``__name__``.
    return str(function.__globals__.get("__name__")).startswith(_LIBRARIES)
