"""The threads of a worker's main process, and the step that starts them.

The threads renew the locks of children, find children that died, keep a Redis broker from
redelivering messages, sweep all locks, renew the signs of life of runs, and report the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from celery import bootsteps
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker import state

from ..._base.clock import elapsed
from ..._base.errors import ConfigurationError
from ..._base.text import text_of
from ..._base.threads import Ticker
from ..._base.times import from_ms
from ...entries.run import LIFE_MS, Attempt, sign_of
from ...runs.incident import LEADERLESS, Incident
from ...runs.incident_store import IncidentStore
from ...runs.run_store import RunKeys
from ...store.connections import FAULTS
from ...store.keys import Keys
from ...store.records import chunks
from ...store.redis_values import server_ms
from ..claims import Hold
from ..install import adopt
from ..lock_client import LockClient
from ..lock_store import LockStore
from ..worker_reports import REPORT, report_worker
from .lock_sweeper import PERIOD, LockSweeper
from .request import is_child, is_gone, watch, with_mixin

logger = get_logger(f"celery.{__name__}")

#: Seconds between two checks of the children.
_CHECK = 0.25

#: Seconds between two renewals of the signs of life of runs.
_SIGN = 1.0

#: Number of renewals of a message within one visibility timeout. Two of them can fail.
PER_TIMEOUT = 3

#: Maximum number of members of one ZADD.
_BATCH = 1000


class OnceStep(bootsteps.StartStopStep):  # type: ignore[misc] # Celery has no types
    """Step of a worker's consumer that prepares its tasks, and starts the worker's threads.

    Celery calls ``start`` for every new connection of the consumer. The threads live until the
    worker has stopped, because during a warm shutdown tasks may run for hours after the consumer
    has stopped.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        #: Made at the first connection; empty before, and if the settings are wrong.
        self._threads: Sequence[Ticker] = ()
        #: ``None`` if the broker has no visibility timeout, or before the first connection.
        self._heartbeat: Heartbeat | None = None
        # Change the tasks before Celery builds strategies and tracers from the request class and
        # the hooks of each task. Include Celery's own tasks, because an entry can name any of them.
        for task in consumer.app.tasks.values():
            type(task).Request = with_mixin(symbol_by_name(task.Request))
            if not getattr(task, "guarded", False):
                adopt(task)

    def start(self, consumer: Any) -> None:
        """Use a new connection of the consumer, and start the threads at the first connection."""
        try:
            client = LockClient.of(consumer.app)
        except ConfigurationError as exc:
            logger.error(
                "Once-locks, the guard and the visibility heartbeat are off: %s", text_of(exc)
            )
            return
        if self._heartbeat is not None:
            self._heartbeat.close()
        self._heartbeat = heartbeat_for(consumer)
        if not self._threads:
            self._threads = self._make_threads(client, str(consumer.hostname))
        for thread in self._threads:
            thread.start()
        # Let the first thread report the worker at once, because the queues may have changed.
        self._threads[0].soon()

    def stop(self, consumer: Any) -> None:
        """Note that the consumer stops, for good or until it has a new connection.

        The threads go on, because tasks may still run.
        """
        if self._heartbeat is not None:
            self._heartbeat.end_loop()

    def shutdown(self, consumer: Any) -> None:
        """Let the threads end after their present round, because the pool has stopped, too.

        Otherwise they would go on in a process that outlives its worker, for example in tests.
        """
        for thread in self._threads:
            thread.stop()
        if self._heartbeat is not None:
            self._heartbeat.close()

    def _make_threads(self, client: LockClient, hostname: str) -> Sequence[Ticker]:
        """Return the threads of the worker. The first of them reports the worker.

        Parameters:
            hostname: node name of the worker.
        """

        def report() -> None:
            """Store this worker's report. If no beat leads, open the incident ``no_leader``."""
            # Read the queues each time, because remote control may add and cancel queues.
            queues = sorted(client.app.amqp.queues.consume_from)
            report_worker(client.store, hostname, queues)
            look_for_leader(client)

        sweeper = LockSweeper(client, state.requests)
        signs_of_life = SignsOfLife(client)
        return (
            Ticker("redbeat-lite-report", lambda: REPORT, report),
            Ticker("redbeat-lite-lock-sweeper", lambda: PERIOD, sweeper.round),
            Ticker("redbeat-lite-children", lambda: _CHECK, partial(watch_children, client.store)),
            Ticker("redbeat-lite-signs", lambda: _SIGN, signs_of_life.renew),
        )


