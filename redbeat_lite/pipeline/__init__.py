"""Pipelines: the tasks of one job in stages, which run one after the other.

Overview
--------
A run is a record in Redis: its definition, the current stage, and the state of each step of the
stages so far. A step *is due* if no message of it was published, or if no worker has begun it in
time. Each change of the record is one Lua script. The process that made the change *reconciles* the
run: it asks the server what is left to do, publishes the steps that are due, and notes on the
server that they are published. The script that ends a step returns the next steps, so the process
that ended it publishes only these. If a process dies before it has reconciled a run, the sweeper
does so.

::

    Pipeline.start ─> pipeline/start.lua ─> reconcile ─> broker ─> worker
                                                ^                    │
                                                │       PipelineTask.before_start:
                                                │         pipeline/begin.lua, then
                                                │         the body
                                                │                    │
              pipeline/complete.lua <───────────│──── conclude <─────┘
              the last step of a stage          │
              starts the next stage  ───────────┘

The id of each message is ``uuid5(run, step, round)``. So if a step is published twice, both
messages have one task id. The guard (the part of ``redbeat_lite.once`` that records which task ids
have run) lets a worker drop the copy. The *round* grows when the sweeper starts a step again, or
the run is resumed. After that, a message with the old id can neither begin nor complete the step.
The message names the run and the step. The params stay in Redis, and are read when the step begins.
While a step runs, its worker renews the guard's record of the task. This record shows that the step
is alive, so a step has no heartbeat of its own.

``definition.py`` has the stored form of a pipeline, and the params of its steps. ``pipeline.py`` is
the user's entrance, ``pipeline_run.py`` one run, ``run_status.py`` its status. ``pipeline_task.py``
runs a step in a worker. ``sweeper.py`` does what follows a change of a run, also in place of a
process that has died. ``publish.py`` makes the messages. ``pipeline_store.py`` calls the scripts,
and ``pipeline_keys.py`` lists the keys. ``rehearsal.py`` runs a pipeline in a unit test.

States
------
::

    step   WAITING ──its stage begins──> due ──published, begin──> RUNNING ──> SUCCEEDED | FAILED
                   ──the run ends first──────────────────────────────────────> ABORTED

    run    WAITING ──its turn comes──> RUNNING ──every stage has succeeded──> SUCCEEDED
              │                           ├──a step has failed──> FAILED, no later stage begins
              │                           ├──its deadline passes──> FAILED
              │                           └──cancel()──> ABORTED
              └──cancel(), or left out──> ABORTED

           FAILED | ABORTED ──resume()──> WAITING, at the stage in which it ended
           some time after its end, its record expires: GONE

Repetitions
-----------
- A message may be delivered twice, and an end recorded twice. Each step counts once, and each stage
  starts once.
- Two processes may publish one step. They publish the same id, and workers drop the copy.
- A body may run twice: if the task has ``acks_late`` and its worker died, or if a paused worker
  continues after its step was started again. The promise is "each stage once, and the outcome of
  each step once", not "each body once".
- A run may be reconciled twice, by the process that changed it and by the sweeper.

Failures
--------
- A process may die after it has changed a run and before it has published the next steps. Then
  these steps stay due, and the sweeper publishes them.
- If a message is lost, the sweeper publishes it again after the once-lease. Each further wait is
  twice as long, up to an hour.
- If the worker of a step is gone, one check of the sweeper suspects the step, and a later check
  starts it again or fails it. The time between the checks lets a living worker renew its record
  after a leap of the clock. If only a child process died, its parent process reports that sooner.
- While Redis does not answer, the write of an outcome is retried for 30 s. After that, the step is
  treated as if its worker had died.
- While the broker does not answer, steps stay due. A message that a router or a serializer refuses
  ends the run.
- Without a sweeper, a run still ends if no process dies in it.

``docs/do/pipelines.md`` lists these cases for users.
The names are imported at first use, so this package opens no connection and loads no Celery worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.public import lazy_names

if TYPE_CHECKING:
    from .definition import StepFailed
    from .pipeline import task_process
    from .run_status import RunStatus, State, StepStatus, progress_line
    from .sweeper import sweep

_HOME = {
    "RunStatus": ".run_status",
    "State": ".run_status",
    "StepFailed": ".definition",
    "StepStatus": ".run_status",
    "progress_line": ".run_status",
    "sweep": ".sweeper",
    "task_process": ".pipeline",
}

__all__ = [
    "RunStatus",
    "State",
    "StepFailed",
    "StepStatus",
    "progress_line",
    "sweep",
    "task_process",
]

__getattr__ = lazy_names(__name__, _HOME)
