"""One task of a key at a time, and one run for every task id.

Two things are kept in Redis, and taken and given back together, in one step each. The *lock* of a key says which task
runs, with a fencing number that grows; who comes while it is taken is skipped, waits, or is refused, by the task's
policy. The *guard* of a task id says that a copy of it runs or has ended, so that what the broker delivers again does
not run again.

The states of a task of a key::

    published --begin--> running --end--> ended            the lock is free, the next waiter is published
                |  |        |
                |  |        +--the process dies--> the lease runs out, and a copy may run
                |  +--the key is taken--> parked (wait) --woken--> published
                |                      +-> skipped | rejected
                +--a copy runs or has ended--> dropped, or kept for the case that the first one dies

What holds the lock renews its lease from a thread of its own (``renewal``), for as long as the task runs and its
process lives. A lease that could not be renewed in time is *lost*: the task is told (``self.once.lost``), goes on,
and gives nothing back that another one holds by now. In a worker, the main process looks after its children
(``worker``): it ends the lock of one that died, and drops copies before they are handed out. Without a server no task
with a lock begins.

Users import the names from :mod:`redbeat_lite`. Importing this package opens no connection and loads nothing of a
Celery worker.
"""
