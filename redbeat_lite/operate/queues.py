"""Where messages of entries go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..entries.entry import Entry

if TYPE_CHECKING:
    from celery import Celery


def queue_of(app: Celery, entry: Entry) -> str:
    """The queue that an entry's messages go to."""
    try:
        routed = app.amqp.router.route(dict(entry.options), entry.task, entry.args, entry.kwargs)
    except Exception:  # noqa: BLE001 - a router is somebody else's code; without an answer the default holds
        routed = {}
    queue = routed.get("queue")
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue)
