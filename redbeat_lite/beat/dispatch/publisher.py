"""Publishing through Celery: one message at a time, in batches, or in one step with the schedule.

Where kombu can publish in batches, its channel is given a batch object of ours. It collects the final commands of each
message and sends nothing. Where the broker is the very database that holds the schedule, the commit script sends them,
in the same step in which it advances the entry. So a crash can neither lose nor double an occurrence. Everywhere else
messages are published first and committed after, with ids that make a repeated publish the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery
from celery.result import denied_join_result
from celery.utils.log import get_logger
from redis.exceptions import RedisError
from redis.sentinel import SentinelConnectionPool

from ...broker import broker_connection, publish_timeouts
from ...clock import elapsed, wall_ms
from ...entries.entry import Entry
from ...entries.message import Occurrence, emission
from ...errors import text_of
from ...settings import Settings
from ...storage.clients import LOOK_UNANSWERED
from ...storage.leader_store import LeaderStore
from ...storage.stored import Command, Lost, Term
from .broker import BrokerDown, unconfirmed
from .collector import Collector, puts_as_kombu
from .declaring import declare_broadcasts, declare_once
from .prepared import Prepared

logger = get_logger(f"celery.{__name__}")


class Publisher:
    """Publishes entries over one broker connection of its own, opened at the first need.

    Parameters:
        emit: publishes one entry with a producer, by the way every Celery tool can follow; raises if it failed.
        settings: say how messages are sent: ``"plain"`` publishes one by one; ``"batch"`` collects them where the
            transport can; ``"auto"`` fills in prepared ones there, too, where that is provably the same.
        obstacle: tells why messages over a channel of this class may not be prepared at the moment, if they may not.
    """

    def __init__(
        self,
        app: Celery,
        emit: Callable[[Entry, Any], None],
        settings: Settings,
        *,
        obstacle: Callable[[type], str | None],
    ) -> None:
        self._app = app
        self._emit = emit
        self._timeout = settings.publish_timeout
        #: Seconds that opening a connection may take: two tries, each cut at the timeout.
        self.gives_up_after = 2 * settings.publish_timeout
        self._collect = settings.dispatch != "plain"
        self._prepare = settings.dispatch == "auto"
        self._traced = settings.traceparent
        self._expect = settings.expect
        self._obstacle = obstacle
        self._prepared: Prepared | None = None
        #: Why the messages of this batch are not prepared, where they might be.
        self._in_full: str | None = None
        self._before: Callable[[Occurrence], None] = lambda occurrence: None
        self._connection: Any = None
        self._producer: Any = None
        self._collector: Collector | None = None
        #: Whether the commit has to send what is published.
        self.one_step = False
        self._why_apart = ""
        self._unconfirmed = False
        #: Names of entries whose messages found no queue over this connection.
        self._astray: set[str] = set()
        self._next_look = 0.0

    @property
    def mode(self) -> str:
        """How the messages of the last :meth:`batch` go out, in words for a log line."""
        if self.one_step:
            return f"in one step with the schedule (exactly once), {self._making}"
        if self._collector is not None:
            promise = f"at least once, with stable ids; {self._why_apart}"
            return f"in batches apart from the schedule ({promise}), {self._making}"
        why = "its transport knows no batches" if self._collect else "redbeat_lite_dispatch is 'plain'"
        if self._unconfirmed:
            lost = "what the broker does not take is lost, as confirm_publish is not set"
            return f"one by one (with stable ids; {lost}; {why})"
        return f"one by one (at least once, with stable ids; {why})"

    @property
    def at_once(self) -> bool:
        """Whether a message is out when the function that publishes it returns."""
        return self._collector is None

    @property
    def _making(self) -> str:
        if self._prepared is None:
            return "each made in full"
        return "prepared" if self._in_full is None else f"each made in full, because {self._in_full}"

    def connect(self, store: LeaderStore, term: Term) -> None:
        """Open the broker connection, if it is not open, and find out whether the broker is the schedule's database.

        Raises:
            BrokerDown: it cannot be opened in time.
        """
        if self._producer is not None:
            self._follow()
            return
        mark = store.mark(term)
        connection = None
        try:
            connection = self._open()
            connection.ensure_connection(
                max_retries=1, interval_start=0, interval_step=0, reraise_as_library_errors=False
            )
            producer = self._app.amqp.Producer(connection, auto_declare=False)
            declare_once(producer)
            declare_broadcasts(self._app, producer.channel)
            collector = _collector(producer) if self._collect else None
            why_apart = collector.stranger_to(mark) if collector is not None else ""
        except Exception as exc:
            # Whatever a transport makes of its settings and its server, the beat is to say so and to try again.
            if connection is not None:
                _release(connection)
            raise BrokerDown(text_of(exc)) from exc
        self._connection, self._producer, self._collector = connection, producer, collector
        self._unconfirmed = unconfirmed(connection)
        if why_apart and not store.bears(mark):
            raise Lost  # Another leader has put its own mark there meanwhile, and the broker may have shown us that.
        self.one_step, self._why_apart = collector is not None and not why_apart, why_apart
        if self._prepare and collector is not None:
            self._prepared = Prepared(self._app, collector.tag)

    def _follow(self) -> None:
        """Leave a Redis master that Sentinel has replaced: what it took until it is told so, it would forget."""
        pool = getattr(self._producer.channel, "pool", None)
        if isinstance(pool, SentinelConnectionPool) and elapsed() >= self._next_look:
            try:
                pool.get_master_address()  # type: ignore[no-untyped-call]  # drops connections that lead elsewhere
            except RedisError:  # the master may be sound without its sentinels
                self._next_look = elapsed() + LOOK_UNANSWERED

    def answers(self) -> bool:
        """Whether a new connection reaches the broker: after a failed publish it tells whose fault that was."""
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
    def batch(
        self, before: Callable[[Occurrence], None] = lambda occurrence: None
    ) -> Iterator[Callable[[Occurrence], list[Command]]]:
        """Publish many occurrences: yields the function that publishes one and returns what is left to send of it.

        ``before`` is called before each message that goes the full way; what it raises comes out of the function.
        """
        self._before = before
        if self._prepared is not None:
            self._in_full = self._obstacle(type(self._producer.channel))
            self._prepared.begin()
        # Beat never waits for results. Without this a result backend would subscribe to each one's channel.
        with denied_join_result():
            if self._collector is None:
                yield self._publish
                return
            with self._producer.batch():
                yield self._publish

    def send(self, messages: Sequence[Sequence[Command]]) -> list[Exception | None]:
        """Send what was published and is not left to the commit, in one round trip; tells of each why it was refused.

        Raises:
            BrokerDown: the connection failed; what arrived is unknown. To close it is the caller's part.
        """
        if self._collector is None:
            raise BrokerDown("its connection was given up meanwhile")
        try:
            return self._collector.send(messages)
        except Exception as exc:
            raise BrokerDown(text_of(exc)) from exc

    def send_apart(self, why: str) -> None:
        """Leave nothing to the commit any more, as long as this connection lasts; a log line says why."""
        self.one_step, self._why_apart = False, why

    def _publish(self, occurrence: Occurrence) -> list[Command]:
        if self._prepared is None or self._in_full is not None:
            return self._publish_in_full(occurrence)
        commands = self._prepared.commands(occurrence)
        if commands is None:
            commands = self._publish_in_full(occurrence)
            self._prepared.learn(occurrence, commands)
        return commands

    def _publish_in_full(self, occurrence: Occurrence) -> list[Command]:
        self._before(occurrence)
        commands, astray = self._made(occurrence)
        name = occurrence.entry.name
        if not astray or name in self._astray:
            return commands
        assert self._collector is not None
        self._collector.declare_anew()
        declare_broadcasts(self._app, self._producer.channel)
        commands, astray = self._made(occurrence)
        if astray:
            self._astray.add(name)
            logger.warning("beat: %r goes nowhere, as in Celery: no queue is bound to %s", name, astray)
        return commands

    def _made(self, occurrence: Occurrence) -> tuple[list[Command], str]:
        """What is left to send of an occurrence, and where one of its messages should have gone that found no queue."""
        try:
            emitted = emission(occurrence, wall_ms(), expect=self._expect, traced=self._traced)
            self._emit(emitted, self._producer)
            return self._take()
        except BaseException:
            self._take()  # the half of a message that failed
            raise

    def _take(self) -> tuple[list[Command], str]:
        if self._collector is None:
            return [], ""
        astray = self._collector.astray
        return self._collector.take(), astray

    def close(self) -> None:
        """Drop the broker connection; :meth:`connect` opens a new one."""
        connection, self._connection = self._connection, None
        self._producer = self._collector = self._prepared = None
        self._astray.clear()
        self.one_step = False
        if connection is not None:
            _release(connection)


def _collector(producer: Any) -> Collector | None:
    """Return the collector of a batch's messages; ``None`` without batches, as before kombu 5.7."""
    channel = producer.channel
    has_batches = getattr(producer, "supports_batch_publish", False) and hasattr(channel, "create_publish_batch")
    if has_batches and puts_as_kombu(type(channel)):
        return Collector(channel)
    return None


def _release(connection: Any) -> None:
    with suppress(Exception):  # a connection that is given up may fail in any way
        connection.release()
