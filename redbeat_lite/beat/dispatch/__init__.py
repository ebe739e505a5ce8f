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
    make_messages   Celery   makes each message, or a copy of an earlier one gets new ids
      |
      v
    commit          Redis    a script sends the messages and advances the entries

Peek and commit take one round trip each. A batch with once-locks takes another one to acquire them.
Backfills make their plans themselves (:mod:`.backfills`), and use the last two functions.

Two ways to send
================

- The broker is the database of the schedule. The commit sends the messages in the step that
  advances their entries, so each run is in its queue exactly once. A value that the leader writes
  into the database shows whether both are the same.
- For any other broker, each message is sent when it is made, before the commit. A run may be sent
  twice if the beat dies before the commit. Both messages have the same task id, because the id is
  computed from the entry and the nominal time.

Order of entries
================

Peek takes as many of the oldest due entries as of the newest, and the planner gives each half the
same number of messages. So a backlog delays no new entry, and drains in at most twice the time that
it would take alone. An entry that sends many missed runs is planned in several batches. After each
batch, it is queued behind all entries that are due.

A batch is full when it has ``batch_size`` entries or as many messages. If each message is sent
before the commit, which may take long, the limit is at most 100.

No entry can hold up a batch, because at most 1,000 of its missed runs are looked at one by one. A
user's own schedule class may take any time to answer. So entries with such a class are planned when
all other entries of their batch have been sent, each in a batch of its own: one in any case, and
further ones until 0.05 s are over.

Races
=====

- The reply of a commit is lost, and the client sends the script again. The server has kept the
  reply under the id of the call, and returns it without doing anything.
- An entry is edited after peek. Its state has another version then, and the commit leaves it alone.
  A message that the commit would have sent is not sent.
- Another leader takes over after peek. The commit compares token and term, and does nothing.
- The broker connection has to be opened when entries are due, and that takes seconds. More runs may
  be due by then, so peek and plan come after it.
- A freeze begins after peek. Peek and commit compare its end with the time of the planning. So the
  commit sends nothing, and the next peek returns no entry.

Failures
========

- An entry that cannot be read, or whose schedule raises, is quarantined. All other entries go on.
- A message that cannot be published keeps its entry due. It is tried again later under the same id.
  If the error may be the connection's, the batch ends there, and the next one opens another.
- A broker that cannot be reached ends the turn. Messages that were sent before are committed, and
  all other runs stay due (:mod:`.outage`).
- A user of Redis who may not write to a queue makes the commit fail before it has done anything.
  From then on, messages are sent as the broker's user, before the commit.
- Once-locks of runs that were not sent are released at the end of the batch.
"""
