"""Publishing through Celery, in one of the two ways of :mod:`redbeat_lite.beat.dispatch`.

So that the commit can send the messages, a :class:`RedisBatch` takes the place of kombu's batch. It
collects the Redis commands of each message instead of sending them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import kombu.transport.redis
import redis
from celery import Celery
from celery.result import denied_join_result
from celery.utils.log import get_logger
from kombu.common import Broadcast
from kombu.exceptions import OperationalError
from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.sentinel import SentinelConnectionPool

from ..._base.celery_app import TWICE, broker_connection, publish_timeouts
from ..._base.clock import elapsed
from ..._base.text import text_of
from ...entries.entry import Entry
from ...entries.message import Occurrence, all_headers, emission
from ...settings import Settings
from ...store.connections import MASTER_CHECK_UNANSWERED
from ...store.leader_store import LeaderStore
from ...store.records import Command, Lost
from ..leader import Leader
from .message_templates import Templates, obstacle

logger = get_logger(f"celery.{__name__}")

#: Maximum number of messages of a batch if they are sent one by one. It is small, because a run
#: that becomes due meanwhile waits until the whole batch is sent.
_MOST_ONE_BY_ONE = 100

#: First words of the errors by which a server refuses every message, and for which redis-py has no
#: class. If the command was in a pipeline, as when kombu declares a queue, redis-py puts a text
#: before them, which ends with "caused error: ".
_REFUSES_ALL = re.compile(r"(?:^|caused error: )(?:MISCONF|NOREPLICAS|BUSY )")


class BrokerDown(Exception):
    """The broker cannot be reached, or takes no message at all."""


class Emitter(Protocol):
    """The scheduler, as the publisher needs it."""

    def emit(self, entry: Entry, producer: Any) -> None:
        """Publish an entry as Celery's own scheduler does, and raise the error if that fails."""


