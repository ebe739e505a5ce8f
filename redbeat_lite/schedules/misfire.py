"""What to do about occurrences that nobody sent in time, and what to wait for after them: a policy, and a pure plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

from ..durations import Duration, length_of
from ..errors import InvalidEntry, known_only, meant
from ..public import public
from . import At, Every, Question, Rule, first_ms, next_ms
from .celery_schedules import ForeignRule
from .missed import Missed, WalkOn, by_count, missed_of

MisfirePolicy = Literal["coalesce", "skip", "all"]
POLICIES = get_args(MisfirePolicy)
#: Without a limit, `all` emits this many per plan; the rest is planned in the next round.
CHUNK = 500
MAX_LIMIT = 1000
#: Under `skip` without a grace of its own an occurrence may be this late. A standby takes over within 4.5 s of a crash
#: (a lease of 4 s and half a second): a fail-over is not an outage.
DEFAULT_GRACE_MS = 5000
#: A clock set back by no more than this is waited for by every entry, rather than that a run is repeated.
_LITTLE_MS = 60_000


@public
@dataclass(frozen=True, slots=True)
class Misfire:
    """What happens to occurrences found late, after an outage, a pause, or a clock that jumped ahead.

    Parameters:
        policy: ``"coalesce"`` sends the latest missed occurrence, once; ``"skip"`` sends none that is later than
            ``grace``; ``"all"`` sends each, oldest first.
        grace: a length of time. Later than that is skipped under every policy. None means no bound, and under
            ``"skip"`` 5 seconds or a quarter of the time to the next occurrence, whichever is less.
        limit: 1 to 1000, the most that ``"all"`` (or ``"skip"`` within its grace) sends of one outage; the oldest are
            sent and the others skipped.

    Raises:
        InvalidEntry: an unknown policy, a negative grace, a limit out of bounds.
    """

    policy: MisfirePolicy = "coalesce"
    grace: Duration | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            hint = meant(self.policy, POLICIES)
            raise InvalidEntry("misfire.policy", '"coalesce", "skip" or "all"', self.policy, hint=hint)
        if self.grace is not None:
            object.__setattr__(self, "grace", length_of("misfire.grace", self.grace, "not negative, or None", 0))
        limit: object = self.limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT):
            raise InvalidEntry("misfire.limit", f"1 to {MAX_LIMIT}, or None", limit)

    @classmethod
    def of(cls, value: MisfirePolicy | Misfire | Mapping[str, Any]) -> Misfire:
        """A policy from its name, from a mapping of the parameters, or from itself.

        Raises:
            InvalidEntry: anything else.
        """
        if isinstance(value, Misfire):
            return value
        if isinstance(value, str):
            return _named(value)
        if not isinstance(value, Mapping):
            raise InvalidEntry("misfire", "a policy's name, a Misfire or a mapping", value)
        return cls(**known_only("misfire", value, cls.__slots__))

    @property
    def grace_ms(self) -> int | None:
        return None if self.grace is None else round(1000 * self.grace)  # type: ignore[arg-type]  # made seconds at first

    def encode(self) -> str | dict[str, Any]:
        """JSON: the policy's name alone where nothing else is set."""
        stored = {"policy": self.policy, "grace": self.grace, "limit": self.limit}
        given = {name: value for name, value in stored.items() if value is not None}
        return self.policy if len(given) == 1 else given


#: One for each name: most entries have the same.
_named = lru_cache(maxsize=8)(Misfire)


class Range(NamedTuple):
    """Occurrences in a row: the nominal times of the first and the last one, and how many they are."""

    first: int
    last: int
    number: int


class Plan(NamedTuple):
    """What to do now. All times are milliseconds since 1970.

    ``emit`` holds nominal times, oldest first; ``next`` is the nominal time to wait for (in the past when more is left
    for the next round), None when the entry is finished; ``skipped`` is how many were passed over, and ``ranges`` tells
    which, oldest first.
    """

    emit: tuple[int, ...]
    next: int | None
    skipped: int
    ranges: tuple[Range, ...] = ()


def plan_misfires(
    rule: Rule,
    nominal: int,
    now: int,
    misfire: Misfire,
    *,
    end: int | None = None,
    runs_left: int | None = None,
    delay: int = 0,
    walk_on: WalkOn = by_count,
) -> Plan:
    """Decide about an entry that waits for ``nominal``.

    Every missed occurrence (``nominal`` and its successors that are not later than ``now``) is emitted, skipped, or
    left to the next round. The work is bounded, however long the outage. A question is asked once, for now, and what
    comes of it is never late.

    Parameters:
        nominal, now: milliseconds since 1970.
        end: occurrences later than this do not exist.
        runs_left: the most that may still be emitted; once it is used up nothing is next, and what would have followed
            is neither emitted nor skipped.
        delay: the jitter of this occurrence in milliseconds, by which it is not late.
        walk_on: how far to look for missed occurrences one by one, where the rule cannot count them. A limit lets it
            look further: by as many as it lets through.
    """
    now -= delay
    if nominal > now:
        return Plan((), nominal if end is None or nominal <= end else None, 0)
    until = now if end is None else min(now, end)
    if nominal > until or runs_left == 0:
        return Plan((), None, 0)
    if misfire.limit is not None:
        walk_on = _up_to(misfire.limit, nominal if misfire.grace_ms is None else now - misfire.grace_ms, walk_on)
    if isinstance(nominal, Question):
        chosen = _asked(rule, nominal, until)
    else:
        missed = missed_of(rule, nominal, until, walk_on)
        chosen = _latest(missed, now, misfire) if _is_single(misfire) else _each(missed, now, misfire, runs_left)
    used_up = runs_left is not None and len(chosen.emit) >= runs_left
    if used_up or (end is not None and chosen.next is not None and chosen.next > end):
        return chosen._replace(next=None)
    return chosen


