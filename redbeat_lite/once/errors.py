"""What a once-lock raises."""

from __future__ import annotations

from ..errors import RedbeatError
from ..public import public


class _About(RedbeatError):
    """An error about one key.

    The class pickles through its arguments, because Celery stores exceptions of tasks in the result backend and
    rebuilds them from ``args``.

    Parameters:
        message: what happened; the class's own sentence where it is absent.
        holder: the task id that holds it, where known.
    """

    def __init__(self, message: str | None = None, key: str | None = None, holder: str | None = None) -> None:
        super().__init__(message)
        self.key, self.holder = key, holder
        self.args = (str(message or type(self).__doc__), key, holder)

    def __str__(self) -> str:
        return str(self.args[0])


@public
class OnceSkipped(_About):
    """The task was skipped, because another one of its once-lock's key is queued or running."""


@public
class OnceRejected(_About):
    """The task was rejected, because another one of its once-lock's key is queued or running."""


@public
class LockLost(_About):
    """The lock ran out or was cleared, and may be held by somebody else."""


@public
class LockUnavailable(_About):
    """The once-lock could not be taken, because its Redis server does not answer; the task did not run."""
