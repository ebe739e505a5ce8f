"""A user of the API, whose calls are noted in the history."""

from __future__ import annotations

from typing import Any

from redbeat_lite import Schedules, every
from tests.harness.history import HistoryLog


class User:
    """Somebody who works on a schedule while it runs.

    ``unsure`` says that servers are killed meanwhile. Then a call may be refused although it took
    effect: the reply was lost, and the client has repeated the call.
    """

    def __init__(self, schedules: Schedules, log: HistoryLog, *, unsure: bool = False) -> None:
        self._schedules = schedules
        self._log = log
        self._unsure = unsure
        self._misfires: dict[str, Any] = {}

    def has(self, name: str) -> bool:
        """Return whether there is such an entry."""
        return name in self._schedules

    def add(self, name: str, milliseconds: int, **policy: Any) -> None:
        """Add an entry that runs at this interval; its policy may be a ``misfire``."""
        self._misfires.pop(name, None)
        noted = {"rule": {"every": milliseconds}, **self._policy(name, policy)}
        with self._log.call("add", name, unsure=self._unsure, **noted):
            self._schedules.add(name, "proj.add", every(milliseconds / 1000), **policy)

    def update(self, name: str, milliseconds: int) -> None:
        """Change the interval of an entry."""
        noted = {"rule": {"every": milliseconds}, **self._policy(name, {})}
        with self._log.call("edit", name, unsure=self._unsure, **noted):
            self._schedules.update(name, schedule=every(milliseconds / 1000))

    def pause(self, name: str) -> None:
        """Pause an entry."""
        with self._log.call("pause", name, unsure=self._unsure):
            self._schedules.pause(name)

    def resume(self, name: str) -> None:
        """Resume an entry."""
        with self._log.call("resume", name, unsure=self._unsure):
            self._schedules.resume(name)

    def remove(self, name: str) -> None:
        """Remove an entry."""
        with self._log.call("remove", name, unsure=self._unsure):
            self._schedules.remove(name)

    def freeze(self, name: str) -> str:
        """Freeze an entry for ten minutes, and return the id of the freeze."""
        with self._log.call("freeze", unsure=self._unsure, entries=[name]):
            return self._schedules.freezes.add(name, seconds=600).id

    def thaw(self, freeze_id: str) -> None:
        """End a freeze. The audit takes this for the end of all freezes."""
        with self._log.call("thaw", unsure=self._unsure):
            self._schedules.freezes.thaw(freeze_id)

    def run_now(self, name: str) -> None:
        """Run an entry once more. This is not noted, because the audit judges only runs by rule."""
        self._schedules.run_now(name)

    def _policy(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the misfire policy that an entry has from now on, where it is not the default one."""
        if "misfire" in fields:
            self._misfires[name] = fields["misfire"]
        return {"misfire": self._misfires[name]} if name in self._misfires else {}
