"""Deploys: beats are replaced by beats of another configuration, and the check that the schedule follows it.

After each script, the stored definitions are read from the server, so the history has each edit of a beat.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Mapping, Set
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

from celery import Celery

from redbeat_lite.entries.stored_entry import readable_state
from redbeat_lite.store.keys import Keys
from tests.simulation.keepers import RUBBISH
from tests.simulation.users import FREEZE_TOLERANCE_MS
from tests.simulation.versions import Deploy, Version

if TYPE_CHECKING:
    from tests.simulation.apps import Setup
    from tests.simulation.scenario import Scenario
    from tests.simulation.world import Process

#: Delay from the end of a beat to the start of its successor, in seconds. If negative, the successor starts first.
_GAPS = (-5.0, 3.0)

_KEYS = Keys.of("redbeat-lite")
_ENTRIES = _KEYS.entries.encode()
_DUE = _KEYS.due.encode()
_STATE = _KEYS.state.encode()
_META = _KEYS.meta.encode()
_QUARANTINE = _KEYS.quarantine.encode()

#: Milliseconds at the end of a seed in which nothing is wrong.
_QUIET_MS = 10_000

#: Most syncs that may begin in this time.
_MOST_SYNCS = 2

#: Leases after which a beat tries again to store a refused entry.
_RETRIES_IN_LEASES = 5

#: Leases after which that must have happened.
_REFUSED_LEASES = 7

#: Milliseconds after which a leader has seen a pause or a removal.
_UNTIL_SEEN_MS = 3_000

#: Faults beside which a leader sees pauses in this time.
_SEEN_BESIDE = {"empty", "kill holder", "kill worker", "freeze worker", "deliver twice", "lose acknowledgements"}

#: Owner of the config entries, which is the name of the app.
_OWNER = "project"


class Deploys:
    """Replaces the beats of a scenario, and checks which config entries they store."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        setup = scenario.setup
        #: The configuration of each beat that starts from now on.
        self.version = Version.first(setup)
        #: The configuration of each beat, by the name of its process.
        self._versions: dict[str, Version] = {}
        versions = [self.version, *(deploy.version for deploy in setup.deploys)]
        #: Names of all entries that any configuration has.
        self.names = list(dict.fromkeys(name for version in versions for name in (*version.config, *version.invalid)))
        #: Stored definition of each entry after the last script.
        self._known: dict[str, bytes] = {}
        #: Number of changes of each definition.
        self._changes: Counter[str] = Counter()
        #: Entries whose definition or state is rubbish.
        self._broken: set[str] = set()
        #: Value of the field ``synced`` after the last script.
        self._sync = b""
        #: When each sync began, epoch ms.
        self.syncs: list[int] = []
        #: The beat that synced last, and when the first of its successive syncs began, epoch ms.
        self._led = ("", 0)
        #: Name of each entry that is surely paused -> when the call returned, epoch ms.
        self.paused: dict[str, int] = {}
        #: Name of each entry that was paused when the server lost its data -> the leader that had seen the pause.
        self._remembered: dict[str, str] = {}
        #: When each entry was stored last, epoch ms.
        self.stored_at: dict[str, int] = {}
        #: When each entry was removed last, epoch ms.
        self._removed_at: dict[str, int] = {}
        #: When a runtime entry was removed or replaced whose name a config entry may take, epoch ms.
        self._freed: dict[str, int] = {}

    @property
    def is_watched(self) -> bool:
        """Whether the stored definitions of config entries are watched, and their changes recorded."""
        return bool(self._scenario.setup.deploys or self._scenario.setup.kept)

    # -- deploys -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Schedule the deploys of the seed."""
        setup = self._scenario.setup
        for number, deploy in enumerate(setup.deploys, 1):
            self._at(deploy.at * setup.stormy, f"deploy {number}", deploy)

    def _at(self, seconds: float, name: str, deploy: Deploy) -> None:
        self._world.after(seconds, lambda: self._deploy(name, deploy))

    def _deploy(self, name: str, deploy: Deploy) -> None:
        """Replace all beats, each at a time of its own."""
        if not self._story.happens(name):
            return
        self.version = deploy.version
        self._story.counts["deploys"] += 1
        words = ", ".join(f"{entry} {rule.text}" for entry, rule in deploy.version.config.items())
        self._story.tell(f"{name.upper()} within {deploy.seconds} s: {words or 'no entries'}")
        random = self._world.random_for(name)
        for beat in list(self._scenario.beats):
            ends, gap = random.uniform(0.0, deploy.seconds), random.uniform(*_GAPS)
            self._replace(beat, ends, max(0.0, ends + gap), is_killed=random.random() < 0.3)

    def _replace(self, beat: Process, ends: float, starts: float, *, is_killed: bool) -> None:
        """End a beat, and start another one, with the configuration that is the newest one by then."""

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
        """Replace the beats that still have an older configuration."""
        old = [beat for beat in self._scenario.beats if self._versions[beat.name] is not self.version]
        for beat in old:
            self._end_beat(beat, is_killed=False)
            self._scenario.start_beat()

    def assign_version(self, process: Process) -> Setup:
        """Record that a beat has the newest configuration, and return its setup."""
        self._versions[process.name] = self.version
        return replace(self._scenario.setup, config=dict(self.version.config), tasks=self.version.tasks)

    def add_invalid_entries(self, app: Celery, process: Process) -> None:
        """Add the invalid entries of a beat's configuration to its app."""
        names = self._versions[process.name].invalid
        invalid = {name: {"task": "project.run", "schedule": "now and then"} for name in names}
        app.conf.beat_schedule = {**app.conf.beat_schedule, **invalid}

    # -- stored definitions ------------------------------------------------------------------------

    def observe(self, process: Process) -> None:
        """Note which definitions a script has stored or removed."""
        if not self.is_watched:
            return
        entries = self._entries
        quarantined = self._hash(_QUARANTINE)
        for name in self.names:
            definition = entries.get(name.encode())
            if definition != self._known.get(name) or name in self._broken:
                self._note_change(process, name, definition)
            if definition is not None and name.encode() in quarantined:
                self._story.violate("config", f"{name} is stored, and is in quarantine")
        sync = self._hash(_META).get(b"synced", b"")
        if sync != self._sync and sync.startswith(b"begun"):
            self.syncs.append(self._story.now)
            if self._led[0] != process.name:
                self._led = (process.name, self._story.now)
        self._sync = sync

    @property
    def is_syncing(self) -> bool:
        """Whether a leader stores its configuration, or has died before the end of that."""
        return self._hash(_META).get(b"synced", b"").startswith(b"begun")

    @property
    def quarantined(self) -> list[str]:
        """Names of the quarantined entries."""
        return [name.decode() for name in self._hash(_QUARANTINE)]

    @property
    def _entries(self) -> Mapping[bytes, bytes]:
        return self._hash(_ENTRIES)

    def _hash(self, key: bytes) -> Mapping[bytes, bytes]:
        """Return the hash that the server stores under a key."""
        stored: Any = self._scenario.server.database.find(key)
        return stored or {}

    def note_broken(self, name: str) -> None:
        """Note that a stored definition or state is rubbish now. A run that was planned before may still be sent."""
        self._broken.add(name)
        self.paused.pop(name, None)
        self._known[name] = self._entries[name.encode()]
        self._story.record(kind="call", act="remove", entry=name, began=self._story.now, returned=None, ok=None)

    def note_set_aside(self, name: str) -> None:
        """Note that the keeper has put an entry into quarantine."""
        self.paused.pop(name, None)
        self._broken.discard(name)
        del self._known[name]
        now = self._story.now
        self._story.record(kind="call", act="remove", entry=name, began=now, returned=now, ok=True)

    def _is_broken(self, name: str) -> bool:
        return RUBBISH in (self._entries.get(name.encode()), self._hash(_STATE).get(name.encode()))

    def revision_of(self, name: str) -> tuple[int, int]:
        """Return a value that changes with each change of the entry and with each loss of data."""
        return self._changes[name], self._scenario.losses_of_data

    def is_config(self, name: str) -> bool:
        """Return whether the stored entry of this name is a config entry that is not broken."""
        definition = self._known.get(name)
        return definition is not None and name not in self._broken and not _is_of_user(definition)

    def note_loss_of_everything(self) -> None:
        """Note that the server has lost all data. The leader remembers the pauses that it has seen."""
        leader, since = self._led
        for name, paused in self.paused.items():
            if since < paused < self._story.now - _UNTIL_SEEN_MS:
                self._remembered[name] = leader
        self.note_loss_of_data()

    def note_loss_of_data(self) -> None:
        """Note that the server has lost data, and read again what is stored."""
        self.paused = {}
        entries = self._entries
        self._broken = {name for name in self.names if self._is_broken(name)}
        stored = {name: entries.get(name.encode()) for name in self.names}
        self._known = {name: definition for name, definition in stored.items() if definition is not None}

    def _note_change(self, process: Process, name: str, definition: bytes | None) -> None:
        """Record the change of a definition, and check that this beat may make it."""
        if name in self._broken:
            if self._is_broken(name):
                return
            self._note_rubbish_gone(name, definition)
        self._changes[name] += 1
        former = self._known.pop(name, None)
        if former is not None and _is_of_user(former):
            self._freed[name] = self._story.now
            self._check_ownership(process, name)
        if definition is None:
            self._note_removal(process, name)
        else:
            self._note_stored(process, name, former, definition)

    def _note_rubbish_gone(self, name: str, definition: bytes | None) -> None:
        """Note that a definition or state that was rubbish is readable or gone now.

        If an entry is stored, record that the old one was removed.
        """
        self._broken.discard(name)
        if definition is not None:
            self._known.pop(name, None)
            self._record_call("remove", name)

    def _version_of(self, process: Process) -> Version | None:
        """Return the configuration of a beat; ``None``: this process is no beat."""
        return self._versions.get(process.name)

    def _check_ownership(self, process: Process, name: str) -> None:
        """No beat changes a runtime entry."""
        if self._version_of(process) is not None:
            self._story.violate("config", f"{process.name} has changed {name}, which a user has added")

    def _note_removal(self, process: Process, name: str) -> None:
        """Record that an entry was removed. No beat removes an entry of its configuration."""
        self._removed_at[name] = self._story.now
        self._story.counts["config entries removed"] += 1
        self._story.tell(f"{name} is removed")
        self._record_call("remove", name)
        self._scenario.user.forget_hold(name)
        self.paused.pop(name, None)
        version = self._version_of(process)
        is_configured = version is not None and (name in version.config or name in version.invalid)
        if is_configured and name not in self.quarantined:
            self._story.violate("config", f"{process.name} has removed {name}, which it has in its configuration")

    def _note_stored(self, process: Process, name: str, former: bytes | None, definition: bytes) -> None:
        """Record that a definition was added or changed, and check the new one."""
        self._known[name] = definition
        self.stored_at[name] = self._story.now
        every = _every(definition)
        self._check_interval(process, name, every)
        act = "add" if former is None else "edit"
        self._story.counts[f"config entries {act}ed"] += 1
        self._story.tell(f"{name} is stored: every {every} ms")
        self._record_call(act, name, owner="config", rule={"every": every})
        if former is None:
            self.paused.pop(name, None)
            self._note_pause(process, name)
        elif _every(former) != every:
            self._check_due(name, every)
        if name in self.paused and not self._is_paused(name):
            self._story.violate("holds", f"{process.name} has changed {name}, which was paused and runs now")

    def _check_interval(self, process: Process, name: str, every: int) -> None:
        """A beat stores only entries of its configuration, with the interval of its configuration."""
        version = self._version_of(process)
        if version is None:
            return
        configured = version.config.get(name)
        if configured is None or configured.period_ms != every:
            what = f"{process.name} has stored {name} every {every} ms, and should have: {configured}"
            self._story.violate("config", what)

    def _record_call(self, act: str, name: str, **details: Any) -> None:
        """Record a change of an entry as a call that has succeeded just now."""
        now = self._story.now
        self._story.record(kind="call", entry=name, began=now, returned=now, ok=True, act=act, **details)

    def _check_due(self, name: str, every: int) -> None:
        """The first run by a new interval comes within this interval from now."""
        due: Any = self._scenario.server.database.find(_DUE)
        score = due.scores[name.encode()]
        most = self._story.now + every + round(1000 * self._scenario.setup.jitter)
        if most < score and not self._is_paused(name):
            what = f"{name} runs every {every} ms from {self._story.now} on, and first at {score}"
            self._story.violate("config", what)

    def _is_paused(self, name: str) -> bool:
        state = readable_state(self._hash(_STATE).get(name.encode()))
        return state is not None and state.paused

    def _note_pause(self, process: Process, name: str) -> None:
        """Check and note whether an entry that was stored again is paused as before."""
        state = readable_state(self._hash(_STATE).get(name.encode()))
        self._scenario.user.forget_hold(name)
        leader = self._remembered.pop(name, None)
        if state is None or not state.paused:
            if leader == process.name and set(self._scenario.setup.faults) <= _SEEN_BESIDE:
                self._story.violate("holds", f"{leader} had seen that {name} was paused, and it runs again")
            return
        now, until = self._story.now, state.paused_until
        if until is not None and until <= now:
            return  # The leader remembers the pause, but not that it has ended.
        self._story.tell(f"{name} is paused as before")
        self._story.record(kind="call", act="pause", entry=name, began=now, returned=now, ok=True)
        if until is not None:
            began, returned = max(now, until - FREEZE_TOLERANCE_MS), until + FREEZE_TOLERANCE_MS
            self._story.record(kind="call", act="resume", entry=name, began=began, returned=returned, ok=True)

    def judge(self) -> None:
        """Check the stored definitions, and that the leader does not sync again and again."""
        since = self._story.now - _UNTIL_SEEN_MS
        may_be_away = {name for name, removed in self._removed_at.items() if removed > since}
        for complaint in self.complaints(may_be_away):
            self._story.violate("config", complaint)
        count = sum(sync > self._story.now - _QUIET_MS for sync in self.syncs)
        most = _MOST_SYNCS
        if self.version.invalid or any(map(_is_of_user, self._entries.values())):
            most += ceil(_QUIET_MS / (1000 * _RETRIES_IN_LEASES * self._scenario.setup.lease))
        if count > most:
            self._story.violate("config", f"{count} syncs within {_QUIET_MS} ms, and nobody has changed anything")

    def are_all_stored(self, scores: Container[bytes]) -> bool:
        """Return whether the newest configuration is stored.

        If stored definitions are not watched, only the due times are checked.
        """
        if self.is_watched:
            return not self.complaints()
        return all(name.encode() in scores for name in self.version.config)

    def complaints(self, may_be_away: Set[str] = frozenset()) -> list[str]:
        """Return the differences between the stored config entries and the newest configuration.

        Parameters:
            may_be_away: names of entries that were removed so recently that the leader may not have seen it yet.
        """
        setup = self._scenario.setup
        # A beat finds that an entry is broken when it is due, and a paused entry is never due.
        texts = {name.decode(): text for name, text in self._entries.items() if name.decode() not in self._broken}
        stored = {name: json.loads(text) for name, text in texts.items()}
        of_users = {name for name, text in texts.items() if _is_of_user(text)}
        freed_since = self._story.now - 1000 * _REFUSED_LEASES * setup.lease - _QUIET_MS
        freed = {name for name, at in self._freed.items() if at > freed_since}
        own = {name: definition for name, definition in stored.items() if definition.get("owner") == _OWNER}
        pipelines = [name for name, entry in setup.pipelines.items() if entry.is_config]
        expected = (
            {*self.version.config, *pipelines} - self._may_stay_away() - self._broken - of_users - freed - may_be_away
        )
        may_be_there = {*self.version.config, *self.version.invalid, *pipelines}
        found = [f"{name} is in the configuration and not in the schedule" for name in sorted(expected - own.keys())]
        former = sorted(own.keys() - may_be_there)
        found += [f"{name} has left the configuration and is in the schedule" for name in former]
        if not self.is_watched:
            return found
        for name, rule in self.version.config.items():
            if name not in own:
                continue
            if not self._is_configured(name, own[name]):
                found.append(f"{name} is stored as {own[name]}, and should be {rule.text}")
        return found

    def _is_configured(self, name: str, definition: Mapping[str, Any]) -> bool:
        """Return whether a definition is that of the newest configuration."""
        wanted = self.version.tasks[name], self.version.config[name].schedule
        return (definition["task"], definition["schedule"]["schedule"]) == wanted

    def _may_stay_away(self) -> set[str]:
        """Return the names of quarantined entries whose definition in the newest configuration is still the same."""
        away = set()
        for name, raw in self._hash(_QUARANTINE).items():
            record = json.loads(raw)
            is_rubbish = RUBBISH.decode() in (record["definition"], record["state"])
            is_configured = name.decode() in self.version.config
            if not is_configured or is_rubbish:
                continue
            if self._is_configured(name.decode(), json.loads(record["definition"])):
                away.add(name.decode())
        return away


def _is_of_user(definition: bytes) -> bool:
    """Return whether a stored definition is that of a runtime entry, which no configuration owns."""
    return definition != RUBBISH and "owner" not in json.loads(definition)


def _every(definition: bytes) -> int:
    """Return the interval of a stored entry, in ms."""
    return round(1000 * json.loads(definition)["schedule"]["schedule"])
