"""Keeper: a process that pauses, resumes and removes config entries, and breaks and mends what is stored of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from redbeat_lite import Schedules
from redbeat_lite._base.errors import ConfigOwned, CorruptEntry
from redbeat_lite.store.keys import Keys
from tests.simulation.apps import make_app
from tests.simulation.rules import Rule, interval
from tests.simulation.users import FAULTS, LATEST_MS, REFUSALS
from tests.simulation.world import Waiters

if TYPE_CHECKING:
    from tests.simulation.apps import Setup
    from tests.simulation.scenario import Scenario

#: Share of short seeds with a keeper.
_SHARE = 0.2

#: Seconds between two calls, on average.
_PAUSE = 2.0

#: Probability that a quarantined entry is released or discarded in the calm.
_MENDED = 0.8

#: Probability that an entry is broken in the calm.
_BROKEN = 0.4

#: Delay of both from the start of the calm, in seconds. The newest configuration may be stored by then.
_UNTIL_MENDED = (0.0, 10.0)

#: Faults that cut no beat off from the server.
_SERVER_STAYS = {"kill", "stop", "deaf", "clock", "leap", "kill holder", "kill worker", "freeze worker"}
_SERVER_STAYS |= {"deliver twice", "lose acknowledgements"}

#: Value of a definition or state that is broken.
RUBBISH = b"rubbish"

_KEYS = Keys.of("redbeat-lite")
_DUE = _KEYS.due.encode()
_ENTRIES = _KEYS.entries.encode()
_STATE = _KEYS.state.encode()
_META = _KEYS.meta.encode()
_QUARANTINE = _KEYS.quarantine.encode()


class Keeper:
    """Calls methods on config entries during the storm, and mends some of them in the calm.

    These entries are not among those of ``User``, whose checks expect that nobody else changes them.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        self._deploys = scenario.deploys
        self._database = scenario.server.database
        app = make_app(scenario.world, scenario.setup)
        scenario.bodies.register(app)
        self._schedules = Schedules(app, actor="keeper")
        self._random = scenario.world.random_for("keeper")
        self._waiters = Waiters(scenario.world)
        self._calls = 0
        #: Time until which an unanswered call about each entry may still arrive, epoch ms.
        self._unsure: dict[str, int] = {}
        #: Names of the entries that the keeper's calls are about.
        self._names = [name for name in self._deploys.names if name not in scenario.setup.config]

    def begin(self) -> None:
        """Start the keeper, if the seed has one."""
        if self._scenario.setup.kept:
            self._world.process("keeper").start_main(self._run)

    def end(self) -> None:
        """Wake the keeper, which then makes its last calls in ``_mend``."""
        self._waiters.wake_all()

    def _run(self) -> None:
        while not self._is_calm:
            self._calls += 1
            name = f"keeper's call {self._calls}"
            self._random = self._world.random_for(name)
            self._waiters.wait(self._random.expovariate(1 / _PAUSE))
            if not self._is_calm and self._story.happens(name):
                self._draw_act(self._random)(self._random.choice(self._names))
        self._world.wait(self._random.uniform(*_UNTIL_MENDED))
        self._mend()
        while True:
            self._world.wait(1000.0)

    @property
    def _is_calm(self) -> bool:
        return self._scenario.user.is_calm

    def _draw_act(self, random: Random) -> Callable[[str], None]:
        acts = [self._pause] * 2 + [self._resume] * 2 + [self._remove] + [self._add] * 2 + [self._set_aside] * 4
        acts += [self._break_definition, self._break_state]
        acts += [lambda _: self._mend_one(self._release)] * 2 + [lambda _: self._mend_one(self._discard)]
        return random.choice(acts)

    # -- calls -------------------------------------------------------------------------------------

    def _add(self, name: str) -> None:
        """Add a runtime entry under a name that a configuration may have, too.

        Do nothing in two cases of known small defects:

        - The leader may be cut off. It then refuses the config entry of this name with a traceback (seed 98500252).
        - The name is in quarantine. The config entry then stays away after the runtime entry is removed
          (seed 98500391).
        """
        may_be_cut_off = not _SERVER_STAYS.issuperset(self._scenario.setup.faults)
        if may_be_cut_off or name in self._deploys.quarantined:
            return
        self._call(f"add {name}", lambda: self._schedules.add(name, "project.run", 3.0))

    def _pause(self, name: str) -> None:
        if self._hold("pause", name, lambda: self._schedules.pause(name)):
            self._deploys.paused[name] = self._story.now

    def _resume(self, name: str) -> None:
        self._deploys.paused.pop(name, None)
        self._hold("resume", name, lambda: self._schedules.resume(name))

    def _remove(self, name: str) -> None:
        self._call(f"remove {name}", lambda: self._schedules.remove(name))

    def _release(self, name: str) -> None:
        self._call(f"release {name}", lambda: self._schedules.release(name))

    def _discard(self, name: str) -> None:
        self._call(f"discard {name}", lambda: self._schedules.discard(name))

    def _hold(self, act: str, name: str, call: Callable[[], object]) -> bool:
        """Pause or resume an entry. Return whether this surely happened, and to the config entry of this name.

        The record is added when the call begins, and completed when it returns.
        """
        revision = self._deploys.revision_of(name)
        record = {"kind": "call", "act": act, "entry": name, "began": self._story.now, "returned": None, "ok": None}
        self._story.records.append(record)
        is_done = self._call(f"{act} {name}", call)
        if is_done is not None:
            record |= {"returned": self._story.now, "ok": is_done}
        else:
            self._unsure[name] = self._story.now + LATEST_MS
        is_sure = self._deploys.revision_of(name) == revision and self._story.now > self._unsure.get(name, 0)
        return bool(is_done) and is_sure and self._deploys.is_config(name)

    def _mend_one(self, act: Callable[[str], None]) -> None:
        """Release or discard one of the quarantined entries."""
        names = self._deploys.quarantined
        if names:
            act(self._random.choice(names))

    def _mend(self) -> None:
        """Break an entry in some seeds. Then release or discard some quarantined entries.

        An entry that has left the configuration is only released. A discard would remove it for good, but after a
        release, the leader has to remove it.
        """
        if self._random.random() < _BROKEN:
            self._break(self._random.choice((_ENTRIES, _STATE)), self._random.choice(self._names))
        for name in self._deploys.quarantined:
            if self._random.random() < _MENDED:
                is_configured = name in self._deploys.version.config
                acts = (self._release, self._discard) if is_configured else (self._release, self._release)
                self._random.choice(acts)(name)

    def _call(self, what: str, call: Callable[[], object]) -> bool | None:
        """Make a call. Return whether it succeeded; ``None`` if that is unknown."""
        self._story.counts[f"keeper's call: {what.split()[0]}"] += 1
        try:
            call()
        except (*REFUSALS, ConfigOwned, CorruptEntry) as exc:
            self._story.tell(f"{what} is refused: {type(exc).__name__}")
            return False
        except FAULTS as exc:
            self._story.tell(f"{what} is unanswered: {type(exc).__name__}")
            return None
        except Exception as exc:
            self._story.violate("calls", f"{what} raised {type(exc).__name__}: {exc}")
            return None
        self._story.tell(what)
        return True

    # -- breaking entries --------------------------------------------------------------------------

    def _set_aside(self, name: str) -> None:
        """Put an entry into quarantine, like a leader that cannot use its definition, but never during a sync."""
        entries, states = self._stored(_ENTRIES), self._stored(_STATE)
        if name.encode() not in states or not self._deploys.is_config(name) or self._deploys.is_syncing:
            return
        definition, state = entries.pop(name.encode()).decode(), states.pop(name.encode()).decode()
        self._story.tell(f"{name} is set aside")
        self._story.counts["config entries set aside"] += 1
        due: Any = self._database.find(_DUE)
        due.remove(name.encode())
        for key in (_DUE, _ENTRIES, _STATE):
            self._database.drop_empty(key)
        record = {"error": "no error", "definition": definition, "state": state, "at": self._story.now}
        quarantine: Any = self._database.create(_QUARANTINE, dict)
        quarantine[name.encode()] = json.dumps(record).encode()
        meta: Any = self._database.find(_META)
        meta[b"synced"] = b"quarantined"
        self._deploys.note_set_aside(name)

    def _stored(self, key: bytes) -> dict[bytes, bytes]:
        """Return the hash that the server stores under a key. The keeper changes it in place."""
        stored: Any = self._database.find(key)
        return {} if stored is None else stored

    def _break_definition(self, name: str) -> None:
        self._break(_ENTRIES, name)

    def _break_state(self, name: str) -> None:
        self._break(_STATE, name)

    def _break(self, key: bytes, name: str) -> None:
        """Overwrite a stored definition or state with rubbish."""
        stored = self._stored(key)
        if name.encode() not in stored or not self._deploys.is_config(name):
            return
        self._story.tell(f"{name} is broken: {key.decode()}")
        self._story.counts[f"config entries broken: {key.decode().rpartition(':')[2]}"] += 1
        stored[name.encode()] = RUBBISH
        self._deploys.note_broken(name)


def draw_kept(random: Random, setup: Setup) -> dict[str, Rule]:
    """Draw the config entries of the keeper; most seeds have none."""
    if random.random() >= _SHARE or setup.is_long:
        return {}
    return draw_some_kept(random, setup.periods)


def draw_some_kept(random: Random, periods: tuple[int, ...]) -> dict[str, Rule]:
    """Draw one or two config entries of a keeper."""
    return {f"kept-{number}": interval(random.choice(periods)) for number in range(random.choice((1, 2)))}
