"""Records of runs, and the incidents that are derived from them.

The headers of a message identify its run: the name of the entry, the nominal time and the task id.

Overview
--------
An *attempt* is one execution of a run's task, and a retry is another attempt. A worker reports the
start and the end of each attempt. Such a report is a *fate*. The script ``shared/record.lua``
writes fates to two places. The *rows* of an entry hold the newest state of its last runs, one row
per run. The *feed* is a stream of all ends, in order of time. The leader reads the feed every two
seconds, and derives *incidents* from it.

::

    worker ── Fate ──> shared/record.lua ──> rows of the entry  (runs, list, show, why)
                              │
                              ├──────────> feed ──────┐
                              └ removes ─> deadlines ──┴──> leader: read_facts
                                                                      │
                                                                    fold
                                                                      │
                                           incidents <── write_decision
                                               │
                                              news ──> hooks of the leader, and closed incidents

``entries/run.py`` has the run as users see it, its row, and the attempt with its fate.
``run_store.py`` reads and writes rows and feed. ``recorder.py`` writes fates in the background.
``incident.py`` has an incident as users see it and as it is stored. ``incident_fold.py`` decides
which incidents open and close, without input or output. ``incident_store.py`` reads the new facts
for this decision, and writes the decision.

States of a run
---------------
::

    (sent) ──> waiting ──> running ──> succeeded | failed | rejected | revoked | unknown
                  │         │ ^  │
                  │         │ │  └──> lost ──> running, if the broker delivers the message again
                  │         v │ its retry begins
                  │       retrying ──> failed, if the message of the retry expires
                  └──> expired | revoked | rejected

    (not sent, by a decision of the beat) ──> skipped | left out

Repetitions
-----------
- A fate may be sent twice, because its client lost the reply. The repeated fate changes nothing,
  unless its row is too old to be kept. Then it adds another line to the feed.
- Two copies of a message may report different fates of one attempt. ``shared/record.lua`` gives
  each outcome a weight, and the heavier one stays. The end of the task's function weighs most.
- A leader may die after it has read the feed and before it writes its decision. The next leader
  reads from the same id of the feed, because one call writes the decision and the id.
- The same call adds a line to the *news*, a stream, for each incident that it opens or closes. The
  leader announces these lines to the hooks, and stores up to which id the hooks have handled them.
  If the leader dies in between, the next leader calls the hooks again, with the same ids of
  incidents.

Failures
--------
- While the server does not answer, the recorder keeps 2,000 fates. It drops and counts later
  fates, and logs a line about them.
- A worker's main process records a run as ``lost`` if a child dies. If the whole worker dies, the
  row stays ``running``, and readers show the run as ``lost`` once its sign of life in
  ``{p}:runs:alive`` has run out.
- A run whose message has expired without a fate is shown as ``unknown``, never as ``failed``.
- If nobody leads while more than 100,000 runs end, the oldest lines are cut from the feed before a
  leader reads them, and failures among them are not counted.
- If no worker records runs, only the incident ``nobody_records`` opens, because runs that are not
  recorded may have run in time.
"""
