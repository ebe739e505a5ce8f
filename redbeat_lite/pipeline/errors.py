"""What pipelines raise."""

from __future__ import annotations

from ..errors import RedbeatError
from ..public import public


@public
class NotResumable(RedbeatError):
    """This run of a pipeline cannot go on; the text says why."""


@public
class PipelineNotFound(RedbeatError, LookupError):
    """There is no run of this id, and none is remembered."""


class StepFailed(RedbeatError):
    """The step said that it failed, or returned what no step may return."""