def watch_children(store: LockStore) -> None:
    """Renew the locks of the children's runs, and release the locks of children that died.

    A child cannot renew its lock while its task holds the interpreter's lock, so the main process
    renews the lock as well. Celery may take five seconds to notice that a child died.
    """
    for request in snapshot(state.active_requests):
        # The request of a task that was registered after the worker's start has no ``hold``,
        # because it is of Celery's own class.
        hold: Hold | None = getattr(request, "hold", None)
        if hold is None or request.is_watched:
            continue  # There is nothing to renew, or a thread waits until the child is gone.
        now = elapsed()
        if is_child(request.worker_pid) and is_gone(request.worker_pid):
            # The child has died. Celery notices this some seconds later, and then decides whether
            # the message is redelivered. In case it is, ``None`` allows another copy of the task.
            watch(request, result=None)
        elif now - hold.renewed >= hold.period:
            # If the server does not answer, the next check tries again.
            with suppress(*FAULTS):
                # If a flush has removed the lock, do not restore it here, because the run may have
                # ended meanwhile. The child restores it.
                store.renew(hold, revive=False)
                hold.renewed = now


class SignsOfLife:
    """Signs of life of the runs of one worker. Each is valid for one lease.

    The signs tell a reader whether a recorded run goes on, or its worker was killed.
    """

    def __init__(self, client: LockClient) -> None:
        self._client = client
        #: Members of the sorted set that the last renewal has written.
        self._members = set[str]()

    def renew(self) -> None:
        """Renew the signs of the runs of this worker, and remove the signs of ended runs.

        A request that belongs to no recorded run gets no sign.
        """
        redis = self._client.store.client
        settings = self._client.settings
        key = RunKeys(settings.key_prefix).alive
        requests = snapshot(state.active_requests)
        attempts = [Attempt.of(request.request_dict, settings.history) for request in requests]
        members = {sign_of(attempt.task_id, attempt.number) for attempt in attempts if attempt}
        ended = self._members - members
        # If the server does not answer, the next renewal tries again.
        with suppress(*FAULTS):
            if members:
                until = server_ms(redis) + round(1000 * settings.once_lease)
                redis.zadd(key, dict.fromkeys(members, until))
                # Also remove old signs of workers that were killed.
                redis.zremrangebyscore(key, 0, until - LIFE_MS)
                redis.pexpire(key, LIFE_MS)
            if ended:
                redis.zrem(key, *ended)
            self._members = members


def look_for_leader(client: LockClient) -> None:
    """Open the incident ``no_leader`` if a beat has led the schedule before, and none leads now.

    A worker opens this incident, because among the beats only the leader could, and there is none.
    The next leader closes the incident.
    """
    redis = client.store.client
    settings = client.settings
    keys = Keys.of(settings.key_prefix)
    pipe = redis.pipeline(transaction=False)
    pipe.exists(keys.leader)
    pipe.hget(keys.meta, "ticked")
    pipe.hlen(keys.entries)
    pipe.zrange(keys.beats, -1, -1, withscores=True)
    # ``ticked`` is the last sign of life of any leader; ``None``: no beat has led before.
    # ``last_beat`` is a list of at most one pair: the beat with the latest time, and that time.
    leads, ticked, entries, last_beat = pipe.execute()
    if leads or not entries or ticked is None:
        return
    now = server_ms(redis)
    silence = now - int(ticked)
    # A leader that is stuck keeps its lease for a while after its last sign of life, and a stand-by
    # beat can lead only after the end of the lease. So count from the end of the lease, or from the
    # last sign of life of any beat if that is later.
    last_sign = last_beat[0][1] if last_beat else 0
    leaderless_since = max(int(ticked) + 1000 * settings.lease, last_sign)
    if now - leaderless_since <= 1000 * LEADERLESS:
        return
    text = f"no beat has led for {silence / 1000:.0f} s"
    incident = Incident("no_leader", entry=None, since=from_ms(now), text=text)
    if IncidentStore(redis, settings.key_prefix).open_incident(incident):
        logger.error("Incident %s is open, %s: %s", incident.id, incident.kind, incident.text)


