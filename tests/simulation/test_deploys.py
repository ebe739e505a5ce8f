"""Deploys: what is broken on purpose is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from redbeat_lite.beat.config_entries import ConfigEntries
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.changes import Edit, Stored
from redbeat_lite.entries.entry import Entry
from redbeat_lite.entries.state import EntryState
from tests.simulation.rules import interval
from tests.simulation.scenario import Scenario, draw_setup
from tests.simulation.story import Story
from tests.simulation.versions import draw_some
from tests.simulation.work import ALONE
from tests.simulation.world import World

#: Seeds of which one has to find what is broken.
SEEDS = range(1, 41)

CONFIG = {"config-0": interval(2), "config-1": interval(20)}


def run(seed: int, *faults: str) -> Story:
    """A short seed with deploys, whose user does all that he does."""
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
    setup = replace(setup, deploys=draw_some(World(seed).random_for("deploys"), setup))
    return Scenario(seed, setup).run()


def test_a_fifth_of_the_seeds_has_deploys() -> None:
    setups = [draw_setup(seed) for seed in range(1, 201)]
    deployed = [setup for setup in setups if setup.deploys]
    assert 20 < len(deployed) < 60
    assert not any(setup.is_long for setup in deployed)
    assert any(setup.faults for setup in deployed)


def test_deploys_break_no_promise() -> None:
    stories = [run(seed) for seed in range(1, 4)]
    assert [violation for story in stories for violation in story.violations] == []
    counts = sum((story.counts for story in stories), start=type(stories[0].counts)())
    for act in ("added", "edited", "removed"):
        assert counts[f"config entries {act}"] > 0


# -- what is broken on purpose -------------------------------------------------------------------------

_edit = ConfigEntries._edit
_revision = ConfigEntries._revision


def leave_former(self: ConfigEntries, stored: Stored, now: int) -> Edit | None:
    """Remove no entry that has left the configuration."""
    return _edit(self, stored, now) if stored.name.decode() in self._entries else None


def change_nothing(*_: Any) -> None:
    """Change no entry that is stored."""


def forget_pause(
    self: ConfigEntries, configured: Entry, existing: Entry, state: EntryState, stored: Stored, now: int
) -> Edit | None:
    """Resume each entry that is changed."""
    resumed = lifecycle.resumed(existing, state, now, catch_up=False) if state.paused else state
    return _revision(self, configured, existing, resumed, stored, now)


def keep_next_run(
    self: ConfigEntries, configured: Entry, existing: Entry, state: EntryState, stored: Stored, now: int
) -> Edit | None:
    """Let the next run come by the old rule."""
    edit = _revision(self, configured, existing, state, stored, now)
    if edit is None or edit.definition is None or state.paused:
        return edit
    return self._edit_with_line(configured, state, stored)


#: What is changed, and the law that it breaks.
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
        found = (laws & {violation.law for violation in run(seed).violations} for seed in SEEDS)
        assert any(found)
