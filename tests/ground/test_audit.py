"""The history checker accepts sound histories and finds each broken law."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.audit import History, Record, check, violations
from tests.support.cases import together

EVERY = 1000


def call(act: str, began: int, entry: str = "e", **fields: Any) -> Record:
    """A call that took 10 ms and succeeded, unless the fields say otherwise."""
    times = {"began": began, "returned": began + 10}
    return {"kind": "call", "act": act, "entry": entry, "ok": True, **times, **fields}


def add(began: int = 0, **fields: Any) -> Record:
    rule = {"every": EVERY, "phase": 0}
    return call("add", began, **{"rule": rule, **fields})


def sent(nominal: int, at: int | None = None, entry: str = "e", **fields: Any) -> Record:
    arrival = nominal + 5 if at is None else at
    return {"kind": "sent", "entry": entry, "nominal": nominal, "id": f"{nominal}", "at": arrival, **fields}


def body(task: str, began: int, ended: int, key: str | None = "k", done: bool = True) -> Record:
    return {"kind": "body", "id": task, "key": key, "began": began, "ended": ended, "done": done}


def fault(began: int, ended: int) -> Record:
    return {"kind": "fault", "began": began, "ended": ended}


def broken(*records: Record, end: int = 10_000, **setup: Any) -> list[str]:
    """The laws that this history breaks; runs may be 500 ms late."""
    first = {"kind": "setup", "late": 500, **setup}
    history = History([first, *records, {"kind": "end", "at": end}])
    return [violation.law for violation in violations(history)]


def runs(first: int, last: int) -> list[Record]:
    """A message at each second of these, in time."""
    return [sent(1000 * second) for second in range(first, last + 1)]


ALL = runs(1, 9)


def test_a_sound_history_breaks_no_law() -> None:
    assert broken(add(), *ALL) == []


def left_out(*nominals: int) -> Record:
    return {"kind": "left out", "entry": "e", "nominals": list(nominals), "at": nominals[-1] + 5}


def test_a_run_that_is_left_out_is_not_missing() -> None:
    assert broken(add(), *ALL[:4], left_out(5000, 6000), *ALL[6:]) == []
    assert broken(add(rule={"every": EVERY}), left_out(1000)) == []


def test_a_run_that_is_left_out_twice_or_sent_as_well_is_found() -> None:
    assert broken(add(), *ALL, left_out(5000)) == ["sent or left out"]
    assert broken(add(), *ALL[:4], left_out(5000, 6000), left_out(6000), *ALL[6:]) == ["sent or left out"]
    assert broken(add(), *ALL, left_out(5000), delivery="at least") == []


def test_a_missing_run_is_found() -> None:
    assert broken(add(), *ALL[:4], *ALL[5:]) == ["sent once"]


def test_a_doubled_run_is_found_unless_the_broker_may_double_it() -> None:
    assert broken(add(), *ALL, sent(3000, 3100)) == ["sent once"]
    assert broken(add(), *ALL, sent(3000, 3100), delivery="at least") == []


def test_an_early_run_is_found() -> None:
    assert broken(add(), *ALL[:4], sent(5000, 4900), *ALL[5:]) == ["sent once"]


def test_runs_before_a_call_returns_may_be_missing() -> None:
    assert broken(add(2990, returned=3500), *runs(4, 9)) == []
    assert broken(add(2990, returned=None, ok=None), *runs(6, 9)) == []


def test_an_interval_without_a_phase_takes_that_of_its_first_run() -> None:
    rule = {"every": EVERY}
    messages = [sent(300 + 1000 * second) for second in range(1, 10)]
    assert broken(add(rule=rule), *messages) == []
    assert broken(add(rule=rule), *messages[:3], *messages[4:]) == ["sent once"]


def test_a_run_by_an_old_rule_is_found() -> None:
    edit = call("edit", 4100, rule={"every": 2000, "phase": 0})
    assert broken(add(), *runs(1, 4), edit, sent(6000), sent(8000)) == []
    assert broken(add(), *runs(1, 6), edit, sent(8000)) == ["old rule"]


def test_a_run_that_was_sent_before_the_edit_returned_is_sound() -> None:
    edit = call("edit", 4900, rule={"every": 2000, "phase": 0}, returned=5100)
    assert broken(add(), *runs(1, 5), edit, sent(6000), sent(8000)) == []


def test_an_edit_whose_reply_was_lost_leaves_both_rules_possible() -> None:
    edit = call("edit", 4100, rule={"every": 2000, "phase": 0}, returned=None, ok=None)
    assert broken(add(), *runs(1, 4), edit, sent(6000), sent(8000)) == []
    assert broken(add(), *ALL, edit) == []


def test_a_run_of_an_entry_whose_adding_was_refused_is_found() -> None:
    assert broken(add(ok=None, returned=None), sent(4000)) == []
    assert broken(add(ok=False), sent(4000)) == ["old rule"]


@together("act", ["pause", "freeze", "remove"])
def test_a_run_of_an_entry_that_is_held_is_found(act: str) -> None:
    assert broken(add(), *runs(1, 4), call(act, 4100)) == []
    assert broken(add(), *runs(1, 5), call(act, 4100)) == ["held entries"]


def test_a_freeze_of_some_entries_holds_no_others() -> None:
    freeze = call("freeze", 4100, entries=["other"])
    assert broken(add(), *ALL, freeze) == []
    assert broken(add(), *runs(1, 4), freeze) == ["sent once"] * 5


def test_a_resumed_entry_has_to_run() -> None:
    pause, resume = call("pause", 4100), call("resume", 6100)
    assert broken(add(), *runs(1, 4), pause, resume, *runs(7, 9)) == []
    assert broken(add(), *runs(1, 4), pause, resume, *runs(8, 9)) == ["sent once"]


def test_two_edits_of_one_version_are_found() -> None:
    first = call("edit", 100, if_version=1, version=2)
    second = call("edit", 200, if_version=1, version=3)
    assert broken(first, call("edit", 200, if_version=2, version=3)) == []
    assert broken(first, second) == ["lost updates", "lost updates"]
    assert broken(first, second | {"ok": False}) == []


def test_an_edit_that_changes_nothing_is_no_lost_update() -> None:
    first = call("edit", 100, if_version=1, version=1)
    assert broken(first, call("edit", 200, if_version=1, version=2)) == []


def test_a_run_by_the_rule_before_an_edit_says_nothing_of_the_new_one() -> None:
    """The beat's clock is ahead, so it sends before the edit what is due after it."""
    edit = call("edit", 2500, rule={"every": 2000})
    early = sent(3000, at=2400)
    later = [sent(nominal) for nominal in (4500, 6500, 8500)]
    assert broken(add(), sent(1000), sent(2000), early, edit, *later, slack=1000) == []


