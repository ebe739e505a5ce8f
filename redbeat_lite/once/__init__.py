"""One task of a key at a time, and one run for every task id.

Two records in Redis do this, and one script each acquires and releases them together.

*Lock* of a key: names the task that runs, with a fencing number that grows. If the lock is taken,
another task of the key is skipped, waits, or is refused, by its policy (:class:`~.policy.Once`).

*Guard* of a task id: says that a copy of the task runs or has ended. So a message that the broker
delivers again does not run again.

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

Whose turn it is
================

A task that has to wait is parked in Redis with its whole message, and takes no worker's slot. It
gets a place from the counter of the fencing numbers, so a later task never overtakes it. When the
lock is released, the releasing process publishes the first waiter. If that process dies, or the
message is lost, the lock sweeper of a worker publishes it again. The waiter stays parked until it
has begun, so a wake-up may be repeated, but the task runs once.

The lease
=========

A lock lives for one lease, by the clock of the server. A thread renews it three times per lease,
so that two renewals may fail (:class:`~.lock_client.Renewer`). The holder counts its own lease
from the instant at which it *sent* the last good renewal, on its monotonic clock::

    lost = now - sent >= lease

The server starts the lease when the renewal arrives, which is later. So the holder knows of its
loss before another task can acquire the lock, unless its process was stopped for a whole lease.
If renewals fail for a whole lease, ``self.once.lost`` is true until one finds the lock still held
by this run. If one finds it gone, the run never gets it back. The run goes on, and its end
releases nothing that another task holds by then.

In a prefork worker, the main process renews for a child whose task blocks the interpreter, and
releases the lock of a child that died (:mod:`~.worker.keeper`, :mod:`~.worker.request`).

Duplicates
==========

* Two bodies of one key may run at the same time, if the holder is stopped or cut off from the
  server for longer than the lease, if the server's clock leaps ahead by more than the lease,
  after a fail-over that lost the last writes, and for a third of the lease after a flush. The
  fencing number grows through all of these, so the protected resource can refuse the older one.
* A body may run again if its worker died in the middle of it and the message is delivered again.
* A script may be sent twice, if its reply is lost. The second time it answers the same.

Failures
========

* The server is away when a task with a lock begins: the task does not run. Its message goes back
  to the queue with ``acks_late``, or Celery retries it, or it fails with ``LockUnavailable``.
* The server is away when a task without a lock begins: it runs without the guard.
* The server is away at the end of a task: it is asked for eight seconds, then the lease frees the
  lock.
* A worker dies: each lock that it held is free after its lease.
* A publish fails: the beat or the caller releases the lock of that message.
"""
