"""The built-in task that starts a run, for an entry of the schedule."""

from __future__ import annotations

import json
from typing import Any

from celery import shared_task
from celery.utils.log import get_logger

from ..once.canvas_task import PUBLISHES
from ..once.run import tell_no_end
from ..once.runtime import Runtime
from .definition import Definition
from .errors import PipelineNotFound
from .keys import START
from .run import begin

logger = get_logger(f"celery.{__name__}")


@shared_task(name=START, **PUBLISHES)  # type: ignore[untyped-decorator]
def start_pipeline(self: Any, definition: str) -> str:
    """Start a run whose id is this task's: an occurrence that is emitted twice is one run."""
    run_id, fields = str(self.request.id), self.request.__dict__
    attempt = Runtime.of(self.app).attempt(fields)
    try:
        entry = str(fields.get("periodic_task_name") or "")
        begin(self.app, Definition.decode(definition), run_id, entry, json.dumps(attempt) if attempt else "")
    except PipelineNotFound:
        logger.info("Pipeline %s has run long ago; this copy of its start is dropped", run_id)
    tell_no_end(self.request)  # Whoever ends the run does.
    return run_id
