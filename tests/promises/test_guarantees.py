"""README, "What it guarantees": each test holds the sentence that it quotes."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from redbeat_lite import Entry, EntryChanged, InvalidEntry, Schedules, at, cron, every
from tests.promises.conftest import GATED, LEADER, TICK, Stage, origins, separate_broker
from tests.support.messages import Message, by_entry, of_entry
from tests.support.processes import ROOT
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually, never

#: Settings of a beat that takes a while between the look at what is due and the sending of each message, so that what
#: somebody else does usually happens in between.
SLOW = {"task_routes": ["tests.promises.proj.route_slowly"]}

STREAM = {"task": "proj.plain", "schedule": TICK, "expires": 600, "misfire": "all"}


def gaps(messages: list[Message]) -> set[int]:
    """Milliseconds between the nominal times of neighbours."""
    times = [message.scheduled_at for message in messages if message.scheduled_at]
    return {round((after - before).total_seconds() * 1000) for before, after in pairwise(times)}


def scheduled_at(message: Message) -> datetime:
    """The nominal time of a message that a beat sent."""
    assert message.scheduled_at is not None
    return message.scheduled_at


class TestOneStream:
    """One stream."""

    def test_however_many_beats_run_one_sends(self, stage: Stage) -> None:
        """However many beats run, one sends."""
        for _ in range(3):
            stage.beat(beat_schedule={"stream": STREAM})
        assert len(origins(stage.waits_for("stream", 10))) == 1

    @pytest.mark.parametrize("schedule", [{"stream": STREAM}, {}], ids=["busy", "idle"])
    def test_a_leader_that_is_stopped_hands_over(self, stage: Stage, schedule: dict[str, Any]) -> None:
        """A leader that stops hands over within 0.2 s."""
        # The lease would keep the other beat waiting for much longer.
        settings = {"beat_schedule": schedule, "redbeat_lite_lease": 60}
        first, second = (stage.beat(**settings) for _ in range(2))
        leader = stage.leader()
        other = second if leader is first else first
        for name in schedule:
            stage.waits_for(name, 5)
        with Stopwatch(leader, other, stage.server) as watch:
            leader.terminate()
            eventually(lambda: stage.leader() is other)
        watch.at_most(0.2)
        assert leader.wait() == 0
        for name in schedule:
            sent = len(stage.messages(name))
            assert gaps(stage.waits_for(name, sent + 10)) == {200}

    def test_a_leader_that_is_killed_is_replaced(self, stage: Stage) -> None:
        """One that is killed is replaced within 4.5 s."""
        first, second = (stage.beat(beat_schedule={"stream": STREAM}) for _ in range(2))
        leader = stage.leader()
        other = second if leader is first else first
        with Stopwatch(other, stage.server) as watch:
            leader.kill()
            sent = len(stage.messages("stream"))
            stage.waits_for("stream", sent + 1)
        watch.at_most(4.5)
        assert stage.leader() is other
        assert gaps(stage.waits_for("stream", sent + 10)) == {200}

    def test_a_leader_that_hangs_is_replaced(self, stage: Stage) -> None:
        """One that hangs is replaced."""
        beats = [stage.beat(beat_schedule={"stream": STREAM}, redbeat_lite_lease=1) for _ in range(2)]
        leader = stage.leader()
        with leader.frozen():
            eventually(lambda: stage.leader() is not leader)
        sent = len(stage.messages("stream"))
        messages = stage.waits_for("stream", sent + 10)
        assert gaps(messages) == {200}
        assert all(beat.alive for beat in beats)

    def test_a_leader_whose_loop_hangs_is_replaced(self, stage: Stage) -> None:
        """One that hangs is replaced after ``stall_timeout`` and the lease."""
        settings = {
            "redbeat_lite_lease": 1,
            "redbeat_lite_publish_timeout": 1,
            "redbeat_lite_stall_timeout": 2,
        }
        hangs = {"task_routes": ["tests.promises.proj.route_for_ever"]}
        first = stage.beat(beat_schedule={"stream": STREAM}, **hangs, **settings)
        second = stage.beat(beat_schedule={"stream": STREAM}, **settings)
        first.says("no progress while")
        eventually(lambda: stage.leader() is second)
        assert origins(stage.waits_for("stream", 5)) == {second.pid}

    def test_a_beat_that_loses_its_lease_stands_by(self, stage: Stage) -> None:
        """A beat that loses its lease stands by and tries again; it does not exit."""
        beat = stage.beat(beat_schedule={"stream": STREAM}, redbeat_lite_lease=1)
        stage.client.hset(LEADER, mapping={"token": "someone:1:x:else", "term": 10**6})
        stage.client.pexpire(LEADER, 1500)
        beat.says("no longer leading")
        eventually(lambda: stage.leader() is beat)

    def test_a_stand_by_that_stops_disturbs_nobody(self, stage: Stage) -> None:
        """However many beats run, one sends."""
        beats = [stage.beat(beat_schedule={"stream": STREAM}) for _ in range(2)]
        leader = stage.leader()
        term = stage.client.hget(LEADER, "term")
        [other] = [beat for beat in beats if beat is not leader]
        other.stop()
        sent = len(stage.messages("stream"))
        messages = stage.waits_for("stream", sent + 5)
        assert stage.client.hget(LEADER, "term") == term
        assert origins(messages) == {leader.pid}


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
        occurrences = stage.occurrences()
        assert len(occurrences) == len(set(occurrences))
        assert all(gaps(stage.messages(name)) == {200} for name in schedule)

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_a_failed_publish_stays_due_under_its_id(self, stage: Stage, own_server: Any, dispatch: str) -> None:
        """A failed publish is not a lost run. It stays due and is tried again, with the same task id."""
        broker: Server = own_server(appendonly="yes", appendfsync="always")
        urls = {"redbeat_lite_url": stage.server.url, "broker_url": broker.url}
        schedule = {f"e{number}": STREAM for number in range(10)}
        beat = stage.beat(beat_schedule=schedule, redbeat_lite_dispatch=dispatch, **urls)
        with broker.client() as queue:
            eventually(lambda: queue.llen("celery") > 30)
            broker.stop(kill=True)
            beat.says("cannot reach the broker")
            broker.start()
            beat.says("working again")
            sent = queue.llen("celery")
            eventually(lambda: queue.llen("celery") > sent + 30)
            messages = by_entry(queue)
        for name in schedule:
            # What was on its way when the broker died may have been sent twice.
            unique = {message.id: message for message in messages[name]}
            ordered = sorted(unique.values(), key=scheduled_at)
            assert gaps(ordered) == {200}

    def test_a_signal_handler_sees_every_message(self, stage: Stage) -> None:
        """A receiver of ``before_task_publish`` may change each message, as with Celery's own beat."""
        stage.beat(beat_schedule={"stream": STREAM}, proj_stamps=True)
        messages = stage.waits_for("stream", 5)
        assert [message.headers["stamped"] for message in messages] == [message.id for message in messages]

    def test_a_message_lives_for_the_gap_and_five_seconds(self, stage: Stage) -> None:
        """A message that no worker has taken expires after the gap to the next run and five seconds for
        clocks that differ.
        """
        stage.schedules.add("hourly", "proj.add", every(3600), start_at=datetime.now(UTC))
        stage.schedules.add("soon", "proj.add", every(TICK))
        stage.beat()
        [message, *_] = stage.waits_for("soon")
        life = timedelta(seconds=TICK + 5)
        # It counts from when it was sent, which was after its nominal time and before now.
        assert message.scheduled_at is not None
        expires = datetime.fromisoformat(message.headers["expires"])
        assert message.scheduled_at + life <= expires <= datetime.now(UTC) + life


