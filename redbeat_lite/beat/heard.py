"""Which workers were heard of within the last minute: whether any of them records, and which queues they take from."""

from __future__ import annotations

from typing import Any

from celery import Celery

from ..entries.entry import Entry
from ..entries.sendable import queue_of
from ..once.keys import OnceKeys
from ..once.worker_reports import heard_of
from ..storage.replies import server_ms


class Heard:
    """What the workers of one app say of themselves, as :meth:`ask` found it last."""

    def __init__(self, app: Celery, prefix: str) -> None:
        self._app = app
        self._key = OnceKeys(prefix).workers
        self._queues = set[str]()
        self.records = False  #: whether somebody records what becomes of runs

    def ask(self, client: Any) -> None:
        """Read what they say, by this redis-py client; two round trips."""
        heard = heard_of(client.hgetall(self._key), server_ms(client) / 1000).values()
        self._queues = {queue for said in heard for queue in said.queues}
        self.records = any(said.records for said in heard)

    def untaken(self, entry: Entry) -> str | None:
        """The queue that an entry's messages go to, if none of these workers takes from it."""
        queue = queue_of(self._app, entry)
        return None if queue in self._queues else queue
