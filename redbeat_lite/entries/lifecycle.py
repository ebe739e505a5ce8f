"""Life of an entry: its state after creation, an edit, a resumption or a dispatched occurrence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from msgspec.structs import replace

from .._base.errors import InvalidEntry
from .._base.text import describe
from .._base.times import MAX_MS, delay_ms, from_ms
from ..policies import Expect
from ..rules import (
    Question,
    Rule,
    at,
    counts_from_run,
    every,
    first_ms,
    gap_over,
    manual,
    shortest_gap_ms,
)
from ..rules.celery_schedules import ForeignRule
from ..rules.clock_changes import ZonedRule
from ..rules.misfire import MOST_COUNTED, Plan, plan_misfires
from ..rules.occurrences import occurrences, offset_ms
from .entry import Entry
from .model import encode, readable_text
from .state import EntryState, add_sent

#: Longest wait before a retry, in seconds.
_LAST_RETRY = 60

#: If a clock was set back by at most this many ms, an entry whose rule names fixed times waits
#: until the clock has caught up, and repeats no run.
_LITTLE_MS = 60_000


def check(entry: Entry, now: int, replaced: Callable[[], Entry | None] = lambda: None) -> None:
    """Check that a schedule has a next run, and that jitter and expectation fit its runs.

    Parameters:
        now: epoch ms.
        replaced: returns the stored entry that this one replaces; ``None`` if there is none. What
            both have in common was valid when it was stored. So it is no error if ``entry`` has no
            occurrence to come, but the stored entry has the same schedule and end. And the runs of
            an unchanged entry are not compared again with its expectation.

    Raises:
        InvalidEntry: the schedule has no occurrence to come, ``jitter`` reaches the next one, or
            runs are too far apart for ``expect``.
    """
    before = replaced() if entry.expect and entry.expect.succeed_every else None
    try:
        upcoming = first(entry, now)
        gap = shortest_gap_ms(entry.rule, now) if entry.jitter_ms else None
        # This may take 0.1 s, and a sync of the configuration checks all of its entries.
        if before is None or encode(before) != encode(entry):
            check_expectation(entry, now)
    except InvalidEntry as exc:
        raise exc.of(entry.name) from None
    except Exception as exc:
        # A user's schedule class may raise anything.
        expected = "a schedule that can tell its next occurrence"
        raise InvalidEntry(
            "schedule", expected, entry.schedule, entry=entry.name, hint=describe(exc)
        ) from exc
    if upcoming is None and not isinstance(entry.schedule, manual):
        before = replaced()
        if before is None or before.end_at != entry.end_at or not same_runs(before, entry):
            expected = "a schedule with an occurrence still to come"
            raise InvalidEntry("schedule", expected, entry.schedule, entry=entry.name)
    if gap is not None and entry.jitter_ms >= gap:
        expected = f"less than the shortest gap between occurrences ({gap / 1000:g} s)"
        raise InvalidEntry("jitter", expected, entry.jitter, entry=entry.name)


def created(entry: Entry, now: int) -> EntryState:
    """Return the state of an entry that is stored for the first time at ``now`` (epoch ms)."""
    return EntryState.new(first(entry, now))


def same_runs(before: Entry, after: Entry) -> bool:
    """Return whether an entry has the same runs after an edit as before it.

    It compares rules instead of schedules, because Celery's schedules compare only their
    ``nowfun``. If the schedule of ``before`` could not be stored, it compares texts.
    """
    if before.start_at != after.start_at:
        return False
    if "schedule" in before.unstored:
        return before.unstored["schedule"] == readable_text(after.schedule)
    try:
        return before.rule == after.rule
    except InvalidEntry:
        # The stored schedule cannot be used as a rule.
        return False


def after_edit(before: Entry, state: EntryState, after: Entry, now: int) -> EntryState:
    """Return the state after an edit of the definition at ``now`` (epoch ms).

    A changed schedule counts from the edit on and never fires for the past, except for a one-off: a
    new instant that is past is due at once. An unchanged schedule keeps its next occurrence. So a
    deployment that writes the same entry again postpones nothing.

    Parameters:
        before, after: the entry before and after the edit.
        state: state before the edit.
    """
    nominal = state.nominal
    keeps_schedule = same_runs(before, after)
    if state.finished or not keeps_schedule:  # A finished entry may get further runs by the edit.
        # An edit must not repeat an occurrence that was sent already, also if the clock of this
        # process is behind.
        nominal = first(after, now, state.last)
        is_past = nominal is not None and nominal <= now  # Only the instant of a one-off can be.
        if keeps_schedule and is_past:
            # An edit of something else must not repeat the run of a one-off.
            nominal = None
    elif after.enabled and not before.enabled:
        # The entry does not make up for the time in which it was disabled.
        nominal = ahead(after, state, now)
    if used_up(after, state.count) or beyond(after, nominal):
        nominal = None
    return state.moved(nominal, attempts=0, error="")


def paused(state: EntryState, note: str, until: int | None = None) -> EntryState:
    """Return the state after a pause.

    It keeps the next occurrence, so that a resumption can make up for the missed runs.

    Parameters:
        until: end of the pause, in epoch ms; ``None``: it lasts until a resumption.
    """
    return state.edited(paused=True, paused_until=until, note=note)


def after_pause(state: EntryState, now: int) -> EntryState:
    """Return the state without its pause if that has ended at ``now`` (epoch ms).

    The runs that the pause prevented count as missed, so the misfire policy decides about them. If
    the pause goes on, or there is none, the same object is returned.
    """
    if not state.paused or state.paused_until is None or state.paused_until > now:
        return state
    # The end stays, because deadlines of the entry count from it.
    return replace(state, paused=False, note="")


def resumed(entry: Entry, state: EntryState, now: int, *, catch_up: bool) -> EntryState:
    """Return the state after a resumption at ``now`` (epoch ms).

    Parameters:
        catch_up: whether the runs that the pause prevented count as missed, so that the misfire
            policy decides about them; otherwise they are ignored.
    """
    nominal = state.nominal if catch_up else ahead(entry, state, now)
    # Failures of runs up to the time ``forgiven`` do not pause the entry again (0: all failures
    # count). If clocks differ, the last run may be later than ``now``.
    forgiven = max(now, state.last or now) if entry.on_failure else 0
    if catch_up and nominal:
        # The missed runs are sent after the resumption, so their failures count.
        forgiven = min(forgiven, nominal - 1)
    return state.edited(
        paused=False, paused_until=None, note="", nominal=nominal, forgiven=forgiven
    )


def ahead(entry: Entry, state: EntryState, now: int) -> int | None:
    """Return the first occurrence, from the planned one on, that is due after ``now`` (epoch ms).

    An interval keeps its phase: it counts on from the planned occurrence. ``None``: no occurrence
    is left before the end of the entry.
    """
    nominal = state.nominal
    # The last occurrence up to ``now`` is still to come if its own jitter is not over. So look for
    # it first.
    for since in (now - entry.jitter_ms, now):
        if nominal is not None and nominal + _offset(entry, nominal) <= now:
            nominal = _next_in_phase(entry.rule, nominal, since)
    return None if beyond(entry, nominal) else nominal


def _next_in_phase(rule: Rule, nominal: int, now: int) -> int | None:
    """Return the next occurrence after ``now``, counted on from ``nominal``, which is past."""
    if isinstance(rule, every):
        # last_ms() returns the last occurrence in ``(nominal, now]``, or else ``nominal``.
        return rule.next_ms(rule.last_ms(nominal, now))
    if isinstance(rule, ForeignRule):
        # A schedule class of a user may count from run to run, so go on from ``nominal``. After
        # MOST_COUNTED steps, give up the phase and count from ``now``.
        for following in islice(occurrences(rule, nominal), MOST_COUNTED):
            if following > now:
                return following
    return rule.next_ms(now)


def plan(entry: Entry, state: EntryState, now: int, most_counted: int = MOST_COUNTED) -> Plan:
    """Decide which occurrences to emit for an entry whose due time has come.

    Parameters:
        now: epoch ms.
        most_counted: maximum number of missed occurrences that are counted one by one, if the rule
            cannot calculate their number.
    """
    if (
        state.nominal is None
        or state.paused
        or not entry.enabled
        or isinstance(entry.schedule, manual)
    ):
        # The entry does not fire by itself.
        return Plan(next=state.nominal)
    # The count may exceed ``max_runs``: an edit has lowered ``max_runs`` since an export, and an
    # import has restored the old count.
    runs_left = None if entry.max_runs is None else max(entry.max_runs - state.count, 0)
    # Each occurrence has its own jitter. This intended delay does not make a run late, so subtract
    # the jitter of the oldest one.
    plan_until = partial(
        plan_misfires,
        entry.rule,
        state.nominal,
        now - _offset(entry, state.nominal),
        entry.misfire,
        runs_left=runs_left,
        most_counted=most_counted,
    )
    decision = plan_until(end=entry.end_ms)
    last = max((*decision.emit, *(skipped.last for skipped in decision.ranges)), default=0)
    if last <= state.nominal or last + _offset(entry, last) <= now:
        return decision
    # The nominal time of the latest occurrence is past, but its own jitter is not over. So it is
    # not missed yet: plan the earlier ones alone, and then wait for it.
    earlier = plan_until(end=last - 1)
    if len(earlier.emit) == runs_left:
        return earlier._replace(spare=last)
    return earlier._replace(next=last)


def dispatched(state: EntryState, published: Plan, locked_out: int, history: int = 0) -> EntryState:
    """Return the state after a plan was published.

    Parameters:
        locked_out: number of occurrences that were not published because of a once-lock.
        history: number of sent occurrences that the state keeps.
    """
    return replace(
        state,
        nominal=published.next,
        last=published.emit[-1] if published.emit else state.last,
        count=state.count + len(published.emit),
        skipped=state.skipped + published.skipped + locked_out,
        attempts=0,
        error="",
        # Text of the last sent nominal times, written as the distances between them.
        deltas=add_sent(state.deltas, state.last, published.emit, history),
    )


def failed(state: EntryState, error: str, planned: Plan) -> EntryState:
    """Return the state after a failed publish; the occurrence stays due.

    If the state holds a :class:`Question` (the time at which to ask the schedule), the occurrence
    that the schedule has named replaces it, so that the schedule is not asked again.
    """
    nominal = state.nominal
    if planned.emit and isinstance(nominal, Question):
        nominal = planned.emit[0]
    return replace(state, nominal=nominal, attempts=state.attempts + 1, error=error)


def retry_delay(attempts: int) -> int:
    """Return the seconds until a publish is retried after ``attempts`` failures: 1, 2, 4 … 60."""
    # The exponent is bounded, because a number of thousands of bits would be slow.
    return min(1 << min(attempts - 1, 10), _LAST_RETRY)


def set_state(entry: Entry, state: EntryState) -> None:
    """Give an entry a state, and the due time that follows from it."""
    entry.state = state
    entry.due = due_time(entry, state)


def due_time(entry: Entry, state: EntryState) -> int | None:
    """Return the due time, in epoch ms, which is the entry's score in its sorted set.

    It is the nominal time (which the schedule says) plus jitter, but not before the end of a pause.
    ``None`` for an entry that does not fire by itself.
    """
    due = score(entry, state.nominal)
    if not entry.enabled or due is None:
        return None
    if state.paused:
        return None if state.paused_until is None else max(due, state.paused_until)
    return due


def score(entry: Entry, nominal: int | None) -> int | None:
    """Return nominal time plus jitter, in epoch ms; ``None`` for a manual or a finished entry."""
    if nominal is None or isinstance(entry.schedule, manual):
        return None
    return min(nominal + _offset(entry, nominal), MAX_MS)


def run_due(entry: Entry, nominal: int, now: int) -> int:
    """Return when a run is due, in epoch ms: its nominal time plus jitter and countdown.

    Parameters:
        nominal: nominal time of the run, in epoch ms.
        now: when its message is sent, in epoch ms. A countdown counts from it.
    """
    # The score is the nominal time plus jitter. A manual entry has no score.
    due = score(entry, nominal) or nominal
    return due + delay_ms(entry.options, now)


def pulled_back(entry: Entry, state: EntryState, now: int) -> EntryState:
    """Return the state after the wall clock was set back to ``now``.

    With an unchanged state, the entry would wait until the clock has caught up. An interval goes
    back by whole intervals, so entries that were spread stay spread. If the planned occurrence is
    the next one already, the same object is returned.
    """
    if state.nominal is None:
        return state
    rule = entry.rule
    if counts_from_run(rule):
        # Go back by whole intervals, as long as the result is after now and not before the start.
        earliest = max(now + 1, entry.start_ms or 0)
        following: int | None = earliest + (state.nominal - earliest) % rule.ms
    else:
        following = first_ms(rule, now, entry.start_ms)
    following = _skip_sent(rule, following, now, state.last)
    if following is None or following >= state.nominal:
        return state
    return state.moved(following)


def rezoned(entry: Entry, state: EntryState, now: int) -> EntryState:
    """Return the state after the app's time zone was changed.

    If the change does not affect the entry, the same object is returned. An occurrence that is due
    already stays due. Nothing is planned for the past, and nothing is sent twice.

    A schedule class of a user keeps the occurrence that it has named, because it may count from run
    to run.
    """
    if state.nominal is None or state.nominal <= now or not isinstance(entry.rule, ZonedRule):
        return state
    following = first(entry, now, state.last)
    return state if following == state.nominal else state.moved(following)


def _offset(entry: Entry, nominal: int) -> int:
    """Return the jitter of an occurrence in ms."""
    # A Question (the time at which to ask the schedule) has no jitter, because the occurrence may
    # be due as soon as the schedule is asked.
    if not entry.jitter or isinstance(nominal, Question):
        return 0
    rule = entry.rule
    # Jitter stays below the gap to the next run. A user's class is asked only about this run, so
    # the gap is not known. The other rules know the next run, and do not answer with a Question.
    following = None if isinstance(rule, ForeignRule) else rule.next_ms(nominal)
    gap = None if following is None else following - nominal
    return offset_ms(entry.name, nominal, entry.jitter_ms, gap)


def first(entry: Entry, now: int, last: int | None = None) -> int | None:
    """Return the first occurrence after ``now`` (epoch ms) within the bounds of an entry.

    Parameters:
        last: last nominal time that was sent; it is not returned again.
    """
    rule = entry.rule
    nominal = _skip_sent(rule, first_ms(rule, now, entry.start_ms), now, last)
    return None if beyond(entry, nominal) else nominal


def _skip_sent(rule: Rule, following: int | None, now: int, last: int | None) -> int | None:
    """Return the next occurrence that was not sent yet: ``following``, or the one after ``last``.

    After the clock was set back, a rule of times of day, such as a cron, gives times again that
    were sent. If ``last`` is ahead of the clock by at most a minute, or by at most the gap between
    two runs, the entry waits for its first unsent time. (The clocks of two beats differ by less
    than a minute.) If ``last`` is further ahead, the entry runs at the same times again.

    Parameters:
        following: next occurrence after ``now``, if any, in epoch ms.
        last: last nominal time that was sent, if any, in epoch ms.
    """
    if following is None or last is None or following > last:
        return following
    after_last = rule.next_ms(last)
    if following == last:
        return after_last
    # The next occurrence is before ``last``, so the clock was set back.
    if counts_from_run(rule) or isinstance(rule, at):
        # An interval without a grid, or a one-off, has no times of day that come again.
        return following
    gap = 0 if after_last is None else after_last - last
    is_near = last - now <= max(gap, _LITTLE_MS)
    return after_last if is_near else following


def beyond(entry: Entry, nominal: int | None) -> bool:
    """Return whether an occurrence lies after the end of an entry."""
    return nominal is not None and nominal > entry.end_ms


def used_up(entry: Entry, count: int) -> bool:
    """Return whether an entry that has had ``count`` runs may have no more."""
    return entry.max_runs is not None and count >= entry.max_runs


def expected_of(entry: Entry, default: Expect | None) -> Expect | None:
    """Return the expectation of an entry's runs; ``None`` if it has none.

    The default does not apply to an entry with ``remove_when_done``, because that entry may be gone
    before the expectation is checked.
    """
    if entry.expect is None and not entry.remove_when_done:
        return default
    # ``expect=False`` means that nothing is expected, not even the default.
    return entry.expect or None


def check_expectation(entry: Entry, now: int) -> None:
    """Check that the runs of the coming year are close enough together for ``succeed_every``.

    Parameters:
        now: begin of that year, in epoch ms.

    Raises:
        InvalidEntry: two runs are further apart; the error names them.
    """
    expect = entry.expect
    if not expect or expect.success_ms is None:
        return
    # Jitter may delay the second of two runs and not the first, so a gap grows by it.
    gap = gap_over(entry.rule, now, expect.success_ms - entry.jitter_ms)
    if gap is not None:
        before, after = gap
        seconds = (after - before + entry.jitter_ms) / 1000
        runs = f"{from_ms(before).isoformat()} and {from_ms(after).isoformat()}"
        expected = f"more than the {seconds:g} s between the runs of {runs}"
        raise InvalidEntry("expect.succeed_every", expected, expect.succeed_every)