def test_a_removal_may_come_before_the_end_of_a_fault() -> None:
    removed = call("remove", 3500)
    missing = [add(misfire="all"), sent(1000), removed]
    assert broken(*missing, fault(1500, 4000)) == []
    assert broken(*missing, fault(1500, 2500)) == ["sent once"]


def test_one_run_too_many_is_found() -> None:
    assert broken(add(max_runs=3), *runs(1, 3)) == []
    assert broken(add(max_runs=3), *runs(1, 4)) == ["max runs"]


def test_a_run_need_not_count_that_was_sent_before_the_schedule_noted_it() -> None:
    """An edit or a fault between the message and the note of it leaves the run out."""
    apart: Record = {"delivery": "at least", "slack": 100}
    assert broken(add(max_runs=3), *runs(1, 4), **apart) == ["max runs"]
    assert broken(add(max_runs=3), *runs(1, 4), call("pause", 2000), call("resume", 2020), **apart) == []
    assert broken(add(max_runs=3), *runs(1, 4), fault(1950, 2050), **apart) == []


def test_a_limit_that_may_not_have_been_stored_breaks_no_law() -> None:
    assert broken(add(), add(5, max_runs=1, ok=None, returned=None), *ALL) == []


def test_one_run_too_few_is_found() -> None:
    assert "sent once" in broken(add(max_runs=3), *runs(1, 2))
    again = add(4500, rule={"every": 2000, "phase": 1000}, max_runs=3)
    assert broken(add(max_runs=3), *runs(1, 3), again, sent(5000), sent(7000), sent(9000)) == []
    laws = broken(add(max_runs=3), *runs(2, 3), again, sent(5000), sent(7000), sent(9000))
    assert laws == ["sent once"], "later runs are those of another definition"