@dataclass(eq=False)
class Publisher:
    """Publisher of entries, with a broker connection of its own that is opened at the first need.

    ``settings.dispatch`` has one of these values:

    - ``"plain"``: messages are sent one by one.
    - ``"batch"``: the commit sends the messages if it can.
    - ``"auto"``: as ``"batch"``, but most messages are copies of an earlier one of their kind, if
      that is safe (:func:`obstacle`). Celery makes only the first one.
    """

    app: Celery
    settings: Settings
    leader: Leader
    store: LeaderStore
    scheduler: Emitter
    #: Whether the connection has failed, and must be closed after the commit.
    is_broken: bool = False
    #: Why the server has refused a commit that sends messages; empty if it has refused none.
    #: After a refusal, this process sends messages before the commit, as long as it runs. A new
    #: connection must not reset this, because an entry may break the connection in each batch. Then
    #: each batch would be the first one over its connection, and its commit would be refused again.
    refusal: str = ""

    def __post_init__(self) -> None:
        self._connection: Any = None
        self._producer: Any = None
        self._batch: RedisBatch | None = None
        self._templates = Templates(self.app, self.leader.clock)
        #: Why Celery makes each message of this batch; ``None`` if messages may be copies of
        #: templates.
        self._why_in_full: str | None = None
        #: Why the script that commits cannot also put the messages into their queues; empty if it
        #: can. It can if the broker is the database of the schedule.
        self._why_one_by_one = ""
        #: Time before which Sentinel is not asked for its master, in seconds of :func:`elapsed`.
        self._ask_sentinel_at = 0.0

    @property
    def mode(self) -> str:
        """How the messages of this batch are sent, for the log."""
        if self.commit_sends:
            way = "in one step with the schedule (exactly once)"
        else:
            if unconfirmed(self._connection):
                lost = "what the broker does not take is lost, as confirm_publish is not set"
                promise = f"with stable ids; {lost}"
            else:
                promise = "at least once, with stable ids"
            # The commit cannot send over this connection, or the server has refused to let it send.
            why = self._why_one_by_one or self.refusal
            way = f"one by one ({promise}; {why})"
        # Without a RedisBatch, Celery makes and sends each message, so none is a copy of another.
        if self._batch is None:
            return way
        if self._why_in_full is None:  # Most messages are copies of earlier ones.
            return f"{way}, prepared"
        return f"{way}, each made in full, because {self._why_in_full}"

    @property
    def commit_sends(self) -> bool:
        """Whether the commit sends the messages. Otherwise each is sent when it is made."""
        return not (self._why_one_by_one or self.refusal)

    @property
    def batch_size(self) -> int:
        """Number of due entries, and number of messages, with which a batch is full."""
        if self.commit_sends:
            return self.settings.batch_size
        return min(self.settings.batch_size, _MOST_ONE_BY_ONE)

    def connect(self) -> bool:
        """Open the broker connection, if it is not open. Return whether this call opened it.

        The leader writes a mark (a random value) into the database of the schedule. If the mark can
        be read over the broker connection, the broker is this database, and the commit can send the
        messages.

        Raises:
            BrokerDown: the connection cannot be opened in time.
            Lost: another process leads.
        """
        # Tell the watchdog how long this may take. To connect takes two tries of one timeout each.
        # If Sentinel is asked instead, that is over within the same time.
        within = 2 * self.settings.publish_timeout
        self.leader.progress("connecting to the broker", within=within)
        if self._producer is not None:
            # Keep the producer. If Sentinel has named a new Redis master, go over to that server.
            self._follow_master()
            return False
        mark = self.store.mark(self.leader.term)
        try:
            connection = broker_connection(self.app)
            self._connection = connection
            connection.transport_options |= publish_timeouts(
                connection, self.settings.publish_timeout
            )
            connection.ensure_connection(**TWICE, reraise_as_library_errors=False)
            producer = self.app.amqp.Producer(connection, auto_declare=False)
            _declare_queues(self.app, producer.channel, only_broadcasts=True)
            self._why_one_by_one = self._prepare_batch(producer, mark)
        except Exception as exc:  # A transport may raise anything.
            self.close()
            raise BrokerDown(text_of(exc)) from exc
        # There may be a reason because the broker's connection did not find the mark of this term.
        # Then the broker is another database, or another leader has replaced the mark by its own.
        # In the second case, the schedule's own client does not find the mark, either.
        if self._why_one_by_one and not self.store.is_marked(mark):
            self.close()
            raise Lost
        self._producer = producer
        return True

    def _prepare_batch(self, producer: Any, mark: bytes) -> str:
        """Make a RedisBatch for a producer, if its transport and the setting allow it.

        Return why the commit cannot send the messages; empty if it can.

        Parameters:
            mark: value that :meth:`connect` has written into the database of the schedule.
        """
        if self.settings.dispatch == "plain":
            return "redbeat_lite_dispatch is 'plain'"
        if not takes_batches(producer):
            return "its transport knows no batches"
        # From now on, kombu hands all messages to this batch. If the commit cannot send them,
        # :meth:`make` has the batch send each one.
        self._batch = RedisBatch(self.app, producer.channel)
        try:
            is_same = self.store.is_marked(mark, self._batch.client)
        except NoPermissionError:
            return "the broker's user may not read the schedule"
        return "" if is_same else "the broker is another server or database"

    def _follow_master(self) -> None:
        """Leave a Redis master that Sentinel has replaced, because it would lose new messages."""
        pool = getattr(self._producer.channel, "pool", None)
        if isinstance(pool, SentinelConnectionPool) and elapsed() >= self._ask_sentinel_at:
            try:
                # If the master is another server than before, the pool drops its connections.
                pool.get_master_address()  # type: ignore[no-untyped-call]
            except RedisError:
                # The master may work although Sentinel does not answer. So go on with it, and do
                # not ask for a while, because each question may take until a timeout.
                self._ask_sentinel_at = elapsed() + MASTER_CHECK_UNANSWERED

    def begin_batch(self) -> None:
        """Find out whether templates may make the messages of the next batch, or Celery must."""
        if self._batch is None or self.settings.dispatch != "auto":
            # Celery makes each message. Without a RedisBatch, nobody reads this reason.
            self._why_in_full = f"redbeat_lite_dispatch is {self.settings.dispatch!r}"
        else:
            self._why_in_full = obstacle(self.scheduler, self.app, type(self._producer.channel))
        self._templates.begin_batch()

    def make(self, occurrence: Occurrence) -> list[Command]:
        """Make a message, as a copy of an earlier one or by Celery. Send it if the commit does not.

        Returns:
            the Redis commands by which the commit is to send the message; none if it is sent
            already.

        Raises:
            BrokerDown: the connection was closed, because the beat stops.
            Lost: this process does not lead any more.
            Exception: the message cannot be made or sent.
        """
        commands = None
        headers = all_headers(occurrence, self.settings.expect, self.settings.traceparent)
        if self._why_in_full is None:  # Messages of this batch may be copies.
            commands = self._templates.copy_message(occurrence, headers)
        if commands is None:
            self.check_lead(f"publishing {occurrence.entry.name!r}")
            commands = self._make_in_full(occurrence, headers)
        # There are no commands if Celery has sent the message, or if no queue is bound to its
        # destination.
        if self.commit_sends or not commands:
            return commands
        self.check_lead(f"sending {occurrence.entry.name!r}")
        if self._batch is None:
            # Another thread has called close(), because the beat stops.
            raise BrokerDown("its connection was given up meanwhile")
        self._batch.send(commands)
        return []

    def _make_in_full(self, occurrence: Occurrence, headers: dict[str, Any]) -> list[Command]:
        """Have Celery make a message. Return its commands; none if Celery has sent it."""
        emitted = emission(occurrence, headers, self.leader.clock.now_ms())
        batch = self._batch
        producer = self._producer
        if producer is None:
            # Another thread has called close(). Without a producer, Celery would send the message
            # over a connection of its own.
            raise BrokerDown("its connection was given up meanwhile")
        # Without this context, a result backend would subscribe to a channel for each result. A
        # beat never waits for results, so it needs no subscription.
        with denied_join_result():
            if batch is None:  # Nothing can collect the commands, so Celery sends the message.
                self.scheduler.emit(emitted, producer)
                return []
            # In this context, kombu hands the message to the RedisBatch instead of sending it.
            with producer.batch():
                self.scheduler.emit(emitted, producer)
        commands = batch.take()
        if self._why_in_full is None:
            self._templates.learn(occurrence, headers, commands)
        return commands

    def check_lead(self, doing: str) -> None:
        """Report progress; raise Lost if this process does not lead any more."""
        if not self.leader.holds_lease:
            raise Lost
        self.leader.progress(doing)

    def close(self) -> None:
        """Drop the broker connection; :meth:`connect` opens a new one."""
        connection = self._connection
        self._connection = None
        self._producer = None
        self._batch = None
        # Drop the templates, because the next connection may put another prefix before the names of
        # queues.
        self._templates = Templates(self.app, self.leader.clock)
        self.is_broken = False
        if connection is not None:
            with suppress(Exception):  # A broken connection may raise anything.
                connection.release()


