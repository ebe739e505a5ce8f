"""A user of the API, whose calls are noted in the history."""

from __future__ import annotations

from typing import Any, Literal

from redbeat_lite import Schedules, every
from tests.harness.history import HistoryLog


class User:
    """Somebody who works on a schedule while it runs.

    Parameters:
        unsure: whether servers are killed meanwhile. Then a call may be refused although it took
            effect: the reply was lost, and the client has repeated the call.
        misfire: the policy of the entries that the user adds.
    """

    def __init__(
        self,
        schedules: Schedules,
        log: HistoryLog,
        *,
        unsure: bool = False,
        misfire: Literal["coalesce", "all"] = "coalesce",
    ) -> None:
        self.schedules = schedules
        self._log = log
        self._unsure = unsure
        self._misfire = misfire

    def add(self, name: str, milliseconds: int) -> None:
        """Add an entry that runs at this interval."""
        with self._noted("add", name, **self._definition(milliseconds)):
            interval = every(milliseconds / 1000)
            self.schedules.add(name, "proj.add", interval, misfire=self._misfire)

    def edit(self, name: str, milliseconds: int) -> None:
        """Change the interval of an entry."""
        with self._noted("edit", name, **self._definition(milliseconds)):
            self.schedules.update(name, schedule=every(milliseconds / 1000))

    def change(self, act: str, name: str) -> None:
        """Pause, resume or remove an entry; the act is the name of the method."""
        with self._noted(act, name):
            getattr(self.schedules, act)(name)

    def freeze(self, name: str) -> None:
        """Pause an entry for ten minutes."""
        with self._noted("freeze", entries=[name]):
            self.schedules.pause(name, seconds=600)

    def thaw(self, name: str) -> None:
        """End the pause of an entry. The audit takes this for the end of all freezes."""
        with self._noted("thaw"):
            self.schedules.resume(name, catch_up=True)

    def _noted(self, act: str, name: str | None = None, **fields: Any) -> Any:
        return self._log.call(act, name, unsure=self._unsure, **fields)

    def _definition(self, milliseconds: int) -> dict[str, Any]:
        return {"rule": {"every": milliseconds}, "misfire": self._misfire}
