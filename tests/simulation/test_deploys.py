"""Deploys and keepers: mutations of the package that the simulation must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from redbeat_lite.beat.config_entries import ConfigEntries, ConfigPauses
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.changes import Edit, Stored
from redbeat_lite.entries.entry import Entry
from redbeat_lite.entries.state import EntryState
from redbeat_lite.entries.stored_entry import readable_parts
from redbeat_lite.store import leader_store, store
from tests.simulation.keepers import Keeper, draw_some_kept
from tests.simulation.rules import interval
from tests.simulation.scenario import Scenario, draw_setup
from tests.simulation.story import Story
from tests.simulation.test_seeds import at, quiet
from tests.simulation.versions import draw_one_to_three
from tests.simulation.work import ALONE
from tests.simulation.world import World

#: Seeds of which one has to find the fault.
SEEDS = range(1, 41)

#: The same for rarer faults: here such a seed comes early.
LATER_SEEDS = range(11, 51)

CONFIG = {"config-0": interval(2), "config-1": interval(20)}


def run(seed: int, *faults: str, is_kept: bool = False, has_deploys: bool = True) -> Story:
    """Run a short seed with its usual user, and with deploys unless ``has_deploys`` is false.

    With a keeper, every third seed has no deploys.

    Parameters:
        is_kept: whether there is a keeper, which has further config entries.
    """
    setup = draw_setup(seed)
    still: dict[str, Any] = {"holders": 0, "lease": 2.0, "stall_timeout": 6.0, "edits_in_calm": False, "jitter": 0.0}
    still |= {"zone": "UTC", "start_us": World(seed).start_us, "lingers": False, "pipelines": {}, "calm": 15.0}
    setup = replace(
        setup,
        work=ALONE,
        faults=faults,
        periods=(2, 3),
        stormy=15.0,
        config=CONFIG,
        tasks=dict.fromkeys(CONFIG, "project.run"),
        **still,
    )
    kept = draw_some_kept(World(seed).random_for("kept entries"), (2,)) if is_kept else {}
    setup = replace(setup, kept=kept)
    if has_deploys and (not is_kept or seed % 3):
        setup = replace(setup, deploys=draw_one_to_three(World(seed).random_for("deploys"), setup))
    return Scenario(seed, setup).run()


def test_a_fifth_of_the_seeds_has_deploys() -> None:
    setups = [draw_setup(seed) for seed in range(1, 201)]
    deployed = [setup for setup in setups if setup.deploys]
    assert 20 < len(deployed) < 60
    assert not any(setup.is_long for setup in deployed)
    assert any(setup.faults for setup in deployed)


@pytest.mark.parametrize("is_kept", [False, True], ids=["deploys", "kept"])
def test_deploys_break_no_promise(is_kept: bool) -> None:
    stories = [run(seed, is_kept=is_kept) for seed in range(1, 4)]
    assert [violation for story in stories for violation in story.violations] == []
    counts = sum((story.counts for story in stories), start=Counter())
    for act in ("added", "edited", "removed"):
        assert counts[f"config entries {act}"] > 0


# -- mutations -----------------------------------------------------------------------------------------

_edit = ConfigEntries._edit
_revision = ConfigEntries._revision


def leave_former(self: ConfigEntries, stored: Stored, now: int) -> Edit | None:
    """Remove no entry that has left the configuration."""
    return _edit(self, stored, now) if stored.name.decode() in self._entries else None


def change_nothing(*_: Any) -> None:
    """Do not change a stored entry."""


def forget_pause(
    self: ConfigEntries, configured: Entry, existing: Entry, state: EntryState, stored: Stored, now: int
) -> Edit | None:
    """Resume each entry that is changed."""
    resumed = lifecycle.resumed(existing, state, now, catch_up=False) if state.paused else state
    return _revision(self, configured, existing, resumed, stored, now)


def keep_next_run(
    self: ConfigEntries, configured: Entry, existing: Entry, state: EntryState, stored: Stored, now: int
) -> Edit | None:
    """Keep the time of the next run of an entry whose rule has changed."""
    edit = _revision(self, configured, existing, state, stored, now)
    if edit is None or edit.definition is None or state.paused:
        return edit
    return self._edit_with_line(configured, state, stored)


#: A method, its replacement, and the laws of which this breaks one.
MUTATIONS: dict[str, tuple[str, Callable[..., Any], set[str]]] = {
    "an entry stays that has left the configuration": ("_edit", leave_former, {"config"}),
    "an entry is not changed": ("_revision", change_nothing, {"config"}),
    "a pause is forgotten at a sync": ("_revision", forget_pause, {"holds", "held entries"}),
    "the next run of a changed entry comes by the old rule": ("_revision", keep_next_run, {"config"}),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("method", "change", "laws"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_sync_that_breaks_a_promise_is_found(method: str, change: Callable[..., Any], laws: set[str]) -> None:
    with patch.object(ConfigEntries, method, change):
        found = (laws & {violation.law for violation in run(seed).violations} for seed in LATER_SEEDS)
        assert any(found)


# -- keepers -------------------------------------------------------------------------------------------

_drop_quarantined = ConfigEntries._drop_quarantined


def forget_quarantined(self: ConfigEntries, names: Set[str]) -> Set[str]:
    """Drop the names of quarantined entries from the list of the owner."""
    _drop_quarantined(self, names)
    return set()


def refuse_silently(self: ConfigEntries, name: str, exc: Exception) -> None:
    """Do not note which entries are refused."""


def take_over(self: ConfigEntries, stored: Stored, now: int) -> Edit | None:
    """Replace a runtime entry by the config entry of the same name."""
    configured = self._entries.get(stored.name.decode())
    existing, _ = readable_parts(stored, self.app)
    if configured is not None and existing is not None and existing.owner is None:
        return self._creation(configured, stored, now)
    return _edit(self, stored, now)


def without(name: str, lines: str, home: Any = store) -> Callable[[], Any]:
    """Return a function that makes a patch: a statement of the store without these lines."""
    text = getattr(home, name)
    assert lines in text
    return lambda: patch.object(home, name, text.replace(lines, ""))


#: Mutations that seeds with a keeper find.
KEEPER_MUTATIONS = {
    "a release and a removal do not make the leader sync": without("_SYNC_AGAIN", "HSET meta synced edited"),
    "a discard does not make the leader sync": without("_DISCARD", "HSET meta synced discarded"),
    "a quarantine does not make the leader sync": without("_QUARANTINE", "HSET meta synced quarantined", leader_store),
    "names of quarantined entries leave the list": lambda: patch.object(
        ConfigEntries, "_drop_quarantined", forget_quarantined
    ),
    "a refused entry is removed": lambda: patch.object(ConfigEntries, "_refuse", refuse_silently),
    "a config entry replaces a runtime entry": lambda: patch.object(ConfigEntries, "_edit", take_over),
    "an entry that is stored again stays in quarantine": without("_SAVE", "HDEL quarantine $1"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", KEEPER_MUTATIONS.values(), ids=KEEPER_MUTATIONS)
def test_a_change_that_breaks_a_promise_of_a_kept_entry_is_found(mutation: Callable[[], Any]) -> None:
    with mutation():
        stories = (run(seed, is_kept=True) for seed in LATER_SEEDS)
        assert any(violation.law == "config" for story in stories for violation in story.violations)


@pytest.mark.timeout(300)
def test_a_pause_that_is_forgotten_with_the_data_is_found() -> None:
    change = patch.object(ConfigPauses, "pause_as_before", lambda _self, _name, created: created)
    with change, patch.object(Keeper, "_draw_act", lambda self, _random: self._pause):
        stories = (run(seed, "empty", is_kept=True, has_deploys=False) for seed in SEEDS)
        assert any(violation.law == "holds" for story in stories for violation in story.violations)


def test_an_entry_that_was_stored_of_late_need_not_have_run() -> None:
    """Found by seed 98200051: an entry was removed and stored again a few seconds before the end."""
    scenario = quiet(1, kept={"kept-0": interval(7)})
    keeper = scenario._keeper

    def remove_again_and_again() -> None:
        while True:
            keeper._remove("kept-0")
            scenario.world.wait(6.0)

    with patch.object(Keeper, "begin"):
        at(scenario, 20.0, lambda: scenario.world.process("somebody").start_main(remove_again_and_again))
        assert scenario.run().violations == []


def test_a_beat_has_the_configuration_of_when_it_was_started() -> None:
    """Found by seed 98600079: nobody knew the configuration of a beat that had not taken its first step."""
    scenario = quiet(1)

    def start_and_finish() -> None:
        scenario.start_beat()
        scenario.deploys.finish()

    at(scenario, 20.0, start_and_finish)
    assert scenario.run().violations == []
    assert len(scenario.beats) == 2


@pytest.mark.parametrize(("synced", "count"), [(b"begun by a leader", 0), (b"the stamp of a sync", 1)])
def test_nothing_is_set_aside_while_the_leader_syncs(synced: bytes, count: int) -> None:
    """Found by seed 98600210: only the leader sets entries aside, and it does one thing after the other."""
    scenario = quiet(1, kept={"kept-0": interval(2)})

    def set_aside() -> None:
        meta: Any = scenario.server.database.find(b"{redbeat-lite}:meta")
        meta[b"synced"] = synced
        scenario._keeper._set_aside("kept-0")

    with patch.object(Keeper, "begin"):
        at(scenario, 10.0, set_aside)
        story = scenario.run()
    assert story.violations == []
    assert story.counts["config entries set aside"] == count
