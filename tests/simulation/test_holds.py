"""Pauses and freezes upon each other: what is broken on purpose is found, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from redbeat_lite import Freeze, Misfire, Schedules
from redbeat_lite._base.clock import wall_ms
from redbeat_lite.api.writer import Writer, end_after
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.entry import Entry
from redbeat_lite.entries.state import EntryState
from tests.simulation import users
from tests.simulation.holds import NEVER_BEGAN, NEVER_ENDS, End, Holds, held_runs
from tests.simulation.story import Story
from tests.simulation.test_seeds import at, by_user, quiet
from tests.support.audit import History
from tests.support.audit.schedule import sent_once

#: Seeds of which one has to find what is broken.
SEEDS = range(31, 71)


def run(seed: int) -> Story:
    """A minute in which nothing goes wrong, and a user does all that he does with entries that make up for all runs."""
    scenario = quiet(seed, stormy=60.0, periods=(2, 3), pipelines={})
    scenario.user.is_done = False
    with patch.object(users, "MISFIRES", (Misfire("all"),)):
        return scenario.run()


def test_holds_upon_holds_break_no_promise() -> None:
    stories = [run(seed) for seed in range(1, 4)]
    assert [violation for story in stories for violation in story.violations] == []
    assert sum(name.startswith("again after") for story in stories for name in story.happened) > 5


# -- what is broken on purpose -------------------------------------------------------------------------

_pausing = Writer.pausing
_paused = lifecycle.paused
_resumed = lifecycle.resumed
_resume = Schedules.resume
_thaw = Schedules.thaw


def pause_anew(self: Writer, note: str, seconds: Any) -> Any:
    """Let the latest pause count, whether the present one ends later or not."""
    _, line = _pausing(self, note, seconds)
    until = None if seconds is None else end_after(wall_ms(), seconds)
    return lambda entry: lifecycle.paused(entry.state, note, until), line


def freeze_anew(self: Writer, freeze: Freeze) -> Freeze:
    """Let the latest freeze count, whether the present one ends later or not."""
    self.set_freeze(self._store.freeze(), freeze, _line(self))
    return freeze


def _line(writer: Writer) -> Any:
    return _pausing(writer, "", None)[1]


def keep_end(state: EntryState, note: str, until: int | None = None) -> EntryState:
    """Let a pause without an end take over that of the pause before it."""
    return _paused(state, note, state.paused_until if until is None else until)


def forget_missed(entry: Entry, state: EntryState, now: int, *, catch_up: bool) -> EntryState:
    """Resume without the runs that were missed."""
    del catch_up
    return _resumed(entry, state, now, catch_up=False)


def resume_and_thaw(self: Schedules, name: str, *, catch_up: bool = False) -> Entry:
    """End the freeze with a pause."""
    entry = _resume(self, name, catch_up=catch_up)
    if self.frozen() is not None:
        _thaw(self)
    return entry


def thaw_and_resume(self: Schedules) -> None:
    """End all pauses with a freeze."""
    _thaw(self)
    self.select().resume(catch_up=True)


@contextmanager
def changed(home: Any, name: str, change: Any) -> Iterator[None]:
    with patch.object(home, name, change):
        yield


#: What is changed, and the laws that it breaks.
MUTATIONS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "a shorter pause ends a longer one": (lambda: changed(Writer, "pausing", pause_anew), {"holds", "held entries"}),
    "a shorter freeze ends a longer one": (lambda: changed(Writer, "hold_freeze", freeze_anew), {"holds"}),
    "a pause without an end has that of the one before": (
        lambda: changed(lifecycle, "paused", keep_end),
        {"holds", "held entries"},
    ),
    "a resume that catches up forgets what was missed": (
        lambda: changed(lifecycle, "resumed", forget_missed),
        {"held runs"},
    ),
    "a resume ends the freeze, too": (lambda: changed(Schedules, "resume", resume_and_thaw), {"holds", "held entries"}),
    "a thaw ends pauses, too": (lambda: changed(Schedules, "thaw", thaw_and_resume), {"holds", "held entries"}),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mutation", "laws"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_change_that_breaks_a_promise_is_found(mutation: Callable[[], Any], laws: set[str]) -> None:
    with mutation():
        found = (laws & {violation.law for violation in run(seed).violations} for seed in SEEDS)
        assert any(found)


# -- what is known of a hold ---------------------------------------------------------------------------


def test_the_end_of_a_hold_is_known_until_a_call_gets_no_answer() -> None:
    holds = Holds()
    assert holds.complaint("mail", None, now=0) == ""
    assert holds.complaint("mail", 9_000, now=0)
    holds.add("mail", End(9_000, 9_010))
    holds.add("mail", End(5_000, 5_010))
    assert holds.complaint("mail", 9_005, now=0) == ""
    assert holds.complaint("mail", 5_005, now=0)
    assert holds.complaint("mail", None, now=8_500) == ""
    holds.put("mail", NEVER_ENDS, began=1)
    holds.add("mail", End(20_000, 20_010))
    assert holds.complaint("mail", 20_005, now=0)
    holds.forget("mail", until=30_000)
    holds.put("mail", NEVER_BEGAN, began=29_000)
    assert holds.complaint("mail", 20_005, now=0) == ""
    holds.put("mail", NEVER_BEGAN, began=30_001)
    assert holds.complaint("mail", 20_005, now=0)


def test_a_pause_that_is_refused_holds_nothing() -> None:
    """Found by seed 87010104: the entry was not stored yet."""
    scenario = quiet(1)
    at(scenario, 8.0, by_user(scenario, lambda user: user.freeze("mail", 30.0)))
    at(scenario, 9.0, by_user(scenario, lambda user: user.schedules.add("mail", "project.run", 5.0)))
    at(scenario, 10.0, by_user(scenario, lambda user: user.freeze("mail", 10.0)))
    at(scenario, 11.0, by_user(scenario, lambda user: user._check_holds("mail")))
    story = scenario.run()
    assert any("is refused: EntryNotFound" in line for line in story.lines)
    assert [violation for violation in story.violations if violation.law == "holds"] == []


def test_runs_that_were_held_come_at_the_end() -> None:
    def law(*more: dict[str, Any], misfire: str = "all", late: int = 1000) -> list[str]:
        rule = {"every": 1000, "phase": 0}
        add = {"act": "add", "began": 0, "returned": 0, "ok": True, "rule": rule, "misfire": misfire}
        pause = {"act": "freeze", "began": 1500, "returned": 1500, "ok": True, "freeze": "a", "entries": ["mail"]}
        end = {"act": "thaw", "began": 3500, "returned": 3500, "ok": True, "freeze": "a"}
        calls = [{"kind": "call", "entry": "mail", **call} for call in (add, pause, end)]
        history = History([{"kind": "setup", "late": late}, *calls, *more, {"kind": "end", "at": 20_000}])
        return [broken[2] for broken in held_runs(history, history.entries["mail"])]

    def sent(*nominals: int) -> list[dict[str, Any]]:
        one = {"kind": "sent", "entry": "mail", "at": 3600}
        return [{**one, "nominal": nominal, "id": str(nominal)} for nominal in nominals]

    assert law(*sent(2000, 3000)) == []
    assert law(*sent(3000)) == ["2000 was held, and never came"]
    assert law(*sent(3000), misfire="coalesce") == []
    assert len(law(misfire="coalesce")) == 2
    assert law(misfire="skip") == []
    # Seed 87010975: the beat was deaf, so it learnt of the end when the next run was due.
    substitute = {**sent(4000)[0], "at": 4000}
    assert law(substitute, misfire="coalesce", late=2500) == []
    assert len(law(substitute, misfire="coalesce", late=1000)) == 2
    resume = {"kind": "call", "act": "resume", "entry": "mail", "began": 3400, "returned": 3400, "ok": True}
    assert law(resume) == []
    assert len(law({**resume, "catch_up": True})) == 2


def test_a_call_without_an_answer_holds_no_runs() -> None:
    """Found by seed 89011833: the entry was there already, so its add was refused, and a user did not hear of it."""

    def law(**add: Any) -> list[str]:
        rule = {"every": 1000}
        add |= {"act": "add", "entry": "mail", "began": 0, "returned": None, "ok": None, "rule": rule}
        freeze = {"act": "freeze", "began": 2500, "returned": 2500, "ok": True, "freeze": "a"}
        thaw = {"act": "thaw", "began": 3500, "returned": 3500, "ok": True, "freeze": "a"}
        calls = [{"kind": "call", **call} for call in (add, freeze, thaw)]
        sent = {"kind": "sent", "entry": "mail", "at": 1000, "nominal": 1000, "id": "1000"}
        history = History([{"kind": "setup", "late": 1000}, *calls, sent, {"kind": "end", "at": 20_000}])
        return [broken[2] for broken in held_runs(history, history.entries["mail"])]

    assert law(misfire="all") == []
    assert law(owner="config") == ["3000 was held, and never came"]


def test_a_deaf_beat_may_leave_out_what_is_due_soon_after_a_freeze() -> None:
    """Found by seed 88501585: the beat heard a second late that a freeze had ended, and the policy was ``skip``."""

    def law(deaf: int) -> list[str]:
        rule = {"every": 2000, "phase": 0}
        add = {"act": "add", "entry": "mail", "began": 9, "returned": 9, "ok": True, "rule": rule, "misfire": "skip"}
        freeze = {"act": "freeze", "began": 1500, "returned": 1500, "ok": True, "freeze": "a"}
        thaw = {"act": "thaw", "began": 3700, "returned": 3700, "ok": True, "freeze": "a"}
        calls = [{"kind": "call", **call} for call in (add, freeze, thaw)]
        sent = {"kind": "sent", "entry": "mail", "at": 6000, "nominal": 6000, "id": "6000"}
        history = History([{"kind": "setup", "deaf": deaf}, *calls, sent, {"kind": "end", "at": 7500}])
        return [broken[2] for broken in sent_once(history, history.entries["mail"])]

    assert law(deaf=1000) == []
    assert law(deaf=0) == ["4000 was never sent"]