def unconfirmed(connection: Any) -> bool:
    """Return whether the broker confirms no messages, so that a lost message counts as sent."""
    confirms = connection.transport_options.get("confirm_publish")
    return connection.transport.driver_type == "amqp" and not confirms


def _declare_queues(app: Celery, channel: Any, *, only_broadcasts: bool = False) -> None:
    """Declare the queues of the app.

    Before Celery publishes to a queue, it declares the queue, unless this is a broadcast queue. A
    broadcast queue has a fanout exchange. On Redis, a process that has not declared this exchange
    takes it for a direct one, and finds no queue bound to it. So the message is lost without an
    error.

    Parameters:
        only_broadcasts: declare only the exchanges of broadcast queues, because Celery publishes
            the messages and so declares all other queues.
    """
    for queue in app.amqp.queues.values():
        if isinstance(queue, Broadcast):
            # Each worker declares a queue of its own for a Broadcast, so declare only the exchange.
            queue.exchange(channel).declare()  # type: ignore[no-untyped-call]  # untyped in kombu
        elif not only_broadcasts:
            queue(channel).declare()


def refused_for_all(error: BaseException) -> bool:
    """Return whether an error means that Redis refuses every message.

    The server may be full or a replica, or its disk may fail, for example.
    """
    return isinstance(error, (OutOfMemoryError, ReadOnlyError, ClusterDownError)) or (
        isinstance(error, ResponseError) and _REFUSES_ALL.search(str(error)) is not None
    )