OUTAGE = fault(3500, 6500)


def test_coalesced_runs_after_a_fault_are_sound() -> None:
    assert broken(add(misfire="coalesce"), *runs(1, 3), OUTAGE, sent(6000, 6600), *runs(7, 9)) == []


def test_a_coalesced_run_that_is_not_the_last_is_found() -> None:
    late = sent(4000, 6600)
    assert broken(add(misfire="coalesce"), *runs(1, 3), OUTAGE, late, *runs(7, 9)) == ["misfires"]


def test_a_coalesced_run_that_stands_for_none_is_found() -> None:
    rare = add(rule={"every": 5000, "phase": 0})
    assert broken(rare, fault(4900, 5200), sent(5000, 5300)) == []
    assert broken(rare, fault(4900, 5200)) == ["sent once"]
    assert broken(rare, fault(4900, 9800)) == [], "there was no time for it"
    assert broken(add(), *runs(1, 3), OUTAGE, *runs(7, 9)) == [], "the next one had come due meanwhile"
    assert broken(add(), *runs(1, 3), fault(3500, 6400), *runs(8, 9)) == ["sent once"] * 4


def test_a_policy_of_all_leaves_nothing_out() -> None:
    late = [sent(4000, 6600), sent(5000, 6600), sent(6000, 6600)]
    assert broken(add(misfire="all"), *runs(1, 3), OUTAGE, *late, *runs(7, 9)) == []
    assert broken(add(misfire="all"), *runs(1, 3), OUTAGE, *late[1:], *runs(7, 9)) == ["sent once"]


def test_a_run_that_a_fault_has_kept_back_until_a_pause_may_be_missing() -> None:
    entry = add(misfire="all")
    assert broken(entry, *runs(1, 3), OUTAGE, call("pause", 6400)) == []
    assert broken(entry, *runs(1, 3), OUTAGE, call("pause", 7600)) == ["sent once"] * 4


def test_a_late_run_of_a_policy_of_skip_is_found() -> None:
    entry = add(misfire="skip", grace=100)
    assert broken(entry, *runs(1, 3), OUTAGE, *runs(7, 9)) == []
    assert broken(entry, *runs(1, 3), OUTAGE, sent(5000, 6600), *runs(7, 9)) == ["misfires"]


def test_a_run_that_was_on_its_way_for_long_is_not_late_if_it_was_sent_off_in_time() -> None:
    entry = add(misfire="skip", grace=100)
    in_time, late = sent(5000, 6600) | {"left": 5050}, sent(5000, 6600) | {"left": 6200}
    assert broken(entry, *runs(1, 3), OUTAGE, in_time, *runs(7, 9)) == []
    assert broken(entry, *runs(1, 3), OUTAGE, late, *runs(7, 9)) == ["misfires"]


def test_no_policy_sends_what_is_later_than_the_grace() -> None:
    late = [sent(4000, 6600), sent(5000, 6600), sent(6000, 6600)]
    entry = add(misfire="all", grace=700)
    assert broken(entry, *runs(1, 3), OUTAGE, late[2], *runs(7, 9)) == []
    assert broken(entry, *runs(1, 3), OUTAGE, *late[1:], *runs(7, 9)) == ["misfires"]


def test_more_late_runs_than_the_limit_are_found() -> None:
    late = [sent(4000, 7600), sent(5000, 7600), sent(6000, 7600)]
    outage = fault(3500, 7500)
    assert broken(add(misfire="all", limit=2), *runs(1, 3), outage, *late[:2], *runs(8, 9)) == []
    assert broken(add(misfire="all", limit=2), *runs(1, 3), outage, *late, *runs(8, 9)) == ["late runs in limits"]
    assert broken(add(misfire="all", limit=3), *runs(1, 3), outage, *late, *runs(8, 9)) == []