class TestMissedRuns:
    def test_you_decide_about_missed_runs(self, stage: Stage) -> None:
        """You decide about missed runs, per entry: the latest once, none, or each of them."""
        for policy in ("coalesce", "skip", "all"):
            stage.schedules.add(policy, "proj.add", every(0.5), misfire=policy, expires=600)
        beat = stage.beat()
        for name in ("coalesce", "skip", "all"):
            stage.waits_for(name, 2)
        beat.stop()
        sent = {name: len(stage.messages(name)) for name in ("coalesce", "skip", "all")}
        time.sleep(3)
        restarted = datetime.now(UTC)
        stage.beat()
        after = {name: stage.waits_for(name, count + 4)[count - 1 :] for name, count in sent.items()}
        assert gaps(after["all"]) == {500}
        before, first = (message.scheduled_at for message in after["coalesce"][:2])
        # One run stands for all that were missed: the latest of them, or one that came due meanwhile.
        assert first is not None
        assert before is not None
        assert first - before >= timedelta(seconds=2.5)
        assert first > restarted - timedelta(seconds=0.6)
        assert [run for run in stage.schedules.runs("skip") if run.outcome == "skipped"]
        skipped = after["skip"][1].scheduled_at
        # A quarter of the interval is its grace, so only a run that has just come due may be sent.
        assert skipped is not None
        assert skipped > restarted - timedelta(seconds=0.2)

    def test_skip_sends_none_that_is_late(self, stage: Stage) -> None:
        """``skip``: none that is later than a quarter of the time to the next run."""
        begin = datetime.now(UTC) + timedelta(seconds=0.2)
        stage.schedules.add("late", "proj.add", every(6), start_at=begin, misfire="skip")
        eventually(lambda: datetime.now(UTC) > begin + timedelta(seconds=6 / 4))
        stage.beat()
        eventually(lambda: stage.schedules["late"].skipped_count >= 1)
        assert begin not in [message.scheduled_at for message in stage.messages("late")]


