"""Publishing through Celery: in one step with the schedule, or one message at a time.

If the broker is the database that holds the schedule, kombu's channel gets a batch object of ours,
which collects the final commands of each message and sends nothing. The commit script sends these
commands in the step that advances the entry, so a crash neither loses nor repeats an occurrence. To
any other broker, each message is published first and committed after, under a task id that is the
same in each try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from celery import Celery
from celery.result import denied_join_result
from kombu.common import Broadcast
from redis.exceptions import NoPermissionError, RedisError
from redis.sentinel import SentinelConnectionPool

from ..._base.celery_app import TWICE, broker_connection, publish_timeouts
from ..._base.clock import elapsed
from ..._base.text import text_of
from ...entries.entry import Entry
from ...entries.message import Occurrence, emission
from ...settings import Settings
from ...store.connections import LOOK_UNANSWERED
from ...store.leader_store import LeaderStore
from ...store.records import Command, Lost, Term
from ..server_clock import ServerClock
from .message_templates import Templates, obstacle
from .redis_batch import RedisBatch, takes_batches

#: Maximum number of messages of a batch if they are sent one by one. A run that becomes due
#: meanwhile waits until they are sent.
_ONE_BY_ONE = 100


class BrokerDown(Exception):
    """The broker cannot be reached, or takes no message at all."""


class Emitter(Protocol):
    """The scheduler, as the publisher needs it."""

    def emit(self, entry: Entry, producer: Any) -> None:
        """Publish an entry as Celery's own scheduler does; raise what went wrong."""


