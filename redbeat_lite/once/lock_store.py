"""The once-locks and the guard's records in Redis: their keys, and one method for each script.

All keys begin with the scheduler's prefix in braces, as the schedule's keys do. So they lie in one
hash slot on Redis Cluster, and a script may use a lock, its waiters and the guard together.

=========================  ======  =================================================================
key                        type    holds
=========================  ======  =================================================================
``{p}:once:lock:<key>``    hash    ``token``; ``task``, the id of the task that has the lock;
                                   ``state``: ``queued`` or ``running``; ``since``, in ms;
                                   ``latest``, the latest end of the lock of a queued task, in ms;
                                   ``lease``, in ms; ``fence``; ``holder``; ``queue``;
                                   ``ended``, if the lock is kept for a retry: number of the
                                   attempt before the retry. Lives as long as the lease, or as long
                                   as the message of a queued task
``{p}:once:wait:<key>``    zset    task id of a waiter -> its place
``{p}:once:parked:<key>``  hash    ``m:<task id>`` -> its message, ``a:<task id>`` -> its attempt,
                                   ``d:<task id>`` -> when it is too old to run, in ms. Of the first
                                   waiter: ``woken``, its task id once it was published; ``tries``,
                                   how often; ``resend``, when it is published again. This key and
                                   the one before live for a week after the last waiter is too old
``{p}:once:index``         zset    key -> when the lock sweeper checks it, in ms. Has every lock and
                                   every key with waiters, for a week if no worker checks them
``{p}:once:fence``         string  the last fencing number that was given out or set aside
``{p}:once:workers``       hash    node name of a worker with ``install()`` -> its last report
``{p}:guard:<task id>``    hash    ``state``: ``running``, ``done`` or ``dead``; ``attempt``;
                                   ``token``; ``until``, in ms; ``standby``, a parked copy of the
                                   message. Lives as long as a copy of the message can arrive
``{p}:guard:index``        zset    task id with a standby -> when the sweeper checks it, in ms
=========================  ======  =================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

from .._base.actors import who
from .._base.clock import elapsed
from ..entries.changes import line_of
from ..settings import key_root
from ..store.keys import Keys
from ..store.records import Command
from ..store.redis_values import server_ms, text, text_or_none, texts
from ..store.scripts import Scripts
from ..store.transact import Step, transact
from .claims import Claim, Hold

#: Milliseconds after which a parked message is published once more, if its task has not begun by
#: then. Each pause is twice as long as the one before it, up to an hour.
RESEND_MS = 5_000

# Release a lock. $1 is its key, and $2 is the present time in ms, which becomes the score of the
# key in the index. With this score, the lock sweeper checks the key at once: it publishes the first
# waiter, or it removes a key without waiters from the index.
_CLEAR = """
    DEL lock
    ZADD index $2 $1
    NAMED $1
"""

#: Maximum number of keys, and of task ids, that one round of the lock sweeper handles. There is a
#: round each second, and the lock of a queued task is due after half of its lease. So with leases
#: of a minute, one worker can extend 30 * 10,000 locks. Each 10,000 locks that only other workers
#: can extend delay the rest by one round.
DUE = 10_000

#: Maximum number of locks per call of ``once/extend``.
EXTEND_BATCH = 500


class OnceKeys:
    """Names of the keys in Redis under one prefix, for example ``"redbeat-lite"``."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._root = key_root(prefix)
        #: Sorted set: key of a lock -> when a lock sweeper checks the lock.
        self.index = f"{self._root}:once:index"
        #: Counter of the fencing numbers.
        self.fence = f"{self._root}:once:fence"
        #: Hash: last report of each worker.
        self.workers = f"{self._root}:once:workers"
        #: Sorted set: id of a task with a parked copy -> when a lock sweeper checks the task.
        self.guard_index = f"{self._root}:guard:index"

    def lock(self, key: str) -> str:
        return f"{self._root}:once:lock:{key}"

    def waiters(self, key: str) -> str:
        return f"{self._root}:once:wait:{key}"

    def parked(self, key: str) -> str:
        return f"{self._root}:once:parked:{key}"

    def guard(self, task_id: str) -> str:
        return f"{self._root}:guard:{task_id}"


# -- arguments and replies of the scripts ----------------------------------------------------------


