"""The history checker finds runs that vanish, locks that stay, and records that are not true."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.audit import History, Record, violations
from tests.support.cases import together

#: Three runs of one entry that are due.
IDS = ["run0", "run1", "run2"]
DUE: Record = {
    "kind": "due",
    "entry": "e",
    "nominals": [1000, 2000, 3000],
    "ids": IDS,
    "left_out": 0,
    "noted": "received",
}


def body(number: int, began: int, ended: int, **fields: Any) -> Record:
    """A body of one of these runs. It is done, unless the fields say otherwise."""
    record = {"kind": "body", "id": IDS[number], "key": "k", "entry": "e", "pid": number}
    return record | {"began": began, "ended": ended, "done": True, **fields}


def received(number: int, stayed: bool = True) -> Record:
    return {"kind": "received", "id": IDS[number], "stayed": stayed}


def refused(number: int) -> Record:
    return {"kind": "refused", "id": IDS[number]}


def lock(number: int, at: int) -> Record:
    return {"kind": "lock", "id": IDS[number], "at": at}


def death(pid: int, at: int) -> Record:
    return {"kind": "death", "pid": pid, "at": at}


def away(began: int, ended: int) -> Record:
    return {"kind": "fault", "away": True, "began": began, "ended": ended}


def broken(*records: Record, due: Record = DUE, **setup: Any) -> list[str]:
    """The laws that this history breaks."""
    history = History([{"kind": "setup", **setup}, due, *records])
    return [violation.law for violation in violations(history)]


RAN = [body(0, 1000, 2000), body(1, 2000, 2900)]
ALL_RECEIVED = [received(0), received(1), received(2)]

#: All runs were received, and those that did not run were refused.
ACCOUNTED_FOR = [*ALL_RECEIVED, refused(0), refused(1), refused(2)]


def test_runs_that_ran_were_refused_or_were_left_out_are_sound() -> None:
    assert broken(*RAN, received(0), received(1), due=DUE | {"left_out": 1}) == []
    assert broken(*RAN, *ALL_RECEIVED, refused(2)) == []


def test_a_run_that_was_not_due_is_found() -> None:
    assert broken(*RAN, *ACCOUNTED_FOR, body(2, 3000, 3100, id="another")) == ["runs were due"]


def test_a_run_that_vanishes_from_a_worker_is_found() -> None:
    assert broken(*RAN, *ALL_RECEIVED) == ["none vanishes"]
    left = received(2, stayed=False)
    assert broken(*RAN, *ALL_RECEIVED[:2], left) == ["few are lost"], "it was lost on its way"
    assert broken(*RAN, *ALL_RECEIVED[:2], left, takers=1) == []


def test_a_run_that_never_ended_is_found() -> None:
    killed, again = body(2, 3000, 3100, done=False), body(2, 5000, 6000)
    assert broken(*RAN, *ALL_RECEIVED, killed) == ["few are lost"]
    assert broken(*RAN, *ALL_RECEIVED, killed, again) == []


def test_a_lock_that_outlives_its_run_is_found() -> None:
    assert broken(*RAN, *ACCOUNTED_FOR, lock(0, 2400), lease=500) == []
    assert broken(*RAN, *ACCOUNTED_FOR, lock(0, 2600), lease=500) == ["locks end"]
    assert broken(*RAN, *ACCOUNTED_FOR, lock(0, 2600), away(2500, 2700), lease=500) == []


def test_a_lock_ends_with_the_last_body_that_had_it() -> None:
    killed, again = body(0, 1000, 1100, done=False), body(0, 5000, 6000)
    assert broken(*ACCOUNTED_FOR, killed, again, lock(0, 6400), lease=500) == []
    assert broken(*ACCOUNTED_FOR, killed, again, lock(0, 4000), lease=500) == ["locks end"]


def test_a_run_that_is_done_may_run_again_if_nobody_could_write_that() -> None:
    first, again = body(0, 1000, 2000), body(0, 9000, 9100, pid=7)
    assert broken(*ACCOUNTED_FOR, first, again) == ["one per task"]
    assert broken(*ACCOUNTED_FOR, first, again, death(0, 2500)) == []
    assert broken(*ACCOUNTED_FOR, first, again, death(0, 5000)) == ["one per task"]
    assert broken(*ACCOUNTED_FOR, first, again, death(7, 2500)) == ["one per task"]
    assert broken(*ACCOUNTED_FOR, first, again, away(1500, 2500)) == []


# -- the record of runs ----------------------------------------------------------------------------


def outcome(text: str, attempts: int = 0, **fields: Any) -> Record:
    record = {"kind": "outcome", "entry": "e", "nominals": [1000], "id": IDS[0]}
    return record | {"outcome": text, "attempts": attempts, **fields}


#: The bodies of one run: the attempt, its end (None if it was killed), and when it ended.
Ends = list[tuple[int, str | None, int]]


def attempts_of(*ends: tuple[int, str | None, int]) -> list[Record]:
    """Bodies of one run: attempt, end, and when. A body without an end is killed then."""
    records = []
    for pid, (attempt, end, at) in enumerate(ends):
        fields: dict[str, Any] = {"attempt": attempt, "pid": pid, "copies": True}
        fields["done"] = end in ("well", "ill")
        if end:
            fields["end"] = end
        records.append(body(0, 0, at, **fields, key=None))
    return records


def deaths_of(bodies: list[Record]) -> list[Record]:
    killed = [record for record in bodies if "end" not in record]
    return [death(record["pid"], record["ended"]) for record in killed]


def broken_by(record: Record, *bodies: Record, takers: int = 1) -> list[str]:
    """The laws that one run's record breaks."""
    due = DUE | {"nominals": [1000], "ids": IDS[:1], "noted": "outcome"}
    return broken(record, *bodies, due=due, takers=takers)


