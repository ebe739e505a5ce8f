"""The built-in task that starts a run, for an entry of the schedule."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.utils.log import get_logger

from ..once.canvas_task import PUBLISHES
from .definition import Definition
from .errors import PipelineNotFound
from .run import begin

logger = get_logger(__name__)

#: Its name; its own id becomes the run's.
START = "redbeat_lite.start_pipeline"


@shared_task(name=START, **PUBLISHES)  # type: ignore[untyped-decorator]
def start_pipeline(self: Any, definition: str) -> str:
    """Start a run whose id is this task's: an occurrence that is emitted twice is one run."""
    run_id = str(self.request.id)
    try:
        entry = self.request.__dict__.get("periodic_task_name") or ""
        begin(self.app, Definition.decode(definition), run_id, str(entry))
    except PipelineNotFound:
        logger.info("Pipeline %s has run long ago; this copy of its start is dropped", run_id)
    return run_id
