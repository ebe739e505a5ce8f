"""What the leader makes of what became of runs: incidents that are opened, told, and closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from redbeat_lite import Expect, cron, every
from redbeat_lite.beat import announcer
from redbeat_lite.beat.incidents import LASTING
from redbeat_lite.entries.run import EXPECT_HEADER, Outcome
from redbeat_lite.events import Hooks, IncidentClosed, IncidentOpened
from redbeat_lite.runs import incident_fold, incident_store
from redbeat_lite.runs.incident_store import IncidentStore
from redbeat_lite.runs.run_store import RunKeys
from redbeat_lite.store.leader_store import LeaderStore
from tests.beat.incidents import Stage
from tests.support.cases import together
from tests.support.in_process import MakeBeat
from tests.support.incidents import incident
from tests.support.messages import of_entry
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clock")

START = Expect(start_within=30)


def test_failures_in_a_row_are_an_incident_that_a_success_closes(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect={"failures": 3})
    for number in range(4):
        stage.turn(60)
        stage.worker.tells("e", "failed", error=f"error {number}")
        stage.turn()
        assert len(stage.schedules.incidents()) == (number >= 2)
    [incident] = stage.schedules.incidents()
    assert (incident.kind, incident.entry, incident.count) == ("failed", "e", 4)
    assert incident.text == "failed 4 times in a row: error 3"
    stage.fail_over()
    stage.listener.hears("failed e")
    stage.turn(60)
    stage.worker.tells("e", "succeeded")
    stage.fail_over()
    stage.listener.hears("failed e", "-failed e")
    opened, closed = stage.listener.heard
    assert opened.id == closed.id == incident.id
    assert stage.schedules.incidents() == []
    [past] = stage.schedules.incidents(closed=True)
    assert (past.id, past.until) == (incident.id, stage.clock.now)


def test_a_run_that_nobody_begins_is_missed_until_one_begins_in_time(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.schedules.add("other", "add", every(60))
    stage.turn(60, 29)
    assert not stage.schedules.incidents()
    stage.turn(4)
    [missed] = stage.schedules.incidents()
    assert missed.text.endswith("has not begun within 30 s")
    stage.turn(27)
    stage.worker.tells("e", "running", 31)
    stage.turn(40)
    assert [each.kind for each in stage.schedules.incidents()] == ["missed"]
    stage.turn(20)
    stage.worker.tells("e", "running", 3)
    stage.turn(40)
    stage.listener.hears("missed e", "-missed e")
    assert not [each for each in stage.deadlines() if "other" in each]


def test_a_run_that_hangs_takes_too_long(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(3600), expect=Expect(30, 120, failures=2))
    stage.turn(3600)
    stage.worker.tells("e", "running", 3)
    stage.turn(60)
    assert not stage.schedules.incidents()
    stage.turn(1, 63)
    [found] = stage.schedules.incidents()
    assert found.kind == "too_long"
    assert found.text.endswith("has not ended within 120 s")
    stage.turn(3477)
    stage.worker.tells("e", "succeeded", 3, 20)
    stage.turn()
    stage.listener.hears("too_long e", "-too_long e")


@pytest.mark.parametrize("outcome", ["running", None])
def test_a_run_is_found_that_hangs_or_is_lost_while_its_row_gives_way_to_others(
    stage: Stage, outcome: Outcome | None
) -> None:
    stage.schedules.add("e", "add", every(60), expect=Expect(240, 300))
    stage.turn(60)
    if outcome is not None:
        stage.worker.tells("e", outcome)
    for _ in range(3):
        stage.turn(60)
        stage.worker.tells("e", "succeeded")
        assert not stage.schedules.incidents()
        stage.client.zremrangebyrank(RunKeys("redbeat-lite").rows("e"), 0, -2)
    assert len(stage.deadlines()) == 1 + (outcome is None)
    stage.turn(65 if outcome is None else 125)
    stage.listener.hears("missed e" if outcome is None else "too_long e")
    stage.worker.tells("e", "running")
    stage.worker.tells("e", "succeeded")
    stage.turn()
    assert not stage.schedules.incidents()
    assert not [each for each in stage.deadlines() if each.startswith(("begun", "ended"))]


def test_a_success_is_due_again_after_each_one(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect={"succeed_every": 150, "failures": 100})
    stage.turn(60, 140)
    assert not stage.schedules.incidents()
    stage.turn(20)
    stage.listener.hears("no_success e")
    stage.turn(60)
    stage.worker.tells("e", "failed")
    stage.turn()
    stage.worker.tells("e", "succeeded")
    stage.turn()
    stage.listener.hears("no_success e", "-no_success e")
    stage.turn(150)
    assert not stage.schedules.incidents()
    stage.turn(3)
    stage.listener.hears("no_success e", "-no_success e", "no_success e")


def test_an_entry_that_has_run_for_the_last_time_owes_no_success(stage: Stage) -> None:
    for name, runs in (("ends", 2), ("goes on", 4)):
        stage.schedules.add(name, "add", every(60), expect={"succeed_every": 70, "failures": 9}, max_runs=runs)
    stage.turn(60)
    stage.turn(60, 20)
    stage.listener.hears("no_success goes on")
    stage.turn(40, 60)
    stage.listener.hears("no_success goes on", "-no_success goes on")
    stage.turn(3600)
    assert not stage.schedules.incidents()


def test_deadlines_go_by_the_due_time_and_the_delay_of_a_message(stage: Stage) -> None:
    stage.schedules.add("plain", "add", every(600), expect=Expect(30, 60))
    stage.schedules.add("put off", "add", every(600), expect=START, jitter=100, options={"countdown": 10})
    start = stage.clock.now.timestamp()
    stage.clock.forward(600)
    stage.beat.run_due()
    early = stage.deadlines()
    stage.look()
    stage.turn(35)
    assert not [each for each in stage.deadlines() if each.startswith("start") and each.endswith("plain")]
    stage.clock.forward(75)
    stage.beat.run_due()
    jitter = stage.schedules["put off"]
    [nominal] = [message.scheduled_at for message in of_entry(stage.client, "put off")]
    assert nominal is not None
    assert jitter.last_run_at == nominal
    found = {member: at - start for member, at in {**early, **stage.deadlines()}.items()}
    plain, put_off = (round(stage.worker.nominal_of(name)) for name in ("plain", "put off"))
    assert found[f"finish|{plain}|plain"] == 660
    assert 640 <= found[f"start|{put_off}|put off"] <= 740
    assert found[f"start|{plain}|plain"] == 630


def test_a_success_has_the_time_that_its_message_waits(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(600), expect={"succeed_every": 700}, options={"countdown": 3600})
    start = stage.clock.now.timestamp()
    stage.turn(600)
    assert stage.deadlines() == {"success||e": start + 600 + 3600 + 700}


@pytest.mark.parametrize("stage", [{"redbeat_lite_dispatch": "plain"}], indirect=True)
def test_a_worker_that_is_quicker_than_the_commit_leaves_no_deadline_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.schedules.add("e", "add", every(600), expect=Expect(30, 60))
    commit = LeaderStore.commit

    def slow(*args: Any) -> Any:
        stage.worker.tells("e", "running")
        return commit(*args)

    monkeypatch.setattr(LeaderStore, "commit", slow)
    stage.turn(600)
    assert [each.partition("|")[0] for each in stage.deadlines()] == ["finish"]


@pytest.mark.parametrize(("expect", "delay"), [({"finish_within": 1000}, 0), ({"start_within": 10}, 990)])
def test_of_runs_that_are_close_some_have_a_deadline(stage: Stage, expect: dict[str, int], delay: int) -> None:
    stage.schedules.add("e", "add", every(1), misfire="all", expect=expect, options={"countdown": delay})
    stage.turn(*[50] * 19)
    assert 90 <= len(stage.deadlines()) <= 100


def fail_beside_hanging_hook(stage: Stage) -> threading.Event:
    """Let a run fail while a hook hangs until the event is set."""
    hangs = threading.Event()

    class Hanging(Hooks):
        def incident_opened(self, event: IncidentOpened) -> None:
            hangs.wait(20)

    stage.beat._parts.state.announcer.add(Hanging())
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60)
    stage.worker.tells("e", "failed")
    return hangs


def test_a_hook_that_hangs_delays_no_look_and_counts_as_told_in_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = fail_beside_hanging_hook(stage)
    stage.turn(0, 0, 0)
    stage.listener.hears("failed e")
    store = IncidentStore(stage.client, "redbeat-lite")
    assert len(store.read_facts(0).unannounced) == 1
    monkeypatch.setattr(announcer, "HANGS", -1)
    stage.turn()
    assert store.read_facts(0).unannounced == []
    stage.listener.hears("failed e")
    hangs.set()


def test_a_beat_that_leads_again_tells_nothing_twice(stage: Stage) -> None:
    hangs = fail_beside_hanging_hook(stage)
    stage.turn(0, 0)
    stage.listener.hears("failed e")
    stage.beat.leader.resign()
    stage.beat.leader.acquire()
    stage.turn(60)
    stage.worker.tells("e", "succeeded")
    stage.turn(0, 0)
    stage.listener.hears("failed e", "-failed e")
    hangs.set()


def test_an_incident_opens_again_while_its_end_is_still_being_told(stage: Stage) -> None:
    hangs = threading.Event()

    class Hanging(Hooks):
        def incident_closed(self, event: IncidentClosed) -> None:
            hangs.wait(20)

    stage.beat._parts.state.announcer.add(Hanging())
    stage.schedules.add("e", "add", every(60), expect=START)
    for outcome in ("failed", "succeeded", "failed"):
        stage.turn(60)
        stage.worker.tells("e", outcome)
        stage.turn(0, 0)
    assert [each.kind for each in stage.schedules.incidents()] == ["failed"]
    hangs.set()
    stage.listener.hears("failed e", "-failed e", "failed e")
    assert [each.kind for each in stage.schedules.incidents(closed=True)] == ["failed"]
    assert len({each.id for each in stage.listener.heard}) == 2


def test_a_success_that_is_missed_while_there_is_no_room_is_reported_after_the_next_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_fold, "_MOST", 1)
    for name in ("a", "b"):
        stage.schedules.add(name, "add", every(10), expect=Expect(succeed_every=30))
    stage.turn(10, 33)
    assert [each.entry for each in stage.schedules.incidents()] == ["a"]
    stage.schedules.remove("a")
    stage.turn(10, 33)
    [found] = stage.schedules.incidents()
    assert (found.entry, found.kind, found.text) == ("b", "no_success", "no run has succeeded for 30 s")


def test_nobody_is_told_of_a_paused_entry_or_of_one_that_is_removed(stage: Stage) -> None:
    for name in ("paused", "removed", "gone"):
        stage.schedules.add(name, "add", every(60), expect=START)
    stage.turn(60)
    stage.worker.tells("gone", "failed")
    stage.schedules.pause("paused")
    stage.schedules.remove("removed")
    stage.turn(40)
    stage.listener.hears("failed gone")
    stage.schedules.remove("gone")
    stage.turn()
    stage.listener.hears("failed gone", "-failed gone")
    assert not stage.deadlines()


def test_without_a_worker_that_records_that_is_the_one_incident(stage: Stage) -> None:
    stage.worker.is_gone()
    stage.turn()
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60, 60, *[0] * LASTING)
    stage.listener.hears("nobody_records")
    assert not stage.deadlines()
    stage.worker.reports()
    stage.turn(0, 60)
    stage.listener.hears("nobody_records", "-nobody_records")
    assert stage.deadlines()


def test_of_what_was_sent_before_nobody_recorded_no_more_is_said(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=Expect(30, succeed_every=70))
    stage.turn(60, 20)
    stage.worker.is_gone()
    stage.turn(20, 40, *[0] * LASTING)
    stage.listener.hears("nobody_records")


def test_the_deadline_of_an_entry_of_which_nothing_is_expected_any_more_needs_no_record(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(3600), expect=START)
    stage.schedules.add("removed", "add", every(3600), expect=START)
    stage.turn(3600)
    assert len(stage.deadlines()) == 2
    stage.schedules.update("e", expect=False)
    stage.schedules.remove("removed")
    stage.worker.is_gone()
    stage.turn(40, *[0] * LASTING)
    assert stage.listener.lines() == []


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_new_leader_sends_at_once_has_a_deadline(stage: Stage, recorded: bool) -> None:
    stage.schedules.add("e", "add", every(3600), expect=START)
    stage.clock.forward(3600)
    if not recorded:
        stage.worker.is_gone()
    stage.hand_over()
    stage.beat.run_due()
    assert stage.deadlines()
    stage.turn(0, 40, *[0] * LASTING)
    stage.listener.hears("missed e" if recorded else "nobody_records")


@pytest.mark.parametrize("kind", ["nobody_records", "behind"])
def test_who_leads_next_goes_on_with_what_holds(stage: Stage, kind: str) -> None:
    stage.schedules.add("e", "add", every(60), expect=START)
    if kind == "behind":
        stage.clock.forward(200)
    else:
        stage.worker.is_gone()
        stage.turn(60)
    for _ in range(LASTING):
        stage.look()
    [found] = stage.schedules.incidents()
    assert found.kind == kind
    stage.hand_over()
    stage.look()
    assert [each.id for each in stage.schedules.incidents()] == [found.id]
    assert stage.schedules.incidents(closed=True) == []


def test_where_nothing_is_expected_any_more_nobody_has_to_record(stage: Stage) -> None:
    stage.worker.is_gone()
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60, *[0] * LASTING)
    stage.schedules.update("e", expect=False)
    stage.turn(86_300)
    stage.listener.hears("nobody_records")
    stage.turn(200)
    stage.listener.hears("nobody_records", "-nobody_records")


def test_a_line_that_nobody_can_read_is_passed_over(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60)
    line: dict[Any, Any] = {"name": "e", "id": "i", "outcome": "e", "begin": "", "duration": "", "attempt": 0}
    for nominal in ("never", 10**30):
        stage.worker.writes({**line, "nominal": nominal, "worker": "", "error": ""})
    stage.worker.tells("e", "failed")
    stage.look()
    stage.listener.hears("failed e")


def test_a_look_takes_all_entries(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.schedules.add(name, "add", every(60), expect=START)
    stage.turn(60, 40)
    assert sorted(each.entry or "" for each in stage.schedules.incidents()) == ["a", "b", "c"]


def test_many_pages_of_one_look_are_one_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.schedules.add("e", "add", every(60))
    stage.clock.forward(200)
    for name in ("a", "b", "c", "d", "e", "f"):
        stage.worker.writes({"name": name})
    monkeypatch.setattr(incident_store, "PAGE", 1)
    stage.look()
    assert not stage.schedules.incidents()


def test_where_nothing_is_expected_nobody_has_to_record(stage: Stage) -> None:
    stage.worker.is_gone()
    stage.schedules.add("e", "add", every(60))
    stage.turn(*[60] * LASTING)
    stage.worker.tells("e", "failed")
    stage.turn()
    assert (stage.listener.lines(), stage.deadlines()) == ([], {})


def test_an_entry_that_is_set_aside_is_an_incident_until_it_is_mended(stage: Stage) -> None:
    stage.client.hset("{redbeat-lite}:entries", "bad", "no JSON")
    stage.client.hset("{redbeat-lite}:state", "bad", "x")
    stage.client.zadd("{redbeat-lite}:due", {"bad": 1})
    stage.turn()
    stage.listener.hears("quarantined bad")
    stage.schedules.discard("bad")
    stage.turn()
    stage.listener.hears("quarantined bad", "-quarantined bad")


def test_an_entry_whose_publishes_fail_is_an_incident(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.schedules.add("e", "add", every(60))

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("as asked")

    with monkeypatch.context() as patch:
        patch.setattr(stage.app.amqp, "send_task_message", failing)
        stage.turn(60, 2)
        assert not stage.schedules.incidents()
        stage.turn(3)
    [found] = stage.schedules.incidents()
    assert (found.kind, found.entry, found.text) == (
        "cannot_publish",
        "e",
        "3 publishes failed: RuntimeError: as asked",
    )
    stage.fail_over()
    stage.listener.hears("cannot_publish e")
    stage.turn(60)
    stage.listener.hears("cannot_publish e", "-cannot_publish e")


@pytest.mark.parametrize("stage", [{"timezone": "America/New_York"}], indirect=True)
def test_the_log_tells_instants_in_the_zone_of_the_app(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.clock.set(datetime(2026, 3, 31, 9, tzinfo=UTC))
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60, 40)
    assert [text.partition("open, ")[2] for text in caplog.messages if "is open" in text] == [
        "missed:e: the run of 2026-03-31 05:01:00-04:00 has not begun within 30 s"
    ]


@pytest.mark.parametrize("stage", [{"timezone": "America/New_York"}], indirect=True)
@together("error", ["2026-02-30T00:00:00+00:00", "0001-01-01T00:00:00+00:00", "2026-01-01T99:00:00+00:00"])
def test_a_text_that_only_looks_like_an_instant_stays_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    name = f"e {error}"
    stage.schedules.add(name, "add", every(60), expect=Expect(failures=1))
    stage.turn(60)
    stage.worker.tells(name, "failed", error=error)
    stage.turn(1)
    assert f"failed:{name}: failed: {error}" in caplog.text


def test_a_schedule_that_is_behind_is_an_incident(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.schedules.add("e", "add", every(60))
    stage.clock.forward(200)
    for _ in range(LASTING):
        assert not stage.schedules.incidents()
        stage.look()
    [behind] = stage.schedules.incidents()
    assert (behind.kind, behind.entry) == ("behind", None)
    assert f"beat: incident {behind.id} is open, behind: {behind.text}" in caplog.messages
    stage.turn()
    stage.listener.hears("behind", "-behind")


def test_what_a_freeze_of_all_keeps_is_not_behind(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60))
    stage.schedules.freeze(300)
    stage.turn(200)
    for _ in range(LASTING + 1):
        stage.look()
    assert not stage.schedules.incidents()


def test_who_leads_again_closes_what_a_worker_has_opened(stage: Stage) -> None:
    case = incident("no_leader", "", 1_772_452_000_000, "as a worker says")
    store = IncidentStore(stage.client, "redbeat-lite")
    assert store.open_incident(case)
    stage.turn()
    stage.listener.hears("no_leader", "-no_leader")
    assert stage.listener.heard[0].id == case.id


def test_a_day_with_a_clock_change_in_good_health_opens_nothing(stage: Stage) -> None:
    expect = Expect(30, 600, failures=1)
    stage.clock.set(datetime(2026, 3, 28, 17, 59, 55, tzinfo=UTC))
    stage.turn()
    schedules = {
        "nightly": cron("30 2 * * *", tz="Europe/Berlin"),
        "hourly": cron("0 * * * *", tz="Europe/Berlin"),
        "often": every(1800),
    }
    for name, schedule in schedules.items():
        stage.schedules.add(name, "add", schedule, expect=expect, jitter=20)
    stage.schedules.update("hourly", expect=Expect(succeed_every=3700))
    counts = dict.fromkeys(schedules, 0)
    for _ in range(2 * 24):
        for seconds in (5, 25):
            stage.clock.forward(seconds)
            stage.beat.run_due()
            for name, count in counts.items():
                if (now := stage.schedules[name].total_run_count) > count:
                    stage.worker.tells(name, "succeeded", 25, 2)
                    counts[name] = now
            stage.look()
        stage.clock.forward(1770)
    assert counts["nightly"] == 1
    assert counts["hourly"] == 24
    assert stage.listener.lines() == []


@pytest.mark.parametrize(
    "stage", [{"redbeat_lite_expect": {"start_within": 30}, "redbeat_lite_history": 0}], indirect=True
)
def test_the_app_says_for_entries_that_do_not(stage: Stage) -> None:
    stage.schedules.add("default", "add", every(60))
    stage.schedules.add("nothing", "add", every(60), expect=False)
    stage.schedules.add("own", "add", cron("* * * * *"), expect={"finish_within": 500})
    stage.turn(60)
    found = sorted(member.partition("|")[0] + member.rpartition("|")[2] for member in stage.deadlines())
    assert found == ["finishown", "startdefault"]
    for name, expected in {"default": True, "nothing": None, "own": True}.items():
        stage.schedules.run_now(name)
        assert [each.headers.get(EXPECT_HEADER) for each in of_entry(stage.client, name)] == [expected] * 2


def test_what_was_told_is_told_again_by_who_comes_after_a_crash(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, make_beat: MakeBeat
) -> None:
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60)
    stage.worker.tells("e", "failed")
    store = stage.beat._parts.incidents._incidents
    write: Callable[..., Any] = store.write_decision

    def dies(term: Any, facts: Any, decision: Any, handled: str) -> Any:
        if handled != facts.handled:
            raise redis.ConnectionError("crash")
        return write(term, facts, decision, handled)

    monkeypatch.setattr(store, "write_decision", dies)

    def crashed() -> bool:
        try:
            stage.look()
        except redis.ConnectionError:
            return True
        return False

    eventually(crashed, what="a crash")
    stage.beat.leader.resign()
    stage.beat = make_beat(stage.app)
    stage.turn()
    stage.listener.hears("failed e", "failed e")
    assert len({each.id for each in stage.listener.heard}) == 1


def test_an_old_feed_is_no_news_to_the_first_leader(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60)
    stage.worker.tells("e", "failed")
    stage.client.hdel("{redbeat-lite}:meta", "feed")
    stage.turn()
    assert stage.listener.lines() == []


def test_if_it_is_lost_what_hooks_have_heard_they_hear_of_open_incidents_alone(stage: Stage) -> None:
    for name in ("open", "over"):
        stage.schedules.add(name, "add", every(60), expect=Expect(failures=1))
    stage.turn(60)
    for name in ("open", "over"):
        stage.worker.tells(name, "failed")
    stage.turn(60)
    stage.worker.tells("over", "succeeded")
    stage.fail_over()
    stage.listener.hears("failed open", "failed over", "-failed over")
    stage.client.hdel("{redbeat-lite}:meta", "announced")
    stage.hand_over()
    stage.turn(0, 0)
    stage.listener.hears("failed open", "failed over", "-failed over", "failed open")
    assert len({each.id for each in stage.listener.heard}) == 2


def test_a_beat_that_does_not_lead_does_not_look(stage: Stage, make_beat: MakeBeat) -> None:
    stage.schedules.add("e", "add", every(60), expect=START)
    stage.turn(60)
    stage.worker.tells("e", "failed")
    make_beat(stage.app)._parts.incidents.check()
    assert not stage.schedules.incidents()
