"""One process of many: it leads or stands by, keeps the schedule whole, waits, and ends.

The states of a beat::

    standing by --acquire()--> leading --peek, plan, publish, commit, wait--> leading
         ^                        |
         |                        | the lease is gone, the loop hangs, or somebody else leads
         +---- step_down() or -----+----- a signal: commit, resign, close -----> ended
               yield_lease()

Redis says who leads: a lease with a token and a *term*, which grows with each leader. A leader trusts its lease for
less time than it lasts, counted from when a renewal was sent, so that it stops before another can begin. What it
writes names token and term, and is refused once they are over; so a leader that was frozen for an hour does no harm
when it thaws.

What fails how:

- The server is away or refuses: the turn ends, the beat tries again and says so once (``outage``); the lease runs out,
  and who can reach the server leads.
- The loop hangs: after ``redbeat_lite_stall_timeout`` the lease is no longer renewed, and the thread's stack is logged
  (``leader``).
- Part of the schedule is gone: the next renewal notices, and the configuration is written anew (``repair``,
  ``config_entries``).
- The wall clock is set, or the app's zone changes: what was planned by the old one is planned anew (``replanning``).
- One entry cannot be used: it is set aside, and the others go on (``dispatch``).
- A turn fails with an unexpected error: it is repeated. This is safe, because each write names its
  term and is idempotent (``outage``).
- The leader cannot reach the broker for ``redbeat_lite_stall_timeout``, or three turns in a row fail: it gives the
  lease back and does not ask for it for two leases or a minute, so that another beat can lead (``outage``).
- A signal asks the process to stop: the loop commits the batch that it is sending, and ends. If
  messages are sent one by one, it commits those that were sent (``stop``).
- The process is killed: the lease runs out.
"""
