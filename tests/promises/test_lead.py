"""README, "One stream": a beat that loses its lease, and a leader that hands over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from redbeat_lite import Entry, at
from tests.promises.conftest import (
    BEAT,
    GATED,
    LEADER,
    Stage,
    origins,
    plan_a_bad_entry,
    separate_broker,
)
from tests.support.messages import of_entry, queued
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually, never

LOST = "beat: no longer leading"


@pytest.fixture
def broker(own_server: Callable[..., Server]) -> Server:
    """A broker that is not the schedule's server."""
    return own_server()


class TestALostLease:
    def test_nothing_is_sent_that_was_planned_before(self, stage: Stage) -> None:
        """A beat that loses its lease stands by."""
        beat = stage.beat(**GATED)
        stage.gate.close()
        stage.add_due("gated", "proj.gated")
        stage.gate.holds()
        stage.usurp()
        stage.gate.open()
        beat.says(LOST)
        assert not stage.messages("gated")

    def test_nothing_more_is_sent(self, stage: Stage, broker: Server) -> None:
        """A beat that loses its lease stands by, also where the broker is another server."""
        beat = stage.beat(**separate_broker(stage, broker))
        stage.add_due("first")
        eventually(lambda: stage.schedules["first"].finished)
        # The next renewal, a second later, would show the loss. The beat has to notice it when it reads what is due.
        stage.waits_for_renewals(1)
        stage.usurp()
        stage.add_due("second")
        beat.says(LOST)
        assert not of_entry(broker.own_client, "second")

    def test_a_leader_that_was_frozen_sends_no_batch_to_another_broker(self, stage: Stage, broker: Server) -> None:
        """However many beats run, one sends."""
        settings = {**separate_broker(stage, broker), **GATED, "redbeat_lite_lease": 1}
        first = stage.beat(**settings)
        stage.gate.close()
        stage.add_due("gated", "proj.gated")
        stage.gate.holds()
        other = stage.beat(**settings)
        with first.frozen():
            eventually(lambda: stage.leader() is other)
            eventually(lambda: of_entry(broker.own_client, "gated"))
            stage.gate.open()
        first.says(LOST)
        assert origins(of_entry(broker.own_client, "gated")) == {other.pid}

    def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(
        self, stage: Stage, broker: Server, proxy: Proxy
    ) -> None:
        """A leader trusts its lease from the start of the last good renewal, less a margin."""
        settings = {**separate_broker(stage, broker), **GATED, "redbeat_lite_url": proxy.url}
        beat = stage.beat(**settings)
        stage.waits_for_renewals(1)
        stage.gate.close()
        stage.add_due("gated", "proj.gated")
        stage.gate.holds()
        # The beat learns late that this renewal was good, and no other one reaches the server.
        proxy.delay_replies = 0.6
        stage.waits_for_renewals(1)
        proxy.swallow_requests = True
        eventually(lambda: stage.client.pttl(LEADER) < 300)
        stage.gate.open()
        beat.says(LOST)
        assert not broker.own_client.llen("celery")

    def test_a_leader_that_was_frozen_writes_no_configuration(self, stage: Stage) -> None:
        """A removed entry never comes back."""
        old = {"old": {"task": "proj.add", "schedule": 3600.0}}
        settings = {"redbeat_lite_lease": 1}
        stage.gate.close()
        first = stage.start(*BEAT, beat_schedule=old, proj_gated_entry=True, **settings)
        stage.gate.holds()
        assert stage.leader() is first
        other = stage.beat(**settings)
        with first.frozen():
            eventually(lambda: stage.leader() is other)
            other.says("beat: leading")
            stage.gate.open()
        first.says(LOST)
        assert "old" not in stage.schedules

    def test_nothing_is_set_aside(self, stage: Stage) -> None:
        """A beat that loses its lease stands by."""
        beat = plan_a_bad_entry(stage)
        stage.usurp()
        stage.gate.open()
        beat.says(LOST)
        assert not stage.schedules.quarantined()

    def test_a_beat_that_stops_leaves_the_lease_to_the_one_that_has_it(self, stage: Stage) -> None:
        """However many beats run, one sends."""
        first = stage.beat(redbeat_lite_lease=2)
        other = stage.beat(redbeat_lite_lease=2)
        with first.frozen():
            eventually(lambda: stage.leader() is other)
            lease = stage.client.hmget(LEADER, "token", "term")
            first.terminate()
        assert first.wait() == 0
        assert stage.client.hmget(LEADER, "token", "term") == lease

    def test_no_alarm_is_given(self, stage: Stage) -> None:
        """A lost lease is not an error: one warning, stand by, acquire again."""
        settings = {
            "redbeat_lite_lease": 8,
            "redbeat_lite_publish_timeout": 1,
            "redbeat_lite_stall_timeout": 1.5,
        }
        beat = stage.beat(**settings)
        stage.waits_for_renewals(1)
        stage.usurp()
        stage.add_due("entry")
        beat.says(LOST)
        # The lease would have been renewed twice by then.
        never(lambda: beat.lines("no progress"), during=2.5)


class TestHandingOver:
    def test_a_leader_with_a_backlog_stops_after_the_batch_under_way(self, stage: Stage) -> None:
        """A leader that stops hands over within 0.2 s."""
        settings = {"redbeat_lite_batch_size": 10, "redbeat_lite_lease": 600}
        leader = stage.beat(**settings)
        other = stage.beat(**settings)
        past = at(datetime.now(UTC) - timedelta(hours=1))
        stage.schedules.add_many([Entry(f"e{number}", "proj.add", past) for number in range(3000)])
        eventually(lambda: stage.client.llen("celery"))
        with Stopwatch(leader, other, stage.server) as watch:
            leader.terminate()
            sent = stage.client.llen("celery")
            eventually(lambda: stage.leader() is other)
        watch.at_most(0.2)
        assert leader.wait() == 0
        messages = queued(stage.client)
        assert len([message for message in messages if message.sender == leader.pid]) - sent <= 50

    def test_a_stand_by_whose_connection_was_cut_takes_over(self, stage: Stage) -> None:
        """A leader that stops hands over within 0.2 s."""
        # A stand-by that learns of nothing would wait until the lease expires.
        leader, other = (stage.beat(redbeat_lite_lease=600) for _ in range(2))
        with other.frozen():
            stage.client.client_kill_filter(_type="pubsub")
            leader.stop()
        with Stopwatch(other, stage.server) as watch:
            eventually(lambda: stage.leader() is other)
        watch.at_most(0.2)

    def test_a_beat_whose_turns_fail_leaves_the_lead_to_another(self, stage: Stage) -> None:
        """Nothing that goes wrong with one process reaches another."""
        failing = stage.start("beat", "-S", "tests.promises.proj:FailingScheduler", "-l", "INFO")
        failing.says("beat: leading")
        other = stage.beat()
        eventually(lambda: stage.leader() is other)
        stage.add_due("entry")
        stage.waits_for("entry")
