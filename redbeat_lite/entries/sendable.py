"""Whether an entry can be sent, as far as arguments and options tell, and where to: found out
before its run.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.compression import get_encoder
from kombu.serialization import dumps as dump_message
from kombu.serialization import registry

from .._base.errors import InvalidEntry
from ..store.json_values import all_plain, pack
from .entry import Entry


def check_options(entry: Entry) -> None:
    """Refuse a serializer or a compression that this process has not, by an InvalidEntry that names
    the option.
    """
    serializer, compression = entry.options.get("serializer"), entry.options.get("compression")
    if serializer is not None and not (
        isinstance(serializer, str) and serializer in registry.name_to_type
    ):
        known = ", ".join(sorted(registry.name_to_type))
        raise InvalidEntry("options.serializer", f"one of {known}", serializer, entry=entry.name)
    if compression is not None:
        try:
            get_encoder(compression)  # type: ignore[no-untyped-call]  # untyped in kombu
        except (KeyError, TypeError):
            known = "a compression that kombu has"
            raise InvalidEntry(
                "options.compression", known, compression, entry=entry.name
            ) from None


def serializer_of(entry: Entry, app: Celery) -> Any:
    """The serializer of the entry's messages, as far as this process knows."""
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
            task.__header__(*entry.args, **entry.kwargs)
    except TypeError as exc:
        return str(exc)
    return None


def check_arguments(entry: Entry, serializer: Any) -> None:
    """Refuse arguments that this serializer cannot write.

    Raises InvalidEntry, which names the argument, and the place inside it where that is known.
    """
    if serializer == "json" and all_plain(entry.args, entry.kwargs):
        return
    try:
        # All at once, which is cheap; one by one only to tell which it was.
        dump_message((entry.args, entry.kwargs), serializer=serializer)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - whatever a serializer raises
        _check_each_argument(entry, serializer)


def _check_each_argument(entry: Entry, serializer: Any) -> None:
    named = [(f"args[{index}]", value) for index, value in enumerate(entry.args)]
    named += [(f"kwargs.{key}", value) for key, value in entry.kwargs.items()]
    for field, value in named:
        try:
            dump_message(value, serializer=serializer)  # type: ignore[no-untyped-call]  # untyped in kombu
        except Exception as exc:
            try:
                pack(value, field)  # names the very place inside a value that cannot even be stored
            except InvalidEntry as exact:
                raise exact.of(entry.name) from None
            expected = f"a value that the serializer {serializer!r} can write"
            raise InvalidEntry(field, expected, value, entry=entry.name) from exc


def queue_of(app: Celery, entry: Entry) -> str:
    """The queue that an entry's messages go to."""
    try:
        task = app.tasks.get(entry.task)
        own = {} if task is None else task._get_exec_options()
        routed = app.amqp.router.route(
            {**own, **entry.options}, entry.task, entry.args, entry.kwargs
        )
    except Exception:  # noqa: BLE001 - tasks and routers are somebody else's code; without an answer the default holds
        routed = {}
    queue = routed.get("queue")
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue)
