"""Prepared messages: the first message of an entry goes Celery's full way and is kept; later ones are filled in.

Between two messages of one entry only ids and times differ, as long as nobody listens to or changes what Celery does
on the way. :func:`obstacle` and :meth:`Prepared.learn` make sure of that, by looking at the very functions that would
run; where they cannot, every message goes the full way.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import celery.app.amqp
import celery.app.base
import celery.app.routes
import celery.app.task
import celery.beat
from celery import signals
from celery.utils.log import get_logger
from celery.utils.time import add_seconds_to_datetime

from .emission import Occurrence
from .instants import from_ms
from .store import Command

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger("celery.beat")

#: Marks the gaps while a template is made. Drawn anew by each process, so that no argument can hold it.
_SECRET = uuid4().hex
_MARKS = re.compile(rf"<{_SECRET}:(\w+)>")

_SIGNALS = ("before_task_publish", "after_task_publish", "task_sent")

#: Options that make each message another one in ways a template does not know.
_UNPREPARED_OPTIONS = frozenset({"countdown", "eta", "stamped_headers", "link", "link_error", "chord", "producer"})


def obstacle(scheduler: Any, app: Celery) -> str | None:
    """Why no message may be prepared, in words; ``None`` if messages may be."""
    for name in _SIGNALS:
        if getattr(signals, name).receivers:
            return f"something listens to {name}"
    if not _written_in(type(scheduler).apply_entry, celery.beat) or not _written_in(
        type(scheduler).send_task, celery.beat
    ):
        return "the scheduler's apply_entry or send_task is not Celery's own"
    if not _written_in(celery.beat.Scheduler.apply_async, celery.beat):
        return "celery.beat.Scheduler.apply_async is not Celery's own"
    if not _written_in(app.send_task, celery.app.base):
        return "app.send_task is not Celery's own"
    amqp = app.amqp
    if not _written_in(amqp.send_task_message, celery.app.amqp) or not _written_in(amqp.as_task_v2, celery.app.amqp):
        return "app.amqp makes messages in a way of its own"
    if not all(type(route) is celery.app.routes.MapRoute for route in amqp.router.routes):
        return "task_routes holds a function"
    if app.conf.task_send_sent_event or app.conf.task_always_eager:
        return "task_send_sent_event or task_always_eager is set"
    return None


class Template:
    """The text of one message, with gaps for ids and times."""

    __slots__ = ("_target", "_text", "_trailing", "gaps")

    def __init__(self, text: str, gaps: tuple[str, ...], target: str, trailing: tuple[Command, ...]) -> None:
        self._text = text
        self.gaps = gaps
        self._target = target
        self._trailing = trailing

    def fill(self, values: dict[str, str]) -> list[Command]:
        """The commands that send the message with these values."""
        payload = self._text % tuple([values[gap] for gap in self.gaps])
        return [("lpush", self._target, payload), *self._trailing]


class Prepared:
    """Templates by entry, valid for one broker connection.

    Parameters:
        app: the Celery app.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app

    def commands(self, occurrence: Occurrence, now: datetime) -> list[Command] | None:
        """The commands that send this occurrence; ``None`` if its entry has no template.

        Parameters:
            now: the time in the app's zone, as ``app.now()`` gives it.
        """
        entry = occurrence.entry
        if entry.template is None or entry.template[0] is not self or occurrence.extra:
            return None
        template: Template = entry.template[1]
        values = {"id": occurrence.id, "tag": str(uuid4()), "scheduled_at": _text(occurrence.nominal)}
        seconds = _lifetime(occurrence)
        if seconds is None and occurrence.following is not None:
            expires = from_ms(occurrence.following)
            values["expires"] = _text(occurrence.following)
            values["expiration"] = str(int(max((expires - now).total_seconds(), 0) * 1000))
        elif seconds is not None:
            values["expires"] = add_seconds_to_datetime(now, seconds).isoformat()
        elif "expires" in template.gaps:
            return None  # the last occurrence of its kind: there is no following one to expire with
        logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        return template.fill(values)

    def learn(self, occurrence: Occurrence, commands: list[Command]) -> None:
        """Keep the message that went the full way as its entry's template, if it may be one."""
        entry = occurrence.entry
        entry.template = None
        if occurrence.extra or _UNPREPARED_OPTIONS & entry.options.keys() or not self._plain(entry.task):
            return
        if any(isinstance(value, celery.beat.BeatLazyFunc) for value in (*entry.args, *entry.kwargs.values())):
            return  # another value at each run
        if not commands or commands[0][0] != "lpush" or any(name != "pexpire" for name, *_ in commands[1:]):
            return
        template = _template(occurrence, commands)
        if template is not None:
            entry.template = (self, template)

    def _plain(self, name: str) -> bool:
        """Whether the task's class leaves the way of a message to Celery."""
        task = self._app.tasks.get(name)
        if task is None:
            return True
        own = (type(task).apply_async, type(task).shadow_name, type(task)._get_exec_options)
        return all(_written_in(function, celery.app.task) for function in own) and task.expires is None


def _template(occurrence: Occurrence, commands: list[Command]) -> Template | None:
    _, target, payload = commands[0]
    message = json.loads(payload)
    headers, properties = message["headers"], message["properties"]
    places = {"id": (headers, "id"), "tag": (properties, "delivery_tag"), "scheduled_at": (headers, "scheduled_at")}
    if headers["id"] != occurrence.id or headers["scheduled_at"] != _text(occurrence.nominal):
        return None
    for where, key in ((headers, "root_id"), (properties, "correlation_id")):
        if where[key] == occurrence.id:
            where[key] = _mark("id")
    if headers["expires"] is not None:
        headers["expires"] = _mark("expires")
        if _lifetime(occurrence) is None:
            properties["expiration"] = _mark("expiration")
    for gap, (where, key) in places.items():
        where[key] = _mark(gap)
    pieces = _MARKS.split(json.dumps(message))
    text = "%s".join(piece.replace("%", "%%") for piece in pieces[::2])
    return Template(text, tuple(pieces[1::2]), target, tuple(commands[1:]))


def _mark(gap: str) -> str:
    return f"<{_SECRET}:{gap}>"


def _lifetime(occurrence: Occurrence) -> float | None:
    """Seconds after publishing at which the message expires; ``None`` if it expires at an instant, or never."""
    expires = occurrence.entry.options.get("expires", occurrence.entry.expires)
    return expires if isinstance(expires, (int, float)) else None


@lru_cache(maxsize=4096)
def _text(instant: int) -> str:
    return datetime.fromtimestamp(instant / 1000, UTC).isoformat()


def _written_in(function: Any, module: ModuleType) -> bool:
    """Whether the code of ``function`` stands in ``module``; a wrapper's does not, whatever it says of itself."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == module.__file__
