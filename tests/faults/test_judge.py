"""The judge sees what it is there to see."""

from __future__ import annotations

import pytest

from tests.faults.collector import Record, judge

NOW = 1_800_000_000_000


def stream(*seconds: float, entry: str = "e", sender: int = 1, late: int = 5) -> list[Record]:
    times = [NOW + round(1000 * second) for second in seconds]
    return [Record(entry, time, f"{entry}-{time}", time + late, sender) for time in times]


def test_a_sound_stream() -> None:
    verdict = judge(stream(0, 1, 2, 3), 1000)
    assert (verdict.occurrences, verdict.lost, verdict.doubled, verdict.early, verdict.handovers) == (4, 0, 0, 0, 0)
    assert verdict.late == 0.005


def test_what_is_missing_between_two_is_lost() -> None:
    verdict = judge(stream(0, 1, 4) + stream(0, 1, entry="other"), 1000)
    assert verdict.lost == 2
    assert verdict.missing == [f"e at {NOW + 2000}", f"e at {NOW + 3000}"]
    assert judge(stream(0, 4), None).lost is None


def test_what_comes_twice_is_doubled_and_renamed_if_its_id_is_another() -> None:
    twice = stream(0, 1, 1)
    assert (judge(twice, 1000).doubled, judge(twice, 1000).renamed) == (1, 0)
    twice[2] = twice[2]._replace(id="another")
    assert (judge(twice, 1000).doubled, judge(twice, 1000).renamed) == (1, 1)


def test_early_and_late_outside_of_outages() -> None:
    assert judge(stream(0, late=-10), 1000).early == 1
    late = stream(0, 1) + stream(2, late=3000) + stream(3)
    assert judge(late, 1000).late == 3
    assert judge(late, 1000, outages=[(NOW / 1000 + 1.5, NOW / 1000 + 2.5)]).late == pytest.approx(0.005)


def test_the_time_until_things_go_on() -> None:
    verdict = judge(stream(0, 1, 5), 1000, recoveries=[NOW / 1000 + 1.5])
    assert verdict.back == pytest.approx(3.505)
    assert judge(stream(0), 1000, recoveries=[NOW / 1000 + 1]).back > 3600, "nothing ever came"


def test_two_that_send_in_turns_are_seen() -> None:
    turns = stream(0) + stream(1, sender=2) + stream(2) + stream(3, sender=2)
    assert judge(turns, 1000).handovers == 3
