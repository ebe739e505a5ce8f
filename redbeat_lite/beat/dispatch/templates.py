"""Kept messages: Celery makes the first of a shape; later ones are copies with other ids, times and arguments."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any, NamedTuple

import kombu.utils.json
from celery.beat import BeatLazyFunc
from celery.utils.saferepr import saferepr
from kombu.compression import compress
from kombu.serialization import dumps, registry

from ...entries.entry import Entry
from ...entries.message import Occurrence, traceparent
from ...instants import iso
from ...storage.stored import Command

#: Headers about the arguments, which differ between entries.
_OWN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "compression"})


class OwnPart(NamedTuple):
    """The part of a message that is the same in all messages of one entry."""

    body: str
    headers: dict[str, str]


class Shape:
    """The messages of one task under the same options, made from the first of them.

    Parameters:
        common: values that all occurrences of the shape share, besides those of their entries.
        occurrence: the first occurrence.
        commands: the commands that send its message.
        app: the Celery app.

    Raises:
        Exception: the message is of a kind that is not known here.
    """

    def __init__(self, common: tuple[object, ...], occurrence: Occurrence, commands: list[Command], app: Any) -> None:
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
        # One of several serializers of the same type may write it as the other does, this once.
        (self._serializer,) = (name for name, kind in registry.name_to_type.items() if kind == content_type)
        self._is_json = registry._encoders[self._serializer].encoder is kombu.utils.json.dumps
        self._compression = self.headers.get("compression")
        self._check: Any = task.__header__ if task is not None and task.typing else None
        self._dump: Any = getattr(task, "_dump_pydantic_arguments", None)
        if self._dump and self._serializer == "pickle":
            raise ValueError("made in a way that is not known here")
        if _OWN_HEADERS & (entry.options.get("headers") or {}).keys():
            raise ValueError("made in a way that is not known here")
        self._options = entry.options
        self._embed = {"callbacks": None, "errbacks": None, "chain": entry.options.get("chain"), "chord": None}
        self._max_levels = app.conf.get("task_repr_maxlevels", 3)
        self._max_sizes = {"argsrepr": app.amqp.argsrepr_maxsize, "kwargsrepr": app.amqp.kwargsrepr_maxsize}

    def own(self, entry: Entry) -> OwnPart:
        """Make the part of a message that is the same in all messages of this entry.

        Raises if its arguments do not fit the task, or cannot be written; or they are others at each run.
        """
        args: Any = list(entry.args)
        kwargs = entry.kwargs
        if self._check is not None:
            self._check(*args, **kwargs)
        if self._dump is not None:
            args, kwargs = self._dump(args, kwargs)
        args, kwargs = args or (), kwargs or {}
        body = self._body(args, kwargs)
        if self._compression is not None:
            body, _ = compress(body, self._compression)  # type: ignore[no-untyped-call]  # untyped in kombu
        headers = {
            "periodic_task_name": entry.name,
            "argsrepr": self._shown("argsrepr", args),
            "kwargsrepr": self._shown("kwargsrepr", kwargs),
        }
        encoded = body.encode() if isinstance(body, str) else body
        return OwnPart(base64.b64encode(encoded).decode(), headers)

    def _body(self, args: Any, kwargs: Any) -> Any:
        if self._is_json:
            with suppress(TypeError):  # kombu's own has more types than Python's, and writes the others as Python does
                return json.dumps((args, kwargs, self._embed))
        if any(isinstance(value, BeatLazyFunc) for value in (*args, *kwargs.values())):
            raise ValueError("others at each run")
        _, _, body = dumps((args, kwargs, self._embed), serializer=self._serializer)  # type: ignore[no-untyped-call]
        return body

    def _shown(self, key: str, value: Any) -> str:
        if (given := self._options.get(key)) is not None:
            return str(given)
        return str(saferepr(value, self._max_sizes[key], maxlevels=self._max_levels))

    def fill(
        self, own: OwnPart, occurrence: Occurrence, tag: str, expires: str | None, expiration: str | None
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