def test_a_resume_that_returns_when_a_pause_begins_may_have_come_before_it() -> None:
    """Found by seed 89508313: both calls had the same millisecond, and the resume came first."""
    resume = {**call("resume", 4100), "began": 4090}
    assert broken(add(), *runs(1, 4), resume, call("pause", 4100)) == []
    assert broken(add(), *runs(1, 4), call("pause", 4100), call("resume", 4200), *runs(6, 9)) == ["sent once"]


def test_a_thaw_ends_its_own_freeze_alone() -> None:
    freezes = [call("freeze", 4100, freeze="long"), call("freeze", 4200, freeze="short")]
    thaw = call("thaw", 5100, freeze="short")
    assert broken(add(), *runs(1, 4), *freezes, thaw) == []
    # The short one holds the fifth run alone, and the long one the fifth and all later ones.
    assert broken(add(), *ALL, *freezes, thaw) == ["held entries"] * 6
    assert broken(add(), *runs(1, 4), *freezes, call("thaw", 5100), *runs(7, 9)) == ["sent once"]


def backfill(ended: str = "done", count: int = 3) -> Record:
    span = {"start": -5000, "end": -3000}
    return {"kind": "backfill", "entry": "e", "backfill": "b", "sent": count, "ended": ended, **span}


def late(nominal: int) -> Record:
    return sent(nominal, 4200, by="backfill", backfill="b")


def test_a_backfill_is_beside_the_rule() -> None:
    assert broken(add(), *ALL, late(-5000), late(-4000), late(-3000), backfill()) == []


def test_a_backfill_that_doubles_a_run_is_found() -> None:
    records = [add(), *ALL, late(-5000), late(-4000), late(-4000), late(-3000), backfill()]
    assert broken(*records) == ["backfills"]
    assert broken(*records, delivery="at least") == []


def test_a_backfill_that_sends_too_little_or_too_much_is_found() -> None:
    assert broken(add(), *ALL, late(-5000), late(-4000), backfill()) == ["backfills"]
    assert broken(add(), *ALL, late(-5000), late(-4000), backfill(ended="cancelled")) == []
    assert broken(add(), *ALL, late(-5000), late(-4000), late(-2000), backfill()) == ["backfills"]


def test_a_late_run_of_skip_without_a_grace_is_found() -> None:
    """A run may be late by a quarter of the interval, 250 ms here, and 500 ms as always."""
    entry = add(misfire="skip")
    assert broken(entry, *runs(1, 3), OUTAGE, sent(6000, 6700), *runs(7, 9)) == []
    assert broken(entry, *runs(1, 3), OUTAGE, sent(6000, 6800), *runs(7, 9)) == ["misfires"]


def test_two_bodies_of_a_key_at_a_time_are_found() -> None:
    assert broken(body("a", 0, 100), body("b", 100, 200)) == []
    assert broken(body("a", 0, 100), body("b", 90, 200)) == ["one per key"]
    assert broken(body("a", 0, 100, "k"), body("b", 90, 200, "l")) == []
    assert broken(body("a", 0, 300), body("b", 90, 200), body("c", 250, 400)) == ["one per key"] * 2


def test_a_second_body_of_a_task_is_found() -> None:
    killed = body("a", 0, 100, done=False)
    assert broken(killed, body("a", 200, 300)) == []
    assert broken(body("a", 0, 100), body("a", 200, 300)) == ["one per task"]
    assert "one per task" in broken(killed, body("a", 50, 300))


def test_a_violation_names_its_law_its_entry_and_its_lines() -> None:
    records = [add(), *ALL, sent(3000, 3100), {"kind": "end", "at": 10_000}]
    [violation] = violations(History(records))
    assert str(violation) == "sent once: e: 3000 was sent 2 times (lines 4, 11)"
    shown = r"(?s)1 violations:.*line 4: .*line 11: .*3100"
    with pytest.raises(AssertionError, match=shown):
        check(records)


# -- beats -----------------------------------------------------------------------------------------


def at_each_second(first: int, last: int, sender: int) -> list[Record]:
    return [record | {"sender": sender} for record in runs(first, last)]


def term(began: int, sender: int) -> Record:
    return {"kind": "term", "began": began, "sender": sender}


