"""From what became of runs to incidents, by tables: nothing here knows a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any

import pytest
from celery import Celery
from msgspec.structs import replace

from redbeat_lite import Entry, Expect, Incident, every
from redbeat_lite._base.actors import Who
from redbeat_lite._base.times import from_ms
from redbeat_lite.entries.changes import line_of
from redbeat_lite.entries.run import Outcome, Row
from redbeat_lite.entries.state import EntryState
from redbeat_lite.runs.incident import Key
from redbeat_lite.runs.incident_fold import Deadline, Decision, Facts, Failures, Fold
from redbeat_lite.runs.run_store import Line
from redbeat_lite.store.redis_values import UNREADABLE
from tests.support.cases import together
from tests.support.incidents import incident

NOW = 1_772_452_000_000

#: Nominal times of three runs, a minute apart.
A, B, C = NOW - 180_000, NOW - 120_000, NOW - 60_000


def end(
    outcome: Outcome, nominal: int = A, begin: int | None = 10, duration: int | None = 100, error: str = ""
) -> Line:
    return Line("e", Row(nominal, outcome, "id", begin, duration, 0, f"{NOW - 500}"), None, error)


def start(row: Row | None, nominal: int = A) -> Deadline:
    return Deadline.decode(f"start|{nominal}|e", nominal + 30_000)._replace(row=row)


def finish(row: Row | None, nominal: int = A) -> Deadline:
    return Deadline.decode(f"finish|{nominal}|e", nominal + 60_000)._replace(row=row)


def row(outcome: Outcome, begin: int | None = 10, duration: int | None = None) -> Row:
    return Row(A, outcome, "id", begin, duration, 0, "")


def case(kind: Any, nominal: int | None = A, name: str = "e", **more: Any) -> Incident:
    return incident(kind, name, NOW - 60_000, "as it was", nominal=nominal, **more)


def seen(
    *facts: Any,
    expect: Expect | None,
    muted: bool = False,
    failures: Failures | None = None,
    states: Mapping[Key, str] = {},
    countdown: float = 0,
    edited_at: int | None = None,
    queues: Collection[str] = ("celery",),
) -> Fold:
    entry = Entry("e", "add", every(60), expect=expect or False, options={"countdown": countdown})
    entry.app = Celery(set_as_current=False)
    line = line_of(Who("me", "api"), "edited")
    change = "" if edited_at is None else f"{edited_at}-0|{line.change}"
    entry.state = EntryState(version=1, generation="", nominal=NOW, paused=muted, change=change)
    read = Facts(
        feed_begin="0-0",
        feed_end="0-0",
        ends=[each for each in facts if isinstance(each, Line)],
        overdue=[each for each in facts if isinstance(each, Deadline)],
        failures={"e": failures} if failures else {},
        incidents=[each for each in facts if isinstance(each, Incident)],
        stored={},
        handled="0-0",
        unannounced=[],
        news_end="0-0",
        first_due=inf,
        quarantined=[],
        freeze=b"",
        more=False,
    )
    return Fold(NOW, read, {"e": entry}, states, None, queues)


def fold(facts: Fold) -> Decision:
    return facts.decide()


def opened_by(decision: Decision) -> list[Incident]:
    return [each for each in decision.incidents if each.until is None and each.since == from_ms(NOW)]


def news(decision: Decision) -> dict[str, str]:
    opened = {each.field: each.text for each in opened_by(decision)}
    closed = [each.field for each in decision.incidents if each.until is not None]
    return {**opened, **{f"-{field}": "" for field in closed}}


START, FINISH = Expect(start_within=30), Expect(finish_within=60)
BOTH, EVERY = Expect(start_within=30, finish_within=60), Expect(succeed_every=3600)
LATE, NOW_MISSED = 31_000, ["-not_consumed:e", "missed:e"]
BOTH_OVER = ["-late:e", "-missed:e"]

#: What is expected, what is found, and which incidents that opens, or closes where there is a "-".
TABLE: dict[str, tuple[Expect | None, list[Any], list[str]]] = {
    "a success": (BOTH, [end("succeeded")], []),
    "a failure": (START, [end("failed")], ["failed:e"]),
    "a failure of what nobody expects anything of": (None, [end("failed")], []),
    "a failure, and a success after it": (START, [end("failed"), end("succeeded", B)], []),
    "a success, and a failure after it": (START, [end("succeeded"), end("failed", B)], ["failed:e"]),
    "one failure of three": (Expect(failures=3), [end("failed"), end("lost", B)], []),
    "three failures of three": (Expect(failures=3), [end("failed"), end("lost", B), end("rejected", C)], ["failed:e"]),
    "one run that failed by two accounts": (Expect(failures=2), [end("lost"), end("failed")], []),
    "three with a success between": (Expect(failures=2), [end("failed"), end("succeeded", B), end("failed", C)], []),
    "somebody has revoked it": (START, [end("revoked", begin=None)], []),
    "a retry is no end": (START, [end("retrying")], []),
    "it was left out": (START, [end("left out", begin=None)], []),
    "the failure is over": (START, [case("failed"), end("succeeded", B)], ["-failed:e"]),
    "it has failed again": (START, [case("failed"), end("failed", B)], []),
    "it is over and comes again": (START, [case("failed"), end("succeeded", B), end("failed", C)], []),
    "expired, and a start was expected": (START, [end("expired", begin=None)], ["missed:e"]),
    "expired, and none was": (FINISH, [end("expired", begin=None)], ["failed:e"]),
    "its worker was lost before it began": (START, [end("lost", begin=None)], ["missed:e"]),
    "its worker was lost while it ran": (START, [end("lost")], ["failed:e"]),
    "not begun": (START, [start(None)], ["missed:e"]),
    "begun in time": (START, [start(row("running"))], []),
    "begun late": (START, [start(row("running", LATE))], ["late:e"]),
    "begun in time, perhaps, and tried again": (START, [start(row("running", LATE)._replace(attempt=1))], []),
    "begun late, after others were missed": (START, [case("missed"), start(row("running", LATE), B)], []),
    "begun in time, after one was missed": (START, [case("missed"), start(row("running"), B)], ["-missed:e"]),
    "an earlier one was in time": (START, [case("missed", B), start(row("running"), A)], []),
    "begun in time, but written after it counted as missed": (
        START,
        [case("missed"), start(row("running"))],
        ["-missed:e"],
    ),
    "ended in time, but written after it took too long": (
        FINISH,
        [case("too_long"), end("succeeded")],
        ["-too_long:e"],
    ),
    "tried again, after one took too long": (FINISH, [case("too_long"), end("retrying", B)], []),
    "lost, after one took too long": (FINISH, [case("too_long"), end("lost", B)], ["failed:e"]),
    "lost before its deadline, after one took too long": (
        FINISH,
        [case("too_long"), finish(row("lost", 10, 500), B)],
        [],
    ),
    "ended, and begun in time": (START, [case("late"), end("succeeded", B)], ["-late:e"]),
    "ended, and begun late": (START, [case("missed"), end("succeeded", B, LATE)], []),
    "not begun, after nobody took its messages": (START, [case("not_consumed"), start(None, B)], NOW_MISSED),
    "expired, after nobody took its messages": (START, [case("not_consumed"), end("expired", B, None)], NOW_MISSED),
    "begun late, after nobody took its messages": (START, [case("not_consumed"), start(row("running", LATE), B)], []),
    "begun in time, after nobody took its messages": (
        START,
        [case("not_consumed"), start(row("running"), B)],
        ["-not_consumed:e"],
    ),
    "an earlier one was in time, before nobody took them": (
        START,
        [case("not_consumed", B), start(row("running"))],
        [],
    ),
    "never ended, as nobody took its message": (BOTH, [case("not_consumed"), finish(None)], []),
    "left out at its start": (START, [start(row("left out", None))], []),
    "expired at its start": (START, [start(row("expired", None))], ["missed:e"]),
    "a worker says that one has begun in time": (
        START,
        [case("late"), Deadline.decode(f"begun|{B}|e", 0)],
        ["-late:e"],
    ),
    "a worker says that one has ended in time": (
        FINISH,
        [case("too_long"), Deadline.decode(f"ended|{B}|e", 0)],
        ["-too_long:e"],
    ),
    "a worker says it of an earlier one": (START, [case("missed", B), Deadline.decode(f"begun|{A}|e", 0)], []),
    "not ended": (FINISH, [finish(row("running"))], ["too_long:e"]),
    "never begun, and a start was expected": (BOTH, [start(None), finish(None)], ["missed:e"]),
    "never begun, and none was": (FINISH, [finish(None)], ["too_long:e"]),
    "ended in time": (FINISH, [finish(row("failed", 10, 500))], []),
    "ended late": (FINISH, [finish(row("succeeded", 10, 60_000))], ["too_long:e"]),
    "in time again": (FINISH, [case("too_long"), finish(row("succeeded", 10, 500), B)], ["-too_long:e"]),
    "no success": (EVERY, [Deadline.decode("success||e", NOW)], ["no_success:e"]),
    "a success just now": (EVERY, [end("succeeded"), Deadline.decode("success||e", NOW)], []),
    "a success again": (EVERY, [case("no_success", None), end("succeeded")], ["-no_success:e"]),
    "nobody expects a start any more": (FINISH, [case("missed"), case("late")], ["-late:e", "-missed:e"]),
    "nor that its message is taken": (FINISH, [case("not_consumed")], ["-not_consumed:e"]),
    "nobody expects anything": (None, [case("failed"), case("no_success", None)], ["-failed:e", "-no_success:e"]),
}


@together("of", TABLE)
def test_what_is_found_opens_and_closes(of: str) -> None:
    expect, facts, expected = TABLE[of]
    assert sorted(news(fold(seen(*facts, expect=expect)))) == expected


@together("of", [of for of, (_, _, found) in TABLE.items() if found and not found[0].startswith("-")])
def test_nothing_is_opened_while_the_entry_is_paused(of: str) -> None:
    expect, facts, _ = TABLE[of]
    assert opened_by(fold(seen(*facts, expect=expect, muted=True))) == []


#: What is found while nobody takes from the queue, and what that opens and closes.
UNTAKEN: dict[str, tuple[list[Any], list[str]]] = {
    "not begun": ([start(None)], ["not_consumed:e"]),
    "not begun, after others were missed": ([case("missed"), start(None, B)], ["-missed:e", "not_consumed:e"]),
    "not begun again": ([case("not_consumed"), start(None, B)], []),
    "not begun, and begun in time after it": ([start(None), start(row("running"), B)], []),
    "somebody took it": ([start(row("expired", None))], ["missed:e"]),
    "begun": ([start(row("running"))], []),
    "one has begun in time": ([case("not_consumed"), Deadline.decode(f"begun|{B}|e", 0)], ["-not_consumed:e"]),
}


@together("of", UNTAKEN)
def test_where_nobody_takes_from_the_queue_that_is_the_incident(of: str) -> None:
    facts, expected = UNTAKEN[of]
    assert sorted(news(fold(seen(*facts, expect=START, queues=())))) == expected


@together("kind", ["missed", "failed", "no_success", "cannot_publish"])
def test_what_is_open_is_closed_while_the_entry_is_paused(kind: Any) -> None:
    everything, states = Expect(30, 60, 3600), {("cannot_publish", "e"): "why"}
    facts = [case(kind), start(None, B), end("failed", B), Deadline.decode("success||e", NOW)]
    assert news(fold(seen(*facts, expect=everything, muted=True, states=states))) == {f"-{kind}:e": ""}


@together("kind", ["quarantined", "cannot_publish", "behind", "nobody_records", "no_leader"])
def test_a_state_is_an_incident_as_long_as_it_holds(kind: Any) -> None:
    [opened] = fold(seen(expect=None, states={(kind, "x"): "why"})).incidents
    assert (opened.key, opened.text, opened.since) == ((kind, "x"), "why", from_ms(NOW))
    again = fold(seen(opened, expect=None, states={(kind, "x"): "for longer"}))
    assert again.incidents == []
    assert fold(seen(opened, expect=None)).incidents == [replace(opened, until=from_ms(NOW))]


def test_so_many_are_open_and_no_more() -> None:
    opened = fold(seen(expect=None, states={("quarantined", f"e{number}"): "why" for number in range(1005)})).incidents
    assert len(opened) == 1000
    states: dict[Key, str] = {each.key: "why" for each in opened}
    more: dict[Key, str] = {("quarantined", "odd"): "why", ("no_leader", ""): "why"}
    [whole] = fold(seen(*opened, expect=None, states=states | more)).incidents
    assert whole.key == ("no_leader", "")


def test_failures_are_counted_over_many_looks() -> None:
    expect, known, texts = Expect(failures=3), Failures(), []
    open_: list[Incident] = []
    for number in range(5):
        facts = [end("failed", A + number, error=f"error {number}"), *open_]
        decision = fold(seen(*facts, expect=expect, failures=known))
        known = decision.failures["e"]
        open_ = decision.incidents
        texts += [(each.count, each.text) for each in open_]
    assert known == Failures(5, A + 4)
    assert texts == [(n, f"failed {n} times in a row: error {n - 1}") for n in (3, 4, 5)]
    assert fold(seen(end("succeeded", B), *open_, expect=expect, failures=known)).failures == {"e": Failures()}


@together(
    ("found", "text"),
    [
        (None, "has not begun within 30 s"),
        (row("running", 135_000), "began 75 s after its due time, not within 30 s"),
    ],
)
def test_a_run_that_was_put_off_is_told_with_its_due_time(found: Row | None, text: str) -> None:
    deadline = start(found)._replace(at=B + 30_000)
    [opened] = fold(seen(deadline, expect=START, countdown=(B - A) / 1000)).incidents
    assert (
        opened.text
        == f"the run of {from_ms(A):%Y-%m-%dT%H:%M:%S}+00:00, due at {from_ms(B):%Y-%m-%dT%H:%M:%S}+00:00, {text}"
    )


@together(
    ("deadline", "more"),
    [
        (start(None), {"countdown": 0.001}),
        (Deadline.decode("success||e", NOW), {"edited_at": NOW - 3_599_999}),
    ],
)
def test_what_has_been_given_more_time_is_looked_at_again(deadline: Deadline, more: dict[str, Any]) -> None:
    decision = fold(seen(deadline, expect=Expect(30, 60, 3600), **more))
    assert (news(decision), decision.deadlines) == ({}, {deadline.member: deadline.at + 1})


def test_what_was_found_again_is_over_with_a_run_as_late_as_that() -> None:
    [again] = fold(seen(case("missed"), start(None, B), expect=START)).incidents
    assert (again.count, again.nominal) == (2, B)
    assert news(fold(seen(again, end("succeeded", A), expect=START))) == {}
    assert news(fold(seen(again, end("succeeded", C), expect=START))) == {"-missed:e": ""}


def test_a_message_that_is_gone_is_one_incident_though_start_and_end_are_due_at_once() -> None:
    both = Deadline.decode(f"finish|{A}|e", A + 30_000), start(None)
    assert [each.kind for each in fold(seen(*both, expect=Expect(30, 30))).incidents] == ["missed"]


@together("facts", [[start(row("expired", None))], [end("expired", begin=None)]])
def test_a_run_is_found_once(facts: list[Any]) -> None:
    [opened] = fold(seen(end("expired", begin=None), expect=START)).incidents
    assert fold(seen(opened, *facts, expect=START)).incidents == []


def test_a_success_sets_when_the_next_one_has_to_come() -> None:
    assert fold(seen(end("succeeded"), expect=EVERY)).deadlines == {"success||e": NOW - 500 + 3_600_000}


def test_an_incident_keeps_its_id_over_what_is_counted_and_survives_storage() -> None:
    [counted] = fold(seen(case("failed"), end("failed", B), expect=START, failures=Failures(1, A))).incidents
    assert counted.id == case("failed").id
    assert counted.id != replace(counted, since=from_ms(NOW)).id != replace(counted, entry="f").id
    stored = replace(counted, acknowledged="ä\n", until=from_ms(NOW))
    assert Incident.decode(stored.field.encode(), stored.encode().encode()) == stored
    for field, raw in ((b"x:e", b"{}"), (b"failed:e", b"{}"), (b"failed:e", b"[1]"), (b"failed:e", b"\xff")):
        with pytest.raises(UNREADABLE):
            Incident.decode(field, raw)
