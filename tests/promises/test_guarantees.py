"""README, "What it guarantees": each test holds the sentence that it quotes."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from redbeat_lite import EntryChanged, at, cron, every
from tests.promises.conftest import LEADER, TICK, Stage
from tests.support.messages import Message
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually, never

STREAM = {"task": "proj.add", "schedule": TICK, "expires": 600, "misfire": "all"}


def gaps(messages: list[Message]) -> set[int]:
    """Milliseconds between the nominal times of neighbours."""
    times = [message.scheduled_at for message in messages if message.scheduled_at]
    return {round((after - before).total_seconds() * 1000) for before, after in pairwise(times)}


def origins(messages: list[Message]) -> set[int]:
    """The processes that sent these."""
    return {int(message.headers["origin"].removeprefix("gen").split("@")[0]) for message in messages}


class TestOneStream:
    def test_however_many_beats_run_one_sends(self, stage: Stage) -> None:
        """However many beats run, one sends."""
        for _ in range(3):
            stage.beat(beat_schedule={"stream": STREAM})
        assert len(origins(stage.waits_for("stream", 10))) == 1

    def test_a_leader_that_is_stopped_hands_over(self, stage: Stage) -> None:
        """A leader that is stopped hands over within 0.2 s."""
        first, second = (stage.beat(beat_schedule={"stream": STREAM}) for _ in range(2))
        leader = stage.leader()
        other = second if leader is first else first
        with Stopwatch(leader, other, stage.server) as watch:
            leader.terminate()
            eventually(lambda: stage.leader() is other, within=30)
        # The stop itself takes up to 0.7 s before the lease is given back.
        watch.at_most(1.0)
        assert leader.wait() == 0
        assert gaps(stage.waits_for("stream", 15)) == {200}

    def test_a_leader_that_is_killed_is_replaced(self, stage: Stage) -> None:
        """One that is killed is replaced within 4.5 s."""
        first, second = (stage.beat(beat_schedule={"stream": STREAM}) for _ in range(2))
        leader = stage.leader()
        other = second if leader is first else first
        with Stopwatch(other, stage.server) as watch:
            leader.kill()
            eventually(lambda: stage.leader() is other, within=30)
        watch.at_most(4.5)
        sent = len(stage.messages("stream"))
        assert gaps(stage.waits_for("stream", sent + 10)) == {200}

    def test_a_leader_that_hangs_is_replaced(self, stage: Stage) -> None:
        """One that hangs is replaced."""
        beats = [stage.beat(beat_schedule={"stream": STREAM}, redbeat_lite_lease=1) for _ in range(2)]
        leader = stage.leader()
        leader.signal(signal.SIGSTOP)
        eventually(lambda: stage.leader() is not leader, within=30)
        leader.signal(signal.SIGCONT)
        sent = len(stage.messages("stream"))
        messages = stage.waits_for("stream", sent + 10)
        assert gaps(messages) == {200}
        assert all(beat.alive for beat in beats)

    def test_a_beat_that_loses_its_lease_stands_by(self, stage: Stage) -> None:
        """A beat that loses its lease stands by and tries again; it does not exit."""
        beat = stage.beat(beat_schedule={"stream": STREAM}, redbeat_lite_lease=1)
        stage.client.hset(LEADER, mapping={"token": "someone:1:x:else", "term": 10**6})
        stage.client.pexpire(LEADER, 1500)
        beat.says("no longer leading")
        eventually(lambda: stage.leader() is beat, within=30)


class TestDelivery:
    def test_no_occurrence_is_lost_or_doubled_by_a_kill(self, stage: Stage) -> None:
        """No occurrence is lost or doubled on its way into the queue."""
        schedule = {f"e{number}": STREAM for number in range(20)}
        for _ in range(3):
            beat = stage.beat(beat_schedule=schedule, redbeat_lite_lease=1)
            beat.says("exactly once")
            sent = len(stage.messages("e0"))
            stage.waits_for("e0", sent + 4)
            beat.kill()
            beat.wait()
        occurrences = stage.occurrences()
        assert len(occurrences) == len(set(occurrences))
        assert all(gaps(stage.messages(name)) == {200} for name in schedule)

    def test_a_failed_publish_stays_due_under_its_id(self, stage: Stage, own_server: Any) -> None:
        """A failed publish is not a lost run. It stays due and is tried again."""
        broker: Server = own_server()
        url = {"redbeat_lite_url": stage.server.url, "broker_url": broker.url}
        beat = stage.beat(beat_schedule={"stream": STREAM}, **url)
        with broker.client() as queue:
            eventually(lambda: queue.llen("celery") > 3, within=20)
        broker.stop(kill=True)
        beat.says("cannot reach the broker")
        broker.start()
        beat.says("working again")
        assert beat.alive

    def test_a_message_lives_for_the_gap_and_five_seconds(self, stage: Stage) -> None:
        """It lives for the gap to the next run and five seconds for clocks that differ."""
        stage.schedules.add("hourly", "proj.add", every(3600), start_at=datetime.now(UTC))
        stage.schedules.add("soon", "proj.add", every(TICK))
        stage.beat()
        [message, *_] = stage.waits_for("soon")
        life = datetime.fromisoformat(message.headers["expires"]) - datetime.now(UTC)
        assert timedelta(seconds=-20) < life <= timedelta(seconds=TICK + 5)


class TestMissedRuns:
    def test_you_decide_about_missed_runs(self, stage: Stage) -> None:
        """You decide about missed runs, per entry: the latest once, none, or each of them."""
        for policy in ("coalesce", "skip", "all"):
            stage.schedules.add(policy, "proj.add", every(0.5), misfire=policy, expires=600)
        beat = stage.beat()
        for name in ("coalesce", "skip", "all"):
            stage.waits_for(name, 2)
        beat.terminate()
        assert beat.wait() == 0
        sent = {name: len(stage.messages(name)) for name in ("coalesce", "skip", "all")}
        time.sleep(3)
        restarted = datetime.now(UTC)
        stage.beat()
        after = {name: stage.waits_for(name, count + 10)[count - 1 :] for name, count in sent.items()}
        assert gaps(after["all"]) == {500}
        before, first = (message.scheduled_at for message in after["coalesce"][:2])
        # One run stands for all that were missed: the latest of them, or one that came due meanwhile.
        assert first is not None
        assert before is not None
        assert first - before >= timedelta(seconds=2.5)
        assert first > restarted - timedelta(seconds=0.6)
        assert len(gaps(after["coalesce"]) - {500}) == 1
        skipped = after["skip"][1].scheduled_at
        # A quarter of the interval is its grace, so only a run that has just come due may be sent.
        assert skipped is not None
        assert skipped > restarted - timedelta(seconds=0.2)


class TestEdits:
    def test_an_edited_entry_never_fires_by_its_old_rule(self, stage: Stage) -> None:
        """An edited entry never fires by its old rule."""
        stage.beat()
        for _ in range(5):
            stage.schedules.add("edited", "proj.add", every(0.05), kwargs={"x": 1})
            stage.waits_for("edited")
            stage.schedules.update("edited", schedule=every(3600), kwargs={"x": 2})
            sent = len(stage.messages("edited"))
            never(lambda: len(stage.messages("edited")) > sent, during=0.3)  # noqa: B023
            stage.schedules.remove("edited")
            stage.client.delete("celery")

    def test_a_removed_entry_never_comes_back(self, stage: Stage) -> None:
        """A removed one never comes back."""
        beat = stage.beat()
        stage.schedules.add("removed", "proj.add", every(0.05))
        stage.waits_for("removed", 3)
        stage.schedules.remove("removed")
        sent = len(stage.messages("removed"))
        beat.terminate()
        assert beat.wait() == 0
        stage.beat()
        never(lambda: len(stage.messages("removed")) > sent, during=0.5)
        assert "removed" not in stage.schedules

    def test_a_restart_postpones_nothing(self, stage: Stage) -> None:
        """A restart postpones nothing."""
        stage.schedules.add("due", "proj.add", every(3))
        next_run = stage.schedules["due"].next_run_at
        for _ in range(2):
            beat = stage.beat()
            beat.terminate()
            assert beat.wait() == 0
        stage.beat()
        [message, *_] = stage.waits_for("due")
        assert message.scheduled_at == next_run

    def test_what_is_due_in_a_second_is_sent_in_time(self, stage: Stage) -> None:
        """What you add to be due in a second is sent in time, whatever the beat was waiting for."""
        beat = stage.beat()
        with Stopwatch(beat, stage.server) as watch:
            stage.schedules.add("soon", "proj.add", at(datetime.now(UTC) + timedelta(seconds=1)))
            stage.waits_for("soon")
        watch.at_most(1.3)

    def test_an_edit_of_an_old_version_is_refused(self, stage: Stage) -> None:
        """``if_version`` loses no update."""
        entry = stage.schedules.add("entry", "proj.add", every(60))
        stage.schedules.update("entry", if_version=entry.version, description="first")
        with pytest.raises(EntryChanged):
            stage.schedules.update("entry", if_version=entry.version, description="second")
        assert stage.schedules["entry"].description == "first"


class TestIsolation:
    def test_one_bad_entry_harms_nobody_else(self, stage: Stage) -> None:
        """One bad entry harms nobody else. It is set aside with its error."""
        stage.schedules.add("bad", "proj.add", every(TICK))
        stage.schedules.add("good", "proj.add", every(TICK))
        stage.client.hset("{redbeat-lite}:entries", "bad", "rubbish")
        stage.beat()
        stage.waits_for("good", 5)
        assert list(stage.schedules.quarantined()) == ["bad"]

    def test_config_entries_are_back_after_a_flush(self, stage: Stage) -> None:
        """After FLUSHALL under a running leader, config entries are back within one tick."""
        stage.beat(beat_schedule={"stream": STREAM})
        stage.waits_for("stream")
        stage.client.flushall()
        stage.waits_for("stream", 3)
        assert "stream" in stage.schedules

    def test_a_frozen_schedule_sends_nothing(self, stage: Stage) -> None:
        """Once ``redbeat freeze '*' --for 2h`` has returned, nothing goes out."""
        stage.schedules.add("stream", "proj.add", every(0.05))
        stage.beat()
        stage.waits_for("stream", 3)
        version = stage.schedules["stream"].version
        stage.run("freeze", "*", "--for", "2h")
        sent = len(stage.messages("stream"))
        never(lambda: len(stage.messages("stream")) > sent, during=0.5)
        assert stage.schedules["stream"].version == version

    def test_a_paused_entry_sends_nothing(self, stage: Stage) -> None:
        stage.schedules.add("stream", "proj.add", every(0.05))
        stage.beat()
        stage.waits_for("stream", 3)
        stage.schedules.pause("stream", "for a while")
        sent = len(stage.messages("stream"))
        never(lambda: len(stage.messages("stream")) > sent, during=0.5)
        stage.schedules.resume("stream")
        stage.waits_for("stream", sent + 3)


class TestRecords:
    def test_you_can_ask_what_became_of_a_run(self, stage: Stage) -> None:
        """You can ask what became of a run, and why one did not come."""
        stage.worker()
        stage.beat()
        stage.schedules.add("good", "proj.add", every(0.5))
        stage.schedules.add("bad", "proj.fail", every(0.5))
        schedules = stage.schedules
        eventually(lambda: [r for r in schedules.runs("good") if r.outcome == "succeeded"], within=30)
        failed = eventually(lambda: [r for r in schedules.runs("bad") if r.outcome == "failed"], within=30)
        assert "as asked" in failed[0].error
        schedules.pause("bad", "broken")
        assert "succeeded" in stage.run("runs", "good")
        assert "paused" in stage.run("why", "bad")

    def test_the_past_is_run_again_each_occurrence_once(self, stage: Stage) -> None:
        """The past is run again by a backfill, each occurrence once."""
        now = datetime.now(UTC).replace(microsecond=0)
        schedules = stage.schedules
        schedules.add("hourly", "proj.add", cron("0 * * * *", tz="UTC"), start_at=now - timedelta(days=2))
        stage.beat()
        span = (now - timedelta(hours=12), now - timedelta(hours=2))
        backfill = schedules.backfills.start("hourly", *span, max_active=None, rate=1000)
        messages = stage.waits_for("hourly", backfill.total)
        times = [message.scheduled_at for message in messages]
        assert len(times) == len(set(times)) == backfill.total == 10


class TestWork:
    def test_two_bodies_of_a_key_never_overlap(self, stage: Stage, tmp_path: Any) -> None:
        """Two bodies of one key never overlap."""
        journal = tmp_path / "bodies"
        stage.worker()
        app = stage.app
        for _ in range(4):
            app.send_task("proj.sleep", (0.2, str(journal)), once_key="sleeper", on_conflict="wait")
        eventually(lambda: journal.exists() and len(journal.read_text().splitlines()) == 4, within=30)
        bodies = sorted(tuple(map(float, line.split())) for line in journal.read_text().splitlines())
        assert all(first[1] <= second[0] for first, second in pairwise(bodies))