def test_a_run_that_comes_again_under_another_id_is_found() -> None:
    again, renamed = sent(3000, 3100), sent(3000, 3100, id="another")
    assert broken(add(), *ALL, again, delivery="at least") == []
    assert broken(add(), *ALL, renamed, delivery="at least") == ["one id"]


def test_an_entry_that_begins_late_is_found() -> None:
    entry = add(rule={"every": EVERY})
    assert broken(entry, *runs(1, 9)) == []
    assert broken(entry, *runs(3, 9)) == ["first run"]
    assert broken(entry, *runs(3, 9), fault(500, 1900)) == []
    assert broken(entry, *runs(3, 9), fault(500, 900)) == ["first run"]
    assert broken(entry) == ["first run"]


def test_an_entry_that_never_runs_after_a_fault_or_a_pause_is_found() -> None:
    entry = add(rule={"every": EVERY})
    pause, resume = call("pause", 100), call("resume", 6000)
    assert broken(entry, fault(500, 900)) == ["first run"]
    assert broken(entry, fault(500, 900), fault(2000, 9000)) == [], "there was no time for it"
    assert broken(entry, pause, resume) == ["first run"]
    assert broken(entry, pause) == []
    assert broken(entry, pause, resume, *runs(7, 9)) == []
    two_freezes = [call("freeze", 100), call("freeze", 200), call("thaw", 300)]
    assert broken(entry, *two_freezes) == ["first run"]
    assert broken(entry, *two_freezes, call("thaw", 8000), *runs(8, 9)) == [], "the second one may have held"


def test_an_entry_with_a_limit_has_to_run_until_it_is_reached() -> None:
    entry, again = add(rule={"every": EVERY}, max_runs=2), add(4000, rule={"every": EVERY}, max_runs=2)
    assert broken(entry, *runs(1, 2)) == []
    assert broken(entry) == ["first run"]
    assert broken(add(rule={"every": EVERY}, max_runs=None)) == ["first run"]
    assert broken(entry, *runs(1, 2), call("remove", 3500), again) == ["first run"], "it has all runs before it again"
    assert broken(entry, *runs(1, 2), call("remove", 3500), again, *runs(5, 6)) == []


def test_an_entry_that_begins_again_has_another_phase() -> None:
    first = add(rule={"every": EVERY})
    second = add(4500, returned=5500, rule={"every": EVERY})
    later = [sent(5300 + 1000 * number) for number in range(5)]
    assert broken(first, *runs(1, 4), second, *later) == []
    assert broken(first, *runs(1, 4), second, *later[:3], *later[4:]) == ["sent once"]
    assert broken(first, *runs(1, 2), sent(4000), second, *later) == ["sent once"]
    assert broken(first, *runs(1, 4), second, *later, sent(7000)) == ["old rule"]


def test_a_run_that_comes_late_outside_of_a_fault_is_found() -> None:
    late = [*runs(1, 3), sent(4000, 6600), *runs(5, 9)]
    assert broken(add(misfire="all"), *late) == []
    assert broken(add(misfire="all", punctual=3000), *late) == []
    assert broken(add(misfire="all", punctual=1000), *late) == ["punctual"]
    assert broken(add(misfire="all", punctual=1000), fault(3500, 4500), *late) == []


def test_an_entry_that_is_silent_for_too_long_is_found() -> None:
    entry, gap = add(silent=2500), [*runs(1, 3), *runs(7, 9)]
    assert broken(add(silent=4000), *gap, OUTAGE) == []
    assert broken(entry, *gap, OUTAGE) == ["silent"]
    assert broken(entry, *runs(1, 6), fault(6500, 10_000)) == ["silent"], "up to the end"


def test_a_run_that_is_sent_after_a_later_one_is_found() -> None:
    swapped = [*ALL[:3], ALL[4], ALL[3], *ALL[5:]]
    assert broken(add(), *swapped) == []
    assert broken(add(), *ALL, ordered=True) == []
    assert broken(add(), *swapped, ordered=True) == ["in order"]


