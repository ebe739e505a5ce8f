"""What the once-locks do in Redis: one method for each script, plain values in and out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from ..actors import who
from ..runs.run import Fate
from ..runs.run_store import RunKeys
from ..storage.changes import line_of
from ..storage.connections import FAULTS
from ..storage.keys import Keys
from ..storage.records import chunks
from ..storage.redis_values import server_ms, text, text_or_none, texts
from ..storage.scripts import Scripts
from .answers import Ended, Seen, Turn, Verdict
from .keys import OnceKeys

#: A waiter or a standby that was woken and did not start is woken again after this many ms, then twice as long, …
RESEND_MS = 5_000

#: … and at last once in this many. A queue nobody consumes so gets one copy an hour, which the guard drops.
RESEND_MAX_MS = 3_600_000

#: What a server raises that is down, restarting, read-only, full, or out of reach.
DOWN = FAULTS

#: How many claims one call of ``once/take`` handles; each has eleven KEYS and ARGV, and Lua unpacks a few thousand.
TAKE_BATCH = 500

#: What nobody has looked after for a week leaves the index, in ms: no worker has ``install()``, and the locks have run
#: out. Who still waits is found again when the next task of that key comes, and forgotten a week after the last of them
#: would have been too old to run.
KEPT_MS = 7 * 86_400_000


@dataclass(slots=True)
class Held:
    """What one running task holds, and the numbers to keep it and to give it back.

    Parameters:
        token: names this copy of this run; a new one for every delivery.
        attempt: grows with each retry and each ``replace`` of the same task id.
        lease_ms: how long it lasts without renewal.
        key: of the once-lock; ``None`` where there is only the guard.
        fence: the fencing number, once the lock is held.
        holder: who runs it, for people.
        deadline_ms: when the message is too old to run, wall clock of the server; 0 for never.
        expires_ms: when the message expires, likewise.
        life_ms: how long the guard remembers a run that had no deadline.
        guard_id: names the guard's record instead of ``task_id``, for a lock that is given back alone.
    """

    token: str
    task_id: str
    attempt: int
    lease_ms: int
    key: str | None = None
    fence: int = 0
    holder: str = ""
    deadline_ms: int = 0
    expires_ms: int = 0
    life_ms: int = 1
    guard_id: str = ""

    @property
    def record(self) -> str:
        return self.guard_id or self.task_id


class Wanted(NamedTuple):
    """A lock for a task that is about to be published."""

    key: str
    task_id: str
    lease_ms: int
    #: Until its message may run: the lease counts from then.
    delay_ms: int
    holder: str
    queue: str
    #: For how long its message lives, likewise: the lock lasts no shorter. 0 for a message that has no end.
    life_ms: int = 0
    #: After which another task may have the lock, if this one is still queued; 0 for never.
    yields_ms: int = 0


class LockStore:
    """The once-locks and the guard's records of one prefix on one client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.keys = OnceKeys(prefix)
        self._runs = RunKeys(prefix)
        self._scripts = Scripts(client)

    def take(self, claims: Sequence[Wanted]) -> list[bool]:
        """Take locks for tasks about to be published; one round trip for up to ``TAKE_BATCH`` of them."""
        taken: list[bool] = []
        for chunk in chunks(claims, TAKE_BATCH):
            keys = [self.keys.index, self.keys.fence]
            for claim in chunk:
                keys += [self.keys.lock(claim.key), self.keys.waiters(claim.key)]
            args = [len(chunk), KEPT_MS, *chain.from_iterable(chunk)]
            taken += map(bool, self._scripts.run("once/take", keys, args))
        return taken

    def begin(
        self,
        held: Held,
        *,
        on_conflict: str = "skip",
        max_waiters: int | None = None,
        message: str = "",
        fate: Fate | None = None,
    ) -> Verdict:
        """Claim a task id, and the lock where ``held`` names one; fills in ``held.fence``.

        Parameters:
            fate: what to record of the run if it may go ahead.
        """
        keys = [self.keys.guard(held.record), self.keys.guard_index]
        args: list[Any] = [
            held.token,
            held.task_id,
            held.attempt,
            held.lease_ms,
            held.deadline_ms,
            held.life_ms,
            message,
        ]
        if held.key is not None:
            keys += [*self._lock_keys(held.key), self.keys.fence]
            args += [held.key, on_conflict, held.holder, max_waiters or 0, KEPT_MS, held.expires_ms]
        verdict = Verdict(*texts(self._run("once/begin", keys, args, fate)))
        if verdict.word == "run":
            held.fence = int(verdict.text or 0)
        return verdict

    def renew(self, held: Held, *, revive: bool, lock: bool = True) -> tuple[bool, bool]:
        """Renew what a run holds for another lease.

        Parameters:
            revive: whether to take again what a flush of the server took away, if nobody else has
                it. False if the last good renewal is a lease ago or longer, because another task
                may have come and gone meanwhile.
            lock: whether the lock is renewed too, if the run has one.

        Returns:
            whether the guard's record is ours, and whether the lock is ours or was not renewed.
        """
        keys = [self.keys.guard(held.record)]
        args: list[Any] = [held.token, held.task_id, held.attempt, held.lease_ms, int(revive)]
        if held.key is not None and lock:
            keys += [self.keys.lock(held.key), self.keys.index]
            args += [held.key, held.fence, held.holder]
        guard, ours = self._scripts.run("once/renew", keys, args)
        return bool(guard), bool(ours)

    def end(self, held: Held, *, again: bool = False, hold_ms: int = 0, fate: Fate | None = None) -> Ended:
        """Give back what is held.

        Parameters:
            again: a copy of this task may run, because this run came to nothing.
            hold_ms: keep the lock for the task's retry for so long.
            fate: what to record of the run; that it came to nothing, only if no copy of it runs by now.
        """
        keys = [self.keys.guard(held.record), self.keys.guard_index]
        outcome = "again" if again else "done"
        args: list[Any] = [held.token, held.task_id, outcome, held.deadline_ms, held.life_ms]
        if held.key is not None:
            keys += self._freed_keys(held.key)
            args += [held.key, hold_ms, held.attempt, held.lease_ms]
        standby, released, waiters, unrecorded = self._run("once/end", keys, args, fate)
        return Ended(bool(standby), bool(released), bool(waiters), text(unrecorded))

    def wake(self, key: str, resend_ms: int = RESEND_MS) -> Turn | None:
        """The waiter whose turn it is, for the caller to publish or to end."""
        reply = self._scripts.run("once/wake", self._lock_keys(key), [key, resend_ms, RESEND_MAX_MS])
        return Turn(text(reply[0]), bool(reply[1])) if reply else None

    def wake_standby(self, task_id: str, resend_ms: int = RESEND_MS) -> str | None:
        """The message of the parked copy that may run now, to be published by the caller."""
        keys = [self.keys.guard(task_id), self.keys.guard_index]
        return text_or_none(self._scripts.run("guard/wake", keys, [task_id, resend_ms, RESEND_MAX_MS]))

    def discard(self, task_id: str, attempt: int) -> None:
        """Let no parked copy of a message run that was discarded."""
        self._scripts.run("guard/discard", [self.keys.guard(task_id), self.keys.guard_index], [task_id, attempt])

    def leave(self, key: str, task_id: str) -> bool:
        """Give up a queued task's lock or place; true where somebody may be waiting for it."""
        [waited] = self.leave_all([(key, task_id)])
        return waited

    def leave_all(self, places: Sequence[tuple[str, str]]) -> list[bool]:
        """Give up the locks or places of tasks, by key and task id; one round trip for up to ``TAKE_BATCH`` of them."""
        waited: list[bool] = []
        for chunk in chunks(places, TAKE_BATCH):
            keys = [self.keys.index]
            for key, _ in chunk:
                keys += [self.keys.lock(key), self.keys.waiters(key), self.keys.parked(key)]
            waited += map(bool, self._scripts.run("once/leave", keys, [*chain.from_iterable(chunk)]))
        return waited

    def extend(self, places: Sequence[tuple[str, str, bool]]) -> list[bool]:
        """Keep the locks of tasks that are queued, by key and task id, for another lease; at most ``TAKE_BATCH``.

        With ``False`` behind them, their messages are lost: then for no longer than half a lease.
        """
        keys = [self.keys.index, *(self.keys.lock(key) for key, *_ in places)]
        args = [word for key, task_id, there in places for word in (key, task_id, int(there))]
        return [bool(reply) for reply in self._scripts.run("once/extend", keys, args)]

    def clear(self, key: str) -> tuple[bool, bool]:
        """Free a lock whoever holds it, and record who did; (it was held, somebody waits for it)."""
        line = line_of(who(), "lock cleared")
        ours = Keys.of(self.keys.prefix)
        keys = [*self._freed_keys(key), ours.changes, ours.new_reply()]
        held, waiters = self._scripts.run("once/clear", keys, [key, line.change])
        return bool(held), bool(waiters)

    def seen(self, task_id: str, attempt: int) -> Seen:
        """What the guard knows of this attempt of a task."""
        return Seen(self._scripts.run("guard/state", [self.keys.guard(task_id)], [attempt]))

    def alive(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """For each task, whether the guard believes that it runs: its worker renews the record there."""
        # Not in the pipeline: a cluster's takes no command without a key. Asked first: nobody looks dead for it.
        now = server_ms(self.client) if task_ids else 0
        return {
            task_id: state == b"running" and float(until or 0) > now
            for task_id, (state, until) in zip(task_ids, self._records(task_ids, "state", "until"), strict=True)
        }

    def lapsed(self, task_ids: Iterable[str]) -> set[str]:
        """Those tasks that ran when their worker was last heard of, and are not renewed any more: it has died."""
        ids, now = [*task_ids], server_ms(self.client)
        records = zip(ids, self._records(ids, "state", "until"), strict=True)
        return {each for each, (state, until) in records if state == b"running" and float(until or 0) <= now}

    def over(self, tasks: Mapping[str, int]) -> set[str]:
        """Those tasks of which the guard remembers that this attempt, or a later one, has ended: no copy would run."""
        records = self._records([*tasks], "state", "attempt")
        return {
            task_id
            for (task_id, attempt), (state, seen) in zip(tasks.items(), records, strict=True)
            if state is not None and (int(seen or 0), state == b"done") >= (attempt, True)
        }

    def _records(self, task_ids: Sequence[str], *fields: str) -> list[list[bytes | None]]:
        """These fields of the guard's record of each task."""
        pipe = self.client.pipeline(transaction=False)
        for task_id in task_ids:
            pipe.hmget(self.keys.guard(task_id), *fields)
        return list(pipe.execute()) if task_ids else []

    def due(self, limit: int = 500) -> tuple[list[str], list[str]]:
        """(keys of locks, task ids) the lock sweeper has to look at now, by the server's clock."""
        now = server_ms(self.client)
        pipe = self.client.pipeline(transaction=False)
        for index in (self.keys.index, self.keys.guard_index):
            pipe.zrangebyscore(index, "-inf", now, start=0, num=limit)
        keys, ids = pipe.execute()
        return texts(keys), texts(ids)

    def _run(self, script: str, keys: list[str], args: list[Any], fate: Fate | None) -> Any:
        """Run a script that records what became of a run by the way."""
        if fate is not None:
            keys, args = [*keys, self._runs.rows(fate.attempt.name), *self._runs.whole], [*args, fate.encode()]
        return self._scripts.run(script, keys, args)

    def _freed_keys(self, key: str) -> list[str]:
        return [self.keys.lock(key), self.keys.waiters(key), self.keys.index]

    def _lock_keys(self, key: str) -> list[str]:
        return [self.keys.lock(key), self.keys.waiters(key), self.keys.parked(key), self.keys.index]
