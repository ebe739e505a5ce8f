"""The judge sees what it is there to see."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat_lite.entries.state import EntryState, task_id
from redbeat_lite.instants import from_ms
from redbeat_lite.runs.run import Run
from tests.faults.collector import Collector, Record, Term, judge, strays
from tests.faults.fates import Fates, Struck, judge_fates
from tests.faults.journal import Body, Journal, Work, judge_work
from tests.support.cases import together
from tests.support.server import Server
from tests.support.waiting import eventually

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


def test_what_comes_between_two_nominal_times_is_extra() -> None:
    verdict = judge(stream(0, 1, 1.5, 2), 1000)
    assert (verdict.extra, verdict.lost) == (1, 0)
    assert judge(stream(0, 1, 1.5), None).extra == 0


def test_what_came_again_though_its_batch_was_committed() -> None:
    def sent(*names: str, sender: int) -> list[Record]:
        return [record for name in names for record in stream(0, entry=name, sender=sender)]

    tail = judge(sent("a", "b", "c", sender=1) + sent("b", "c", "d", sender=2), None)
    assert (tail.doubled, tail.redone, tail.tail) == (2, 0, 2)
    middle = judge(sent("a", "b", "c", sender=1) + sent("a", "c", "d", sender=2), None)
    assert (middle.doubled, middle.redone, middle.tail) == (2, 1, 1)


def test_how_long_an_entry_was_silent() -> None:
    assert judge(stream(0, 1, 4, entry="other") + stream(2, 3, 4), None).wait == 3
    assert judge(stream(0, 1, entry="other") + stream(1, 2, 3, 4), None).wait == 3


def test_what_comes_twice_is_doubled_and_renamed_if_its_id_is_another() -> None:
    twice = stream(0, 1, 1)
    assert (judge(twice, 1000).doubled, judge(twice, 1000).renamed) == (1, 0)
    twice[2] = twice[2]._replace(id="another")
    assert (judge(twice, 1000).doubled, judge(twice, 1000).renamed) == (1, 1)


def test_early_and_late_outside_of_outages() -> None:
    assert judge(stream(0, late=-10), 1000).early == 1
    assert judge(stream(0, late=-10), 1000, outages=[(NOW / 1000 - 1, NOW / 1000 + 1)]).early == 1
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
    both = [Term(NOW, 1), Term(NOW + 1000, 2)]
    assert strays(turns[:2], both) == 0
    assert strays(turns[:3], both) == 1, "it sends once more, behind the messages of its successor"
    assert strays(turns, both) == 1
    assert strays(turns[:3], [*both, Term(NOW + 1500, 1)]) == 0, "it leads again"
    assert strays(turns[:3], [*both, Term(NOW + 2500, 1)]) == 1, "it leads again, but too late for that"
    assert strays(turns[:1], []) == 1


def the_work(
    *bodies: tuple[int, float, float],
    left_out: int = 0,
    refused: int | None = None,
    received: int | None = None,
    stayed: bool = True,
    last_locked: float = 0.0,
) -> Work:
    """The judgement on three occurrences of one key, of which these ran: which one, from when, until when."""
    ids = [task_id("k", "g", NOW + 1000 * n) for n in range(3)]
    before, after = EntryState(1, "g", NOW), EntryState(1, "g", NOW + 3000, skipped=left_out)
    said = "" if received is None else f"INFO Task proj.work[{ids[received]}] received\n"
    said += "" if refused is None else f"INFO Skipped proj.work[{ids[refused]}]: somebody has the once-lock"
    ran = [Body("k", ids[n], start, end) for n, start, end in bodies]
    return judge_work({"k": before}, {"k": after}, 1000, ran, said, said if stayed else "", {ids[0]: last_locked})


def test_work_of_which_nothing_is_missing() -> None:
    work = the_work((0, 1.0, 2.0), (1, 3.5, 9.5), left_out=1)
    assert work == Work(runs=2, left_out=1)
    assert the_work((0, 1.0, 2.0), (1, 3.5, 9.5), refused=2) == Work(runs=2, refused=1)


def test_occurrences_that_vanished_are_seen() -> None:
    work = the_work((0, 1.0, 2.0), (1, 3.5, 9.5))
    assert (len(work.vanished), work.taken) == (0, 1)
    work = the_work((0, 1.0, 2.0), (1, 3.5, 9.5), received=2)
    assert (len(work.vanished), work.taken) == (1, 0)
    work = the_work((0, 1.0, 2.0), (1, 3.5, 9.5), received=2, stayed=False)
    assert (len(work.vanished), work.taken) == (0, 1), "it came back from its worker, and was lost on its way"


def test_bodies_beside_each_other_are_seen() -> None:
    assert the_work((0, 1.0, 5.0), (1, 4.9, 5.5), (2, 6.0, 10.0)).overlaps == 1
    assert the_work((0, 1.0, 9.0), (1, 2.0, 3.0), (2, 4.0, 5.0)).overlaps == 2


def test_a_lock_that_outlives_its_run_is_seen() -> None:
    assert the_work((0, 1.0, 2.0), (1, 2.0, 3.0), left_out=1, last_locked=9.0).stuck == 7.0
    # It ran twice, as it was killed the first time.
    assert the_work((0, 1.0, 2.0), (0, 5.0, 6.0), (1, 7.0, 8.0), left_out=1, last_locked=6.5).stuck == 0.5


def test_what_a_killed_process_ran_ended_with_its_last_sign_of_life(tmp_path: Path) -> None:
    lines = [
        ["k", "a", 7, 1.0, 1.0, False],
        ["k", "b", 8, 2.0, 2.0, False],
        ["k", "a", 7, 1.0, 1.5, False],
        ["k", "b", 8, 2.0, 2.6, True],
    ]
    (tmp_path / "journal").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Journal(tmp_path / "journal").bodies() == [
        Body("k", "a", 1.0, 1.5, False, 7),
        Body("k", "b", 2.0, 2.6, True, 8),
    ]


def test_a_run_that_never_ended_is_seen() -> None:
    before, after, ids = EntryState(1, "g", NOW), EntryState(1, "g", NOW + 1000), [task_id("k", "g", NOW)]
    killed, again = Body("k", ids[0], 1.0, 2.0, done=False), Body("k", ids[0], 5.0, 6.0)
    for ran, unfinished in (([killed], 1), ([killed, again], 0)):
        assert judge_work({"k": before}, {"k": after}, 1000, ran, "", "", {}).unfinished == unfinished


def message(nominal: int) -> str:
    headers = {"scheduled_at": f"2026-01-01T00:00:{nominal:02}+00:00", "id": f"id{nominal}", "origin": "gen1@host"}
    return json.dumps({"headers": {**headers, "periodic_task_name": "e"}})


def test_what_a_server_holds_after_its_restart_did_not_come_again_but_a_copy_did(
    server: Server, client: redis.Redis
) -> None:
    collector = Collector(server.client)
    client.lpush("celery", *(message(n) for n in (1, 2, 3, 4)))
    eventually(lambda: len(collector.records) == 4)
    with client.pipeline() as pipe:  # it lost the last two, and has one of the others twice
        pipe.delete("celery")
        pipe.lpush("celery", *(message(n) for n in (1, 2, 2)))
        pipe.execute()
    eventually(lambda: judge(collector.records, 1000).doubled == 1)
    client.lpush("celery", *(message(n) for n in (3, 4, 5)))
    eventually(lambda: "e" in collector.latest and judge(collector.records, 1000).occurrences == 5)
    assert judge(collector.records, 1000).doubled == 3, "what was seen and lost, and came again later, is a copy"
    collector.move()
    eventually(lambda: collector.places == client.llen("celery"), what="a second look at all of them")
    assert judge(collector.records, 1000).doubled == 3, "they did not come again"
    collector.stop()


PERIOD, FIRST = 1000, NOW


def _fates(run: Run | None, *bodies: tuple[str, float], struck: Struck | None = None) -> Fates:
    """What is judged of one run, whose bodies end after so many seconds; without an end their process is killed."""
    id_ = task_id("e", "g", FIRST)
    state = EntryState(version=1, generation="g", nominal=FIRST + PERIOD, count=1)
    did = [Body(key, id_, 0.0, end, done=" " in key, pid=n) for n, (key, end) in enumerate(bodies)]
    struck = struck or Struck({body.pid: body.end for body in did if not body.done})
    return judge_fates({"e": state}, {"e": [replace(run, task_id=id_)] if run else []}, PERIOD, did, struck)


def _run(outcome: Any, attempts: int = 0) -> Run:
    return Run("e", from_ms(FIRST), outcome, attempts=attempts)


@together(
    ("run", "bodies"),
    [
        (_run("succeeded", 1), [("0 well", 1)]),
        (_run("failed", 2), [("0 again", 1), ("1 ill", 2)]),
        (_run("failed", 1), [("0 ill", 1), ("0 well", 9)]),
        (_run("succeeded", 1), [("0 ill", 1), ("0 well", 1.5)]),
        (_run("succeeded", 1), [("0", 1), ("0 well", 2)]),
        (_run("expired"), []),
        (_run("expired"), [("0 again", 1)]),
        (_run("lost", 1), [("0", 1)]),
        (_run("waiting"), [("0", 1)]),
        (_run("retrying", 1), [("0 again", 1), ("1", 2)]),
    ],
)
def test_a_fate_that_is_told(run: Run, bodies: list[tuple[str, float]]) -> None:
    fates = _fates(run, *bodies)
    assert (fates.outcomes, fates.wrong, fates.untold, fates.unexplained) == (Counter([run.outcome]), [], [], [])


@together(
    ("run", "bodies"),
    [
        (_run("waiting"), []),
        (_run("waiting"), [("0 well", 1)]),
        (_run("lost", 1), [("0 well", 1)]),
        (_run("expired"), [("0 well", 1)]),
        (_run("retrying", 1), [("0 again", 1)]),
        (_run("retrying", 1), [("0 again", 1), ("1 well", 2)]),
        (_run("succeeded", 1), [("0 ill", 1), ("0 well", 9)]),
    ],
)
def test_a_fate_of_which_less_is_told_than_was_to_be_known(run: Run, bodies: list[tuple[str, float]]) -> None:
    fates = _fates(run, *bodies)
    assert (len(fates.wrong), len(fates.untold), len(fates.unexplained)) == (0, 1, 1)


@together(
    ("cause", "bodies", "struck"),
    [
        ("killed", [("0 well", 1)], Struck({0: 1.1})),
        ("", [("0 well", 1)], Struck({0: 9})),
        ("", [("0 well", 1)], Struck({7: 1.1})),
        ("away", [("0 well", 1)], Struck(away=[(0.5, 2)])),
        ("away", [("0 well", 1)], Struck(away=[(1.5, 2)])),
        ("", [("0 well", 1)], Struck(away=[(5, 9)])),
        ("in hand", [("0 again", 1)], Struck({7: 2})),
        ("", [("0 again", 3)], Struck({7: 2})),
        ("", [("0", 1)], Struck({7: 2})),
    ],
)
def test_why_less_is_told(cause: str, bodies: list[tuple[str, float]], struck: Struck) -> None:
    fates = _fates(_run("waiting"), *bodies, struck=struck)
    assert [*fates.causes] == ([cause] if cause else [])
    assert len(fates.unexplained) == (not cause)


@together(
    ("run", "bodies"),
    [
        (_run("succeeded", 1), []),
        (_run("succeeded", 1), [("0", 1)]),
        (_run("succeeded", 1), [("0 ill", 1)]),
        (_run("succeeded", 1), [("0 again", 1), ("1 well", 2)]),
        (_run("failed", 1), [("0 well", 1)]),
        (_run("retrying", 1), [("0 well", 1)]),
        (_run("running", 1), [("0", 1)]),
        (_run("rejected"), []),
    ],
)
def test_a_fate_that_is_wrong(run: Run, bodies: list[tuple[str, float]]) -> None:
    assert len(_fates(run, *bodies).wrong) == 1


def test_an_occurrence_without_a_run_or_with_one_too_many() -> None:
    with pytest.raises(AssertionError, match="not one run of each occurrence"):
        _fates(None)
    skipped = Run("e", from_ms(FIRST), "skipped", until=from_ms(FIRST + PERIOD), count=2)
    state = EntryState(version=1, generation="g", nominal=FIRST + 2 * PERIOD, count=0, skipped=2)
    assert judge_fates({"e": state}, {"e": [skipped]}, PERIOD, [], Struck()).outcomes["skipped"] == 2
    with pytest.raises(AssertionError, match="not one run of each occurrence"):
        judge_fates({"e": state}, {"e": [skipped, _run("expired")]}, PERIOD, [], Struck())
    ran = [Body("0 well", task_id("e", "g", FIRST), 0.0, 1.0)]
    assert len(judge_fates({"e": state}, {"e": [skipped]}, PERIOD, ran, Struck()).wrong) == 1
