"""Deploys: beats are replaced by beats of another configuration, and what the schedule must have of it.

What a beat stores of the configuration is read on the server after each script, so the history has these edits exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redbeat_lite.entries.stored_entry import readable_state
from redbeat_lite.store.keys import Keys
from tests.simulation.users import FREEZE_TOLERANCE_MS
from tests.simulation.versions import Deploy, Version

if TYPE_CHECKING:
    from tests.simulation.apps import Setup
    from tests.simulation.scenario import Scenario
    from tests.simulation.world import Process

#: Seconds from the end of a beat to the start of that which replaces it: it may start before, too.
_GAPS = (-5.0, 3.0)

_KEYS = Keys.of("redbeat-lite")
_ENTRIES = _KEYS.entries.encode()
_DUE = _KEYS.due.encode()
_STATE = _KEYS.state.encode()
_META = _KEYS.meta.encode()
_QUARANTINE = _KEYS.quarantine.encode()

#: The owner of the config entries: the name of the app.
_OWNER = "project"


class Deploys:
    """Replaces the beats of a scenario, and watches what they store of their configurations."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        setup = scenario.setup
        #: The configuration of each beat that starts from now on.
        self.version = Version(setup.config, setup.tasks)
        #: The configuration of each beat, by the name of its process.
        self._versions: dict[str, Version] = {}
        versions = [self.version, *(deploy.version for deploy in setup.deploys)]
        #: Names of all entries that any configuration has.
        self.names = list(dict.fromkeys(name for version in versions for name in version.config))
        #: The stored definition of each entry, as the last look has found it.
        self._known: dict[str, bytes] = {}

    @property
    def is_watched(self) -> bool:
        """Whether the history has what beats store of the configuration."""
        return bool(self._scenario.setup.deploys)

    # -- deploys -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the deploys of the seed happen."""
        setup = self._scenario.setup
        for number, deploy in enumerate(setup.deploys, 1):
            self._at(deploy.at * setup.stormy, f"deploy {number}", deploy)

    def _at(self, seconds: float, name: str, deploy: Deploy) -> None:
        self._world.after(seconds, lambda: self._deploy(name, deploy))

    def _deploy(self, name: str, deploy: Deploy) -> None:
        """Replace all beats, one after the other."""
        if not self._story.happens(name):
            return
        self.version = deploy.version
        self._story.counts["deploys"] += 1
        words = ", ".join(f"{name} {rule.text}" for name, rule in deploy.version.config.items())
        self._story.tell(f"{name.upper()} within {deploy.seconds} s: {words or 'no entries'}")
        random = self._world.random_for(name)
        for beat in list(self._scenario.beats):
            ends, gap = random.uniform(0.0, deploy.seconds), random.uniform(*_GAPS)
            self._replace(beat, ends, max(0.0, ends + gap), is_killed=random.random() < 0.3)

    def _replace(self, beat: Process, ends: float, starts: float, *, is_killed: bool) -> None:
        """End a beat, and start one of the configuration that is the newest one by then."""

        def start() -> None:
            if not self._scenario.user.is_calm:
                self._scenario.start_beat()

        def end() -> None:
            if not self._scenario.user.is_calm and beat in self._scenario.beats:
                self._end_beat(beat, is_killed=is_killed)
                if not self._scenario.beats:
                    self._scenario.start_beat()

        self._world.after(starts, start)
        self._world.after(ends, end)

    def _end_beat(self, beat: Process, *, is_killed: bool) -> None:
        self._story.tell(f"{beat.name} {'is killed' if is_killed else 'is told to stop'} for a deploy")
        if is_killed:
            self._scenario.beats.remove(beat)
            beat.kill()
        else:
            self._scenario.stop_beat(beat)
        self._note_disturbance()

    def _note_disturbance(self) -> None:
        """Note that runs may be late until another beat leads."""
        now = self._story.now
        self._scenario.disturb()
        self._story.record(kind="fault", began=now, ended=now + self._scenario.setup.recovery_ms)

    def finish(self) -> None:
        """Replace the beats of older configurations that are left."""
        old = [beat for beat in self._scenario.beats if self._versions[beat.name] is not self.version]
        for beat in old:
            self._end_beat(beat, is_killed=False)
            self._scenario.start_beat()

    def setup_for(self, process: Process) -> Setup:
        """Return the setup with the configuration of a beat that starts now."""
        self._versions[process.name] = self.version
        return replace(self._scenario.setup, config=dict(self.version.config), tasks=self.version.tasks)

    # -- what beats store --------------------------------------------------------------------------

    def observe(self, process: Process) -> None:
        """Note what a script has stored or removed."""
        if not self.is_watched:
            return
        entries = self._entries()
        for name in self.names:
            definition = entries.get(name.encode())
            if definition != self._known.get(name):
                self._note(process, name, definition)

    def _entries(self) -> Mapping[bytes, bytes]:
        entries: Any = self._scenario.server.database.find(_ENTRIES)
        return entries or {}

    def reread(self) -> None:
        """Note that the server has lost data."""
        entries = self._entries()
        stored = {name: entries.get(name.encode()) for name in self.names}
        self._known = {name: definition for name, definition in stored.items() if definition is not None}

    def _note(self, process: Process, name: str, definition: bytes | None) -> None:
        """Note that the definition of an entry is another one now, and what is wrong with that."""
        was = self._known.pop(name, None)
        call = {"kind": "call", "entry": name, "began": self._story.now, "returned": self._story.now, "ok": True}
        configured = self._versions[process.name].config.get(name) if process.name in self._versions else None
        if definition is None:
            self._story.counts["config entries removed"] += 1
            self._story.tell(f"{name} is removed")
            self._story.record(**call, act="remove")
            self._scenario.user.forget_hold(name)
            if configured is not None and name.encode() not in self._quarantine():
                self._story.violate("config", f"{process.name} has removed {name}, which it has in its configuration")
            return
        self._known[name] = definition
        every = _every(definition)
        if configured is None or configured.period_ms != every:
            what = f"{process.name} has stored {name} every {every} ms, and should have: {configured}"
            self._story.violate("config", what)
        act = "add" if was is None else "edit"
        self._story.counts[f"config entries {act}ed"] += 1
        self._story.tell(f"{name} is stored: every {every} ms")
        self._story.record(**call, act=act, owner="config", rule={"every": every})
        if was is None:
            self._note_pause(name)
        elif _every(was) != every:
            self._check_due(name, every)

    def _check_due(self, name: str, every: int) -> None:
        """A changed rule counts from now on, so its first run comes within one interval."""
        due: Any = self._scenario.server.database.find(_DUE)
        score = due.scores[name.encode()]
        most = self._story.now + every + round(1000 * self._scenario.setup.jitter)
        if most < score < float("inf"):
            what = f"{name} runs every {every} ms from {self._story.now} on, and first at {score}"
            self._story.violate("config", what)

    def _note_pause(self, name: str) -> None:
        """Note that an entry that was stored again is paused as it was before."""
        states: Any = self._scenario.server.database.find(_STATE)
        state = readable_state(states[name.encode()])
        self._scenario.user.forget_hold(name)
        if state is None or not state.paused:
            return
        self._story.tell(f"{name} is paused as before")
        now = self._story.now
        self._story.record(kind="call", act="pause", entry=name, began=now, returned=now, ok=True)
        if state.paused_until is not None:
            began, returned = state.paused_until - FREEZE_TOLERANCE_MS, state.paused_until + FREEZE_TOLERANCE_MS
            self._story.record(kind="call", act="resume", entry=name, began=began, returned=returned, ok=True)

    def _quarantine(self) -> Mapping[bytes, bytes]:
        quarantine: Any = self._scenario.server.database.find(_QUARANTINE)
        return quarantine or {}

    # -- laws --------------------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """Return in what the stored config entries differ from the newest configuration."""
        setup = self._scenario.setup
        stored = {name.decode(): json.loads(definition) for name, definition in self._entries().items()}
        own = {name: definition for name, definition in stored.items() if definition.get("owner") == _OWNER}
        pipelines = [name for name, entry in setup.pipelines.items() if entry.is_config]
        expected = {*self.version.config, *pipelines} - {name.decode() for name in self._quarantine()}
        found = [f"{name} is in the configuration and not in the schedule" for name in sorted(expected - own.keys())]
        found += [f"{name} has left the configuration and is in the schedule" for name in sorted(own.keys() - expected)]
        if setup.is_long:
            return found
        for name, rule in self.version.config.items():
            if name not in own:
                continue
            wanted = self.version.tasks[name], rule.schedule
            if (own[name]["task"], own[name]["schedule"]["schedule"]) != wanted:
                found.append(f"{name} is stored as {own[name]}, and should be {rule.text}")
        return found


def _every(definition: bytes) -> int:
    """Return the interval of a stored entry, in ms."""
    return round(1000 * json.loads(definition)["schedule"]["schedule"])