# -- the visibility heartbeat ----------------------------------------------------------------------


class Heartbeat:
    """Heartbeat that renews the visibility of a worker's unacknowledged messages.

    Kombu delivers an unacknowledged message to another worker after ``visibility_timeout``, even if
    the worker that received it lives. To prevent that, the worker sets the delivery time of its
    messages to the present time, three times within the timeout.

    Parameters:
        timer: timer of the worker's main loop. If the loop hangs for a whole visibility timeout,
            only messages of tasks that run in children are renewed, so that other workers get the
            other messages.
    """

    def __init__(self, channel: Any, timer: Any) -> None:
        self._channel = channel
        # The channel's own pool belongs to the worker's event loop, so make another pool.
        self._client = channel.Client(connection_pool=channel._get_pool())
        self.timeout = float(channel.visibility_timeout)
        #: When the worker's main loop was last seen to run, in seconds of :func:`elapsed`.
        self._looped = elapsed()
        period = self.timeout / PER_TIMEOUT
        self._entry = timer.call_repeatedly(period, self._note_loop)
        self._ticker = Ticker("redbeat-lite-visibility", lambda: period, self.mark)

    def start(self) -> None:
        """Start the thread that renews the messages, now and three times per visibility timeout."""
        self._ticker.start()
        self._ticker.soon()

    def _note_loop(self) -> None:
        """Note that the main loop runs, because its timer has made this call."""
        self._looped = elapsed()

    def end_loop(self) -> None:
        """Stop checking that the main loop runs, because the loop ends on purpose.

        The pool may still run tasks, so their messages are still renewed.
        """
        self._looped = float("inf")  # With this value, the loop never looks as if it hangs.
        self._entry.cancel()

    def mark(self) -> None:
        """Set the delivery time of the messages to the present time of the server.

        Kombu itself writes delivery times by the worker's clock.
        """
        for chunk in chunks(self._tags(), _BATCH):
            now = server_ms(self._client) / 1000
            # With ``xx`` ZADD adds no member, so a message that was acknowledged meanwhile stays
            # removed.
            self._client.zadd(self._channel.unacked_index_key, dict.fromkeys(chunk, now), xx=True)

    def _tags(self) -> list[str]:
        """Return the delivery tags of the messages whose visibility is to be renewed."""
        qos = self._channel._qos
        if qos is None:
            return []  # The channel has received no message yet.
        # The tags in ``_dirty`` are acknowledged already.
        tags = [tag for tag in snapshot(qos._delivered) if tag not in qos._dirty]
        if elapsed() - self._looped <= self.timeout:
            return tags
        # The main loop hangs. Renew only the messages that run in children, so that other workers
        # get the others.
        running = snapshot(state.active_requests)
        if not all(is_child(request.worker_pid) for request in running):
            # The solo pool runs a task in the main loop, so the loop is busy and does not hang.
            return tags
        in_children = {request.message.delivery_tag for request in running}
        return [tag for tag in tags if tag in in_children]

    def close(self) -> None:
        """End the thread, and close its connections."""
        self._ticker.stop()
        self._entry.cancel()
        self._client.connection_pool.disconnect()


def heartbeat_for(consumer: Any) -> Heartbeat | None:
    """Start and return the heartbeat of a consumer; ``None`` if its broker needs none.

    Only a Redis broker has a visibility timeout, and only while its channel keeps unacknowledged
    messages for redelivery.
    """
    transport = consumer.connection.transport
    channel = getattr(consumer.task_consumer, "channel", None)
    if transport.driver_type != "redis" or not getattr(channel, "ack_emulation", False):
        return None
    heartbeat = Heartbeat(channel, consumer.timer)
    heartbeat.start()
    return heartbeat


def snapshot(members: Iterable[Any]) -> list[Any]:
    """Copy the members of a collection that the main thread may change meanwhile.

    If the collection changes during each of 100 attempts, the list is empty. Callers try again in
    their next round.
    """
    for _ in range(100):
        with suppress(RuntimeError):  # The collection was changed during the iteration.
            return list(members)
    return []
