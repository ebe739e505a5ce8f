"""Publishing through Celery: one message at a time, in batches, or in one step with the schedule.

If kombu can publish in batches, its channel gets a batch object of ours, which collects the final
commands of each message and sends nothing. If the broker is the database that holds the schedule,
the commit script sends these commands in the step that advances the entry, so a crash neither loses
nor repeats an occurrence. Otherwise messages are published first and committed after, under task
ids that are the same in each try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Protocol

from celery import Celery
from celery.result import denied_join_result
from celery.utils.log import get_logger
from kombu.common import Broadcast
from redis.exceptions import RedisError
from redis.sentinel import SentinelConnectionPool

from ..._base.celery_app import broker_connection, publish_timeouts
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
from .redis_batch import RedisBatch, puts_as_kombu

logger = get_logger(f"celery.{__name__}")


class BrokerDown(Exception):
    """The broker cannot be reached, or takes no message at all."""


class Emitter(Protocol):
    """The scheduler, as the publisher needs it."""

    def emit(self, entry: Entry, producer: Any) -> None:
        """Publish an entry as Celery's own scheduler does; raise what went wrong."""


class Publisher:
    """Publishes entries over one broker connection of its own, opened at the first need.

    Parameters:
        settings: ``dispatch`` is ``"plain"`` to publish one by one, ``"batch"`` to collect messages
            if the transport can, ``"auto"`` to also fill in prepared messages, if the result is
            provably the same.
        scheduler: publishes an entry in the way that Celery's tools know.
        module: the module in which our scheduler is written.
    """

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        clock: ServerClock,
        scheduler: Emitter,
        module: ModuleType,
    ) -> None:
        self._app = app
        self._clock = clock
        self._scheduler = scheduler
        self._module = module
        self._timeout = settings.publish_timeout
        #: Seconds that opening a connection may take: two tries, each cut at the timeout.
        self.gives_up_after = 2 * settings.publish_timeout
        self._collect = settings.dispatch != "plain"
        self._prepare = settings.dispatch == "auto"
        self._traced = settings.traceparent
        self._expect = settings.expect
        self._templates: Templates | None = None
        #: Why the messages of this batch are made in full, although they might be prepared.
        self._in_full: str | None = None
        self._connection: Any = None
        self._producer: Any = None
        self._batch: RedisBatch | None = None
        #: Whether the commit sends the messages.
        self.one_step = False
        #: Whether the connection failed, so that it must be closed after the commit.
        self.is_broken = False
        self._why_apart = ""
        self._unconfirmed = False
        #: Names of entries whose messages found no queue over this connection.
        self._astray: set[str] = set()
        self._next_look = 0.0

    @property
    def mode(self) -> str:
        """Text for a log line that says how the messages of the last :meth:`batch` are sent."""
        if self.one_step:
            return f"in one step with the schedule (exactly once), {self._making}"
        if self._batch is not None:
            promise = f"at least once, with stable ids; {self._why_apart}"
            return f"in batches apart from the schedule ({promise}), {self._making}"
        why = "redbeat_lite_dispatch is 'plain'"
        if self._collect:
            why = "its transport knows no batches"
        if self._unconfirmed:
            lost = "what the broker does not take is lost, as confirm_publish is not set"
            return f"one by one (with stable ids; {lost}; {why})"
        return f"one by one (at least once, with stable ids; {why})"

    @property
    def at_once(self) -> bool:
        """Whether a message has been sent when the function that publishes it returns."""
        return self._batch is None

    @property
    def _making(self) -> str:
        if self._templates is None:
            return "each made in full"
        if self._in_full is None:
            return "prepared"
        return f"each made in full, because {self._in_full}"

    def connect(self, store: LeaderStore, term: Term) -> bool:
        """Open the broker connection, if it is not open. Return whether it was opened.

        If the broker is the database of the schedule, the commit will send the messages.

        Raises:
            BrokerDown: the connection cannot be opened in time.
            Lost: another process leads.
        """
        if self._producer is not None:
            self._follow()
            return False
        mark = store.mark(term)
        connection = None
        try:
            connection = self._open()
            connection.ensure_connection(
                max_retries=1, interval_start=0, interval_step=0, reraise_as_library_errors=False
            )
            producer = self._app.amqp.Producer(connection, auto_declare=False)
            _declare_broadcasts(self._app, producer.channel)
            batch = _redis_batch(producer) if self._collect else None
            why_apart = batch.stranger_to(mark) if batch is not None else ""
        except Exception as exc:
            # A transport may raise anything for its settings or its server. The beat logs it and
            # tries again.
            if connection is not None:
                _release(connection)
            raise BrokerDown(text_of(exc)) from exc
        self._connection = connection
        self._producer = producer
        self._batch = batch
        self._unconfirmed = unconfirmed(connection)
        if why_apart and not store.bears(mark):
            # Another leader has replaced the mark, and the broker may have shown us that one.
            raise Lost
        self.one_step = batch is not None and not why_apart
        self._why_apart = why_apart
        if self._prepare and batch is not None:
            self._templates = Templates(self._app, batch.next_tag)
        return True

    def _follow(self) -> None:
        """Leave a Redis master that Sentinel has replaced, because it will lose new messages."""
        pool = getattr(self._producer.channel, "pool", None)
        if isinstance(pool, SentinelConnectionPool) and elapsed() >= self._next_look:
            try:
                # This drops connections to another server.
                pool.get_master_address()  # type: ignore[no-untyped-call]
            except RedisError:  # The master may work without its sentinels.
                self._next_look = elapsed() + LOOK_UNANSWERED

    def answers(self) -> bool:
        """Return whether the broker answers; if so, a failed publish is the entry's fault."""
        connection = None
        try:
            connection = self._open()
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        except Exception:  # noqa: BLE001 - any failure to answer is the answer
            return False
        finally:
            if connection is not None:
                _release(connection)
        return True

    def _open(self) -> Any:
        connection = broker_connection(self._app)
        connection.transport_options |= publish_timeouts(connection, self._timeout)
        return connection

    @contextmanager
    def batch(self) -> Iterator[Callable[[Occurrence], list[Command]]]:
        """Publish a batch: yield a function that publishes one occurrence.

        The function returns the commands that are still to be sent.
        """
        if self._templates is not None:
            channel = type(self._producer.channel)
            self._in_full = obstacle(self._scheduler, self._module, self._app, channel)
            self._templates.begin(self._clock.now_ms())
        # Beat never waits for results. Without this, a result backend would subscribe to a channel
        # for each.
        with denied_join_result():
            if self._batch is None:
                yield self._publish
                return
            with self._producer.batch():
                yield self._publish

    def send(self, messages: Sequence[Sequence[Command]]) -> list[Exception | None]:
        """Send messages that the commit does not send, in one round trip.

        Returns for each message why it was refused, if it was.

        Raises:
            BrokerDown: the connection failed, and any of the messages may have arrived. The caller
                closes it.
        """
        if self._batch is None:
            raise BrokerDown("its connection was given up meanwhile")
        try:
            return self._batch.send(messages)
        except Exception as exc:
            raise BrokerDown(text_of(exc)) from exc

    def send_apart(self, why: str) -> None:
        """Send messages before the commit, as long as this connection lasts."""
        self.one_step = False
        self._why_apart = why

    def _publish(self, occurrence: Occurrence) -> list[Command]:
        if self._templates is None or self._in_full is not None:
            return self._publish_in_full(occurrence)
        commands = self._templates.copy_message(occurrence)
        if commands is None:
            commands = self._publish_in_full(occurrence)
            self._templates.learn(occurrence, commands)
        return commands

    def _publish_in_full(self, occurrence: Occurrence) -> list[Command]:
        commands, astray = self._make_message(occurrence)
        name = occurrence.entry.name
        if not astray or name in self._astray:
            return commands
        # The server may have lost which queue is bound to the exchange.
        assert self._batch is not None
        self._batch.declare_again()
        _declare_broadcasts(self._app, self._producer.channel)
        commands, astray = self._make_message(occurrence)
        if astray:
            self._astray.add(name)
            text = "beat: %r goes nowhere, as in Celery: no queue is bound to %s"
            logger.warning(text, name, astray)
        return commands

    def _make_message(self, occurrence: Occurrence) -> tuple[list[Command], str]:
        """Make a message; return its commands, and its destination if no queue is bound to it."""
        try:
            emitted = emission(
                occurrence, self._clock.now_ms(), expect=self._expect, traced=self._traced
            )
            self._scheduler.emit(emitted, self._producer)
            return self._take()
        except BaseException:
            self._take()  # Drop the part of the message that was made before it failed.
            raise

    def _take(self) -> tuple[list[Command], str]:
        return ([], "") if self._batch is None else self._batch.take()

    def close(self) -> None:
        """Drop the broker connection; :meth:`connect` opens a new one."""
        connection = self._connection
        self._connection = None
        self._producer = self._batch = self._templates = None
        self._astray.clear()
        self.one_step = False
        self.is_broken = False
        if connection is not None:
            _release(connection)


def _redis_batch(producer: Any) -> RedisBatch | None:
    """Return the batch that collects messages; ``None`` without batches, as before kombu 5.7."""
    channel = producer.channel
    if not getattr(producer, "supports_batch_publish", False):
        return None
    if not hasattr(channel, "create_publish_batch") or not puts_as_kombu(type(channel)):
        return None
    return RedisBatch(channel)


def unconfirmed(connection: Any) -> bool:
    """Return whether the broker is not asked to confirm messages, so a lost one counts as sent."""
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


def _release(connection: Any) -> None:
    with suppress(Exception):  # A broken connection may raise anything.
        connection.release()