@together(
    ("record", "ends"),
    [
        (outcome("succeeded", 1), [(0, "well", 1)]),
        (outcome("failed", 2), [(0, "again", 1), (1, "ill", 2)]),
        (outcome("failed", 1), [(0, "ill", 1), (0, "well", 9000)]),
        (outcome("succeeded", 1), [(0, "ill", 1), (0, "well", 500)]),
        (outcome("succeeded", 1), [(0, None, 1), (0, "well", 2)]),
        (outcome("expired"), []),
        (outcome("expired"), [(0, "again", 1)]),
        (outcome("lost", 1), [(0, None, 1)]),
        (outcome("waiting"), [(0, None, 1)]),
        (outcome("retrying", 1), [(0, "again", 1), (1, None, 2)]),
    ],
)
def test_a_record_that_says_all(record: Record, ends: Ends) -> None:
    bodies = attempts_of(*ends)
    assert broken_by(record, *bodies, *deaths_of(bodies)) == []


@together(
    ("record", "ends"),
    [
        (outcome("waiting"), []),
        (outcome("waiting"), [(0, "well", 1)]),
        (outcome("lost", 1), [(0, "well", 1)]),
        (outcome("expired"), [(0, "well", 1)]),
        (outcome("retrying", 1), [(0, "again", 1)]),
        (outcome("retrying", 1), [(0, "again", 1), (1, "well", 2)]),
        (outcome("succeeded", 1), [(0, "ill", 1), (0, "well", 9000)]),
    ],
)
def test_a_record_that_says_less_is_found(record: Record, ends: Ends) -> None:
    assert broken_by(record, *attempts_of(*ends)) == ["outcomes are whole"]


@together(
    ("is_explained", "ends", "strikes"),
    [
        (True, [(0, "well", 1000)], [death(0, 1100)]),
        (False, [(0, "well", 1000)], [death(0, 9000)]),
        (False, [(0, "well", 1000)], [death(7, 1100)]),
        (True, [(0, "well", 1000)], [away(500, 2000)]),
        (True, [(0, "well", 1000)], [away(1500, 2000)]),
        (False, [(0, "well", 1000)], [away(5000, 9000)]),
        (True, [(0, "again", 1000)], [death(7, 2000)]),
        (False, [(0, "again", 3000)], [death(7, 2000)]),
        (False, [(0, None, 1000)], [death(7, 2000)]),
    ],
)
def test_why_a_record_says_less(is_explained: bool, ends: Ends, strikes: list[Record]) -> None:
    expected = [] if is_explained else ["outcomes are whole"]
    assert broken_by(outcome("waiting"), *attempts_of(*ends), *strikes) == expected


def test_more_records_without_an_end_than_messages_of_killed_workers_are_found() -> None:
    """A killed worker explains as many of them as it had messages in hand, by default one."""
    waiting = [outcome("waiting"), outcome("waiting", id=IDS[1], nominals=[2000])]
    due = DUE | {"nominals": [1000, 2000], "ids": IDS[:2], "noted": "outcome"}
    assert broken(*waiting, death(7, 9000), due=due, takers=1) == ["outcomes are whole"] * 2
    assert broken(*waiting, death(7, 9000), due=due, takers=2) == []
    assert broken(*waiting, death(7, 9000), due=due, takers=1, hands=2) == []


@together(
    ("record", "ends"),
    [
        (outcome("succeeded", 1), []),
        (outcome("succeeded", 1), [(0, None, 1)]),
        (outcome("succeeded", 1), [(0, "ill", 1)]),
        (outcome("succeeded", 1), [(0, "again", 1), (1, "well", 2)]),
        (outcome("failed", 1), [(0, "well", 1)]),
        (outcome("retrying", 1), [(0, "well", 1)]),
        (outcome("running", 1), [(0, None, 1)]),
        (outcome("rejected"), []),
        (outcome("skipped", id=None), [(0, "well", 1)]),
        (outcome("expired", id="another"), []),
    ],
)
def test_a_record_that_is_not_true_is_found(record: Record, ends: Ends) -> None:
    assert broken_by(record, *attempts_of(*ends)) == ["outcomes are true"]


def test_a_run_without_a_record_or_with_two_is_found() -> None:
    skipped = outcome("skipped", id=None, nominals=[2000, 3000])
    expired = outcome("expired")
    due = DUE | {"noted": "outcome"}
    assert broken(expired, skipped, due=due) == []
    assert broken(skipped, due=due) == ["one outcome each"]
    assert broken(expired, expired, skipped, due=due) == ["one outcome each"]


def test_a_history_in_which_nothing_says_what_became_of_runs_is_found() -> None:
    assert broken(*RAN, due=DUE | {"left_out": 1}) == ["few are lost"]
    assert broken(*RAN, due=DUE | {"noted": "outcome"}) == ["one outcome each"]
    with pytest.raises(KeyError, match="noted"):
        broken(*RAN, due={field: value for field, value in DUE.items() if field != "noted"})
