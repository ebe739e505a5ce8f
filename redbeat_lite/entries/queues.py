"""Where messages of entries go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .entry import Entry

if TYPE_CHECKING:
    from celery import Celery


def queue_of(app: Celery, entry: Entry) -> str:
    """The queue that an entry's messages go to."""
    try:
        task = app.tasks.get(entry.task)
        own = {} if task is None else task._get_exec_options()
        routed = app.amqp.router.route({**own, **entry.options}, entry.task, entry.args, entry.kwargs)
    except Exception:  # noqa: BLE001 - tasks and routers are somebody else's code; without an answer the default holds
        routed = {}
    queue = routed.get("queue")
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue)
