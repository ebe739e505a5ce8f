"""Staged pipelines: the tasks of one job by priority, equal ones side by side, lower ones after all higher ones.

A run is a record in Redis: its definition, the state of each step, the stage that is under way, and an *outbox* of
messages that have to be published. Every change is one step of the server, which also says what is to be published
next; whoever made the change publishes it, and takes it out of the outbox.

The states of a step, and of a run::

    step  WAITING --its stage begins--> published --begin--> RUNNING --> SUCCEEDED | FAILED
                  --the run ends first----------------------------> ABORTED
    run   RUNNING --every stage has succeeded--> SUCCEEDED
                  --a step has failed----------> FAILED, and no later stage begins
                  --cancel()-------------------> ABORTED
          FAILED | ABORTED --resume()--> RUNNING, at the stage in which it ended
          some time after its end its record goes: GONE

What is delivered twice counts once: a step that has ended is not run again. Who dies between a change and its messages
leaves them in the outbox, and whose worker died with a step is missed: the sweeper of the leading beat finds both.

The names are handed on lazily: importing this package opens no connection and loads nothing of a Celery worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..public import handed_on

if TYPE_CHECKING:
    from .errors import StepFailed
    from .run_status import RunStatus, State, StepStatus, progress_line
    from .sweeper import sweep
    from .task_processes import task_process

_HOME = {
    **dict.fromkeys(("RunStatus", "State", "StepStatus", "progress_line"), ".run_status"),
    "StepFailed": ".errors",
    "sweep": ".sweeper",
    "task_process": ".task_processes",
}

__all__ = ["RunStatus", "State", "StepFailed", "StepStatus", "progress_line", "sweep", "task_process"]

__getattr__ = handed_on(__name__, _HOME)