def ahead_ms(rule: Rule, nominal: int, now: int, walk_on: WalkOn = by_count) -> int | None:
    """The next occurrence that is still to come, in the phase of ``nominal``, without regard to what was missed.

    What a resumption without catching up waits for. All in milliseconds since 1970.
    """
    if nominal > now:
        return nominal
    if isinstance(nominal, Question):
        return next_ms(rule, now)
    if isinstance(rule, Every):
        return rule.next_ms(rule.last_ms(nominal, now))
    # A foreign schedule may have a phase too. A plan keeps it, unless there is too much to walk through.
    upcoming = plan_misfires(rule, nominal, now, Misfire("coalesce"), walk_on=walk_on).next
    return next_ms(rule, now) if upcoming is not None and upcoming <= now else upcoming


def pull_back(rule: Rule, nominal: int, now: int, *, last: int | None = None, start: int | None = None) -> int:
    """The nominal time to wait for when the clock was set back to ``now``, in milliseconds since 1970.

    An entry that waits for an instant the old clock had near would otherwise wait for the clock to get there again.
    An interval keeps its phase: entries that were spread stay so.

    Parameters:
        last: the last nominal time that was sent.
        start: the entry's ``start_at``, before which nothing runs.
    """
    if isinstance(rule, Every) and not rule.on_grid:
        at_least = now + 1 if start is None else max(now + 1, start)
        following: int | None = nominal - max(0, (nominal - at_least) // rule.ms) * rule.ms
    else:
        following = first_ms(rule, now, start)
    if following is not None and last is not None:
        following = unsent(rule, following, now, last)
    return nominal if following is None else min(nominal, following)


def unsent(rule: Rule, following: int, now: int, last: int) -> int | None:
    """``following``, which is to come by a clock at ``now``; or the first after ``last``, if that was sent already.

    By a clock that is behind, a rule that names times of the day names those again that were sent. It waits for the
    first that was not, where the clock is there within one occurrence, or within a minute: clocks of two beats differ
    by less. An entry that would have to wait longer starts over. All in milliseconds since 1970.
    """
    if following > last:
        return following
    after = next_ms(rule, last)
    names_times = not isinstance(rule, At) and not (isinstance(rule, Every) and not rule.on_grid)
    gap = 0 if after is None else after - last
    return after if following == last or (names_times and last - now <= max(gap, _LITTLE_MS)) else following


def _up_to(limit: int, oldest: int, walk_on: WalkOn) -> WalkOn:
    """The same, but with a limit's worth of what is not too late in one round, and one more: it counts by outages."""

    def further(walked: Sequence[int]) -> bool:
        return walk_on(walked) or 0 < len(walked) - bisect_left(walked, oldest) <= limit

    return further


def _asked(rule: Rule, question: Question, now: int) -> Plan:
    """What comes of a question whose time has come. An occurrence has the time of the question for its nominal time."""
    if not isinstance(rule, ForeignRule):  # the class has learnt to tell
        return Plan((), next_ms(rule, question.asked), 0)
    answer = rule.answer(question, now)
    if answer is not question:
        return Plan((), answer, 0)
    # As Celery does, from the run on and not from its nominal time: what lies between was not asked about.
    return Plan((int(question),), next_ms(rule, now), 0)


def _is_single(misfire: Misfire) -> bool:
    """Whether at most the latest occurrence can be sent.

    So it is under the default grace of `skip`: an older one is late by more than the whole gap to its successor.
    """
    return misfire.policy == "coalesce" or (misfire.policy == "skip" and misfire.grace is None)


def _latest(missed: Missed, now: int, misfire: Misfire) -> Plan:
    latest, following = missed.last, missed.following
    all_of_them = Range(missed.nominal, latest, missed.number)
    grace = misfire.grace_ms
    if grace is None and misfire.policy == "skip":
        grace = DEFAULT_GRACE_MS if following is None else min(DEFAULT_GRACE_MS, (following - latest) // 4)
    if missed.unfinished or (grace is not None and now - latest > grace):
        return Plan((), following, all_of_them.number, (all_of_them,))
    earlier = all_of_them.number - 1
    ranges = (Range(missed.nominal, missed.last_before(latest), earlier),) if earlier else ()
    return Plan((latest,), following, earlier, ranges)


def _each(missed: Missed, now: int, misfire: Misfire, runs_left: int | None) -> Plan:
    grace, bound = misfire.grace_ms, misfire.limit or CHUNK
    oldest = missed.nominal if grace is None else now - grace
    too_late = missed.count_before(oldest)
    wanted = bound if runs_left is None else min(bound, runs_left)
    in_time = tuple(islice(missed.since(oldest), wanted + 1))
    emit = in_time[:wanted]
    rest = missed.number - too_late - len(emit)
    ranges = (Range(missed.nominal, missed.last_before(oldest), too_late),) if too_late else ()
    if not rest:
        return Plan(emit, missed.following, too_late, ranges)
    if misfire.limit is None or len(emit) == runs_left:
        return Plan(emit, next_ms(missed.rule, emit[-1]), too_late, ranges)
    # Another round would send as many again, so what was not walked yet is passed over, and not counted.
    following = next_ms(missed.rule, missed.until) if missed.unfinished else missed.following
    return Plan(emit, following, too_late + rest, (*ranges, Range(in_time[-1], missed.last, rest)))
