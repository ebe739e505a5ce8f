"""Messages as texts with gaps: what differs between two messages of one task under the same options."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from operator import itemgetter
from typing import Any

import kombu.utils.json
from celery.beat import BeatLazyFunc
from celery.utils.saferepr import saferepr
from kombu.compression import compress
from kombu.serialization import dumps, registry

from ...entries.entry import Entry
from ...storage.stored import Command
from ...uuids import drawn

#: Marks the gaps while a text is made. Drawn anew by each process, so that no argument can hold it.
_SECRET = drawn()

#: A gap is filled with a part of a text of JSON; one that has a number, with the whole value.
_MARKS = re.compile(rf'"<{_SECRET}:(\d+)>"|<{_SECRET}:(\w+)>')

#: What Celery shows as Python does, but for some texts.
_FLAT = frozenset({int, float, bool, str, type(None)})

#: What tells of arguments, which are an entry's own.
_OWN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "compression"})


def mark(gap: object) -> str:
    """What stands for a gap in a message that is to become a text."""
    return f"<{_SECRET}:{gap}>"


class Shape:
    """The messages of one task under the same options, with gaps for what is an entry's own, ids and times.

    Parameters:
        common: what an occurrence has to have in common with it, besides what its entry is.
        message: of such an entry, in which ids and times are marked; is changed.
        closed: makes the commands that send it of its text.

    Raises:
        Exception: nothing is known of such a message.
    """

    def __init__(
        self,
        common: tuple[object, ...],
        message: dict[str, Any],
        closed: Callable[[str], list[Command]],
        entry: Entry,
        app: Any,
    ) -> None:
        headers, task = message["headers"], app.tasks.get(entry.task)
        self.common = common
        self._options = entry.options
        self._closed = closed
        # One of several serializers of the same type may write it as the other does, this once.
        (self._serializer,) = (name for name, kind in registry.name_to_type.items() if kind == message["content-type"])
        self._is_json = registry._encoders[self._serializer].encoder is kombu.utils.json.dumps
        self._compression = headers.get("compression")
        self._check: Any = task.__header__ if task is not None and task.typing else None
        self._dump: Any = getattr(task, "_dump_pydantic_arguments", None)
        if (self._dump and self._serializer == "pickle") or _OWN_HEADERS & (entry.options.get("headers") or {}).keys():
            raise ValueError("made in a way that is not known here")
        self._embed = {"callbacks": None, "errbacks": None, "chain": entry.options.get("chain"), "chord": None}
        self._levels = app.conf.get("task_repr_maxlevels", 3)
        self._longest = {"argsrepr": app.amqp.argsrepr_maxsize, "kwargsrepr": app.amqp.kwargsrepr_maxsize}
        message["body"] = mark("body")
        headers.update({key: mark(key) for key in ("periodic_task_name", "argsrepr", "kwargsrepr")})
        text = json.dumps(message).replace("%", "%%")
        # By their places: to look up each by its name takes half as long again.
        self._text = _MARKS.sub("%s", text)
        self._gaps = itemgetter(*(found[1] or found[2] for found in _MARKS.finditer(text)))

    def own(self, entry: Entry) -> dict[str, str]:
        """What an entry fills in, for all its messages.

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
        return {
            "periodic_task_name": inside(entry.name),
            "body": base64.b64encode(body.encode() if isinstance(body, str) else body).decode(),
            "argsrepr": inside(self._shown("argsrepr", args)),
            "kwargsrepr": inside(self._shown("kwargsrepr", kwargs)),
        }

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
        longest = self._longest[key]
        return shown(value, longest) or str(saferepr(value, longest, maxlevels=self._levels))

    def fill(self, values: Mapping[str, str]) -> list[Command]:
        """The commands that send the message with these values, those of its entry among them."""
        return self._closed(self._text % self._gaps(values))


def shown(arguments: Any, longest: int) -> str | None:
    """What Celery shows of arguments, in a tenth of the time; ``None`` where Python may not show them as it does."""
    if type(arguments) not in (list, tuple, dict):
        return None
    text = repr(arguments)
    values = arguments.values() if isinstance(arguments, dict) else arguments
    is_alike = len(text) <= longest and "\\" not in text and '"' not in text and _FLAT.issuperset(map(type, values))
    return text if is_alike else None


def inside(text: str) -> str:
    """A text as it stands between the quotation marks of JSON."""
    return encode_basestring_ascii(text)[1:-1]