def test_messages_that_come_too_late_after_a_fault_are_found() -> None:
    def ends(recovered: int, back: int) -> Record:
        return fault(3500, 6500) | {"recovered": recovered, "back": back}

    gap = [*runs(1, 3), *runs(7, 9)]
    assert broken(add(), *gap, ends(6000, 1005)) == []
    assert broken(add(), *gap, ends(6000, 1000)) == ["goes on"]
    assert broken(add(), *gap, OUTAGE, ends(9500, 5000)) == ["goes on"], "nothing ever came"


def test_a_message_of_a_beat_that_does_not_lead_is_found() -> None:
    both = [add(), term(0, 1), term(2900, 2)]
    one, two = at_each_second(1, 9, 1), at_each_second(1, 9, 2)
    assert broken(*both, *one[:2], *two[2:]) == []
    once_more = [*one[:2], *two[2:4], one[4], *two[5:]]
    assert broken(*both, *once_more) == ["one sender"], "behind messages of its successor"
    assert broken(*both, *once_more, strays=1) == []
    assert broken(*both, *once_more, term(4500, 1), term(5500, 2)) == [], "it leads again"
    assert broken(*both, *once_more, term(5500, 1), strays=1) == [], "it leads again, but too late"
    assert broken(*both, *once_more, term(5500, 1)) == ["one sender"]
    assert broken(add(), term(0, 2), *one) == ["one sender"], "it never led"


def test_a_message_that_comes_again_although_it_was_committed_is_found() -> None:
    """What a beat sent before something else was committed with that."""

    def sends(names: str, sender: int) -> list[Record]:
        return [sent(1000, entry=name, sender=sender) for name in names]

    setup: Record = {"delivery": "at least", "batch": 2}
    assert broken(*sends("abc", 1), *sends("bcd", 2), **setup) == []
    assert broken(*sends("abcd", 1), *sends("bcd", 2), **setup) == ["sent again"]
    assert broken(*sends("abc", 1), *sends("acd", 2), **setup) == ["sent again"]
    assert broken(*sends("abcd", 1), *sends("bcd", 2), delivery="at least") == []


def test_a_message_that_was_read_late_may_have_been_sent_before() -> None:
    pause = call("pause", 4100)
    assert broken(add(), *runs(1, 4), pause, sent(5000, 7000, since=4000)) == []
    assert broken(add(), *runs(1, 4), pause, sent(5000, 7000, since=4500)) == ["held entries"]


# -- task bodies -----------------------------------------------------------------------------------


def test_a_body_that_a_fault_kept_from_renewing_may_be_overtaken() -> None:
    slept = body("a", 0, 300) | {"lost": True}
    assert broken(slept, body("b", 200, 400)) == ["one per key"]
    assert broken(slept, body("b", 200, 400), fault(50, 250)) == []
    assert broken(slept, body("b", 200, 400), fault(210, 250)) == ["one per key"]


def test_a_task_may_run_again_while_the_process_of_its_body_is_frozen() -> None:
    bodies = [body("a", 0, 300, key=None) | {"pid": 7}, body("a", 200, 400, key=None) | {"pid": 8}]
    frozen = fault(50, 250)
    assert broken(*bodies, frozen | {"pids": [7]}) == []
    assert broken(*bodies, frozen | {"pids": [8]}) == ["one per task"]


def test_a_body_keeps_its_key_for_no_longer_than_it_may() -> None:
    long = body("a", 0, 300) | {"holds": 150}
    assert broken(long, body("b", 150, 200)) == []
    assert broken(long, body("b", 140, 200)) == ["one per key"]


def test_a_lock_that_was_cleared_is_free() -> None:
    bodies = [body("a", 0, 300), body("b", 200, 400)]
    assert broken({"kind": "clear", "key": "k", "at": 150}, *bodies) == []
    assert broken({"kind": "clear", "key": "k", "at": 250}, *bodies) == ["one per key"]
    assert broken({"kind": "clear", "key": "l", "at": 150}, *bodies) == ["one per key"]


