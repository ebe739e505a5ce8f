"""The figures of a scenario, from its history."""

from __future__ import annotations

from typing import Any

from tests.faults.verdict import Verdict, verdict_of, work_of
from tests.support.audit import Record

NOW = 1_800_000_000_000


def stream(*seconds: float, entry: str = "e", sender: int = 1, late: int = 5) -> list[Record]:
    """Messages of an entry with these nominal times."""
    nominals = [NOW + round(1000 * second) for second in seconds]
    fields: dict[str, Any] = {"kind": "sent", "entry": entry, "sender": sender}
    times = [{"nominal": nominal, "id": f"{nominal}", "at": nominal + late} for nominal in nominals]
    return [fields | message for message in times]


def fault(began: float, ended: float, **fields: Any) -> Record:
    times = {"began": NOW + round(1000 * began), "ended": NOW + round(1000 * ended)}
    return {"kind": "fault", **times, **fields}


def figures(*records: Record, period: int | None = 1000) -> Verdict:
    names = {record["entry"] for record in records if record["kind"] == "sent"}
    return verdict_of(records, names, period)


def test_a_sound_stream() -> None:
    verdict = figures(*stream(0, 1, 2, 3))
    assert (verdict.occurrences, verdict.lost, verdict.doubled) == (4, 0, 0)
    assert (verdict.late, verdict.handovers, verdict.faults) == (0.005, 0, 0)


def test_missing_runs_between_two_are_lost() -> None:
    assert figures(*stream(0, 1, 4), *stream(0, 1, entry="other")).lost == 2
    assert figures(*stream(0, 4), period=None).lost is None


def test_a_message_that_comes_twice_is_doubled() -> None:
    assert figures(*stream(0, 1, 1)).doubled == 1


def test_how_late_runs_came_outside_of_faults() -> None:
    late = [*stream(0, 1), *stream(2, late=3000), *stream(3)]
    assert figures(*late).late == 3
    assert figures(*late, fault(1.5, 2.5)).late == 0.005


def test_how_long_an_entry_was_silent() -> None:
    end = {"kind": "end", "at": NOW + 4005}
    assert figures(*stream(0, 1, 4, entry="other"), *stream(2, 3, 4), end).wait == 3
    assert figures(*stream(0, 1, entry="other"), *stream(1, 2, 3, 4), end).wait == 3


def test_how_long_it_took_until_messages_came_again() -> None:
    verdict = figures(*stream(0, 1, 5), fault(1, 2, recovered=NOW + 1500))
    assert (verdict.back, verdict.faults) == (3.505, 1)
    assert figures(*stream(0), fault(1, 2, recovered=NOW + 1000)).back > 3600, "nothing ever came"


def test_beats_that_send_in_turns() -> None:
    turns = [*stream(0), *stream(1, sender=2), *stream(2), *stream(3, sender=2)]
    assert figures(*turns).handovers == 3


def test_the_figures_of_workers() -> None:
    due = {"kind": "due", "entry": "k", "nominals": [1000, 2000, 3000, 4000], "left_out": 1}
    due |= {"noted": "received"}
    due["ids"] = ["a", "b", "c", "d"]
    bodies = [
        {"kind": "body", "id": "a", "key": "k", "began": 1000, "ended": 1900, "done": True},
        {"kind": "body", "id": "b", "key": "k", "began": 1800, "ended": 2000, "done": False},
    ]
    received = [{"kind": "received", "id": name, "stayed": True} for name in "abc"]
    lock = {"kind": "lock", "id": "a", "at": 2400}
    assert work_of([due, *bodies, *received, lock]) == {
        "runs": 2,
        "left_out": 1,
        "refused": 0,
        "vanished": 1,
        "unfinished": 1,
        "taken": 0,
        "overlaps": 1,
        "stuck": 0.5,
    }