@dataclass(slots=True)
class TaskKeys:
    """Keys of one task in Redis, by their names in the scripts.

    A task without a once-lock has ``None`` for the last three.
    """

    guard: str
    index: str
    lock: str | None = None
    waiters: str | None = None
    parked: str | None = None


class Verdict(NamedTuple):
    """Decision of :meth:`LockStore.begin`.

    Parameters:
        word: ``"run"``; ``"encode"`` (call again with the message, because it must be parked);
            ``"parked"`` (the message waits for the lock); ``"taken"`` (another task has the lock,
            or too many tasks wait for it); ``"old"`` (the message is too old); ``"standby"`` (the
            message is parked, because a copy of it runs); or ``"drop"`` (a copy of it has ended, or
            it is of a step of a pipeline that was started again, and now has the lock).
        text: with ``"run"``, the fencing number; with ``"parked"``, the place among the waiters;
            with ``"taken"``, id of the task that has the lock.
    """

    word: str
    text: str


class Ended(NamedTuple):
    """Result of :meth:`LockStore.end`.

    Parameters:
        standby: whether a parked copy of the task must be published, because it has to run.
        waiters: whether this run had the lock and released it, and another task waits for it.
    """

    standby: bool
    waiters: bool


class GuardRecord(NamedTuple):
    """Record of the guard, which says whether a task id runs or has ended.

    Parameters:
        state: ``"running"``, ``"done"`` or ``"dead"``; ``None`` if there is no record.
        attempt: number of the last attempt that has begun.
        left_ms: ms until the lease of the record ends; 0 or less if its worker has not renewed it.
        until_ms: epoch ms at which the lease ends. Each renewal changes this time.
    """

    state: str | None
    attempt: int
    left_ms: float
    until_ms: float

    @property
    def is_alive(self) -> bool:
        """Whether the task runs, and its worker renews the record."""
        return self.state == "running" and self.left_ms > 0

    @property
    def has_lapsed(self) -> bool:
        """Whether the record says that the task runs, but its worker has not renewed the record."""
        return self.state == "running" and self.left_ms <= 0

    def has_ended(self, attempt: int) -> bool:
        """Return whether this attempt of the task, or a later one, has ended."""
        if self.state is None or self.attempt < attempt:
            return False
        return self.attempt > attempt or self.state == "done"

    def is_copy(self, attempt: int) -> bool:
        """Return whether a message of this attempt is a copy of one that runs or has ended."""
        return self.has_ended(attempt) or (self.attempt == attempt and self.is_alive)


# -- the store -------------------------------------------------------------------------------------