class TestEdits:
    """Edits are safe."""

    def test_an_edited_entry_never_fires_by_its_old_rule(self, stage: Stage) -> None:
        """An edited entry never fires by its old rule."""
        stage.beat(**SLOW)
        for _ in range(5):
            stage.schedules.add("edited", "proj.add", every(0.05), kwargs={"x": 1})
            stage.waits_for("edited")
            stage.schedules.update("edited", schedule=every(3600), kwargs={"x": 2})
            sent = len(stage.messages("edited"))
            never(lambda: len(stage.messages("edited")) > sent, during=0.3)  # noqa: B023
            stage.schedules.remove("edited")
            stage.client.delete("celery")

    def test_a_removed_entry_never_comes_back(self, stage: Stage) -> None:
        """A removed runtime entry never comes back."""
        beat = stage.beat(**SLOW)
        stage.schedules.add("removed", "proj.add", every(0.05))
        stage.waits_for("removed", 3)
        stage.schedules.remove("removed")
        sent = len(stage.messages("removed"))
        beat.stop()
        stage.beat()
        never(lambda: len(stage.messages("removed")) > sent, during=0.5)
        assert "removed" not in stage.schedules

    def test_a_restart_postpones_nothing(self, stage: Stage) -> None:
        """A restart postpones nothing."""
        stage.schedules.add("due", "proj.add", every(3))
        next_run = stage.schedules["due"].next_run_at
        for _ in range(2):
            beat = stage.beat()
            beat.stop()
        stage.beat()
        [message, *_] = stage.waits_for("due")
        assert message.scheduled_at == next_run

    def test_an_edit_of_something_else_postpones_nothing(self, stage: Stage) -> None:
        """An entry that is stored once more, by the same schedule, keeps its next run."""
        schedules = stage.schedules
        next_run = schedules.add("entry", "proj.add", every(3600)).next_run_at
        time.sleep(0.01)
        assert schedules.add("entry", "proj.add", every(3600), replace=True).next_run_at == next_run
        assert schedules.update("entry", schedule=every(3600), kwargs={"x": 1}).next_run_at == next_run

    def test_an_added_entry_that_is_due_is_sent_at_once(self, stage: Stage) -> None:
        """Each change is announced on a channel, so it takes effect at once even with
        ``beat_max_loop_interval = 300``.
        """
        beat = stage.beat()
        delays = []
        for number in range(5):
            with Stopwatch(beat, stage.server) as watch:
                stage.add_due(f"e{number}")
                stage.waits_for(f"e{number}")
            delays.append(watch.took - watch.withheld)
        # Without the announcement, the renewal of each second would show what is due. All entries but the first are
        # added just after a renewal, so they would be sent after nearly a second.
        assert median(delays) < 0.3

    def test_an_edit_of_an_old_version_is_refused(self, stage: Stage) -> None:
        """``if_version`` loses no update."""
        entry = stage.schedules.add("entry", "proj.add", every(60))
        stage.schedules.update("entry", if_version=entry.version, description="first")
        with pytest.raises(EntryChanged):
            stage.schedules.update("entry", if_version=entry.version, description="second")
        assert stage.schedules["entry"].description == "first"

    def test_an_entry_that_is_to_start_later_stops_until_then(self, stage: Stage) -> None:
        """An edited entry never fires by its old rule."""
        later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        stage.beat()
        stage.schedules.add("edited", "proj.add", every(TICK))
        stage.waits_for("edited")
        stage.schedules.update("edited", start_at=later)
        sent = len(stage.messages("edited"))
        never(lambda: len(stage.messages("edited")) > sent, during=0.5)
        assert stage.schedules["edited"].next_run_at >= later

    def test_max_runs_is_exact(self, stage: Stage) -> None:
        """``max_runs``: finish after so many occurrences."""
        schedules = stage.schedules
        schedules.add("few", "proj.add", every(0.05), max_runs=7, misfire="all", expires=600)
        stage.beat()
        for number in (7, 10):
            schedules.update("few", max_runs=number)
            stage.waits_for("few", number)
            eventually(lambda: schedules["few"].next_run_at is None)
            assert len(stage.messages("few")) == number

    def test_a_one_off_is_removed_when_it_is_done(self, stage: Stage) -> None:
        """``remove_when_done`` removes an entry that has finished."""
        soon = datetime.now(UTC) + timedelta(seconds=1)
        stage.beat()
        stage.schedules.add("once", "proj.add", at(soon), remove_when_done=True)
        stage.waits_for("once")
        eventually(lambda: "once" not in stage.schedules)
        assert not stage.client.hgetall("{redbeat-lite}:entries")
        assert len(stage.messages("once")) == 1

    def test_two_prefixes_are_two_schedules(self, stage: Stage, make_app: Any) -> None:
        """``redbeat_lite_key_prefix`` keeps schedules apart."""
        prefix = "myapp:{beat}"
        other = Schedules(make_app(redbeat_lite_key_prefix=prefix))
        stage.schedules.add("ours", "proj.add", every(TICK))
        other.add("theirs", "proj.add", every(TICK))
        assert list(stage.schedules) == ["ours"]
        assert list(other) == ["theirs"]
        stage.beat(redbeat_lite_key_prefix=prefix)
        stage.waits_for("theirs", 3)
        assert not stage.messages("ours")
        ours = [key for key in stage.client.keys("*redbeat*") if b"myapp" not in key]
        assert all(key.startswith(b"{redbeat-lite}:") for key in ours)
        assert stage.client.exists("myapp:{beat}:leader")