def test_a_fence_that_does_not_rise_is_found() -> None:
    first, second = body("a", 0, 100) | {"fence": 5}, body("b", 100, 200)
    assert broken(first, second | {"fence": 6}) == []
    assert broken(first, second | {"fence": 5}) == ["rising fences"]
    retried = body("a", 0, 50, done=False) | {"fence": 5}
    assert broken(retried, body("a", 60, 100) | {"fence": 5}) == []


def test_a_waiter_that_is_overtaken_is_found() -> None:
    first, second = body("a", 0, 100) | {"place": 1}, body("b", 100, 200) | {"place": 2}
    assert broken(first, second, body("c", 200, 300)) == []
    assert broken(first | {"place": 3}, second) == ["waiters in order"]


def test_copies_of_a_task_that_nobody_guards_may_run() -> None:
    copy = body("a", 0, 100, key=None) | {"copies": True}
    assert broken(copy, copy) == []


def test_a_task_that_never_came_to_its_end_is_found() -> None:
    task, killed = {"kind": "task", "id": "a"}, body("a", 0, 100, done=False)
    assert broken(task, body("a", 0, 100)) == []
    assert broken(task, killed | {"finished": True}) == []
    assert broken(task, killed) == ["tasks run"]
    assert broken(task) == ["tasks run"]


# -- pipelines -------------------------------------------------------------------------------------


def run(run_id: str = "r", **fields: Any) -> Record:
    """A pipeline of two steps and then one."""
    return {"kind": "run", "id": run_id, "steps": {"a": 0, "b": 0, "c": 1}, **fields}


def step(name: str, began: int, ended: int, run_id: str = "r", succeeded: bool = True) -> Record:
    stage = 1 if name == "c" else 0
    fields = {"run": run_id, "step": name, "stage": stage, "succeeded": succeeded}
    return body(f"{run_id}.{name}.{began}", began, ended, key=None) | fields


def success(name: str, at: int) -> Record:
    return {"kind": "success", "run": "r", "step": name, "at": at}


WHOLE_RUN = [run(), step("a", 0, 100), step("b", 0, 200), step("c", 200, 300)]


def test_a_run_whose_stages_follow_each_other_is_sound() -> None:
    assert broken(*WHOLE_RUN) == []
    assert broken(*WHOLE_RUN, success("a", 120), success("b", 200)) == []


def test_a_stage_that_begins_too_early_is_found() -> None:
    assert broken(*WHOLE_RUN[:3], step("c", 150, 300)) == ["stages in order"]
    assert broken(*WHOLE_RUN, success("b", 201)) == ["stages in order"]


def test_a_stage_that_begins_though_a_step_before_it_failed_is_found() -> None:
    failed = step("b", 0, 200, succeeded=False)
    assert broken(run(), step("a", 0, 100), failed) == []
    assert broken(run(), step("a", 0, 100), failed, step("c", 300, 400)) == ["stages in order"]


def test_a_failed_step_may_run_again() -> None:
    failed = step("b", 0, 200, succeeded=False)
    assert broken(run(), step("a", 0, 100), failed, step("b", 300, 400), step("c", 400, 500)) == []


def test_a_step_that_runs_again_after_its_success_is_found() -> None:
    assert broken(*WHOLE_RUN, step("a", 400, 500)) == ["steps succeed once"]
    killed = step("a", 0, 100, succeeded=False)
    assert broken(run(), killed, success("a", 110), step("a", 200, 300)) == ["steps succeed once"]


def test_too_many_steps_at_once_are_found() -> None:
    one_by_one = [step("a", 0, 100), step("b", 100, 200), step("c", 200, 300)]
    assert broken(run(at_once=1), *one_by_one) == []
    assert broken(run(at_once=2), *WHOLE_RUN[1:]) == []
    assert "steps at once" in broken(run(at_once=1), *WHOLE_RUN[1:])


def test_two_runs_of_a_line_at_a_time_are_found() -> None:
    other = [step(name, began, began + 50, "s") for name, began in (("a", 250), ("b", 260), ("c", 320))]
    first = [run(line="nightly"), *WHOLE_RUN[1:]]
    assert broken(*first, run("s", line="nightly"), *other) == ["one run at a time"]
    assert broken(*first, run("s", line="weekly"), *other) == []
    assert broken(*first, run("s", line="nightly", fails=True), *other) == []
