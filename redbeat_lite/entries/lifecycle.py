"""How an entry's state follows from its definition: creation, edits, resumption, a dispatched
occurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, tzinfo

from .._base.errors import InvalidEntry
from .._base.text import describe
from .._base.times import MAX_MS
from ..rules import Manual, Question, SpreadSchedule, first_ms, next_ms, shortest_gap_ms
from ..rules.misfire import Plan, WalkOn, ahead_ms, by_count, plan_misfires, pull_back, unsent
from ..rules.occurrences import offset_ms
from .entry import Entry, written_form
from .expected import check_expectation
from .sent import and_sent
from .state import EntryState
from .unstored import readable_text

#: Longest first wait before a failed publish is tried again, and the longest of all, in seconds.
_FIRST_RETRY, _LAST_RETRY = 1, 60


def check(
    entry: Entry, now: int, zone: tzinfo, replaced: Callable[[], Entry | None] = lambda: None
) -> None:
    """Refuse what can only be told once the time zone is known.

    Parameters:
        replaced: finds the entry that this one takes the place of. What was right when it was
            stored and has come to its end since is right still: asked only for an entry that has
            ended.

    Raises:
        InvalidEntry: the schedule has no occurrence to come, or ``jitter`` reaches the next one.
    """
    try:
        upcoming = first(entry, now, zone)
        gap = shortest_gap_ms(entry.rule(zone), now) if entry.jitter_ms else None
        check_expectation(entry, now, zone)
    except InvalidEntry as exc:
        raise exc.of(entry.name) from None
    except Exception as exc:
        expected = "a schedule that can tell its next occurrence"
        raise InvalidEntry(
            "schedule", expected, entry.schedule, entry=entry.name, hint=describe(exc)
        ) from exc
    if (
        upcoming is None
        and not isinstance(entry.schedule, Manual)
        and not _same_window(replaced(), entry, now, zone)
    ):
        raise InvalidEntry(
            "schedule",
            "a schedule with an occurrence still to come",
            entry.schedule,
            entry=entry.name,
        )
    if gap is not None and entry.jitter_ms >= gap:
        expected = f"less than the shortest gap between occurrences ({gap / 1000:g} s)"
        raise InvalidEntry("jitter", expected, entry.jitter, entry=entry.name)


def created(entry: Entry, now: int, zone: tzinfo) -> EntryState:
    """The state of an entry that is stored for the first time at ``now`` (epoch ms)."""
    return EntryState.new(first(entry, now, zone))


def same_runs(before: Entry, after: Entry, zone: tzinfo) -> bool:
    """Return whether an entry has the same runs after an edit as before it.

    Rules are compared, because Celery's schedules are equal if their clocks are. If the schedule
    before could not be stored, its text is compared.
    """
    if before.start_at != after.start_at:
        return False
    if "schedule" in before.unstored:
        return before.unstored["schedule"] == readable_text(after.schedule)
    try:
        return before.rule(zone) == after.rule(zone)
    except InvalidEntry:  # The stored schedule is no rule.
        return False


def keep_resolved(before: Entry, after: Entry) -> None:
    """Give ``after`` the spread schedule of ``before``, if the same was written, so that its times
    stay.
    """
    if isinstance(after.schedule, SpreadSchedule) and written_form(after.schedule) == written_form(
        before.schedule
    ):
        after._put(schedule=before.schedule)


def revised(
    before: Entry,
    state: EntryState,
    after: Entry,
    now: int,
    zone: tzinfo,
    walk_on: WalkOn = by_count,
) -> EntryState:
    """The state after the definition was changed.

    A changed schedule counts from the edit on and never fires for the past; an unchanged one keeps
    its next occurrence, so that writing the same entry again, as every deployment does, postpones
    nothing.
    """
    nominal = state.nominal
    timing_changed = not same_runs(before, after, zone)
    if timing_changed or state.finished:
        nominal = first(after, now, zone)
        # What was sent or given up is not sent because of an edit, by a clock that is behind or
        # otherwise.
        if nominal is not None and state.last is not None:
            nominal = unsent(after.rule(zone), nominal, now, state.last)
        if (
            nominal is not None and not timing_changed and nominal <= now
        ):  # a one-off has its instant even when past
            nominal = None
    elif after.enabled and not before.enabled:
        nominal = ahead(after, state, now, zone, walk_on)
    if used_up(after, state.count) or beyond(after, nominal):
        nominal = None
    return state.moved(nominal, attempts=0, error="")


def paused(state: EntryState, note: str) -> EntryState:
    """The state after a pause; the next occurrence is kept for a resumption that catches up."""
    return state.edited(paused=True, note=note)


def resumed(
    entry: Entry,
    state: EntryState,
    now: int,
    zone: tzinfo,
    *,
    catch_up: bool,
    walk_on: WalkOn = by_count,
) -> EntryState:
    """The state after a resumption; what was missed counts as misfires with ``catch_up``, else as
    not scheduled.
    """
    nominal = state.nominal if catch_up else ahead(entry, state, now, zone, walk_on)
    forgiven = max(now, state.last or now) if entry.on_failure else 0
    return state.edited(paused=False, note="", nominal=nominal, forgiven=forgiven)


def ahead(
    entry: Entry, state: EntryState, now: int, zone: tzinfo, walk_on: WalkOn = by_count
) -> int | None:
    """The next occurrence that is not past, in the phase that the entry already has."""
    upcoming = (
        None if state.nominal is None else ahead_ms(entry.rule(zone), state.nominal, now, walk_on)
    )
    return None if beyond(entry, upcoming) else upcoming


def plan(
    entry: Entry, state: EntryState, now: int, zone: tzinfo, walk_on: WalkOn = by_count
) -> Plan:
    """What to emit for an entry whose due time has come.

    Parameters:
        walk_on: how far to look for missed occurrences one by one; the plan of the next round goes
            on from there.
    """
    if (
        state.nominal is None
        or state.paused
        or not entry.enabled
        or isinstance(entry.schedule, Manual)
    ):
        return Plan((), state.nominal, 0)
    if _is_simple(entry) and state.nominal <= now and not isinstance(state.nominal, Question):
        upcoming = next_ms(entry.rule(zone), state.nominal)
        if upcoming is None or upcoming > now:
            return Plan((state.nominal,), upcoming, 0)
    plan = _planned(entry, state, now, zone, _offset(entry, state.nominal, zone), walk_on)
    last = plan.emit[-1] if plan.emit else state.nominal
    forgiving = entry.misfire.policy != "skip" and entry.misfire.grace is None
    if forgiving and last > state.nominal and last + _offset(entry, last, zone) > now:
        # After an outage the latest can have its instant behind it and its own jitter before it: it
        # is not due yet.
        return _planned(entry, state, last - 1, zone, 0, walk_on)
    return plan


def _planned(
    entry: Entry, state: EntryState, now: int, zone: tzinfo, delay: int, walk_on: WalkOn
) -> Plan:
    assert state.nominal is not None
    return plan_misfires(
        entry.rule(zone),
        state.nominal,
        now,
        entry.misfire,
        end=entry.end_ms,
        runs_left=None if entry.max_runs is None else entry.max_runs - state.count,
        delay=delay,
        walk_on=walk_on,
    )


def _is_simple(entry: Entry) -> bool:
    """Whether nothing but the schedule has a say in a single occurrence that is due."""
    is_free = entry.misfire.grace is None and entry.max_runs is None and entry.end_at is None
    return is_free and entry.misfire.policy != "skip" and not entry.jitter


def dispatched(state: EntryState, done: Plan, locked_out: int, history: int = 0) -> EntryState:
    """The state after all of a plan but for what once-locks left out was published; it carries the
    last ``history``.
    """
    return EntryState(
        version=state.version,
        generation=state.generation,
        nominal=done.next,
        last=done.emit[-1] if done.emit else state.last,
        count=state.count + len(done.emit),
        skipped=state.skipped + done.skipped + locked_out,
        paused=state.paused,
        note=state.note,
        deltas=and_sent(state.deltas, state.last, done.emit, history),
        forgiven=state.forgiven,
    )


def following(
    entry: Entry, nominal: int | None, now: int, zone: tzinfo, walk_on: WalkOn = by_count
) -> int | None:
    """The first occurrence that is still to come, given the next one in turn; it may be part of a
    backlog.

    None where nobody knows, because the schedule is to be asked again.
    """
    upcoming = None if nominal is None else ahead_ms(entry.rule(zone), nominal, now, walk_on)
    return None if isinstance(upcoming, Question) else upcoming


def gap_ms(
    entry: Entry, nominal: int | None, now: int, zone: tzinfo, walk_on: WalkOn = by_count
) -> int | None:
    """Milliseconds from the next run to the one after it; ``None`` where nobody knows, or there are
    none.
    """
    upcoming = following(entry, nominal, now, zone, walk_on)
    after = None if upcoming is None else next_ms(entry.rule(zone), upcoming)
    return (
        None
        if after is None or upcoming is None or isinstance(after, Question)
        else after - upcoming
    )


def failed(state: EntryState, error: str, planned: Plan) -> EntryState:
    """The state after a publish failed: the occurrence stays due, and a question that led to one is
    answered.
    """
    nominal = (
        planned.emit[0] if planned.emit and isinstance(state.nominal, Question) else state.nominal
    )
    return replace(state, nominal=nominal, attempts=state.attempts + 1, error=error)


def retry_delay(attempts: int) -> int:
    """Return the seconds until a publish is retried after ``attempts`` failures: 1, 2, 4 … 60."""
    return min(_FIRST_RETRY << min(attempts - 1, 10), _LAST_RETRY)


def due_time(entry: Entry, state: EntryState, zone: tzinfo) -> int | None:
    """The score: nominal time plus jitter in epoch ms, or ``None`` for an entry that shall not fire
    by itself.
    """
    return None if state.paused or not entry.enabled else score(entry, state.nominal, zone)


def score(entry: Entry, nominal: int | None, zone: tzinfo) -> int | None:
    """Nominal time plus jitter, in epoch ms."""
    if nominal is None or isinstance(entry.schedule, Manual):  # whatever its state says
        return None
    return min(nominal + _offset(entry, nominal, zone), MAX_MS)


def within(entry: Entry, instant: datetime) -> bool:
    """Whether an entry may run at an instant, by ``start_at`` and ``end_at``."""
    return (entry.start_at is None or entry.start_at <= instant) and (
        entry.end_at is None or instant <= entry.end_at
    )


def pulled_back(entry: Entry, state: EntryState, now: int, zone: tzinfo) -> EntryState:
    """The state after the wall clock was set back to ``now``; the very same if it has nothing
    nearer to wait for.
    """
    if state.nominal is None:
        return state
    nominal = pull_back(entry.rule(zone), state.nominal, now, last=state.last, start=entry.start_ms)
    return state if nominal == state.nominal else state.moved(nominal)


def rezoned(
    entry: Entry, state: EntryState, now: int, zone: tzinfo, were: Collection[tzinfo]
) -> EntryState:
    """The state after the app's time zone was changed to ``zone``; the very same if that does not
    matter to the entry.

    What is due already stays due. Nothing is sent for the past, nor what was sent already. By
    ``were``, other zones, its next occurrence may have been planned.
    """
    if state.nominal is None or state.nominal <= now:
        return state
    rule = entry.rule(zone)
    others = [other for other in map(entry.rule, were) if other != rule]
    following = first_ms(rule, now, entry.start_ms)
    # A schedule of somebody else's may be asked in the zone and not care.
    if all(first_ms(other, now, entry.start_ms) == following for other in others):
        return state
    if following is not None and state.last is not None:
        following = unsent(rule, following, now, state.last)
    following = None if beyond(entry, following) else following
    return state if following == state.nominal else state.moved(following)


def _offset(entry: Entry, nominal: int, zone: tzinfo) -> int:
    if not entry.jitter or isinstance(
        nominal, Question
    ):  # what it is asked about may be due by then
        return 0
    following = next_ms(entry.rule(zone), nominal)
    return offset_ms(
        entry.name, nominal, entry.jitter_ms, None if following is None else following - nominal
    )


def first(entry: Entry, now: int, zone: tzinfo) -> int | None:
    """The first occurrence after ``now`` (epoch ms) that lies within the bounds of an entry."""
    nominal = first_ms(entry.rule(zone), now, entry.start_ms)
    return None if beyond(entry, nominal) else nominal


def _same_window(before: Entry | None, after: Entry, now: int, zone: tzinfo) -> bool:
    return before is not None and before.end_at == after.end_at and same_runs(before, after, zone)


def beyond(entry: Entry, nominal: int | None) -> bool:
    """Whether an occurrence lies after the end of an entry."""
    return nominal is not None and entry.end_ms is not None and nominal > entry.end_ms


def used_up(entry: Entry, count: int) -> bool:
    """Whether so many runs are all that an entry may have."""
    return entry.max_runs is not None and count >= entry.max_runs