class TestIsolation:
    def test_one_bad_entry_harms_nobody_else(self, stage: Stage) -> None:
        """One bad entry harms nobody else. It is set aside with its error."""
        stage.schedules.add("bad", "proj.add", every(TICK))
        stage.schedules.add("good", "proj.add", every(TICK))
        stage.client.hset("{redbeat-lite}:entries", "bad", "rubbish")
        stage.beat()
        stage.waits_for("good", 5)
        assert list(stage.schedules.quarantined()) == ["bad"]
        stage.schedules.add("bad", "proj.add", every(TICK))
        stage.waits_for("bad")
        assert not list(stage.schedules.quarantined())

    @pytest.mark.parametrize(("interval", "bound"), [(TICK, TICK + 0.4), (3600, 1.4)], ids=["busy", "idle"])
    def test_config_entries_are_back_after_a_flush(self, stage: Stage, interval: float, bound: float) -> None:
        """Somebody runs ``FLUSHALL``: The leader notices at its next commit or renewal, at most a second later, and
        stores config entries again.
        """
        beat = stage.beat(beat_schedule={"stream": {**STREAM, "schedule": interval}}, redbeat_lite_lease=60)
        # The next renewal is a second away.
        stage.waits_for_renewals(1)
        with Stopwatch(beat, stage.server) as watch:
            stage.client.flushall()
            eventually(lambda: "stream" in stage.schedules)
        watch.at_most(bound)
        if interval == TICK:
            stage.waits_for("stream", 3)

    def test_a_config_entry_stays_paused_after_a_flush(self, stage: Stage) -> None:
        """An entry that somebody paused stays paused, also when the server loses its data."""
        beat = stage.beat(beat_schedule={"paused": STREAM, "other": STREAM}, redbeat_lite_lease=1)
        beat.says("exactly once")
        stage.schedules.pause("paused", "broken")
        stage.waits_for_renewals()
        stage.client.flushall()
        stage.waits_for("other", 5)
        assert stage.schedules["paused"].paused_note == "broken"
        assert not stage.messages("paused")

    def test_lost_parts_of_the_schedule_are_mended(self, stage: Stage) -> None:
        """A thread renews the lease every second. The leader notices at its next renewal, and rebuilds it."""
        due = "{redbeat-lite}:due"
        stage.schedules.add("mine", "proj.add", every(3600))
        hourly = {"hourly": {"task": "proj.add", "schedule": 3600.0}}
        beat = stage.beat(beat_schedule=hourly, redbeat_lite_lease=60)
        beat.says("leading")
        with Stopwatch(beat, stage.server) as watch:
            assert stage.client.zrem(due, "mine")
            eventually(lambda: stage.client.zscore(due, "mine"))
        watch.at_most(1.4)
        with Stopwatch(beat, stage.server) as watch:
            assert stage.client.delete(due)
            eventually(lambda: stage.client.zcard(due) == 2)
        watch.at_most(1.4)

    def test_a_frozen_schedule_sends_nothing(self, stage: Stage) -> None:
        """Once ``redbeat freeze --for 2h`` has returned, nothing goes out."""
        stage.schedules.add("stream", "proj.add", every(0.05))
        stage.beat(**SLOW)
        stage.waits_for("stream", 3)
        version = stage.schedules["stream"].version
        for _ in range(5):
            stage.schedules.freeze("2h")
            sent = len(stage.messages("stream"))
            never(lambda: len(stage.messages("stream")) > sent, during=0.3)  # noqa: B023
            stage.run("thaw")
            stage.waits_for("stream", sent + 1)
        stage.run("freeze", "--for", "2h")
        sent = len(stage.messages("stream"))
        never(lambda: len(stage.messages("stream")) > sent, during=0.3)
        assert stage.schedules["stream"].version == version

    def test_a_paused_entry_sends_nothing(self, stage: Stage) -> None:
        """``pause``: stop an entry from firing."""
        stage.schedules.add("stream", "proj.add", every(0.05))
        stage.beat(**SLOW)
        stage.waits_for("stream", 3)
        stage.schedules.pause("stream", "for a while")
        sent = len(stage.messages("stream"))
        never(lambda: len(stage.messages("stream")) > sent, during=0.5)
        stage.schedules.resume("stream")
        stage.waits_for("stream", sent + 3)

    def test_a_resumption_sends_nothing_that_the_pause_held_back(self, stage: Stage) -> None:
        """``resume``: let a paused entry fire again, from its next instant on."""
        stage.schedules.add("stream", "proj.add", every(TICK), misfire="all", expires=600)
        stage.beat()
        stage.waits_for("stream")
        stage.schedules.pause("stream", "for a while")
        sent = len(stage.messages("stream"))
        paused = datetime.now(UTC)
        eventually(lambda: datetime.now(UTC) > paused + timedelta(seconds=4 * TICK))
        resumed = datetime.now(UTC)
        stage.schedules.resume("stream")
        message = stage.waits_for("stream", sent + 1)[sent]
        assert message.scheduled_at is not None
        assert message.scheduled_at >= resumed

    def test_a_resumption_that_catches_up_sends_what_the_pause_held_back(self, stage: Stage) -> None:
        """``catch_up=True`` treats what the pause held back as missed, and leaves it to the policy."""
        held = stage.schedules.add("stream", "proj.add", every(TICK), misfire="all", expires=600).next_run_at
        stage.schedules.pause("stream")
        assert held is not None
        eventually(lambda: datetime.now(UTC) > held + timedelta(seconds=4 * TICK))
        stage.schedules.resume("stream", catch_up=True)
        stage.beat()
        assert stage.waits_for("stream", 4)[0].scheduled_at == held

    def test_a_pause_of_some_entries_leaves_the_others(self, stage: Stage) -> None:
        """A pause with an end holds the messages of some entries back, until it is ended."""
        for name in ("billing-a", "other"):
            stage.schedules.add(name, "proj.add", every(TICK))
        stage.beat()
        stage.waits_for("billing-a")
        assert stage.schedules.select("billing-*").pause("deploy", seconds="2h") == ["billing-a"]
        sent, others = len(stage.messages("billing-a")), len(stage.messages("other"))
        stage.waits_for("other", others + 4)
        assert len(stage.messages("billing-a")) == sent
        # It costs the beat nothing, because it is due when the pause ends.
        paused = stage.schedules["billing-a"]
        assert paused.next_run_at == paused.paused_until
        stage.schedules.resume("billing-a")
        stage.waits_for("billing-a", sent + 2)

    def test_a_pause_with_an_end_ends_at_its_time(self, stage: Stage) -> None:
        """At its end, the misfire policy decides about the runs that a pause held back."""
        held = stage.schedules.add("stream", "proj.add", every(TICK), misfire="all", expires=600).next_run_at
        until = stage.schedules.pause("stream", seconds=4 * TICK).paused_until
        stage.beat()
        messages = stage.waits_for("stream", 4)
        assert messages[0].scheduled_at == held
        assert until is not None
        assert datetime.now(UTC) >= until
        assert stage.schedules["stream"].status == "waiting"

    def test_a_freeze_ends_at_its_time(self, stage: Stage) -> None:
        """``freeze --for 2h``: keep all entries from firing for a time."""
        stage.schedules.add("stream", "proj.add", every(TICK))
        stage.beat()
        stage.waits_for("stream")
        freeze = stage.schedules.freeze(1)
        sent = len(stage.messages("stream"))
        messages = stage.waits_for("stream", sent + 2)
        assert messages[-1].scheduled_at >= freeze.until - timedelta(seconds=TICK)

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_a_freeze_lets_a_batch_for_another_broker_be_completed(
        self, stage: Stage, own_server: Any, dispatch: str
    ) -> None:
        """A freeze holds all messages back once its command has returned. If the broker is another database,
        a batch that is being sent is completed.
        """
        broker: Server = own_server()
        stage.beat(**separate_broker(stage, broker), **GATED, redbeat_lite_dispatch=dispatch)
        now = datetime.now(UTC)
        batch = [Entry(f"e{number}", "proj.add", at(now - timedelta(seconds=number))) for number in range(10)]
        batch.append(Entry("gated", "proj.gated", at(now - timedelta(seconds=4.5))))
        stage.gate.close()
        stage.schedules.add_many(batch)
        stage.gate.holds()
        stage.schedules.freeze("2h")
        assert len(by_entry(broker.own_client)) < len(batch)
        stage.add_due("later")
        stage.gate.open()
        names = {entry.name for entry in batch}
        eventually(lambda: by_entry(broker.own_client).keys() == names)
        never(lambda: by_entry(broker.own_client).keys() - names, during=0.5)
        stage.schedules.thaw()
        eventually(lambda: of_entry(broker.own_client, "later"))
        for messages in by_entry(broker.own_client).values():
            assert len({message.id for message in messages}) == 1

    def test_a_freeze_holds_after_a_flush(self, stage: Stage) -> None:
        """A leader that misses the freeze puts back what it knew."""
        stage.beat(beat_schedule={"stream": STREAM}, redbeat_lite_lease=1)
        stage.waits_for("stream")
        stage.schedules.freeze("2h")
        stage.waits_for_renewals()
        stage.client.flushall()
        eventually(lambda: "stream" in stage.schedules)
        eventually(stage.schedules.frozen)
        assert not stage.messages("stream")


