"""Errors of once-locks."""

from __future__ import annotations

from .._base.errors import RedbeatError
from .._base.public import public


class _KeyError(RedbeatError):
    """An error about one key.

    The class pickles through its arguments, because Celery stores exceptions of tasks in the result
    backend and rebuilds them from ``args``.

    Parameters:
        message: what happened; the docstring of the class by default.
        holder: id of the task that has the lock, if it is known.
    """

    def __init__(
        self,
        message: str | None = None,
        key: str | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.args = (str(message or type(self).__doc__), key, holder)

    def __str__(self) -> str:
        return str(self.args[0])


@public
class OnceSkipped(_KeyError):
    """The task was skipped, because another one of its once-lock's key is queued or running."""


@public
class OnceRejected(_KeyError):
    """The task was rejected, because another one of its once-lock's key is queued or running."""


@public
class LockLost(_KeyError):
    """The lock ran out or was cleared, and may be held by somebody else."""


@public
class LockUnavailable(_KeyError):
    """The once-lock's Redis server does not answer, so the task did not run."""
