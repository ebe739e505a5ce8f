"""The beat: one process of many. One of them leads, and the others stand by.

Overview
========

``celery beat`` calls :meth:`Scheduler.tick` again and again. Each call is one turn of the main
loop: lead or stand by (:mod:`.leadership`), dispatch due entries (:mod:`.dispatch`), take a step of
a backfill (:mod:`.backfills`), wait for the next due time or a change (:mod:`.wakeup`). All these
parts are put together in :mod:`.parts`.

These threads run beside the main loop:

- The renewal (:mod:`.leader`) extends the lease at least every second, reads how many entries are
  stored and due, and checks that the main loop makes progress.
- The incident watch (:mod:`.incidents`) reads every two seconds how runs have ended.
- The pipeline sweeper does the work for pipelines that processes left undone when they died.
- Each subscriber of events has a thread (:mod:`.announcer`). Notices and metrics are subscribers.
- If a heartbeat URL (:mod:`.heartbeat_url`) or a port for metrics (:mod:`.metrics`) is set, it has
  a thread.

Only the main loop dispatches entries. The other threads have their own connections. They share only
plain values with the main loop: :class:`.beat_state.BeatState`, and a few flags of the leader and
of :class:`.dispatch.entry_steps.Deadlines`.

States of a beat
================

::

    started
       |
       v       acquire: the lease is free
    standing by -------------------------> leading: peek, plan, publish, commit, wait
       |  ^                                   |
       |  |  lose: the lease is gone, or      |
       |  |  the main loop hangs              |
       |  +-----------------------------------+
       |  |  yield: this beat fails, and      |
       |  |  leaves the lease to others       |
       |  +-----------------------------------+
       |                                      |
       |  stop: close                         |  stop: commit, resign, close
       v                                      |
    ended <-----------------------------------+

The lease is a hash in Redis. It holds the token of the leader and the number of its *term*, which
grows with each leader. Redis alone decides who leads. Every write of a leader names its token and
its term, and the server refuses the write if another term has begun. So if the process of a leader
was suspended for an hour, it does no harm when it wakes up.

The trust window
================

A leader acts only within the trust window, which is shorter than the lease::

    trusted until = time at which the renewal was sent + lease * (1 - 1/8)

The server extends the lease when it gets the renewal, which is later than the time of sending. So
the window closes before the lease can expire, and before another beat can begin to lead. The eighth
covers clocks that run at different rates, and a slow reply. The local clock is used for nothing
else in the election.

The clock
=========

The leader plans by the clock of the server, which each renewal reads (:mod:`.server_clock`). So the
clocks of the beats' machines do not matter, and two leaders cannot disagree about the time.

Messages that may be sent twice
===============================

None, if the broker is the database of the schedule: one script advances the entries and sends
their messages, or does neither.

With any other broker, messages are sent before the commit. If the beat dies before the commit, the
next leader sends these messages again. They have the same task ids, because an id is made from the
entry and the nominal time of the run (the time that the schedule says). Workers with a guard, which
records the task ids that have run, run only one message of each id.

Failures
========

- The server does not answer, or refuses: the turn ends, and the beat tries again (:mod:`.outage`).
  The lease expires, and a beat that can reach the server leads. The first turn after the end of the
  trust window ends the term, even if the server still does not answer.
- The main loop hangs: after ``redbeat_lite_stall_timeout`` the lease is not renewed any more, and
  the stack of the loop is logged (:mod:`.leader`).
- The leader releases the lease and leaves it to others for two leases or a minute
  (:mod:`.outage`), if three turns in a row fail unexpectedly, or if the broker is out of reach for
  ``redbeat_lite_stall_timeout``. It does the same if all turns fail by an error of Redis or of the
  system for this time, and for at least a lease, although the lease is renewed.
- A turn fails unexpectedly: it is repeated. That is safe, because each write is idempotent.
- Another program uses a key of this package: a command fails, or the leader sees it when it checks
  its keys every five leases. The beat logs the name of the key once, and stands by until the key is
  gone (:mod:`.outage`).
- A config entry is wrong, or another entry has its name: the entry is refused, and the leader tries
  again every five leases (:mod:`.config_entries`).
- One entry cannot be used: it is quarantined, and all other entries go on (:mod:`.dispatch`).
- Parts of the schedule are gone, or a fail-over has undone writes of the configuration: the next
  renewal notices this. The leader restores the parts, and stores its configuration again
  (:mod:`.repair`, :mod:`.config_entries`).
- The server's clock is set back, or the app's time zone changes: the leader reschedules the entries
  that this affects (:mod:`.repair`).
- A signal asks the process to stop: the loop commits the present batch, releases the lease and
  ends. If messages are sent one by one, it commits only those that were sent (:mod:`.stop`).
- The process is killed: its lease expires.
"""