class TestManyEntries:
    def test_the_name_of_an_entry_chooses_its_time(self, stage: Stage) -> None:
        """Stable spread. The name of each entry chooses its time, and an entry keeps its time on every
        machine and after a restart.
        """
        schedules = stage.schedules
        rule = "H H(0-5) * * *"
        for number in range(20):
            schedules.add(f"tenant:{number}", "proj.add", cron(rule, tz="UTC"))
        times = {entry.name: next_time(entry) for entry in schedules.values()}
        assert len(set(times.values())) > 15
        assert max(times.values()) < "06:00"
        schedules.clear()
        stage.run("add", "tenant:7", "proj.add", "--cron", rule, "--tz", "UTC")
        assert next_time(schedules["tenant:7"]) == times["tenant:7"]
        schedules.update("tenant:7", description="another")
        assert next_time(schedules["tenant:7"]) == times["tenant:7"]

    def test_an_interval_that_is_spread_keeps_its_moments(self, stage: Stage) -> None:
        """Stable spread. ``spread=True`` does the same for intervals: an entry runs at multiples of the
        interval, later by less than an interval.
        """
        names = [f"tenant:{number}" for number in range(5)]
        for _ in range(2):
            for name in names:
                stage.schedules.add(name, "proj.add", every(0.5, spread=True), expires=600, replace=True)
            beat = stage.beat()
            sent = {name: len(stage.messages(name)) for name in names}
            for name in names:
                stage.waits_for(name, sent[name] + 2)
            beat.stop()
            stage.schedules.clear()
        moments = [{message.nominal % 500 for message in stage.messages(name)} for name in names]
        assert {len(moments_of_one) for moments_of_one in moments} == {1}
        assert len(set.union(*moments)) > 1