class LockStore:
    """The once-locks and the guard's records of one prefix, through one client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.keys = OnceKeys(prefix)
        self._scripts = Scripts(client)

    # -- before a task is published ----------------------------------------------------------------

    def taken(self, claims: Sequence[Claim]) -> set[Claim]:
        """Return the claims whose locks other tasks have or wait for. Acquires nothing."""
        if not claims:
            return set()
        places = []
        values = []
        for claim in claims:
            places += [self.keys.lock(claim.key), self.keys.waiters(claim.key)]
            values += [claim.key, claim.task_id]
        replies = self._run("once/taken", places=places, claims=values)
        return set(compress(claims, replies))

    def claim_command(self, claim: Claim) -> Command:
        """Return the command by which a commit acquires the lock of a task that it sends."""
        keys = self.keys
        places = (keys.lock(claim.key), keys.waiters(claim.key), keys.index, keys.fence)
        return "claim", places, claim._asdict()

    def take(self, claim: Claim) -> bool:
        """Acquire the lock of a task that is about to be published.

        Parameters:
            claim: request for a lock whose policy says ``at_publish``. The worker acquires other
                locks when the task begins.

        Returns:
            whether the message can be published: ``False`` if another task of the key is queued,
            running or waiting. A step of a pipeline that was started again takes over the lock of
            its queued message, and is published beside one that has begun.

        Raises:
            redis.exceptions.RedisError: the server did not answer. The lock may be acquired. The
                same task can acquire it again.
        """
        return bool(self._run("once/take", self._keys_of(claim.task_id, claim.key), claim))

    def leave(self, key: str, task_id: str, attempt: int = 0) -> bool:
        """Release the lock, or the place among the waiters, of an attempt that will not run.

        Parameters:
            attempt: number of the attempt; 0: the first one.

        Returns:
            whether the lock is free, and another task waits for it.
        """
        keys = self._keys_of(task_id, key)
        return bool(self._run("once/leave", keys, key=key, task_id=task_id, attempt=attempt))

    def extend(self, tasks: Sequence[tuple[str, str, bool]]) -> None:
        """Keep the locks of at most ``EXTEND_BATCH`` queued tasks for another lease.

        Parameters:
            tasks: key and task id of each task, and whether its message may still be in the queue.
                If not, the message counts as lost, and its lock is kept for at most half a lease.
        """
        locks = [self.keys.lock(key) for key, *_ in tasks]
        values: list[Any] = []
        for key, task_id, is_queued in tasks:
            values += [key, task_id, int(is_queued)]
        self._run("once/extend", locks=locks, tasks=values)

    # -- while a task runs -------------------------------------------------------------------------

    def begin(self, hold: Hold, message: str = "") -> Verdict:
        """Record that a task id runs, and acquire the lock if ``hold`` names one.

        If the task may run, ``hold.fence`` is set.

        Parameters:
            message: the encoded message, to be kept in Redis (parked) if the task has to wait. If
                the task has to wait and this is empty, the verdict is ``"encode"``.
        """
        # This process counts the lease from before the request is sent. So the lease ends earlier
        # for this process than on the server.
        hold.renewed = elapsed()
        reply = self._run(
            "once/begin",
            self._keys_of(hold.task_id, hold.key),
            hold,
            # ``fence`` is the key of the counter. Without this line, it would be ``hold.fence``.
            fence=self.keys.fence,
            message=message,
        )
        # The reply may have been in flight for longer than the lease. Then the lock has expired.
        hold.lost = hold.has_run_out()
        verdict = Verdict(*texts(reply))
        if verdict.word == "run":
            hold.fence = int(verdict.text or 0)  # Without a lock, the text is empty.
        return verdict

    def renew(self, hold: Hold, *, revive: bool) -> tuple[bool, bool]:
        """Renew a run's lock, and the guard's record of the run, for another lease.

        The record alone is renewed if the run has no lock, or if :meth:`Hold.keeps_lock` is false.

        Parameters:
            revive: whether to write the lock and the record again if a flush of the server removed
                them and no other task has them. Must be false if the last good renewal was sent a
                lease ago or longer, because another task may have begun and ended meanwhile.

        Returns:
            whether the guard still has the record of this run; and whether the run still has the
            lock that it keeps. The second value is true for a run that needs no lock.
        """
        keeps_lock = hold.keeps_lock()
        has_guard, has_lock = self._run(
            "once/renew",
            self._keys_of(hold.task_id, hold.key if keeps_lock else None),
            hold,
            revive=int(revive),
            fence=hold.fence,
        )
        # ``has_lock`` is -1, and so true, if there was no lock to renew.
        return bool(has_guard), keeps_lock and bool(has_lock)

    def end(self, hold: Hold, how: str = "done", *, hold_ms: int = 0) -> Ended:
        """Release the lock of a run, and end the guard's record of the run as ``how`` says.

        Parameters:
            how: ``"done"``: no copy of the task may run again. ``"dead"``: a copy may run, because
                this run did not do its work. ``"lock"``: only the lock is released, because the run
                goes on.
            hold_ms: ms for which the lock stays held for the task's retry; 0: it is released.
        """
        keys = self._keys_of(hold.task_id, hold.key)
        standby, waiters = self._run("once/end", keys, hold, how=how, hold_ms=hold_ms)
        return Ended(bool(standby), bool(waiters))

    # -- waiters and copies ------------------------------------------------------------------------

    def wake(self, key: str, resend_ms: int = RESEND_MS) -> tuple[str, bool] | None:
        """Return the first waiter of a free lock, for the caller to publish.

        The waiter stays parked (its message is kept in Redis) until it begins, because the message
        that was published may be lost.

        Parameters:
            resend_ms: ms after which this method returns a waiter again that has not begun. The
                time doubles with each call that does so, up to an hour.

        Returns:
            the waiter's message, and whether it is too old to run. If it is, the caller also calls
            :meth:`leave` for the task. ``None`` if the lock is not free, no task waits, or
            the first waiter was returned less than ``resend_ms`` ago.
        """
        reply = self._run(
            "once/wake",
            lock=self.keys.lock(key),
            waiters=self.keys.waiters(key),
            parked=self.keys.parked(key),
            key=key,
            resend_ms=resend_ms,
        )
        return (text(reply[0]), bool(reply[1])) if reply else None

    def wake_standby(self, task_id: str, resend_ms: int = RESEND_MS) -> str | None:
        """Return the parked copy of a task's message if it may run, for the caller to publish.

        A copy that arrives while the task runs is parked (kept in Redis), in case that run dies.

        Parameters:
            resend_ms: ms after which this method returns a copy again that has not begun, because
                its message may be lost. The time doubles with each call that does so, up to an
                hour.

        Returns:
            the message; ``None`` if the task still runs, has no parked copy, or its copy was
            returned less than ``resend_ms`` ago.
        """
        guard = self.keys.guard(task_id)
        return text_or_none(
            self._run("guard/wake", guard=guard, task_id=task_id, resend_ms=resend_ms)
        )

    def discard(self, task_id: str, attempt: int) -> None:
        """Drop the parked copies of a message that will not run, and all copies that come later.

        Parameters:
            attempt: number of the attempt. Copies of later attempts stay.
        """
        self._run("guard/discard", guard=self.keys.guard(task_id), task_id=task_id, attempt=attempt)

    def due(self, passed_over: int = 0) -> tuple[list[str], list[str]]:
        """Return the keys of locks and the ids of tasks that the lock sweeper must check now.

        A task that waits for such a lock may have to be published, or the lock may have to be
        extended. Each of the tasks has a parked copy of its message, which may have to run.

        Parameters:
            passed_over: number of locks to leave out, beginning with the lock that is due first.
        """
        now = server_ms(self.client)
        pipe = self.client.pipeline(transaction=False)
        pipe.zrangebyscore(self.keys.index, "-inf", now, start=passed_over, num=DUE)
        pipe.zrangebyscore(self.keys.guard_index, "-inf", now, start=0, num=DUE)
        keys, ids = pipe.execute()
        return texts(keys), texts(ids)

    def clear(self, key: str) -> tuple[bool, bool]:
        """Release a lock, no matter which task has it, and add a line to the record of changes.

        Returns:
            whether a task had the lock, and whether a task waits for it.
        """
        keys = self._keys_of(task_id="", key=key)  # Of these keys, those of the lock are needed.
        is_held = bool(self.client.exists(keys.lock))
        waiters = bool(self.client.exists(keys.waiters))
        if is_held:
            step = Step(_CLEAR, (key, server_ms(self.client)), line_of(who(), "lock cleared"))
            transact(self._scripts, Keys.of(self.keys.prefix), [step], others=keys)
        return is_held, waiters

    # -- the guard's records -----------------------------------------------------------------------

    def records(self, task_ids: Iterable[str]) -> dict[str, GuardRecord]:
        """Return the guard's record of each task, by task id."""
        task_ids = list(task_ids)
        if not task_ids:
            return {}
        # Read the time before the records. If it were read after them, a slow reply would make a
        # record look too old, as if its task were dead. Read it outside the pipeline, because a
        # cluster's pipeline allows no command without a key.
        now = server_ms(self.client)
        pipe = self.client.pipeline(transaction=False)
        for task_id in task_ids:
            pipe.hmget(self.keys.guard(task_id), "state", "attempt", "until")
        records = {}
        for task_id, (state, attempt, until) in zip(task_ids, pipe.execute(), strict=True):
            until_ms = float(until or 0)
            records[task_id] = GuardRecord(
                text_or_none(state), int(attempt or 0), left_ms=until_ms - now, until_ms=until_ms
            )
        return records

    # -- helpers -----------------------------------------------------------------------------------

    def _run(self, script: str, *sources: object, **values: Any) -> Any:
        """Run a script, which finds its KEYS and ARGS by name in these objects.

        They come from ``values``, or else from the attributes of ``sources`` and of the store's
        keys.
        """
        return self._scripts.run(script, *sources, self.keys, **values)

    def _keys_of(self, task_id: str, key: str | None) -> TaskKeys:
        """Return the keys of one task: its guard, and its lock if any.

        Parameters:
            key: key of the once-lock; ``None``: the task needs no lock.
        """
        keys = TaskKeys(self.keys.guard(task_id), self.keys.index)
        if key is not None:
            keys.lock = self.keys.lock(key)
            keys.waiters = self.keys.waiters(key)
            keys.parked = self.keys.parked(key)
        return keys
