"""The keys of the once-locks and of the guard, and what they hold.

All of them begin with the scheduler's prefix in braces, as those of the schedule do, so that on Redis Cluster
they are in one hash slot and a script may touch a lock, its waiters and the guard's record together.

============================  ======  =================================================================================
key                           type    holds
============================  ======  =================================================================================
``{p}:once:lock:<key>``       hash    ``token``, ``task`` (id), ``state`` (``queued`` or ``running``), ``since`` (ms),
                                      ``due`` (ms: when a queued one may run), ``lease`` (ms), ``fence``, ``holder``,
                                      ``queue``, ``ended`` (the attempt before the retry it is kept for), ``yields``
                                      (ms: when the entry's next run may have it, if it is still queued); lives as
                                      long as the lease, a queued one as long as its message
``{p}:once:wait:<key>``       zset    task id of a waiter -> its place
``{p}:once:parked:<key>``     hash    ``m:<task id>`` -> its message, ``a:<task id>`` -> its attempt, ``d:<task id>`` ->
                                      when it is too old to run, ms; ``woken``, ``tries`` and ``resend`` of the first
                                      one. Both live until a week after the last waiter is too old
``{p}:once:index``            zset    key -> when the lock sweeper has to look at it, ms; every lock and queue is in it,
                                      for a week if nobody looks
``{p}:once:fence``            string  the last fencing number given out or set aside
``{p}:once:workers``          hash    node name of a worker with ``install()`` -> what it reported last
``{p}:guard:<task id>``       hash    ``state`` (``running``, ``refused``, ``done``, ``dead``), ``attempt``, ``token``,
                                      ``until`` (ms), the ``verdict`` on a refused one and ``by`` whom, and the parked
                                      ``standby``; lives as long as copies of the message may
``{p}:guard:index``           zset    task id with a standby -> when the lock sweeper has to look at it, ms
============================  ======  =================================================================================
"""

from __future__ import annotations

from ..settings import key_root


class OnceKeys:
    """The names under one prefix, for example ``"redbeat-lite"``."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._root = f"{key_root(prefix)}:"
        parts = ("once:index", "once:fence", "once:workers", "guard:index")
        self.index, self.fence, self.workers, self.guard_index = (self._root + part for part in parts)

    def lock(self, key: str) -> str:
        return f"{self._root}once:lock:{key}"

    def waiters(self, key: str) -> str:
        return f"{self._root}once:wait:{key}"

    def parked(self, key: str) -> str:
        return f"{self._root}once:parked:{key}"

    def guard(self, task_id: str) -> str:
        return f"{self._root}guard:{task_id}"