def next_time(entry: Entry) -> str:
    """Hour and minute of an entry's next run, in UTC."""
    assert entry.next_run_at is not None
    return f"{entry.next_run_at.astimezone(UTC):%H:%M}"


class TestRecords:
    def test_you_can_ask_what_became_of_a_run(self, stage: Stage) -> None:
        """You can ask what became of a run, and why one did not come."""
        stage.worker()
        stage.beat()
        stage.schedules.add("good", "proj.add", every(0.5))
        stage.schedules.add("bad", "proj.break", every(0.5))
        schedules = stage.schedules
        eventually(lambda: [r for r in schedules.runs("good") if r.outcome == "succeeded"])
        failed = eventually(lambda: [r for r in schedules.runs("bad") if r.outcome == "failed"])
        assert "broken without a lock" in failed[0].error
        schedules.pause("bad", "broken")
        assert "succeeded" in stage.run("runs", "good")
        assert "paused" in stage.run("why", "bad")

    def test_the_past_is_run_again_each_occurrence_once(self, stage: Stage) -> None:
        """The past is run again by a backfill, each occurrence once."""
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        schedules = stage.schedules
        begin = now - timedelta(days=2)
        schedules.add("minutely", "proj.add", cron("* * * * *", tz="UTC"), start_at=begin)
        schedules.pause("minutely", "only its past is of interest here")
        stage.beat()
        until = now - timedelta(hours=2)
        first = schedules.backfills.start("minutely", until - timedelta(minutes=119), until, max_active=None, rate=1000)
        assert first.total == 120
        stage.waits_for("minutely", 120)
        eventually(lambda: schedules.backfills[first.id].ended == "done")
        # A second backfill over a longer range sends what the first one has not sent.
        second = schedules.backfills.start(
            "minutely", until - timedelta(minutes=129), until, max_active=None, rate=1000
        )
        assert second.total == 10
        messages = stage.waits_for("minutely", 130)
        eventually(lambda: schedules.backfills[second.id].ended == "done")
        assert len(stage.messages("minutely")) == 130
        assert len({message.scheduled_at for message in messages}) == 130
        with pytest.raises(InvalidEntry):
            schedules.backfills.start("minutely", until - timedelta(minutes=129), until, max_active=None)

    def test_a_freeze_holds_a_backfill(self, stage: Stage) -> None:
        """Once a freeze holds, nothing that is sent in one step goes out."""
        now = datetime.now(UTC)
        schedules = stage.schedules
        schedules.add("hourly", "proj.add", cron("0 * * * *", tz="UTC"), start_at=now - timedelta(days=2))
        stage.beat()
        schedules.freeze("2h")
        day = (now - timedelta(hours=26), now - timedelta(hours=2))
        backfill = schedules.backfills.start("hourly", *day, max_active=None, rate=1000)
        never(lambda: stage.messages("hourly"), during=1)
        schedules.thaw()
        stage.waits_for("hourly", backfill.total)

    def test_a_backfill_has_no_more_out_than_it_may(self, stage: Stage) -> None:
        """``max_active``: how many may be out that no worker has recorded the end of."""
        now = datetime.now(UTC)
        schedules = stage.schedules
        schedules.add("hourly", "proj.add", cron("0 * * * *", tz="UTC"), start_at=now - timedelta(days=2))
        worker = stage.worker()
        stage.beat()
        day = (now - timedelta(hours=26), now - timedelta(hours=2))

        def is_accepted() -> bool:
            with suppress(InvalidEntry):
                return schedules.backfills.start("hourly", *day, max_active=2, dry_run=True).total > 2
            return False

        eventually(is_accepted, what="word of the worker")
        worker.kill()
        backfill = schedules.backfills.start("hourly", *day, max_active=2)
        stage.waits_for("hourly", 2)
        never(lambda: len(stage.messages("hourly")) > 2, during=1)
        stage.worker()
        eventually(lambda: schedules.backfills[backfill.id].ended == "done")


