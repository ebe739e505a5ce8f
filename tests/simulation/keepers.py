"""Somebody who looks after config entries: pauses, resumes and removes them, and breaks and mends what is stored."""

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

#: The share of seeds of minutes that have somebody who does this.
_SHARE = 0.2

#: Seconds between two calls, on average.
_PAUSE = 2.0

#: How likely what is in quarantine when the calm begins is released or discarded then.
_MENDED = 0.8

#: How likely an entry is broken then.
_BROKEN = 0.4

#: Seconds of the calm after which this happens: the newest configuration may be stored by then.
_UNTIL_MENDED = (0.0, 10.0)

#: Faults that keep no beat from the server.
_SERVER_STAYS = {"kill", "stop", "deaf", "clock", "leap", "kill holder", "kill worker", "freeze worker"}
_SERVER_STAYS |= {"deliver twice", "lose acknowledgements"}

#: What stands in the place of a definition or of a state that is broken.
RUBBISH = b"rubbish"

_KEYS = Keys.of("redbeat-lite")
_DUE = _KEYS.due.encode()
_ENTRIES = _KEYS.entries.encode()
_STATE = _KEYS.state.encode()
_META = _KEYS.meta.encode()
_QUARANTINE = _KEYS.quarantine.encode()


class Keeper:
    """Calls one method after the other until the calm begins.

    The user does not know these entries, so he need not understand what happens to them.
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
        #: Epoch ms up to which a call about an entry may arrive that has got no answer.
        self._unsure: dict[str, int] = {}
        #: Names of all entries that it looks after.
        self._names = [name for name in self._deploys.names if name not in scenario.setup.config]

    def begin(self) -> None:
        """Call methods from now on, if the seed has somebody who does."""
        if self._scenario.setup.kept:
            self._world.process("keeper").start_main(self._run)

    def end(self) -> None:
        """Mend some of what is broken, and call no more methods."""
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
        """Add an entry by a name that a configuration may have, too.

        A leader that is cut off while it finds such a name refuses the entry with a traceback: seed 98500252. If the
        name is in quarantine, and the entry is removed later, nobody stores that of the configuration: seed 98500391.
        """
        if name in self._deploys.quarantined or not _SERVER_STAYS.issuperset(self._scenario.setup.faults):
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
        """Pause or resume an entry; the record stands where the call began. Return whether it has surely been done."""
        mark = self._deploys.mark(name)
        record = {"kind": "call", "act": act, "entry": name, "began": self._story.now, "returned": None, "ok": None}
        self._story.records.append(record)
        is_done = self._call(f"{act} {name}", call)
        if is_done is not None:
            record |= {"returned": self._story.now, "ok": is_done}
        else:
            self._unsure[name] = self._story.now + LATEST_MS
        is_sure = self._deploys.mark(name) == mark and self._story.now > self._unsure.get(name, 0)
        return bool(is_done) and is_sure and self._deploys.is_config(name)

    def _mend_one(self, act: Callable[[str], None]) -> None:
        """Release or discard an entry that is in quarantine."""
        names = self._deploys.quarantined
        if names:
            act(self._random.choice(names))

    def _mend(self) -> None:
        """Release or discard some of what is in quarantine, and break an entry once more."""
        if self._random.random() < _BROKEN:
            self._break(self._random.choice((_ENTRIES, _STATE)), self._random.choice(self._names))
        for name in self._deploys.quarantined:
            if self._random.random() < _MENDED:
                has_left = name not in self._deploys.version.config
                self._random.choice((self._release, self._release if has_left else self._discard))(name)

    def _call(self, what: str, call: Callable[[], object]) -> bool | None:
        """Call something; return whether it has been done, ``None`` if nobody knows."""
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

    # -- what it breaks ----------------------------------------------------------------------------

    def _set_aside(self, name: str) -> None:
        """Put an entry into quarantine, as a leader does that cannot use its definition: never while it syncs."""
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
        """What the server has under a key, to be changed here."""
        stored: Any = self._database.find(key)
        return {} if stored is None else stored

    def _break_definition(self, name: str) -> None:
        self._break(_ENTRIES, name)

    def _break_state(self, name: str) -> None:
        self._break(_STATE, name)

    def _break(self, key: bytes, name: str) -> None:
        """Put rubbish in the place of what is stored."""
        stored = self._stored(key)
        if name.encode() not in stored or not self._deploys.is_config(name):
            return
        self._story.tell(f"{name} is broken: {key.decode()}")
        self._story.counts[f"config entries broken: {key.decode().rpartition(':')[2]}"] += 1
        stored[name.encode()] = RUBBISH
        self._deploys.note_broken(name)


def draw_kept(random: Random, setup: Setup) -> dict[str, Rule]:
    """Draw the config entries that somebody looks after; most seeds have none."""
    if random.random() >= _SHARE or setup.is_long:
        return {}
    return draw_some_kept(random, setup.periods)


def draw_some_kept(random: Random, periods: tuple[int, ...]) -> dict[str, Rule]:
    """Draw such entries, whatever the seed has."""
    return {f"kept-{number}": interval(random.choice(periods)) for number in range(random.choice((1, 2)))}
