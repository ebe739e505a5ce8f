"""Faults of the lease, of waiting, stopping and outages."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LEADS = ("tests/acceptance/test_leadership.py",)
_TERMS = ("tests/beat/test_terms.py", "tests/beat/test_standby.py")
_STOPS = ("tests/acceptance/test_shutdown.py",)
_OUTAGES = ("tests/acceptance/test_outage.py", "tests/faults/test_refusals.py")
_WAKES = ("tests/acceptance/test_wakeup.py",)

_LEADER = "beat/leader.py"
_BEGINS = "beat/leadership.py"
_OUTAGE = "beat/outage.py"
_WAKEUP = "beat/wakeup.py"
_CALLS = "return self.leader.needs_repair or was_set_back or has_changes or self._is_check_due"

LEADERSHIP = (
    Mutation(
        name="the trust window opens when the reply comes",
        file=_LEADER,
        old="        self._sent = sent\n        return True",
        new="        self._sent = elapsed()\n        return True",
        promise="test_lead.py::TestALostLease::test_a_leader_that_cannot_renew_stops_before_its_lease_ends",
        acceptance=("tests/faults/test_network.py",),
        room=_TERMS,
    ),
    Mutation(
        name="the trust window is as long as the lease",
        file=_LEADER,
        old="_MARGIN = 1 / 8",
        new="_MARGIN = 0",
        promise="test_lead.py::TestALostLease::test_a_leader_that_cannot_renew_stops_before_its_lease_ends",
        acceptance=_LEADS,
        room=_TERMS,
    ),
    Mutation(
        name="a beat that steps down goes on renewing",
        file=_LEADER,
        old="        renewal.stop()\n        return reason\n",
        new="        return reason\n",
        promise="test_lead.py::TestALostLease::test_no_alarm_is_given",
        acceptance=_LEADS,
        room=_TERMS,
    ),
    Mutation(
        name="a beat that hangs goes on renewing",
        file=_LEADER,
        old="                if late >= 0:",
        new="                if False:",
        promise="test_guarantees.py::TestOneStream::test_a_leader_whose_loop_hangs_is_replaced",
        acceptance=("tests/faults/test_leaders.py",),
        room=_TERMS,
    ),
    Mutation(
        name="a beat that stops keeps the lease",
        file="scheduler.py",
        old="        self.leader.resign()\n",
        new="",
        promise="test_guarantees.py::TestOneStream::test_a_leader_that_is_stopped_hands_over",
        acceptance=_STOPS,
        room=("tests/beat/test_shutdown.py",),
    ),
    Mutation(
        name="a beat that stops gives back the lease of another",
        file="store/scripts/lua/leader/resign.lua",
        old="if redis.call('HGET', leader, 'token') ~= token then",
        new="if false then",
        promise="test_lead.py::TestALostLease::test_a_beat_that_stops_leaves_the_lease_to_the_one_that_has_it",
        acceptance=_STOPS,
        room=("tests/store/test_scripts.py",),
    ),
    Mutation(
        name="a signal does not set the stop flag",
        file="beat/stop.py",
        old="        self.requested = True\n        if self._signalled_at",
        new="        if self._signalled_at",
        promise="test_lead.py::TestHandingOver::test_a_leader_with_a_backlog_stops_after_the_batch_under_way",
        acceptance=_STOPS,
        room=("tests/beat/test_shutdown.py",),
    ),
    Mutation(
        name="a beat with a backlog does not look at the stop flag",
        file="beat/dispatch/dispatcher.py",
        old='self.leader.checkpoint("looking for due entries")',
        new='self.leader.progress("looking for due entries")',
        promise="test_lead.py::TestHandingOver::test_a_leader_with_a_backlog_stops_after_the_batch_under_way",
        acceptance=_STOPS,
        room=("tests/beat/test_shutdown.py",),
    ),
    Mutation(
        name="a leader that lost its term does not begin the next one",
        file=_BEGINS,
        old="                return waiting\n            self.must_begin = True\n",
        new="                return waiting\n",
        promise="test_guarantees.py::TestIsolation::test_config_entries_are_back_after_a_flush",
        acceptance=("tests/acceptance/test_flush.py",),
        room=_TERMS,
    ),
    Mutation(
        name="a damaged schedule does not end a wait",
        file=_BEGINS,
        old=_CALLS,
        new="return was_set_back or has_changes or self._is_check_due",
        promise="test_guarantees.py::TestIsolation::test_lost_parts_of_the_schedule_are_mended",
        acceptance=("tests/acceptance/test_flush.py",),
        room=_TERMS,
    ),
    Mutation(
        name="the leader goes by the clock of its machine",
        file="beat/server_clock.py",
        old="        return int(self._ahead + 1000 * elapsed())\n",
        new="        return wall_ms()\n",
        promise="test_delivery.py::TestClocks::test_a_beat_whose_clock_is_wrong_sends_in_time",
        acceptance=("tests/faults/test_companions.py",),
        room=("tests/simulation/test_seeds.py",),
    ),
    Mutation(
        name="the subscription to the wake channel is not awaited",
        file=_WAKEUP,
        old="confirmation = pubsub.get_message(timeout=_CONFIRM)",
        new="confirmation = True",
        promise="test_delivery.py::TestRights::test_a_beat_that_may_not_hear_of_changes_sends_all_the_same",
        acceptance=_WAKES,
        room=("tests/beat/test_polling.py", "tests/beat/test_added_entries.py"),
    ),
    Mutation(
        name="a subscription that was made again does not wake a stand-by",
        file=_WAKEUP,
        old='if leads or message["type"] != "message" or message["data"] in _FOR_STANDBYS:',
        new='if leads or message["data"] in _FOR_STANDBYS:',
        promise="test_lead.py::TestHandingOver::test_a_stand_by_whose_connection_was_cut_takes_over",
        acceptance=_WAKES,
        room=("tests/beat/test_standby.py", "tests/beat/test_cut_off.py"),
    ),
    Mutation(
        name="the connection to the broker is kept after a failed turn",
        file=_OUTAGE,
        old="declares the queues again.\n        self.publisher.close()\n",
        new="declares the queues again.\n",
        promise="test_delivery.py::TestBrokers::test_messages_reach_the_broker_when_the_schedule_moves_to_another_server",
        acceptance=_OUTAGES,
        room=("tests/beat/test_cut_off.py",),
    ),
    Mutation(
        name="a broker that is down counts as a failure that nobody foresaw",
        file=_OUTAGE,
        old="        if isinstance(exc, BrokerDown):\n            return self._handle_broker(exc)\n",
        new="",
        promise="test_guarantees.py::TestDelivery::test_a_failed_publish_stays_due_under_its_id",
        acceptance=_OUTAGES,
        room=("tests/beat/test_dispatch_broker_down.py",),
    ),
    Mutation(
        name="nothing starts over when the server answers with an error",
        file=_OUTAGE,
        old="        if isinstance(exc, ResponseError):\n            self._start_over()\n",
        new="",
        promise="test_delivery.py::TestBrokers::test_a_beat_follows_a_fail_over",
        acceptance=_OUTAGES,
        room=("tests/beat/test_refused.py", "tests/beat/test_cut_off.py"),
    ),
    Mutation(
        name="a beat that fails again and again keeps the lead",
        file=_OUTAGE,
        old="_YIELD_AFTER = 3\n",
        new="_YIELD_AFTER = 10**9\n",
        promise="test_lead.py::TestHandingOver::test_a_beat_whose_turns_fail_leaves_the_lead_to_another",
        acceptance=_OUTAGES,
        room=("tests/beat/test_tick_poison.py", "tests/beat/test_refused.py"),
    ),
    Mutation(
        name="a waiting beat looks for a stop every two seconds",
        file=_WAKEUP,
        old="_SLICE = 0.1",
        new="_SLICE = 2.0",
        promise="test_guarantees.py::TestOneStream::test_a_leader_that_is_stopped_hands_over",
        acceptance=_STOPS,
        room=("tests/beat/test_shutdown.py",),
    ),
    Mutation(
        name="no service is told of an incident",
        file="beat/parts.py",
        old=", *notices_by(settings.notify)]",
        new="]",
        promise="test_work.py::TestPeople::test_an_incident_alerts_you",
        room=("tests/beat/test_notices.py",),
    ),
)