class TestWork:
    def test_two_bodies_of_a_key_never_overlap(self, stage: Stage, tmp_path: Any) -> None:
        """Two bodies of one key never overlap, and one that lasts for longer than the lease keeps its lock."""
        journal = tmp_path / "bodies"
        stage.worker()
        stage.app.send_task("proj.sleep", (4, str(journal)))

        def is_over() -> bool:
            return any(ended - began > 3 for began, ended in written(journal, 1))

        while not is_over():
            # A task that comes while the lock is held does not run, even after the first lease.
            stage.app.send_task("proj.sleep", (0.2, str(journal)), on_conflict="skip")
            time.sleep(0.3)
        for _ in range(2):
            stage.app.send_task("proj.sleep", (0.2, str(journal)))
        bodies = eventually(lambda: written(journal, 3))
        assert all(first[1] <= second[0] for first, second in pairwise(sorted(bodies)))

    def test_a_message_that_is_delivered_twice_runs_once(self, stage: Stage, tmp_path: Any) -> None:
        """What is delivered twice meets the guard, which knows the attempts that run or have ended."""
        journal, last = tmp_path / "bodies", tmp_path / "last"
        stage.worker()
        for _ in range(2):
            stage.app.send_task("proj.sleep", (1, str(journal)), task_id="twice")
        eventually(lambda: written(journal, 1))
        stage.app.send_task("proj.sleep", (1, str(journal)), task_id="twice")
        for _ in range(2):
            # The worker has two processes, so the second of these begins after the copy is through.
            stage.app.send_task("proj.sleep", (0, str(last)))
        eventually(lambda: written(last, 2))
        assert len(written(journal, 1)) == 1

    def test_one_message_of_a_once_entry_is_queued(self, stage: Stage) -> None:
        """1 s interval, 10 s task: exactly one message queued or running at any moment; skipped
        occurrences are counted, logged at INFO, never an error.
        """
        stage.schedules.add("single", "proj.add", every(TICK), once=True)
        stage.schedules.add("stream", "proj.add", every(TICK))
        beat = stage.beat()
        stage.waits_for("single")
        sent = len(stage.messages("stream"))
        stage.waits_for("stream", sent + 5)
        assert len(stage.messages("single")) == 1
        assert stage.schedules["single"].skipped_count
        assert [run for run in stage.schedules.runs("single") if run.outcome == "left out"]
        beat.says("INFO/.* beat: 'single' is left out while its once-lock is held")
        assert not beat.lines("ERROR")

    def test_the_lock_of_a_message_that_was_not_sent_is_free(self, stage: Stage) -> None:
        """An edited entry never fires by its old rule, and its next run is not held up."""
        stage.beat(**SLOW)
        for number in range(4):
            name = f"single{number}"
            stage.schedules.add(name, "proj.add", every(TICK), kwargs={"x": number}, once=True)
            # The beat has looked at what is due by then, and has sent nothing.
            time.sleep(TICK + 0.05)
            stage.schedules.update(name, schedule=every(2 * TICK))
            stage.waits_for(name)


