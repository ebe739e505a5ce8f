"""Dispatch: from due entries to messages in a queue.

Overview
========

:meth:`.dispatcher.Dispatcher.run` handles due entries in batches. A batch goes through four
functions, and is handled to its end before the next one is read::

    peek            Redis    a script returns due entries with their states
      |
      v
    plan            Python   decides for each entry which runs are sent, and when it is due next
      |
      v
    make_messages   Celery   makes each message, or an earlier message is copied with new ids
      |
      v
    commit          Redis    a script sends the messages and advances the entries

To *advance* an entry is to store its next state and its next due time. The *nominal time* of a run
is the time that the schedule says, before any jitter.

Peek and commit take one round trip each. A batch with once-locks takes another one to see which of
them are taken, so that no message is made for nothing. Backfills make their plans themselves
(:mod:`.backfills`), and use the last two functions.

Two ways to send
================

- The broker is the database of the schedule. The commit sends the messages in the step that
  advances their entries and acquires their once-locks, so each run is in its queue exactly once. To
  find out whether both are the same database, the leader writes a random value into the schedule's
  database, and reads it over the broker's connection.
- For any other broker, each message is sent when it is made, before the commit. Its once-lock is
  acquired just before, which takes one round trip more. If the beat dies before the commit, the
  next leader sends the same runs again. Both messages of such a run have the same task id, because
  the id is computed from the entry and the nominal time.

Order of entries
================

If more entries are due than fit into a batch, peek returns half of them from the oldest ones, and
half from the newest ones. The planner gives each half the same number of messages. So a backlog
delays no new entry, and drains in at most twice the time that it would take alone. An entry that
sends many missed runs is planned in several batches. After each batch, its due time is set to the
present, so the entries that are due already come before it.

A batch is full when it has ``batch_size`` entries or as many messages. To send each message before
the commit may take long, so the limit is at most 100 in this case.

An entry of a built-in schedule cannot hold up a batch, because the planner steps through at most
1,000 of its missed runs. But a user's own schedule class may take any time to answer. So entries
with such a class are planned after all other entries of their batch have been sent, each in a batch
of its own. After each batch, one such entry is planned in any case, and further ones until 0.05 s
are over. The remaining ones stay due.

Races
=====

- The reply of a commit is lost, and the client sends the script again. The server has kept the
  reply under the id of the call, and returns it without doing anything.
- An entry is edited after peek. Its stored state has another version now, so the commit neither
  advances the entry nor sends its messages.
- The reply of a commit does not come in time, and the commit reaches the server after the next
  peek. For the second commit, the entry has changed.
- Another task acquires a once-lock after this beat has asked for it. If messages go one by one, the
  run is left out. Otherwise the commit does not advance the entry, and the next batch asks again.
- Two runs of a batch need the same once-lock, and the entry of the earlier one is edited after
  peek. So the commit does not send the earlier message, and the later run stays due.
- Another leader takes over after peek. The lease has another token and term now, so the commit does
  nothing.
- Entries are due, but the broker connection has to be opened first, which may take seconds. More
  runs may be due when the connection is open, so peek is called again before the planning.
- A freeze begins after peek. A commit that sends the messages does nothing, because the freeze ends
  after the time of the planning. A commit of messages that were sent already advances their
  entries. The next peek returns no entry.

Failures
========

- An entry cannot be read, or its schedule raises an error. It is quarantined, and all other entries
  are sent.
- A message cannot be published. Its entry stays due, and the message is tried again later with the
  same id. If the connection may be broken, the batch ends, and the next batch opens a new one.
- The broker cannot be reached. The turn ends (:mod:`.outage`). The entries of messages that were
  sent before are committed, and all other runs stay due.
- The Redis user of the schedule has no right to write to a queue. The commit fails before it has
  written anything. From now on, messages are sent before the commit, as the broker's user.
- Messages go one by one, and one cannot be sent after its once-lock was acquired. The beat releases
  the lock, unless another beat leads by now and may have sent the same run.
"""
