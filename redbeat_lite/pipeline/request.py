"""The worker's main process: steps whose child was killed by the hard time limit.

A child that died otherwise is told of by ``task_failure``, with its request, and so is a revoke; the hard limit's
signal says which task, but not which message.
"""

from __future__ import annotations

from ..once.request import Request
from .task import report


class PipelineRequest(Request):
    """The request class of a :class:`PipelineTask`."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Celery's; after a hard limit the step has failed, unless its message goes back into the queue."""
        super().on_timeout(soft, timeout)
        if not soft and not (self.task.acks_late and not self.task.acks_on_timeout):
            report(self.app, self.request_dict, "FAILED", f"TimeLimitExceeded: hard time limit of {timeout:g} s")
