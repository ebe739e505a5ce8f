"""Texts of messages with gaps: what differs between two messages of one entry, and between two entries of one task."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from celery.utils.saferepr import saferepr
from kombu.serialization import dumps, registry

from ...entries.entry import Entry
from ...storage.stored import Command

#: Marks the gaps while a text is made. Drawn anew by each process, so that no argument can hold it.
_SECRET = uuid4().hex
_MARKS = re.compile(rf"<{_SECRET}:(\w+)>")

#: The gaps that an entry fills for all its messages; each message has ids and times for the others.
_OF_ENTRY = frozenset({"name", "body", "argsrepr", "kwargsrepr"})


def mark(gap: str) -> str:
    """What stands for a gap in a message that is to become a text."""
    return f"<{_SECRET}:{gap}>"


class Template:
    """The message of one entry, with gaps for ids and times.

    Parameters:
        text: a format for ``%`` with a mapping.
        target: the list of the broker that takes the message.
        trailing: the commands that follow it.
        expiry: how the message expires; only an occurrence that expires alike may be filled in.
        extra: the further headers it was made with.
    """

    __slots__ = ("_target", "_trailing", "expiry", "extra", "text")

    def __init__(
        self, text: str, target: str, trailing: tuple[Command, ...], expiry: object, extra: Mapping[str, Any] | None
    ) -> None:
        self.text = text
        self.expiry = expiry
        self.extra = extra
        self._target = target
        self._trailing = trailing

    def fill(self, values: Mapping[str, str]) -> list[Command]:
        """The commands that send the message with these values."""
        return [("lpush", self._target, self.text % values), *self._trailing]

    def with_text(self, text: str) -> Template:
        """The same for another entry."""
        return Template(text, self._target, self._trailing, self.expiry, self.extra)


class Shape:
    """The messages of one task under the same options, with gaps for an entry's name and arguments too.

    Parameters:
        message: a message of such an entry in which ids and times are marked; is changed.
        template: what became of it.
        task: the task, where this app knows it.
        conf: the app's configuration, and ``amqp``, its message maker, which say how arguments are shown.
    """

    __slots__ = ("_amqp", "_check", "_embed", "_levels", "_template", "_text")

    def __init__(self, message: dict[str, Any], template: Template, task: Any, conf: Any, amqp: Any) -> None:
        self._template = template
        self._amqp = amqp
        self._levels = conf.get("task_repr_maxlevels", 3)
        self._check: Any = task.__header__ if task is not None and task.typing else None
        self._embed = json.loads(base64.b64decode(message["body"]))[2]
        message["body"] = mark("body")
        headers = message["headers"]
        headers["periodic_task_name"] = mark("name")
        headers["argsrepr"], headers["kwargsrepr"] = mark("argsrepr"), mark("kwargsrepr")
        self._text = text_of(message, first=_OF_ENTRY)

    def template(self, entry: Entry) -> Template:
        """The template of another such entry.

        Raises:
            Exception: its arguments do not fit the task, or cannot be written.
        """
        args: Any = list(entry.args) or ()
        kwargs = entry.kwargs
        if self._check is not None:
            self._check(*args, **kwargs)
        _, _, body = dumps((args, kwargs, self._embed), serializer="json")  # type: ignore[no-untyped-call]  # untyped in kombu
        values = {
            "name": entry.name,
            "body": base64.b64encode(body.encode()).decode(),
            "argsrepr": saferepr(args, self._amqp.argsrepr_maxsize, maxlevels=self._levels),
            "kwargsrepr": saferepr(kwargs, self._amqp.kwargsrepr_maxsize, maxlevels=self._levels),
        }
        return self._template.with_text(self._text % {gap: _quoted(value) for gap, value in values.items()})


def shape_of(message: dict[str, Any], template: Template, entry: Entry, task: Any, app: Any) -> Shape | None:
    """The shape of a message, if it gives the very template again that was made from the message itself.

    Parameters:
        message: in which ids and times are marked; is changed.
    """
    headers = message["headers"]
    if message["content-type"] != "application/json" or "compression" in headers or template.extra:
        return None
    # A serializer of somebody else's may call itself the same; and where the arguments are models, Celery dumps them.
    if registry.type_to_name.get("application/json") != "json" or getattr(task, "_dump_pydantic_arguments", None):
        return None
    if "argsrepr" in entry.options or "kwargsrepr" in entry.options or entry.local:
        return None
    try:
        shape = Shape(message, template, task, app.conf, app.amqp)
        return shape if shape.template(entry).text == template.text else None
    except Exception:  # noqa: BLE001 - a message made in a way that is not known here
        return None


def text_of(message: Mapping[str, Any], first: frozenset[str] = frozenset()) -> str:
    """A format for ``%`` out of a message with marks.

    Parameters:
        first: these gaps are filled first; what comes of it is a format again, with the other gaps.
    """
    pieces = _MARKS.split(json.dumps(message))
    percent = "%%" * (2 if first else 1)
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            pieces[index] = piece.replace("%", percent)
        else:
            pieces[index] = f"%({piece})s" if not first or piece in first else f"%%({piece})s"
    return "".join(pieces)


def _quoted(value: str) -> str:
    """``value`` as it stands between the quotation marks of a text that is still a format."""
    return json.dumps(value)[1:-1].replace("%", "%%")
