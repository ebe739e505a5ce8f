"""What is with the next occurrence of an entry."""

from __future__ import annotations

from collections.abc import Iterator

from ...entries.entry import Entry
from ...entries.lifecycle import used_up
from ...entries.words import counted
from ...schedules import Manual, Question
from .case import HERE, RULE, STATE, Case, Reason, full


def upcoming(case: Case, entry: Entry) -> Iterator[Reason]:
    """When it comes, or why it does not, and what is in its way."""
    state, refused = entry.known_state, case.refused
    if isinstance(entry.schedule, Manual):
        yield Reason("next", "No next one comes: it is run by hand only.", None, RULE)
    elif state.paused:
        yield paused_now(case, entry)
    elif not entry.enabled:
        yield Reason("next", "No next one comes: it is disabled.", None, STATE)
    elif state.nominal is None:
        yield Reason("next", f"No next one comes: {ended(case, entry)}.", None, STATE)
    elif case.frozen(case.now):
        yield from case.hindrances(case.now)
    else:
        yield _due(case, entry, state.nominal)
        yield from leaderless(case)
    if refused is not None:
        sentence = f"The beat refuses it as beat_schedule has it now, so it goes on as it was stored: {refused}"
        yield Reason("refused", full(sentence), None, "status")


def paused_now(case: Case, entry: Entry) -> Reason:
    """That it is paused, by whom and since when, as far as that is recorded; it may have been added so."""
    by = None if case.unrecorded else case.last(None, "paused", "resumed", *HERE)
    if by is not None and by.action != "resumed":
        return case.told(by, "paused")
    note = f": {entry.paused_note}" if entry.paused_note else ""
    return Reason("paused", f"It is paused{note}; who did that, and when, is not recorded.", None, STATE)


def ended(case: Case, entry: Entry) -> str:
    """Why an entry is finished."""
    state = entry.known_state
    if used_up(entry, entry.total_run_count):
        last = "" if state.last is None else f", the last at {case.when(state.last)}"
        return f"it is finished after its max_runs of {entry.max_runs}{last}"
    if entry.end_at is not None:
        return f"it is finished, as its end_at is {case.when(entry.end_at)}"
    return "it is finished, as its schedule has no occurrence any more"


def leaderless(case: Case) -> Iterator[Reason]:
    """That nobody leads now, or that the leader cannot do its work."""
    status = case.status
    if status.leader is None:
        last = ", and no beat has ever led"
        if status.last_tick is not None:
            last = f"; the last sign of life of a leader was at {case.when(status.last_tick)}"
        yield Reason("no leader", f"Nobody leads now{last}.", status.last_tick, "status")
    elif status.leader.failing_for is not None:
        who = f"pid {status.leader.pid} on {status.leader.host}"
        sentence = f"The leader, {who}, cannot do its work for {status.leader.failing_for:.0f} s: {status.leader.why}"
        yield Reason("failing", full(sentence), None, "status")


def failures(case: Case, entry: Entry) -> Iterator[Reason]:
    """That it cannot be published."""
    state = entry.known_state
    if state.attempts:
        times = counted(state.attempts, "attempt", "attempts")
        failed = full(f"{times} to publish it failed, the last one with: {state.error}")
        again = "" if entry.due is None else f" It is tried again at {case.when(entry.due)}."
        yield Reason("publish", failed + again, None, STATE)


def _due(case: Case, entry: Entry, nominal: int) -> Reason:
    if isinstance(nominal, Question):
        sentence = f"Its schedule is asked at {case.when(int(nominal))} whether it is due."
        return Reason("next", sentence, None, RULE)
    due = nominal if entry.due is None else entry.due
    jitter = f", its jitter included; the schedule says {case.when(nominal)}" if due > nominal else ""
    stands = "is due at" if due > case.now.timestamp() * 1000 else "has been due since"
    return Reason("next", f"The next one {stands} {case.when(due)}{jitter}.", None, STATE)
