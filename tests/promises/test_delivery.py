"""README, "What it guarantees" of delivery: lost replies, failing servers, clocks that are set."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from celery import Celery

from redbeat_lite import Entry, Schedules, at, cron, every
from redbeat_lite.testing import schedule_clock
from tests.promises.conftest import GATED, TICK, Clock, Stage, separate_broker
from tests.support.amqp_broker import AmqpBroker
from tests.support.messages import Message, by_entry, of_entry
from tests.support.proxy import Proxy
from tests.support.server import DURABLE, Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


class TestLostReplies:
    def test_a_message_whose_reply_was_lost_keeps_its_once_lock(self, stage: Stage, proxy: Proxy) -> None:
        """No occurrence is lost or doubled on its way into the queue, and one message of a once-entry is
        queued at any moment.
        """
        stage.schedules.add("stream", "proj.add", every(TICK))
        stage.beat(broker_url=proxy.url)
        # The server has loaded the scripts of the beat by then.
        stage.waits_for("stream", 2)
        proxy.lose_reply_to = re.compile(rb'"id": "[-0-9a-f]{36}"')
        stage.schedules.add("single", "proj.add", every(TICK), once=True)
        stage.waits_for("single")
        sent = len(stage.messages("stream"))
        stage.waits_for("stream", sent + 5)
        assert proxy.lost >= 5
        assert len(stage.messages("single")) == 1
        occurrences = stage.occurrences()
        assert len(occurrences) == len(set(occurrences))


class TestBrokers:
    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_what_was_sent_before_the_broker_went_away_is_sent_once(
        self, stage: Stage, own_server: Callable[..., Server], dispatch: str
    ) -> None:
        """A failed publish is not a lost run, and what went out before it is not sent again."""
        broker = own_server(**DURABLE)
        beat = stage.beat(**separate_broker(stage, broker), **GATED, redbeat_lite_dispatch=dispatch)
        stage.add_due("declares the queue")
        eventually(lambda: broker.own_client.llen("celery") == 1)
        stage.gate.close()
        now = datetime.now(UTC)
        # A message for an exchange asks the broker which queues are bound to it.
        exchange = {"exchange": "celery", "routing_key": "celery"}
        stage.schedules.add_many(
            [
                Entry("before", "proj.add", at(now - timedelta(seconds=1))),
                Entry("fails", "proj.gated", at(now), options=exchange),
            ]
        )
        stage.gate.holds()
        broker.stop(kill=True)
        stage.gate.open()
        beat.says("cannot reach the broker")
        broker.start()
        beat.says("working again")
        with broker.client() as queue:
            eventually(lambda: of_entry(queue, "fails"))
            assert {name: len(messages) for name, messages in by_entry(queue).items()} == {
                "declares the queue": 1,
                "before": 1,
                "fails": 1,
            }

    def test_a_beat_that_crashes_after_it_has_sent_sends_again_under_the_same_id(
        self, stage: Stage, own_server: Callable[..., Server]
    ) -> None:
        """At least once everywhere else. A beat that crashes between sending and noting it sends
        again, *under the same task id*.
        """
        broker = own_server()
        settings = {
            **separate_broker(stage, broker),
            "redbeat_lite_dispatch": "plain",
            "redbeat_lite_lease": 1,
        }
        beat = stage.beat(**settings, **GATED)
        stage.gate.close()
        now = datetime.now(UTC)
        sent = Entry("sent", "proj.add", at(now - timedelta(seconds=1)))
        held = Entry("held", "proj.gated", at(now))
        stage.schedules.add_many([sent, held])
        stage.gate.holds()
        assert len(of_entry(broker.own_client, "sent")) == 1
        beat.kill()
        stage.beat(**settings)
        eventually(lambda: len(of_entry(broker.own_client, "sent")) >= 2)
        assert len({message.id for message in of_entry(broker.own_client, "sent")}) == 1

    def test_a_message_that_the_broker_refuses_is_tried_again(
        self, stage: Stage, own_server: Callable[..., Server]
    ) -> None:
        """A failed publish is not a lost run. It stays due and is retried."""
        broker = own_server()
        stage.beat(**separate_broker(stage, broker))
        # The first message declares the queue.
        stage.add_due("taken", options={"queue": "odd"})
        eventually(lambda: of_entry(broker.own_client, "taken", "odd"))
        broker.own_client.delete("odd")
        broker.own_client.set("odd", "not a list")
        stage.add_due("refused", options={"queue": "odd"})
        error = eventually(lambda: stage.schedules["refused"].last_error)
        assert "WRONGTYPE" in error
        broker.own_client.delete("odd")
        eventually(lambda: of_entry(broker.own_client, "refused", "odd"))

    @pytest.mark.parametrize("confirms", [True, False], ids=["confirmed", "not confirmed"])
    def test_rabbitmq_must_confirm_messages(self, stage: Stage, confirms: bool) -> None:
        """At least once everywhere else. RabbitMQ must confirm messages. Without it, a message that is lost
        on its way counts as sent, and the log says so.
        """
        schedules = stage.schedules
        with closing(AmqpBroker()) as broker:
            settings = {"redbeat_lite_url": stage.server.url, "broker_url": broker.url}
            beat = stage.beat(**settings, broker_transport_options={"confirm_publish": confirms})
            stage.add_due("refused", options={"queue": AmqpBroker.FULL})
            stage.add_due("taken")
            eventually(lambda: schedules["taken"].finished)
            if confirms:
                beat.says("messages go out one by one .at least once")
                assert eventually(lambda: schedules["refused"].last_error)
                assert not schedules["refused"].finished
            else:
                beat.says("what the broker does not take is lost, as confirm_publish is not set")
                eventually(lambda: schedules["refused"].finished)
            assert [queue for _, queue, _ in broker.messages] == ["celery"]

    def test_a_publish_is_not_retried_by_celery(self, stage: Stage, own_server: Callable[..., Server]) -> None:
        """A publish that fails leaves its occurrence due. If the broker was gone, it is retried within four
        seconds of its return.
        """
        broker = own_server()
        forever = {"max_retries": 10_000, "interval_start": 1, "interval_step": 0, "interval_max": 1}
        settings = {"redbeat_lite_dispatch": "plain", "task_publish_retry_policy": forever}
        beat = stage.beat(**separate_broker(stage, broker), **settings)
        stage.schedules.add("stream", "proj.add", every(TICK))
        eventually(lambda: broker.own_client.llen("celery"))
        broker.stop(kill=True)
        # If Celery retried the publish by this policy, the beat would not learn that it has failed.
        beat.says("cannot reach the broker")
        # The waits between attempts have grown to their limit by the fourth one.
        eventually(lambda: len(beat.lines("cannot reach the broker")) >= 4)
        broker.start()
        with Stopwatch(beat, broker, stage.server) as watch:
            eventually(lambda: of_entry(broker.own_client, "stream"))
        watch.at_most(4)

    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_a_publish_that_hangs_is_cut(self, stage: Stage, own_server: Callable[..., Server], dispatch: str) -> None:
        """``redbeat_lite_publish_timeout`` ends a publish that hangs."""
        broker = own_server()
        settings = {"redbeat_lite_dispatch": dispatch, "redbeat_lite_publish_timeout": 0.3}
        with Proxy(broker.port) as proxy:
            urls = {"redbeat_lite_url": stage.server.url, "broker_url": proxy.url}
            beat = stage.beat(**urls, **settings)
            stage.schedules.add("stream", "proj.add", every(TICK), expires=600)
            eventually(lambda: of_entry(broker.own_client, "stream"))
            proxy.swallow_requests = True
            with Stopwatch(beat, stage.server) as watch:
                beat.says("cannot reach the broker")
            # The next run is due in 0.2 s. Its publish is cut, and so are two tries to connect again.
            watch.at_most(TICK + 3 * 0.3 + 1)
            sent = len(of_entry(broker.own_client, "stream"))
            proxy.heal()
            beat.says("working again")
            eventually(lambda: len(of_entry(broker.own_client, "stream")) > sent)

    def test_the_last_message_of_an_entry_does_not_expire(self, stage: Stage) -> None:
        """It lives for the gap to the next run, and without end where there is none."""
        stage.schedules.add("few", "proj.plain", every(TICK), max_runs=5)
        stage.beat()
        messages = stage.waits_for("few", 5)
        assert all(message.headers["expires"] for message in messages[:4])
        assert messages[4].headers["expires"] is None
        assert "expiration" not in messages[4].properties

    def test_a_beat_does_not_wait_for_results(self, stage: Stage) -> None:
        """Constant round trips per batch: nothing is asked of the result backend."""

        def subscriptions() -> int:
            commands = stage.client.info("commandstats")
            return int(commands["cmdstat_subscribe"]["calls"])

        stage.beat(redbeat_lite_dispatch="plain", result_backend=stage.server.url)
        before = subscriptions()
        stage.schedules.add("stream", "proj.add", every(TICK))
        stage.waits_for("stream", 5)
        assert subscriptions() == before

    def test_messages_reach_the_broker_when_the_schedule_moves_to_another_server(
        self, stage: Stage, own_server: Callable[..., Server], proxy: Proxy
    ) -> None:
        """Exactly once if the broker is the very database that holds the schedule, else at least once."""
        successor = own_server(**{"repl-diskless-sync-delay": "0"})
        beat = stage.beat(redbeat_lite_url=proxy.url)
        stage.add_due("before")
        stage.waits_for("before")
        beat.says("exactly once")
        replicate(successor, stage.server)
        proxy.refuse()
        beat.says("beat: cannot use")
        successor.own_client.replicaof("NO", "ONE")
        proxy.target = successor.port
        proxy.accept()
        beat.says("working again")
        Schedules(stage.app_of(successor)).add("after", "proj.add", at(datetime.now(UTC)))
        stage.waits_for("after")
        assert not of_entry(successor.own_client, "after")

    def test_a_beat_follows_a_fail_over(self, stage: Stage, own_server: Callable[..., Server]) -> None:
        """Nothing that goes wrong with one connection reaches another."""
        old, new = (own_server(**{"repl-diskless-sync-delay": "0"}) for _ in range(2))
        with Proxy(old.port) as proxy:
            replicate(new, old)
            beat = stage.beat(broker_url=proxy.url, redbeat_lite_lease=1)
            schedules = Schedules(stage.app_of(old))
            schedules.add("stream", "proj.add", every(TICK))
            eventually(lambda: of_entry(new.own_client, "stream"))
            new.own_client.replicaof("NO", "ONE")
            proxy.target = new.port
            # The old server keeps the connections of the beat, and refuses what writes.
            old.own_client.replicaof("127.0.0.1", str(new.port))
            beat.says("read only replica")
            sent = len(of_entry(new.own_client, "stream"))
            eventually(lambda: len(of_entry(new.own_client, "stream")) > sent)


class TestRights:
    def test_a_beat_that_may_not_hear_of_changes_sends_all_the_same(
        self, stage: Stage, own_server: Callable[..., Server]
    ) -> None:
        """A lost message of the wake channel costs time, and no run."""
        server = own_server()
        rights = ("on", ">secret-of-the-beat", "+@all", "~*", "resetchannels")
        server.own_client.execute_command("ACL", "SETUSER", "beat", *rights)
        url = server.url.replace("//", "//beat:secret-of-the-beat@")
        beat = stage.beat(broker_url=url)
        beat.says("may not subscribe")
        Schedules(stage.app_of(server)).add("entry", "proj.add", at(datetime.now(UTC)))
        eventually(lambda: of_entry(server.own_client, "entry"))


def replicate(replica: Server, primary: Server) -> None:
    """Make one server a replica of another."""
    replica.own_client.replicaof("127.0.0.1", str(primary.port))
    eventually(lambda: replica.own_client.info("replication")["master_link_status"] == "up")


class TestClocks:
    @pytest.mark.parametrize(
        ("day", "end", "hours", "instant"),
        [
            ("2026-03-29", "2026-03-30", 23, datetime(2026, 3, 29, 1, tzinfo=UTC)),
            ("2026-10-25", "2026-10-26", 25, datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        ],
    )
    def test_a_daily_job_runs_once_a_day_and_an_hourly_one_every_real_hour(
        self, day: str, end: str, hours: int, instant: datetime
    ) -> None:
        """Clock changes do what you expect. A daily job runs once a day, an hourly one every real
        hour. A time that is skipped runs right after the jump, one that comes twice the first time.
        """
        zone = "Europe/Berlin"
        entries = [
            Entry("daily", "proj.add", cron("30 2 * * *", tz=zone)),
            Entry("hourly", "proj.add", cron("0 * * * *", tz=zone)),
        ]
        clock = schedule_clock(day, tz=zone, app=Celery("proj", set_as_current=False), entries=entries)
        runs = clock.run(end)
        assert [fired.at.astimezone(UTC) for fired in runs if fired.name == "daily"] == [instant]
        times = [fired.at.astimezone(UTC) for fired in runs if fired.name == "hourly"]
        assert len(times) == hours
        assert {after - before for before, after in pairwise(times)} == {timedelta(hours=1)}

    @pytest.mark.parametrize("seconds", [3600, -3600])
    def test_a_beat_whose_clock_is_wrong_sends_in_time(self, stage: Stage, clock: Clock, seconds: float) -> None:
        """The beat goes by the clock of its Redis server."""
        stage.schedules.add("later", "proj.add", every(3600), start_at=datetime.now(UTC) + timedelta(minutes=50))
        stage.schedules.add("stream", "proj.add", every(TICK))
        clock.set(seconds)
        stage.beat(proj_clock=str(clock.path))
        stage.waits_for("stream", 5)
        assert stage.messages("later") == []
        assert all(message.scheduled_at <= datetime.now(UTC) for message in stage.messages("stream"))

    def test_a_clock_that_is_set_leaves_out_and_repeats_no_run(self, stage: Stage, clock: Clock) -> None:
        """The clocks of the beats' machines do not matter."""
        stage.schedules.add("stream", "proj.add", every(TICK), misfire="all", expires=600)
        stage.beat(proj_clock=str(clock.path))
        for seconds in (-3, 7200, 0):
            sent = len(stage.messages("stream"))
            stage.waits_for("stream", sent + 5)
            clock.set(seconds)
        stage.waits_for("stream", sent + 10)
        times = sorted(message.scheduled_at for message in stage.messages("stream"))
        assert {after - before for before, after in pairwise(times)} == {timedelta(seconds=TICK)}

    def test_an_edit_by_a_clock_that_is_behind_repeats_no_run(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An edited entry never fires by its old rule, and nothing is sent for the past."""
        every_second = cron("* * * * * *", tz="UTC")
        stage.schedules.add("stream", "proj.add", every_second, misfire="all", expires=600)
        stage.beat()
        stage.waits_for("stream", 2)
        machine_time = time.time
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: machine_time() - 30)
            stage.schedules.update("stream", schedule=every(1, align=True))
        sent = len(stage.messages("stream"))
        stage.waits_for("stream", sent + 2)
        assert not repeated(stage.messages("stream"))

    def test_an_edit_by_a_clock_that_is_far_behind_repeats_no_id(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An entry passes through the same times again, under other task ids."""
        every_second = cron("* * * * * *", tz="UTC")
        stage.schedules.add("stream", "proj.add", every_second, misfire="all", expires=600)
        stage.beat()
        stage.waits_for("stream", 4)
        machine_time = time.time
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: machine_time() - 90)
            stage.schedules.update("stream", schedule=every(1, align=True))
        eventually(lambda: repeated(stage.messages("stream")) > 2)
        ids = [message.id for message in stage.messages("stream")]
        assert len(ids) == len(set(ids))