def written(journal: Path, count: int) -> list[tuple[float, ...]]:
    """When bodies began and ended, once so many have ended; nothing before."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    bodies = [tuple(map(float, line.split())) for line in lines]
    return bodies if len(bodies) >= count else []


def test_every_guarantee_of_the_readme_is_quoted_by_a_test() -> None:
    """Each bold sentence of README, "What it guarantees", stands in the docstring of a test."""
    readme_guarantees = [guarantee(item) for item in guarantee_items()]
    files = Path(__file__).parent.glob("test_*.py")
    docstrings = " ".join(quote for path in files for quote in quotes(path))
    assert len(readme_guarantees) == 12
    assert [sentence for sentence in readme_guarantees if sentence not in docstrings] == []


def test_every_test_that_the_readme_links_to_quotes_its_sentence() -> None:
    """Each link of README, "What it guarantees", to a file of tests leads to one that quotes the bold
    sentence, and the sentence before the link.
    """
    linked = []
    missing = []
    for item in guarantee_items():
        bold = guarantee(item)
        for text, path in re.findall(r"(.*?) \(\[test\]\((tests/[^)]+)\)\)", item):
            linked.append(path)
            docstrings = " ".join(quotes(ROOT / path))
            last = without_markup(text).rpartition(". ")[2]
            # Where the bold words begin the sentence before the link, they stand for it.
            sentences = [bold] if last.startswith(bold) else [bold, last]
            missing += [(path, sentence) for sentence in sentences if sentence not in docstrings]
    assert len(linked) == 8
    assert missing == []


def guarantee_items() -> list[str]:
    """The items of README, "What it guarantees", each as one line."""
    readme = (ROOT / "README.md").read_text()
    section = readme.partition("## What it guarantees")[2].partition("\n## ")[0]
    return [" ".join(item.split()) for item in section.split("\n- ")[1:]]


def guarantee(item: str) -> str:
    """The bold sentence of such an item, without its full stop."""
    return item.split("**")[1].rstrip(".")


def without_markup(text: str) -> str:
    """A text without bold marks, and with the words of its links in place of the links."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).replace("**", "")


def quotes(path: Path) -> Iterator[str]:
    """The docstrings of the tests and classes of a file, each as one line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield " ".join((ast.get_docstring(node) or "").split())
