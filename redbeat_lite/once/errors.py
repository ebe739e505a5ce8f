"""Errors of once-locks."""

from __future__ import annotations

from .._base.errors import RedbeatError
from .._base.public import public


class _KeyError(RedbeatError):
    """An error about the lock of one key.

    ``args`` holds all parameters, because Celery stores the exception of a task as its ``args``,
    and later makes the exception from them again.

    Parameters:
        message: text of the error; the docstring of the class by default.
        key: key of the lock.
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
    """The task was skipped, because another task of the same once-lock is queued or running."""


@public
class OnceRejected(_KeyError):
    """The task was rejected, because another task of the same once-lock is queued or running."""


@public
class LockLost(_KeyError):
    """The lock expired or was cleared, so another task may hold it."""


@public
class LockUnavailable(_KeyError):
    """The once-lock's Redis server does not answer, so the task did not run."""
