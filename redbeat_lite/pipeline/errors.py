"""What pipelines raise."""

from __future__ import annotations

from ..errors import RedbeatError


class PipelineNotFound(RedbeatError, LookupError):
    """There is no run of this id, and none is remembered."""

    __module__ = "redbeat_lite"


class StepFailed(RedbeatError):
    """The step said that it failed, or returned what no step may return."""

    __module__ = "redbeat_lite.pipeline"
