"""Entries that are run by hand only."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Misfire, Scheduler, Schedules, cron, every, manual
from redbeat_lite.interchange.document import read_document
from redbeat_lite.interchange.files import apply_plan, make_plan
from redbeat_lite.operate.doctor import examine
from redbeat_lite.testing import schedule_clock
from tests.support.beats import KEYS
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")

AGES = 100 * 365 * 86_400


def test_it_is_never_due_and_can_be_run(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("hand", "add", manual(), (1,), once=True, expect={"failures": 2})
    clock.forward(AGES)
    inner_beat.run_due()
    assert queued(client) == []
    task_id = schedules.run_now("hand")
    [message] = queued(client)
    assert (message.id, message.entry, message.args, message.headers["expires"]) == (task_id, "hand", [1], None)
    entry = schedules["hand"]
    assert (entry.next_run_at, entry.finished, entry.total_run_count, entry.version) == (None, False, 0, 1)
    assert schedules.upcoming(clock.now + timedelta(days=9)) == []
    assert not [found for found in examine(schedules._app) if "hand" in found.entries]


def test_it_becomes_another_and_another_becomes_it(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("a", "add", every(60))
    schedules.update("a", schedule=manual())
    schedules.pause("a")
    schedules.resume("a", catch_up=True)
    clock.forward(600)
    inner_beat.run_due()
    assert queued(client) == []
    schedules.update("a", schedule=every(60))
    clock.forward(60)
    inner_beat.run_due()
    assert [message.scheduled_at for message in queued(client)] == [NOW + timedelta(seconds=660)]


def test_whatever_its_state_says_it_is_not_sent(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    """As an older release leaves it that mends what a server has lost, and cannot read it."""
    schedules.add("hand", "add", manual())
    state = client.hget(KEYS.state, "hand")
    assert isinstance(state, bytes)
    ms = round(NOW.timestamp() * 1000)
    version, generation, _, rest = state.decode().split("|", 3)
    client.hset(KEYS.state, "hand", f"{version}|{generation}|{ms}|{rest}")
    client.zadd(KEYS.due, {"hand": ms})
    clock.forward(60)
    inner_beat.run_due()
    assert queued(client) == []
    assert client.zscore(KEYS.due, "hand") == float("inf")


def test_it_may_stand_in_the_configuration_and_the_defaults_of_settings_do_not_stand_against_it(
    make_app: MakeApp, make_beat: MakeBeat
) -> None:
    schedule = {"hand": {"task": "add", "schedule": manual()}}
    app = make_app(beat_schedule=schedule, redbeat_lite_misfire="skip", beat_cron_starting_deadline=60)
    entry = one_turn(app, make_beat)["hand"]
    assert (entry.source, entry.misfire, entry.next_run_at) == ("config:proj", Misfire("coalesce"), None)
    assert schedule_clock("2026-03-02", app=app).run(timedelta(days=400)) == []


def test_a_file_may_have_it_and_once_applied_plans_nothing(app: Celery, schedules: Schedules) -> None:
    text = '[entries.hand]\ntask = "add"\nschedule = {manual = true}\n'
    for actions in (["add"], []):
        planned = make_plan(app, read_document("entries.toml", text))
        assert ([change.action for change in planned.changes], planned.notes) == (actions, {})
        apply_plan(app, planned)
    assert schedules["hand"].schedule == manual()


def test_it_is_a_value_and_to_celerys_own_beat_never_due() -> None:
    assert pickle.loads(pickle.dumps(manual())) == manual() != every(60)
    assert Entry("a", "add", manual()) == Entry("a", "add", manual()) != Entry("a", "add", cron("@daily"))
    assert not manual().is_due(datetime(2000, 1, 1, tzinfo=UTC)).is_due