@dataclass(eq=False)
class Publisher:
    """Publisher of entries, with a broker connection of its own that is opened at the first need.

    Parameters:
        settings: ``dispatch`` is ``"plain"`` to publish one by one, ``"batch"`` to let the commit
            send messages if it can, ``"auto"`` to also copy messages, if the result is provably the
            same.
        scheduler: scheduler that publishes an entry as Celery's own does, which tools may wrap.
    """

    app: Celery
    settings: Settings
    clock: ServerClock
    scheduler: Emitter
    #: Whether the connection failed, so that it must be closed after the commit.
    is_broken: bool = False

    def __post_init__(self) -> None:
        #: Seconds that opening a connection may take: two tries, each cut at the timeout.
        self.gives_up_after = 2 * self.settings.publish_timeout
        self._templates = Templates(self.app, self.clock)
        #: Text that says why the messages of this batch are made in full; ``None`` if they may be
        #: copied from templates.
        self._why_in_full: str | None = None
        self._connection: Any = None
        self._producer: Any = None
        self._batch: RedisBatch | None = None
        #: Text that says why messages are sent one by one; empty if the commit sends them.
        self._why_one_by_one = ""
        #: Text that says why no commit of this process may send messages, because the server has
        #: refused such a commit; empty if it has not.
        self._refusal = ""
        #: Time from which on Sentinel is asked again whether its master is still the same.
        self._next_look = 0.0

    @property
    def mode(self) -> str:
        """Text for a log line that says how the messages of the last :meth:`batch` are sent."""
        way = "in one step with the schedule (exactly once)"
        if self._why_one_by_one:
            promise = "at least once, with stable ids"
            if unconfirmed(self._connection):
                lost = "what the broker does not take is lost, as confirm_publish is not set"
                promise = f"with stable ids; {lost}"
            way = f"one by one ({promise}; {self._why_one_by_one})"
        # Without a batch, Celery makes and sends each message, so none is a copy of another.
        if self._batch is None:
            return way
        if self._why_in_full is None:  # Most messages are copies of earlier ones.
            return f"{way}, prepared"
        return f"{way}, each made in full, because {self._why_in_full}"

    @property
    def commit_sends(self) -> bool:
        """Whether the commit sends the messages. Otherwise each is sent when it is made."""
        return not self._why_one_by_one

    @property
    def batch_size(self) -> int:
        """Number of due entries, and number of messages, with which a batch is full."""
        if self.commit_sends:
            return self.settings.batch_size
        return min(self.settings.batch_size, _ONE_BY_ONE)

    def connect(self, store: LeaderStore, term: Term) -> bool:
        """Open the broker connection, if it is not open. Return whether it was opened.

        If the broker is the database of the schedule, the commit will send the messages.

        Raises:
            BrokerDown: the connection cannot be opened in time.
            Lost: another process leads.
        """
        if self._producer is not None:
            # The connection stays open. If Sentinel has a new master, the next message goes to it.
            self._follow_master()
            return False
        # Write a mark into the database of the schedule. If the broker shows it, both are the same.
        mark = store.mark(term)
        try:
            self._connection = self._open()
            producer = self.app.amqp.Producer(self._connection, auto_declare=False)
            _declare_broadcasts(self.app, producer.channel)
            self._why_one_by_one = self._prepare_batch(producer, store, mark)
        except Exception as exc:
            # A transport may raise anything for its settings or its server. The beat logs it and
            # tries again.
            self.close()
            raise BrokerDown(text_of(exc)) from exc
        if self._why_one_by_one and not store.is_marked(mark):
            # Another leader has replaced the mark in the schedule's database. So the broker may be
            # this database, although it did not show our mark.
            self.close()
            raise Lost
        self._producer = producer
        return True

    def _prepare_batch(self, producer: Any, store: LeaderStore, mark: bytes) -> str:
        """Have the messages of a producer collected, if its transport and the setting allow it.

        Return why the commit cannot send them; empty if it can.

        Parameters:
            mark: value that this process has just written into the schedule's database.
        """
        if self.settings.dispatch == "plain":
            return "redbeat_lite_dispatch is 'plain'"
        if not takes_batches(producer):
            return "its transport knows no batches"
        # From here on, the batch collects all messages. If the commit cannot send them, they are
        # sent one by one before it.
        self._batch = RedisBatch(producer.channel, lambda: _declare_queues(self.app, producer))
        if self._refusal:
            # The server has refused a commit with messages before.
            return self._refusal
        try:
            is_same = store.is_marked(mark, self._batch.client)
        except NoPermissionError:
            return "the broker's user may not read the schedule"
        return "" if is_same else "the broker is another server or database"

    def _follow_master(self) -> None:
        """Leave a Redis master that Sentinel has replaced, because that master loses new messages.

        Sentinel is asked before each batch. If it does not answer, it is not asked for a while.
        """
        pool = getattr(self._producer.channel, "pool", None)
        if isinstance(pool, SentinelConnectionPool) and elapsed() >= self._next_look:
            try:
                # The result is not needed. redis-py asks Sentinel for the master here, and if it is
                # another server than before, the pool drops its connections.
                pool.get_master_address()  # type: ignore[no-untyped-call]
            except RedisError:  # The master may work without its sentinels.
                self._next_look = elapsed() + LOOK_UNANSWERED

    def answers(self) -> bool:
        """Return whether the broker answers. If it does, a failed publish is the entry's fault."""
        try:
            _release(self._open())
        except Exception:  # noqa: BLE001 - any failure to answer is the answer
            return False
        return True

    def _open(self) -> Any:
        """Return an open connection to the broker; raise whatever its transport raises."""
        connection = broker_connection(self.app)
        connection.transport_options |= publish_timeouts(connection, self.settings.publish_timeout)
        try:
            connection.ensure_connection(**TWICE, reraise_as_library_errors=False)
        except Exception:
            _release(connection)
            raise
        return connection

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Publish a batch: :meth:`copy` and :meth:`publish` may be called in this context."""
        # A beat never waits for results. Without this context, a result backend would subscribe to
        # a channel for each result.
        with denied_join_result():
            if self._batch is None:
                yield
                return
            # With "auto", a message may be a copy of an earlier one, unless something has to see
            # how it is made, such as a hook on publishing. Then obstacle() returns what this is.
            self._why_in_full = "redbeat_lite_dispatch is 'batch'"
            if self.settings.dispatch == "auto":
                channel = type(self._producer.channel)
                self._why_in_full = obstacle(self.scheduler, self.app, channel)
            self._templates.begin_batch()
            # In this block, kombu hands the messages to the RedisBatch instead of sending them.
            with self._producer.batch():
                yield

    def switch_to_one_by_one(self, why: str) -> None:
        """Send messages one by one from now on, also over later connections."""
        self._refusal = why
        self._why_one_by_one = why

    def copy(self, occurrence: Occurrence) -> list[Command] | None:
        """Return the Redis commands that send a copy of an earlier message.

        ``None`` if no earlier message serves. Then the caller has to :meth:`publish` a new one.
        """
        if self._batch is None or self._why_in_full is not None:
            return None
        return self._templates.copy_message(occurrence)

    def publish(self, occurrence: Occurrence) -> list[Command]:
        """Have Celery make and publish a message.

        Returns the Redis commands that are still to be sent; none if Celery has sent the message.
        """
        settings = self.settings
        now = self.clock.now_ms()
        commands: list[Command] = []
        try:
            # This is a copy of the entry with the options for this occurrence.
            emitted = emission(occurrence, now, expect=settings.expect, traced=settings.traceparent)
            self.scheduler.emit(emitted, self._producer)
        finally:
            # After a failure, this drops the commands that were made before the failure.
            if self._batch is not None:
                commands = self._batch.take()
        # Unless something requires messages to be made in full, later ones may be copied from this.
        if self._batch is not None and self._why_in_full is None:
            self._templates.learn(occurrence, commands)
        return commands

    def send(self, commands: Sequence[Command]) -> None:
        """Send a message that was collected and that the commit does not send.

        Raises:
            OperationalError: the broker has refused it, or does not answer.
        """
        if self._batch is None:
            # Another thread has called close(), because the beat stops.
            raise BrokerDown("its connection was given up meanwhile")
        self._batch.send(commands)

    def close(self) -> None:
        """Drop the broker connection; :meth:`connect` opens a new one."""
        connection = self._connection
        self._connection = None
        self._producer = None
        self._batch = None
        # The next connection may put another prefix before the names of queues.
        self._templates = Templates(self.app, self.clock)
        self.is_broken = False
        if connection is not None:
            _release(connection)


def unconfirmed(connection: Any) -> bool:
    """Return whether the broker does not confirm messages, so that a lost one counts as sent."""
    confirms = connection.transport_options.get("confirm_publish")
    return connection.transport.driver_type == "amqp" and not confirms


def _declare_broadcasts(app: Celery, channel: Any) -> None:
    """Declare the exchanges of broadcast queues.

    Celery declares every other queue before it publishes to it. On Redis, a process that has never
    declared the exchange of a broadcast queue takes it for a direct one, finds no queue bound to
    it, and the message is lost without an error.
    """
    for queue in app.amqp.queues.values():
        if isinstance(queue, Broadcast):
            queue.exchange(channel).declare()  # type: ignore[no-untyped-call]  # untyped in kombu


def _declare_queues(app: Celery, producer: Any) -> None:
    """Declare all queues of the app again, because the server may have lost them."""
    channel = producer.channel
    # Kombu remembers what it has declared, and would not declare it again.
    channel.connection.client.declared_entities.clear()
    channel.connection.state.clear()
    # The queues behind a Broadcast belong to the workers, so only its exchange is declared.
    _declare_broadcasts(app, channel)
    for queue in app.amqp.queues.values():
        if not isinstance(queue, Broadcast):
            queue(channel).declare()


def _release(connection: Any) -> None:
    with suppress(Exception):  # A broken connection may raise anything.
        connection.release()
