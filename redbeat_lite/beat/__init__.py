"""One process of many: it leads or stands by, keeps the schedule whole, waits, and ends.

The states of a beat::

    standing by --acquire()--> leading --peek, plan, publish, commit, wait--> leading
         ^                        |
         |                        | the lease is gone, the loop hangs, or somebody else leads
         +----- step_down() ------+----- told to stop: finish, resign, close -----> ended

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
- The process is told to stop: what is out is committed, the lease is given back (``shutdown``). It is killed: the lease
  runs out.
"""
