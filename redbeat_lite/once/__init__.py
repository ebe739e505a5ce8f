"""One task of a key at a time, and one run for every task id.

Two kinds of records in Redis ensure this: locks and guards. When a run begins, one script acquires
its lock and its guard together. When it ends, another script releases both together.

*Lock* of a key: it names the task that runs, and has a fencing number that grows. While a task has
the lock, another task of the key is skipped, waits, or is refused, as its policy says
(:class:`redbeat_lite.Once`).

*Guard* of a task id: it says that a copy of the task runs or has ended. So a message that the
broker delivers again does not run again.

Users import the names from :mod:`redbeat_lite`. Importing this package opens no connection and
loads no part of a Celery worker.

States of a lock
================

::

                  take                     begin
        +--------------------> QUEUED --------------+
        |                       |  ^                |
        |      leave, or its    |  | end, for       |    +--+ renew, three
        |      time is over     |  | a retry        v    v  | times per lease
      FREE <--------------------+  +------------ RUNNING ---+
       ^ |                                        ^   |
       | +-------------------- begin -------------+   |
       +----- end, clear, or the lease runs out ------+

``take`` acquires the lock when the message is published, ``begin`` when the task begins. ``leave``
releases the lock of a message that will not run, and ``clear`` frees a lock by hand.

States of a task of a key
=========================

::

    published --begin--> running --end--> ended          the first waiter is published
        |  |                |
        |  |                +--its process dies--> the lease runs out, and a copy may run
        |  +--the key is taken--> parked --woken--> published
        |                     +-> skipped, or rejected
        +--a copy of it runs--> standby --that run dies--> published
        +--a copy of it has ended--> dropped

``parked``: its message is kept in Redis until the lock is free. ``standby``: its message is kept in
Redis, because another copy of it runs.

Whose turn it is
================

A task that has to wait is parked in Redis with its whole message, and occupies no slot of a worker.
Its place in the line comes from the counter of the fencing numbers, so no later task overtakes it.
The process that releases the lock publishes the first waiter. If that process dies, or if the
message is lost, the lock sweeper of a worker publishes the waiter again. The waiter stays parked
until it has begun. So it can be published twice, but it runs once.

The lease
=========

A lock lives for one lease, by the clock of the server. A thread renews it three times per lease,
so that two renewals may fail (:class:`~.lock_client.Renewer`). The holder counts its own lease
from the instant at which it *sent* the last good renewal, on its monotonic clock::

    lost = now - sent >= lease

The server starts the lease when the renewal arrives, which is later. So the holder knows that it
has lost the lock before another task can acquire it, unless its process was stopped for a whole
lease. If renewals fail for a whole lease, ``self.once.lost`` becomes true. If a later renewal shows
that this run still has the lock, ``lost`` becomes false again. If it shows that the lock is gone,
the run never gets it back. The body goes on in both cases. A run that has lost its lock does not
release the lock of another task when it ends.

In a prefork worker, the main process renews for a child whose task blocks the interpreter, and
releases the lock of a child that died (:mod:`~.worker.keeper`, :mod:`~.worker.request`).

Duplicates
==========

* Two tasks of one key may run at the same time if the holder is stopped or cut off from the
  server for longer than the lease, or if the server's clock leaps ahead by more than the lease.
  They may also do so after a fail-over that lost the last writes, and for a third of the lease
  after a flush. The fencing number grows in all these cases, so the protected resource can refuse
  the older task.
* A body may run again if its worker died in the middle of it and the message is delivered again.
* A script can be sent twice if its reply was lost. This makes no duplicate, because the second
  reply is the same.

Failures
========

* If the server does not answer when a task with a lock begins, the task does not run. With
  ``acks_late`` its message goes back to the queue. Otherwise Celery retries it, or it fails with
  ``LockUnavailable``.
* If the server does not answer when a task without a lock begins, the task runs without the guard.
* If the server does not answer at the end of a task, the release is retried for eight seconds.
  After that, the lock is free when its lease ends.
* If a worker dies, each lock that it held is free after its lease.
* If a publish fails, the beat or the caller releases the lock of that message.
* If a publisher dies after it has acquired a lock and before it has sent the message, the lock
  stays acquired. A beat whose commit sends the messages acquires the locks in the same step, so it
  leaves none. Any other beat acquires each lock just before it sends the message. If such a beat
  dies in between, the next leader sends the same run with the same id, and this id has the lock
  already. If the leader skips that run instead, the lock is free after its queue was empty for a
  lease, and at the latest after a day, or at the end of the message's life if that is later.
"""
