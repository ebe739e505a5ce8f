"""The broker's queue: workers take messages from it, acknowledge them, and get them again if they do not.

The queue is a list of a model server, which is that of the schedule or one of its own. A message that is
taken lies in the same keys as with kombu, so the package's heartbeat for the visibility timeout works on them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.network import Network
from tests.simulation.server import ModelServer
from tests.simulation.values import SortedSet
from tests.simulation.world import Wait, World

QUEUE = b"celery"
UNACKED = b"unacked"
INDEX = b"unacked_index"


#: Seconds until a message is delivered for the second time, at most: while the task runs, or long after it.
_UNTIL_AGAIN = (0.3, 8.0)


class Broker:
    """The queue of all tasks.

    Parameters:
        visibility: seconds after which a message is delivered again that nobody has acknowledged.
    """

    def __init__(self, world: World, server: ModelServer, network: Network, visibility: float) -> None:
        self.network = network
        self.server = server
        self.visibility = visibility
        self._world = world
        self._random = world.random_for("broker")
        #: Messages that were sent, and how often one was taken.
        self.sent = 0
        self.deliveries = 0
        #: When each message of the queue was put there, and when each message was taken.
        self._put_at: dict[bytes, int] = {}
        self._taken: dict[bytes, int] = {}
        #: When each message was acknowledged last.
        self._acknowledged: dict[bytes, int] = {}
        self._waits: list[Wait] = []
        #: Whether the next message that is taken is also delivered to somebody else.
        self.draw_second_delivery: Callable[[], bool] = lambda: False
        #: Whether the next acknowledgement gets lost.
        self.draw_lost_ack: Callable[[], bool] = lambda: False

    @property
    def is_working(self) -> bool:
        return self.network.is_up and self.server.database.refusal is None

    def take(self) -> dict[str, Any] | None:
        """Take the next message; its delivery tag is a new one."""
        database = self.server.database
        queue: Any = database.find(QUEUE)
        if not queue or not self.is_working:
            return None
        raw: bytes = queue.pop()
        self._put_at.pop(raw, None)
        database.drop_empty(QUEUE)
        if self.draw_second_delivery():
            seconds = self._random.random() * self._random.choice(_UNTIL_AGAIN)
            self._world.after(seconds, lambda: self._put_again(raw))
        self.deliveries += 1
        tag = b"%d" % self.deliveries
        unacked: Any = database.create(UNACKED, dict)
        unacked[tag] = raw
        self._taken[tag] = self._world.now_us
        index: Any = database.create(INDEX, SortedSet)
        index.put(tag, database.now / 1000)
        payload = json.loads(raw)
        payload["properties"]["delivery_tag"] = tag.decode()
        return payload

    def acknowledge(self, tag: str) -> None:
        """Forget a message that was taken, unless the broker is away."""
        if self.is_working and not self.draw_lost_ack():
            raw = self._forget(tag.encode())
            if raw is not None:
                self._acknowledged[raw] = self._world.now_us

    def requeue(self, tag: str) -> None:
        """Put a message back behind the others."""
        raw = self._forget(tag.encode()) if self.is_working else None
        if raw is not None:
            self._put(raw, is_next=False)

    def restore_visible(self) -> None:
        """Deliver those messages again that nobody has acknowledged for too long."""
        index: Any = self.server.database.find(INDEX)
        if index is None or not self.is_working:
            return
        oldest = self.server.database.now / 1000 - self.visibility
        for tag in [tag for taken, tag in index.ordered if taken < oldest]:
            raw = self._forget(tag)
            if raw is not None:
                self._put(raw, is_next=True)

    def wait(self, wait: Wait) -> None:
        """Have a wait end at the next message."""
        self._waits = [other for other in self._waits if not other.is_over]
        self._waits.append(wait)

    def wake(self) -> None:
        """Tell everybody who waits that there may be a message."""
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.wake()

    def note_put(self, raws: Iterable[bytes]) -> None:
        """Note that messages were put into the queue."""
        self._put_at.update(dict.fromkeys(raws, self._world.now_us))

    def waiting_since(self, instant_us: int) -> int:
        """Return the number of messages that were put into the queue before an instant and that nobody has taken."""
        queue: Any = self.server.database.find(QUEUE) or ()
        return sum(self._put_at.get(raw, 0) < instant_us for raw in queue)

    def held_since(self, instant_us: int) -> list[str]:
        """Return the tags of messages that were taken before an instant and are not acknowledged yet."""
        unacked: Any = self.server.database.find(UNACKED) or {}
        return [tag.decode() for tag, taken in self._taken.items() if tag in unacked and taken < instant_us]

    def is_on_its_way(self, raw: bytes, since_us: int) -> bool:
        """Whether a message waits in the queue, or a worker has it, or has acknowledged it since an instant."""
        queue: Any = self.server.database.find(QUEUE) or ()
        unacked: Any = self.server.database.find(UNACKED) or {}
        return raw in queue or raw in unacked.values() or self._acknowledged.get(raw, 0) > since_us

    def _forget(self, tag: bytes) -> bytes | None:
        database = self.server.database
        unacked: Any = database.find(UNACKED)
        index: Any = database.find(INDEX)
        if index is not None:
            index.remove(tag)
            database.drop_empty(INDEX)
        raw: bytes | None = None if unacked is None else unacked.pop(tag, None)
        database.drop_empty(UNACKED)
        return raw

    def _put_again(self, raw: bytes) -> None:
        if self.is_working:
            self._put(raw, is_next=True)

    def _put(self, raw: bytes, *, is_next: bool) -> None:
        """Put a message into the queue again, with the mark that kombu gives it."""
        payload = json.loads(raw)
        payload["headers"]["redelivered"] = True
        payload["properties"]["delivery_info"]["redelivered"] = True
        queue: Any = self.server.database.create(QUEUE, deque)
        marked = json.dumps(payload).encode()
        self.note_put([marked])
        if is_next:
            queue.append(marked)
        else:
            queue.appendleft(marked)
        self.wake()
