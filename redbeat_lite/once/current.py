"""``task.once``: what a task is told of its once-lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .hold import Hold
from .policy import Once


class Current:
    """``task.once``: the policy's fields, and what a run holds: ``None`` outside of one, and in eager mode."""

    def __init__(self, policy: Once, hold: Hold | None) -> None:
        self._policy, self._hold = policy, hold

    @property
    def key(self) -> str | Callable[..., str] | None:
        """The lock's key during a run, the policy's otherwise."""
        if self._hold is not None:
            return self._hold.held.key
        return self._policy.key

    @property
    def fence(self) -> int | None:
        """Grows with every task that gets a lock: give it to whatever the lock protects, and let that refuse a lower
        number than it has seen. Nothing else stops a holder that slept through its lease."""
        return self._hold.held.fence if self._hold is not None else None

    @property
    def lost(self) -> bool:
        """Whether the lock ran out during the run, so that somebody else may have it. Known within a third of the
        lease after a pause."""
        return self._hold is not None and self._hold.lost

    def __getattr__(self, name: str) -> Any:
        # Copying asks for names like these before there is a policy to ask.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._policy, name)

    def __repr__(self) -> str:
        return f"<once {self._policy!r}{'' if self._hold is None else f' holding {self.key!r} as {self.fence}'}>"
