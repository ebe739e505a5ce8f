"""Faults of peek, plan, publish and commit."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_WAYS = ("tests/beat/test_dispatch_ways.py", "tests/beat/test_dispatch_transports.py")
_TICKS = ("tests/beat/test_tick_failed_publish.py", "tests/beat/test_tick_clock.py")
_SCRIPTS = ("tests/store/test_scripts.py",)
_KILLS = ("tests/faults/test_kill.py",)
_FREEZES = ("tests/beat/test_freezes.py",)
_PREPARED = ("tests/beat/test_prepared.py", "tests/beat/test_dispatch_queues.py")
_BROKERS = ("tests/faults/test_brokers.py", "tests/acceptance/test_outage.py")
_LOCKS = ("tests/beat/test_dispatch_ways.py", "tests/beat/test_terms.py")

_COMMIT = "store/scripts/lua/schedule/commit.lua"
_PEEK = "store/scripts/lua/schedule/peek.lua"
_LEADS = "if not leads(leader, token, term) then"
_SENDER = "beat/dispatch/batch_sender.py"
_STEPS = "beat/dispatch/entry_steps.py"
_PUBLISHER = "beat/dispatch/publisher.py"
_PLANNER = "beat/dispatch/planner.py"

DISPATCH = (
    Mutation(
        name="commit advances entries that were edited since they were planned",
        file=_COMMIT,
        old="if string.find(redis.call('HGET', state, name) or '', guard, 1, true) == 1 then",
        new="if redis.call('HEXISTS', state, name) == 1 then",
        promise="test_guarantees.py::TestEdits::test_an_edited_entry_never_fires_by_its_old_rule",
        acceptance=_KILLS,
        room=(*_WAYS, *_SCRIPTS),
    ),
    Mutation(
        name="commit asks for no term",
        file=_COMMIT,
        old=_LEADS,
        new="if false then",
        promise="test_lead.py::TestALostLease::test_nothing_is_sent_that_was_planned_before",
        acceptance=("tests/acceptance/test_leadership.py",),
        room=_SCRIPTS,
    ),
    Mutation(
        name="commit sends although a freeze has begun",
        file=_COMMIT,
        old="if tonumber(string.match(freeze, '^(%d+)|') or 0) > tonumber(planned_at) then",
        new="if false then",
        promise="test_guarantees.py::TestIsolation::test_a_frozen_schedule_sends_nothing",
        room=_FREEZES,
    ),
    Mutation(
        name="commit that is sent twice is done twice",
        file=_COMMIT,
        old="if string.find(last_call, call, 1, true) == 1 then",
        new="if false then",
        promise="test_delivery.py::TestLostReplies::test_a_message_whose_reply_was_lost_keeps_its_once_lock",
        acceptance=("tests/faults/test_proxied.py",),
        room=_SCRIPTS,
    ),
    Mutation(
        name="commit keeps the definition of an entry that is done",
        file=_COMMIT,
        old="write('HDEL', entries, removed)\n",
        new="",
        promise="test_guarantees.py::TestEdits::test_a_one_off_is_removed_when_it_is_done",
        room=("tests/beat/test_tick_ends.py", *_SCRIPTS),
    ),
    # No mutation leaves out entries that are due exactly now: peek finds them a millisecond later.
    Mutation(
        name="peek takes only what has waited longest",
        file=_PEEK,
        old="local half = math.floor(number / 2)",
        new="local half = 0",
        promise="test_delivery.py::TestBacklogs::test_a_backlog_does_not_delay_what_has_just_come_due",
        room=(*_SCRIPTS, "tests/beat/test_backlogs.py"),
    ),
    Mutation(
        name="peek asks for no term",
        file=_PEEK,
        old=_LEADS,
        new="if false then",
        promise="test_lead.py::TestALostLease::test_nothing_more_is_sent",
        acceptance=("tests/acceptance/test_leadership.py",),
        room=_SCRIPTS,
    ),
    Mutation(
        name="planner lets entries that are not through keep their place",
        file=_PLANNER,
        old="    return None if due is None else max(due, now)\n",
        new="    return due\n",
        promise="test_delivery.py::TestBacklogs::test_entries_that_make_up_for_much_take_turns",
        room=("tests/beat/test_backlogs.py", "tests/beat/test_planner.py"),
    ),
    Mutation(
        name="planner keeps a decoded entry by its name alone",
        file=_PLANNER,
        old="if cached is not None and cached[0] == stored.definition:",
        new="if cached is not None:",
        promise="test_edits.py::TestEdits::test_every_message_after_an_edit_is_made_by_it",
        room=_WAYS,
    ),
    Mutation(
        name="a message for another broker is sent after the lead was lost",
        file=_PUBLISHER,
        old='        self.check_lead(f"sending {occurrence.entry.name!r}")\n',
        new="",
        promise="test_lead.py::TestALostLease::test_a_leader_that_was_frozen_sends_no_batch_to_another_broker",
        acceptance=("tests/acceptance/test_leadership.py",),
        room=_WAYS,
    ),
    Mutation(
        name="what was sent before the broker went down is not committed",
        file=_SENDER,
        old="                self.commit(term, batch.now, handled)\n",
        new="                pass\n",
        promise="test_delivery.py::TestBrokers::test_what_was_sent_before_the_broker_went_away_is_sent_once",
        acceptance=_BROKERS,
        room=("tests/beat/test_tick_failed_publish.py", "tests/beat/test_dispatch_broker_down.py"),
    ),
    Mutation(
        name="what was not sent before the broker went down is committed",
        file=_SENDER,
        old="                self.commit(term, batch.now, handled)\n",
        new="                self.commit(term, batch.now, batch.jobs)\n",
        promise="test_delivery.py::TestBrokers::test_what_was_sent_before_the_broker_went_away_is_sent_once",
        acceptance=_BROKERS,
        room=("tests/beat/test_tick_failed_publish.py", "tests/beat/test_dispatch_broker_down.py"),
    ),
    Mutation(
        name="a message that the broker refuses counts as sent",
        file=_PUBLISHER,
        old='if command is commands[0] or command[0] == "lpush":',
        new="if False:",
        promise="test_delivery.py::TestBrokers::test_a_message_that_the_broker_refuses_is_tried_again",
        acceptance=("tests/faults/test_refusals.py",),
        room=("tests/beat/test_dispatch_permissions.py", "tests/beat/test_refused.py"),
    ),
    Mutation(
        name="every broker in Redis passes for the schedule's database",
        file=_PUBLISHER,
        old='return "" if is_same else "the broker is another server or database"',
        new='return ""',
        promise="test_guarantees.py::TestDelivery::test_a_failed_publish_stays_due_under_its_id",
        acceptance=_BROKERS,
        room=_WAYS,
    ),
    Mutation(
        name="a kept message is used although its expiry differs",
        file="beat/dispatch/message_templates.py",
        old="        occurrence.life is None,\n",
        new="",
        promise="test_delivery.py::TestBrokers::test_the_last_message_of_an_entry_does_not_expire",
        room=("tests/beat/test_tick_ends.py", *_PREPARED),
    ),
    Mutation(
        name="a kept message is used although a signal handler listens",
        file=_PUBLISHER,
        old="self._why_in_full = obstacle(self.scheduler, self.app, type(self._producer.channel))",
        new="self._why_in_full = None",
        promise="test_guarantees.py::TestDelivery::test_a_signal_handler_sees_every_message",
        room=_PREPARED,
    ),
    Mutation(
        name="the beat subscribes to the channels of results",
        file=_PUBLISHER,
        old="        with denied_join_result():",
        new="        with suppress():",
        promise="test_delivery.py::TestBrokers::test_a_beat_does_not_wait_for_results",
        room=("tests/beat/test_tick_cost.py",),
    ),
    Mutation(
        name="Celery retries inside a publish",
        file="entries/message.py",
        old='    options["retry"] = False\n',
        new="",
        promise="test_delivery.py::TestBrokers::test_a_publish_is_not_retried_by_celery",
        room=("tests/beat/test_tick_failed_publish.py", "tests/beat/test_dispatch_failing_entries.py"),
    ),
    Mutation(
        name="messages are sent without their once-locks",
        file=_COMMIT,
        old="      table.insert(claims, {keys, value})\n",
        new="",
        promise="test_guarantees.py::TestWork::test_one_message_of_a_once_entry_is_queued",
        acceptance=("tests/acceptance/test_overlap.py",),
        room=_LOCKS,
    ),
    Mutation(
        name="runs that were decided against are not recorded",
        file=_STEPS,
        old="if history and (plan.ranges or job.left_out):",
        new="if False:",
        promise="test_guarantees.py::TestMissedRuns::test_you_decide_about_missed_runs",
        acceptance=("tests/acceptance/test_runs.py",),
        room=("tests/beat/test_history.py", "tests/beat/test_tick_misfires.py"),
    ),
    Mutation(
        name="the log does not say that RabbitMQ confirms no messages",
        file="beat/dispatch/publisher.py",
        old="if unconfirmed(self._connection):",
        new="if False:",
        promise="test_delivery.py::TestBrokers::test_rabbitmq_must_confirm_messages",
        room=("tests/beat/test_dispatch_transports.py",),
    ),
)