def repeated(messages: list[Message]) -> int:
    """How many of these messages have a nominal time that an earlier one has."""
    times = [message.scheduled_at for message in messages]
    return len(times) - len(set(times))


class TestBacklogs:
    def test_a_backlog_does_not_delay_what_has_just_come_due(self, stage: Stage) -> None:
        """Both ends of the queue are sent in turn, so that a backlog delays nobody."""
        begin = datetime.now(UTC) - timedelta(minutes=10)
        backlog = [Entry(f"old{number}", "proj.add", at(begin + timedelta(seconds=number))) for number in range(100)]
        stage.schedules.add_many(backlog)
        stage.add_due("new")
        stage.beat(redbeat_lite_batch_size=10)
        stage.waits_for("new")
        names = [name for name, _ in stage.occurrences()]
        assert names.index("new") < 10

    def test_entries_that_make_up_for_much_take_turns(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """A backlog delays nobody."""
        machine_time = time.time
        with monkeypatch.context() as patch:
            # These have been due for a day.
            patch.setattr(time, "time", lambda: machine_time() - 86_400)
            for number in range(2):
                stage.schedules.add(f"much{number}", "proj.add", every(1), misfire="all", expires=None)
            stage.schedules.add("little", "proj.add", every(28_800))
        # There is always an entry that has just come due.
        stage.schedules.add_many(Entry(f"stream{number}", "proj.add", every(0.05)) for number in range(10))
        beat = stage.beat(redbeat_lite_batch_size=2)
        stage.waits_for("little")
        beat.kill()
        names = [name for name, _ in stage.occurrences()]
        assert names.index("little") < 5000
