"""Checks before the first run of an entry: whether its messages can be sent, and to which queue."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.compression import get_encoder
from kombu.serialization import dumps as dump_message
from kombu.serialization import registry

from .._base.errors import InvalidEntry
from ..store.json_values import all_plain, pack
from .entry import Entry


def check_encoding(entry: Entry) -> None:
    """Refuse a serializer or a compression that this process does not have.

    Raises:
        InvalidEntry: names the option.
    """
    serializer = entry.options.get("serializer")
    serializers = registry.name_to_type
    if serializer not in (None, *serializers):
        expected = f"one of {', '.join(sorted(serializers))}"
        raise InvalidEntry("options.serializer", expected, serializer, entry=entry.name)
    compression = entry.options.get("compression")
    if compression is not None:
        try:
            get_encoder(compression)  # type: ignore[no-untyped-call]  # untyped in kombu
        except (KeyError, TypeError):
            expected = "a compression that kombu has"
            raise InvalidEntry(
                "options.compression", expected, compression, entry=entry.name
            ) from None


def serializer_of(entry: Entry, app: Celery) -> Any:
    """Return the serializer of the entry's messages, as far as this process knows."""
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

    Raises:
        InvalidEntry: names the argument, and the place inside it if that is known.
    """
    if serializer == "json" and all_plain(entry.args, entry.kwargs):
        return
    arguments = {f"args[{index}]": value for index, value in enumerate(entry.args)}
    arguments |= {f"kwargs.{key}": value for key, value in entry.kwargs.items()}
    for field, value in arguments.items():
        try:
            dump_message(value, serializer=serializer)  # type: ignore[no-untyped-call]
        except Exception as exc:
            try:
                # For a value that cannot even be stored, this error names the place inside it.
                pack(value, field)
            except InvalidEntry as exact:
                raise exact.of(entry.name) from None
            expected = f"a value that the serializer {serializer!r} can write"
            raise InvalidEntry(field, expected, value, entry=entry.name) from exc


def queue_of(app: Celery, entry: Entry) -> str:
    """Return the queue of an entry's messages."""
    try:
        task = app.tasks.get(entry.task)
        own = {} if task is None else task._get_exec_options()
        routed = app.amqp.router.route(
            {**own, **entry.options}, entry.task, entry.args, entry.kwargs
        )
    except Exception:  # noqa: BLE001 - code of the user's tasks and routers
        # Without an answer, the default queue applies.
        routed = {}
    queue = routed.get("queue")
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue)
