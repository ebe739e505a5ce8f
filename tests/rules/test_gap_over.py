"""Two occurrences that are too far apart, found with few looks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite import cron, every, rrule
from redbeat_lite._base.times import to_ms
from redbeat_lite.rules import gap_over, rule_of
from redbeat_lite.rules.zones import zone_of
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.frozen import NOW

BERLIN = zone_of("Europe/Berlin")
FROM = to_ms(NOW)

RULES = [
    cron("0 3 * * *"),
    cron("*/7 9-17 * * 1-5"),
    cron("0 0 1 * *"),
    cron("0 0 29 2 *"),
    rrule("FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9"),
    every(3600),
]


def longest_of(rule: Any) -> int:
    """The longest gap that begins within some weeks."""
    at, longest = rule.next_ms(FROM), 0
    while at is not None and at < FROM + 60 * 86_400_000:
        after = rule.next_ms(at)
        assert after is not None
        longest, at = max(longest, after - at), after
    return longest


@together("schedule", RULES)
def test_the_longest_gap_is_found_and_none_that_is_longer(schedule: Any) -> None:
    rule = rule_of(schedule, BERLIN)
    longest = longest_of(rule) or None
    if longest is None:  # no two within a year
        assert gap_over(rule, FROM, 1000) is None
        return
    found = gap_over(rule, FROM, longest)
    assert found is not None
    assert rule.next_ms(found[0]) == found[1] or schedule == every(3600)
    assert found[1] - found[0] >= longest
    within_weeks = gap_over(rule, FROM, longest + 1)
    assert within_weeks is None or within_weeks[0] > FROM + 60 * 86_400_000


@examples(25)
@given(st.sets(st.integers(0, 59), min_size=1), st.integers(1, 3700))
def test_any_minutes_of_the_hour(minutes: set[int], seconds: int) -> None:
    rule = rule_of(cron(f"{','.join(map(str, sorted(minutes)))} * * * *"), BERLIN)
    gaps = [*sorted(minutes), min(minutes) + 60]
    longest = 60 * max(b - a for a, b in pairwise(gaps))
    assert (gap_over(rule, FROM, 1000 * seconds) is not None) == (longest >= seconds)