def takes_batches(producer: Any) -> bool:
    """Return whether :class:`RedisBatch` can collect the messages of a producer.

    A subclass of kombu's channel may have its own functions that put messages into queues. Such a
    function may ignore the batch and send each message at once. A wrapper of a tracing library is
    no obstacle, because it passes the batch to kombu's function.
    """
    channel = type(producer.channel)
    transport = kombu.transport.redis
    # Before kombu 5.7, a producer lacks this attribute, and no transport has batches.
    collects = getattr(producer, "supports_batch_publish", False)
    if not collects or not issubclass(channel, transport.Channel):
        return False
    # A wrapper passes this test, because functools.wraps gives it the module of kombu's function.
    return bool(channel._put.__module__ == channel._put_fanout.__module__ == transport.__name__)


class RedisBatch:
    """Replacement for kombu's PublishBatch on one channel of kombu's Redis transport.

    It collects the commands of each message. The commit sends them, or :meth:`send` does.
    """

    def __init__(self, app: Celery, channel: Any) -> None:
        self._app = app
        self.channel = channel
        # kombu's channel.client puts the broker's ``global_keyprefix`` before every key. But this
        # client must also read the mark of the schedule, whose key does not have that prefix. So it
        # adds none, and add() puts the prefix before the names of queues.
        self.client = redis.Redis(connection_pool=channel.pool)
        self._prefix = channel.global_keyprefix or ""
        self._commands: list[Command] = []
        #: Names of entries whose messages found no queue.
        self._unroutable: set[str] = set()
        # ``with producer.batch()`` calls this function, and hands each message to the object that
        # the function returns.
        channel.create_publish_batch = lambda max_size: self

    def send(self, commands: Sequence[Command]) -> None:
        """Send a message at once. This is for messages that the commit does not send.

        Raises:
            OperationalError: the server has not accepted the message, or did not answer.
        """
        for command in commands:
            try:
                self.client.execute_command(*command)  # type: ignore[no-untyped-call]
            except RedisError as exc:
                # After the first command, only further queues matter. If the expiry of the queue
                # cannot be set, or an event of Celery is refused, the message is already in the
                # queue. After an error it would be sent again, and would be there twice.
                if command is commands[0] or command[0] == "lpush":
                    raise OperationalError(text_of(exc)) from exc

    def publish(self, message: Any, **destination: Any) -> None:
        """Collect the commands that put a message into its queues.

        If no queue is bound to the destination, the message goes nowhere, as in Celery. This is
        logged once for each entry.
        """
        name = message["headers"].get("periodic_task_name")
        if self._collect(message, destination) or name in self._unroutable:
            return  # The message has a queue, or it is known that no queue is bound.
        # The server may have lost the bindings of queues. So make kombu forget its declarations,
        # declare all queues again, and try once more.
        self.channel.connection.client.declared_entities.clear()
        self.channel.connection.state.clear()
        _declare_queues(self._app, self.channel)
        if self._collect(message, destination):
            return
        self._unroutable.add(name)
        logger.warning(
            "beat: %r goes nowhere, as in Celery: no queue is bound to exchange %r with routing "
            "key %r",
            name,
            destination.get("exchange"),
            destination.get("routing_key"),
        )

    def _collect(self, message: Any, destination: Any) -> bool:
        """Collect the commands of a message; return whether there are any."""
        before = len(self._commands)
        # kombu encodes the body in place, so give it a copy. It calls add() for each command.
        self.channel.basic_publish({**message}, _publish_batch=self, **destination)
        return len(self._commands) > before

    def add(self, name: str, target: str, value: Any) -> None:
        # kombu calls this function for each command of a message. kombu's own client would put its
        # global prefix before the key (``target``). The client that sends this command does not.
        self._commands.append((name, f"{self._prefix}{target}", value))

    def take(self) -> list[Command]:
        """Return the collected commands, and forget them."""
        commands = self._commands
        self._commands = []
        return commands

    # At the end of ``with producer.batch()``, kombu calls discard() after an error, else flush(),
    # and close().
    discard = take

    def flush(self) -> None:
        """Send nothing, because the caller of :meth:`take` gets the commands."""

    close = flush
