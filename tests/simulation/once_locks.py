"""Check of the once-locks of entries: which task has each lock when a beat sends a message or leaves out a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat_lite import Once
from redbeat_lite._base.times import message_ms
from redbeat_lite.entries.state import task_id
from redbeat_lite.once.claims import ONCE_HEADER
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.scripts import _sha
from tests.simulation.advances import Advance
from tests.simulation.broker import QUEUE
from tests.simulation.clearing import CLEARER
from tests.simulation.users import LATEST_MS
from tests.simulation.values import SortedSet
from tests.simulation.world import Process
from tests.support.audit import Record
from tests.support.messages import Message

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

_LOCKS = OnceKeys("redbeat-lite")
_ENTRIES = Keys.of("redbeat-lite").entries.encode()

#: Milliseconds after the end of a task by which its lock is free, if no fault happens.
_FREE_MS = 3_000

#: Tolerance for the end of a lock, in ms, because clocks differ.
_SLACK_MS = 2_000


class Lock(NamedTuple):
    """A lock that is stored on the server."""

    #: Id of the task that has it.
    task: str
    #: When it expires, epoch ms.
    expires: float


class Queued(NamedTuple):
    """A message that a commit has put into the queue, with the lock of its key."""

    key: str
    message: Message
    raw: bytes


class OnceLocks:
    """Checks the locks that beats acquire for messages."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._story = scenario.story
        self._database = scenario.server.database
        self._take = _sha("once/take").encode()
        self._taken = _sha("once/taken").encode()
        #: The lock of each key after the last script.
        self._locks: dict[str, Lock] = {}
        #: The first task that waits for the lock of each key, after the last script.
        self._waiting: dict[str, str] = {}
        #: Keys of locks that beats have asked for.
        self.keys: dict[str, None] = {}
        #: Messages that beats have sent in scripts, by their ids.
        self._queued: dict[str, Queued] = {}
        #: Key of the lock that a beat has asked for, for each task.
        self._asked: dict[str, str] = {}
        #: When a beat last got the answer that the lock of a task is taken, by task id, epoch ms.
        self._refused: dict[str, int] = {}
        #: The definition of each entry with a lock.
        self._definitions: dict[str, bytes | None] = {}
        #: When each definition changed last, epoch ms.
        self._changed: dict[str, int] = {}
        #: Records of the bodies of each task, by task id.
        self._bodies: dict[str, list[Record]] = defaultdict(list)
        #: Number of records of the story that were searched for bodies.
        self._bodies_read = 0

    def forget(self) -> None:
        """Note that the server has lost data."""
        self._locks, self._waiting, self._queued = {}, {}, {}

    # -- what is sent ------------------------------------------------------------------------------

    def observe(
        self,
        process: Process,
        command: Sequence[bytes],
        reply: Any,
        messages: Sequence[tuple[bytes, Message]],
        advances: Sequence[Advance],
    ) -> None:
        """Check one call of a script, the messages that it has sent, and the runs that it has left out."""
        if not self._scenario.setup.once.of:
            return
        self._note_definitions()
        if command[1] in (self._take, self._taken):
            self._check_refusals(process, command, reply)
        sent: dict[str, str] = {}
        for raw, message in messages:
            key = key_of(message)
            if key is None or not process.name.startswith("beat"):
                continue
            self.keys[key] = None
            if sent.setdefault(key, message.id) != message.id:
                self._story.violate("one message of a key", f"{sent[key]} and {message.id} of {key} were sent together")
            self._check_sent(key, message)
            self._queued[message.id] = Queued(key, message, raw)
        for advance in advances:
            self._check_left_out(advance, sent)
        self._look(process)

    def _note_definitions(self) -> None:
        entries: Any = self._database.find(_ENTRIES) or {}
        for name in self._scenario.setup.once.of:
            definition = entries.get(name.encode())
            if definition != self._definitions.get(name):
                self._definitions[name] = definition
                self._changed[name] = self._story.now

    def note_published(self, message: Message) -> None:
        """Check a message that was not sent in a script."""
        key = key_of(message)
        # The lock may expire while the message is on its way, and then go to another task.
        if key is not None and not self._scenario.setup.faults and not self._may_be_taken_over(message):
            self._check_owner(key, message)

    def _check_sent(self, key: str, message: Message) -> None:
        """A commit sends a message only if nobody has the lock of its key, and its task has the lock then."""
        self._check_owner(key, message)
        before, first = self._locks.get(key), self._waiting.get(key)
        if before is not None and before.task != message.id and before.expires > self._database.now:
            self._story.violate("one message of a key", f"{message.id} was sent, and {before.task} had the lock {key}")
        elif first is not None and first != message.id:
            self._story.violate("one message of a key", f"{message.id} was sent, and {first} waited for the lock {key}")

    def _check_owner(self, key: str, message: Message) -> None:
        lock = self._lock_of(key)
        if lock is None or lock.task != message.id:
            owner = "nobody" if lock is None else lock.task
            self._story.violate("lock of a message", f"{message.id} was sent, and {owner} has the lock {key}")
        else:
            self._check_life(lock, message)

    def _may_be_taken_over(self, message: Message) -> bool:
        """Return whether a later run may take over the lock of this message.

        It may if the interval reaches the takeover gap, or may have reached it before a recent edit.
        """
        assert message.entry is not None
        if self._story.now - self._changed.get(message.entry, 0) < LATEST_MS:
            return True  # The message may have been planned before this change.
        period = self._scenario.period_of(message.entry)
        return period is not None and period >= self._scenario.setup.once.takeover_gap

    def _check_life(self, lock: Lock, message: Message) -> None:
        """A lock lasts until its message expires, and at least a lease, unless the next run takes it over."""
        now = self._database.now
        lease = Once.decode(message.headers[ONCE_HEADER]["policy"]).lease_ms
        expires = message.headers["expires"]
        until = max(now + lease, 0 if expires is None else message_ms(expires))
        # The beat fixes when the message expires, and the server counts the lock from the arrival of the commit.
        # So a late commit makes the lock outlive its message.
        late = LATEST_MS if self._scenario.setup.faults else 0
        if lock.expires > until + _SLACK_MS + late:
            what = f"the lock of {message.id} lasts {lock.expires - until:g} ms longer than it should"
            self._story.violate("lock of a message", what)
        if not self._may_be_taken_over(message) and lock.expires < until - _SLACK_MS:
            what = f"the lock of {message.id} ends {until - lock.expires:g} ms before it should"
            self._story.violate("lock of a message", what)

    # -- what is left out --------------------------------------------------------------------------

    def _check_refusals(self, process: Process, command: Sequence[bytes], reply: Any) -> None:
        """A lock is reported as taken only if another task has it or waits for it, and that task is not over."""
        args = [text.decode() for text in command[3 + int(command[2]) :]]
        if command[1] == self._take:
            claims, refused = [args[:2]], [reply == 0]
        else:
            claims = [args[at : at + 2] for at in range(0, len(args), 2)]
            refused = [answer == 1 for answer in reply] if isinstance(reply, list) else []
        if not process.name.startswith("beat"):
            return
        for (key, asking), is_refused in zip(claims, refused, strict=False):
            self.keys[key] = None
            self._asked[asking] = key
            if not is_refused:
                continue
            self._refused[asking] = self._story.now
            lock = self._lock_of(key)
            owner = self._first_waiter(key) if lock is None else lock.task
            if owner is None or owner == asking:
                self._story.violate("left out", f"{asking} was refused, and no other task has the lock {key}")
            elif lock is not None:
                self._check_is_live(key, owner, lock)

    def _check_is_live(self, key: str, owner: str, lock: Lock) -> None:
        """A task that has a lock is not over, unless a fault has happened recently."""
        setup = self._scenario.setup
        now = self._story.now
        if not setup.work.workers or now < self._scenario.recovered_at:
            return
        bodies = self._bodies_of(owner)
        if not bodies and owner in self._queued and not self._is_on_its_way(self._queued[owner]):
            self._story.violate("left out", f"{owner} has the lock {key}, and its message is gone")
        is_over = bool(bodies) and all("settled" in body and body["end"] != "again" for body in bodies)
        if is_over:
            last_end = max(body["ended"] for body in bodies)
            if last_end < now - _FREE_MS:
                what = f"{owner} has the lock {key}, and had ended {now - last_end} ms before"
                self._story.violate("left out", what)

    def _is_on_its_way(self, queued: Queued) -> bool:
        """Return whether a message is in the queue, or a worker has it or is about to begin it."""
        since_us = self._scenario.world.now_us - 1000 * _FREE_MS
        return self._scenario.broker.is_on_its_way(queued.raw, since_us)

    def _bodies_of(self, owner: str) -> list[Record]:
        """Return the records of the bodies of a task."""
        records = self._story.records
        for record in records[self._bodies_read :]:
            if record["kind"] == "body":
                self._bodies[record["id"]].append(record)
        self._bodies_read = len(records)
        return self._bodies[owner]

    def _check_left_out(self, advance: Advance, sent: Mapping[str, str]) -> None:
        """Check why runs were left out.

        A run is left out only if the server has answered a beat that its lock is taken, or if this commit has sent
        another message of the key or another run of the entry.

        Parameters:
            sent: id of the message that this commit has sent for each key of a lock.
        """
        for unsent in advance.left_out_ranges:
            asking = task_id(advance.name, advance.before.generation, unsent.first)
            if self._asked.get(asking) in sent:
                continue
            since = self._refused.get(asking)
            if not advance.sent_count and (since is None or self._story.now - since > LATEST_MS):
                what = f"{advance.name} of {unsent.first} was left out, and nobody had said that its lock is taken"
                self._story.violate("left out", what)

    # -- locks -------------------------------------------------------------------------------------

    def _look(self, process: Process) -> None:
        """Note which task has each lock now."""
        for key in self.keys:
            lock, before = self._lock_of(key), self._locks.get(key)
            if before is not None and (lock is None or lock.task != before.task):
                self._check_release(process, key, before)
            if lock is None:
                self._locks.pop(key, None)
            else:
                self._locks[key] = lock
            first = self._first_waiter(key)
            if first is None:
                self._waiting.pop(key, None)
            else:
                self._waiting[key] = first

    def _check_release(self, process: Process, key: str, before: Lock) -> None:
        """Until a lock expires, only the clearer releases it while its message is in the queue."""
        if process.name == CLEARER:
            self._story.record(kind="clear", key=key, at=self._story.now)
            return
        queued = self._queued.pop(before.task, None)
        if queued is None or before.expires <= self._database.now:
            return
        queue: Any = self._scenario.broker.server.database.find(QUEUE) or ()
        if queued.raw in queue:
            what = f"{process.name} released the lock {key}, and the message {before.task} waits in the queue"
            self._story.violate("lock of a message", what)

    def _lock_of(self, key: str) -> Lock | None:
        name = _LOCKS.lock(key).encode()
        fields: Any = self._database.find(name)
        if not fields:
            return None
        expires = self._database.expiry(name)
        return Lock(fields[b"task"].decode(), float("inf") if expires is None else expires)

    def _first_waiter(self, key: str) -> str | None:
        waiters = self._database.find(_LOCKS.waiters(key).encode())
        return waiters.ordered[0][1].decode() if isinstance(waiters, SortedSet) and len(waiters) else None


def key_of(message: Message) -> str | None:
    """Return the key of the lock that the beat acquires to send a message; ``None`` if it acquires none."""
    header = message.headers.get(ONCE_HEADER)
    if not header or not Once.decode(header["policy"]).at_publish:
        return None
    return str(header["key"])
