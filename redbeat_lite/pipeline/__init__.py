"""Staged pipelines: the tasks of one job by priority, equal ones side by side, lower ones after all higher ones.

The names are handed on lazily: importing this package opens no connection and loads nothing of a Celery worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import PipelineNotFound, StepFailed
    from .pipeline import Pipeline
    from .run import PipelineRun
    from .seed import start_task_process, task_process
    from .status import RunStatus, State, StepStatus, progress_line
    from .sweeper import Swept, sweep
    from .task import PipelineTask

_HOME = {
    "Pipeline": ".pipeline",
    "PipelineNotFound": ".errors",
    "PipelineRun": ".run",
    "PipelineTask": ".task",
    "RunStatus": ".status",
    "State": ".status",
    "StepFailed": ".errors",
    "StepStatus": ".status",
    "Swept": ".sweeper",
    "progress_line": ".status",
    "start_task_process": ".seed",
    "sweep": ".sweeper",
    "task_process": ".seed",
}

__all__ = [
    "Pipeline",
    "PipelineNotFound",
    "PipelineRun",
    "PipelineTask",
    "RunStatus",
    "State",
    "StepFailed",
    "StepStatus",
    "Swept",
    "progress_line",
    "start_task_process",
    "sweep",
    "task_process",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
