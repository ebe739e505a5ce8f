"""Apps that share a schedule, and an app that changes its name: whose an entry is, and who is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from celery.schedules import crontab

from redbeat_lite import Scheduler, Schedules
from redbeat_lite.beat.config_check import left_behind
from redbeat_lite.beat.status import Beat, beat_of, token_of
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn

pytestmark = pytest.mark.usefixtures("clock")


def entry(task: str = "t", seconds: float = 3600, **fields: Any) -> dict[str, Any]:
    return {"task": task, "schedule": seconds, **fields}


def dies(beat: Scheduler, client: redis.Redis, at: str = "leader") -> None:
    """As after a SIGKILL: nothing is given back, and its lease has run out."""
    token = beat.leader._token
    seconds, _ = client.time()  # type: ignore[misc]
    client.zadd(KEYS.beats, {token: 1000 * (seconds - 600)})
    if at == "leader":
        client.delete(KEYS.leader)


class TestRenamedApp:
    @pytest.mark.parametrize("end", ["stopped", "killed"])
    def test_goes_on_with_its_entries_and_their_history(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        caplog: pytest.LogCaptureFixture,
        end: str,
    ) -> None:
        old = make_app("old", beat_schedule={"report": entry("old.report"), "paused": entry()})
        beat = make_beat(old)
        beat.run_due()
        clock.forward(3600)
        beat.run_due()
        Schedules(old).pause("paused", "operator")
        clock.forward(600)
        beat.close() if end == "stopped" else dies(beat, client)
        new = make_app("new", beat_schedule={"report": entry("new.report"), "paused": entry()})
        schedules = one_turn(new, make_beat)
        report = schedules["report"]
        assert (report.task, report.source, report.total_run_count) == ("new.report", "config:new", 1)
        assert report.next_run_at == NOW + timedelta(seconds=7200)
        assert schedules["paused"].paused_note == "operator"
        line = "beat: 2 entries taken over from the configuration of 'old', which has no beat: 'paused', 'report'"
        assert line in caplog.messages
        caplog.clear()
        one_turn(new, make_beat)
        assert "of which no beat" not in caplog.text
        new.conf.beat_schedule = {}
        assert len(one_turn(new, make_beat)) == 0

    def test_leaves_what_it_does_not_have_any_more(self, make_app: MakeApp, make_beat: MakeBeat) -> None:
        one_turn(make_app("old", beat_schedule={"gone": entry(), "report": entry()}), make_beat)
        new = make_app("new", beat_schedule={"report": entry()})
        schedules = one_turn(new, make_beat)
        assert sorted(schedules) == ["gone", "report"], "it may be another app, whose beat is down"
        assert left_behind(schedules._store, {"new"}) == {"old": ["gone"]}
        schedules.remove("gone")
        assert left_behind(schedules._store, {"new"}) == {}

    def test_has_a_name_as_soon_as_the_last_beat_of_its_old_name_has_gone(
        self, make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        # A roll-out with two beats of each: the first new one leads while an old one still stands by.
        old = make_app("old", beat_schedule={"a": entry("old.a")})
        leader, stand_by = make_beat(old), make_beat(old)
        leader.run_due()
        stand_by.run_due()
        leader.close()
        new = make_app("new", beat_schedule={"a": entry("new.a")})
        beat = make_beat(new)
        beat.run_due()
        assert Schedules(new)["a"].task == "old.a"
        assert "config entry 'a' is refused: the name is taken by the configuration of 'old'" in caplog.text
        dies(stand_by, client, at="stand-by")
        assert not beat._parts.leadership.has_work
        beat._parts.leadership._next_check = 0.0  # some leases later
        assert beat._parts.leadership.has_work, "it ends its wait, and looks again"
        beat.run_due()
        assert Schedules(new)["a"].task == "new.a"
        assert not beat._parts.leadership.config.refused_count

    def test_remembers_the_pause_of_an_entry_that_it_took_over_in_its_term(
        self, make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
    ) -> None:
        old = make_app("old", beat_schedule={"a": entry()})
        leader, stand_by = make_beat(old), make_beat(old)
        leader.run_due()
        stand_by.run_due()
        Schedules(old).pause("a", "operator")
        leader.close()
        new = make_app("new", beat_schedule={"a": entry("new.a")})
        beat, schedules = make_beat(new), Schedules(new)
        beat.run_due()
        assert schedules["a"].source == "config:old"
        dies(stand_by, client, at="stand-by")
        beat._parts.leadership._next_check = 0.0  # some leases later
        beat.run_due()
        assert schedules["a"].source == "config:new"
        client.flushall()
        beat.leader.resign()
        beat.run_due()
        assert schedules["a"].paused_note == "operator"

    def test_what_it_took_over_stays_whatever_the_old_one_says_later(
        self, make_app: MakeApp, make_beat: MakeBeat
    ) -> None:
        one_turn(make_app("old", beat_schedule={"a": entry()}), make_beat)
        schedules = one_turn(make_app("new", beat_schedule={"a": entry()}), make_beat)
        one_turn(make_app("old", beat_schedule={}), make_beat)
        assert schedules["a"].source == "config:new"


class TestTwoApps:
    def test_share_without_a_word_what_both_have(
        self, make_app: MakeApp, make_beat: MakeBeat, caplog: pytest.LogCaptureFixture
    ) -> None:
        cleanup = {"task": "celery.backend_cleanup", "schedule": crontab("0", "4", "*")}
        first, second = (make_app(name, beat_schedule={"cleanup": cleanup}) for name in ("first", "second"))
        leader, stand_by, other = make_beat(first), make_beat(first), make_beat(second)
        for beat in (leader, stand_by, other):
            beat.run_due()
        leader.close()
        other.run_due()
        assert other.leader.holds_lease
        assert Schedules(second)["cleanup"].source == "config:first"
        assert "cleanup" not in caplog.text
        assert not other._parts.leadership.config.refused_count

    def test_are_told_which_entries_wait_for_their_own_beat(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("redbeat_lite.beat.leadership._SETTLING", 0)
        first = make_app("first", beat_schedule={"a": entry(), "both": entry()})
        second = make_app("second", beat_schedule={"b": entry(), "both": entry(), "over": entry(end_at=NOW)})
        leader, stand_by, same = make_beat(first), make_beat(second), make_beat(first)
        for _ in range(2):
            for beat in (leader, stand_by, same):
                beat.run_due()
        [line] = [each for each in caplog.messages if "not stored as here" in each]
        assert line.startswith("beat: 1 entry of beat_schedule is not stored as here, because pid ")
        assert line.endswith(" leads with the configuration of 'first': 'b'")
        leader.close()
        stand_by.run_due()
        assert sorted(Schedules(first)) == ["a", "b", "both"]


@together("owner", ["proj", "a:b:7:00ff:c", "", "Ünïcode\n"])
def test_a_token_tells_the_beat_whatever_its_owner_is_called(owner: str) -> None:
    token = token_of(owner)
    beat = beat_of(token.encode())
    assert beat is not None
    assert beat.owner == owner
    assert str(beat) == f"pid {beat.pid} on {beat.host}"
    assert token != token_of(owner)


@together("token", [b"", b"host", b"host:1:ff", b"host:x:ff:o", b":1:ff:o", b"host:1::o"])
def test_what_is_no_token_is_none(token: bytes) -> None:
    assert beat_of(token) is None
    assert beat_of(b"host:1:ff:" + b"\xff") == Beat("host", 1, "\\xff")
