"""A beat stays alive whatever its turns raise, and whatever what follows a failed turn raises."""

from __future__ import annotations

import errno
from typing import Any
from unittest import mock

import pytest
import redis
from redis.credentials import CredentialProvider
from redis.exceptions import NoPermissionError

from redbeat_lite import Scheduler, Schedules, every
from redbeat_lite._base.clock import elapsed
from redbeat_lite.beat import leader, outage
from redbeat_lite.beat.dispatch.publisher import BrokerDown
from redbeat_lite.store.keys import ForeignKey
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

LEADER = "{redbeat-lite}:leader"


class Provider(CredentialProvider):
    """As those of cloud services: it fails in errors of its own while the service is away."""

    is_away = False
    refusals = 0

    def get_credentials(self) -> tuple[str, str]:
        if self.is_away:
            self.refusals += 1
            raise LookupError("the service is away")
        return "default", "any"


class WithOwnEntries(Scheduler):
    """Its entries come from somewhere else."""

    is_away = False

    def get_schedule(self) -> Any:
        if self.is_away:
            raise LookupError("that is away")
        return super().get_schedule()


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "_LAST_RETRY", 0.01)


def test_a_leader_lives_on_that_cannot_even_give_its_lease_back(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider()
    beat = Scheduler(make_app(redbeat_lite_redis_options={"credential_provider": provider}))
    try:
        beat.run_due()
        assert beat.leader.holds_lease
        beat.store.backend.close()
        provider.is_away = True
        for _ in range(4):
            assert beat.tick() == 0
        assert "giving up the lead" in caplog.text
        assert beat._parts.leadership.enter() <= 60, "however long its lease is"
        assert not beat.leader.holds_lease
    finally:
        beat.close()


def test_a_lease_is_renewed_again_after_its_passwords_were_away(make_app: MakeApp, client: redis.Redis) -> None:
    provider = Provider()
    options = {"credential_provider": provider}
    beat = Scheduler(make_app(redbeat_lite_redis_options=options, redbeat_lite_lease=6.0))
    try:
        beat.run_due()
        provider.is_away = True
        client.client_kill_filter(_type="normal", skipme=True)
        eventually(lambda: provider.refusals, what="a renewal without a password")
        provider.is_away = False
        left = client.pttl(LEADER)
        eventually(lambda: client.pttl(LEADER) > left, what="a renewal")
    finally:
        beat.close()


def test_a_leader_with_a_long_lease_lets_others_try_for_no_longer_than_a_stall_may_last(make_app: MakeApp) -> None:
    """Else all beats of an outage of the broker would wait for each other long after it is over."""
    beat = Scheduler(make_app(redbeat_lite_lease=30, redbeat_lite_stall_timeout=10))
    try:
        beat.run_due()
        beat._parts.leadership.yield_lease("a test")
        assert 30 < beat._parts.leadership.enter() <= 40
    finally:
        beat.close()


def test_a_wait_after_a_failure_asks_nothing_that_may_fail_again(make_app: MakeApp) -> None:
    beat = WithOwnEntries(make_app())
    try:
        beat.run_due()
        beat.is_away = True
        assert beat.tick() == 0
        assert beat.leader.holds_lease
        beat.is_away = False
        beat.run_due()
    finally:
        beat.close()


#: Settings by which a beat whose turns fail soon leaves the lease to others.
HASTY: dict[str, Any] = {
    "redbeat_lite_lease": 2,
    "redbeat_lite_stall_timeout": 1,
    "redbeat_lite_publish_timeout": 0.5,
}

#: Errors of a process that has no room for another connection, and of a user of the server with too few rights.
ERRORS = {
    "a connection": OSError(errno.EMFILE, "Too many open files"),
    "a permission": NoPermissionError("this user has no permissions to run the 'zrange' command"),
}


def fail_turns(beat: Scheduler, patch: pytest.MonkeyPatch, lacks: str) -> None:
    """Let each turn of this beat fail, while the thread that renews its lease goes on."""
    parts = beat._parts
    failing = mock.Mock(side_effect=ERRORS[lacks])
    if lacks == "a connection":
        patch.setattr(parts.wakeup, "listen", failing)
    else:
        patch.setattr(parts.dispatcher, "run", failing)


@pytest.mark.parametrize("lacks", ERRORS)
def test_a_leader_that_only_renews_its_lease_leaves_it_to_another_beat(
    make_app: MakeApp,
    make_beat: MakeBeat,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lacks: str,
) -> None:
    monkeypatch.setattr(leader, "_LONGEST_PAUSE", 0.2)
    app = make_app(**HASTY)
    failing, other = make_beat(app), make_beat(app)
    failing.max_interval = 0.01
    failing.tick()
    other.run_due()
    assert other._parts.leadership.standing_by
    Schedules(app).add("e", "t", every(1))

    def turn() -> None:
        failing.tick()
        other.run_due()

    with monkeypatch.context() as patch:
        fail_turns(failing, patch, lacks)
        eventually(lambda: turn() or client.llen("celery"), what="a message", within=20)
    assert other.leader.holds_lease
    assert not failing.leader.has_term
    [warning] = [message for message in caplog.messages if "giving up the lead" in message]
    assert "no message could be sent for 2 s" in warning
    eventually(lambda: turn() or failing._parts.leadership.standing_by, what="a stand-by", within=20)
    assert not failing._parts.outage._failures


@pytest.mark.parametrize("lacks", ERRORS)
def test_a_leader_that_fails_again_in_its_next_term_keeps_the_lease_as_long_as_before(
    make_app: MakeApp,
    make_beat: MakeBeat,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lacks: str,
) -> None:
    """Otherwise two beats that both fail would pass the lease to and fro in each turn."""
    monkeypatch.setattr(leader, "_LONGEST_PAUSE", 0.2)
    beat = make_beat(make_app(**HASTY))
    beat.max_interval = 0.01
    beat.tick()
    with monkeypatch.context() as patch:
        fail_turns(beat, patch, lacks)
        eventually(lambda: beat.tick() or not beat.leader.has_term, what="the end of its term", within=20)
        beat.leader.acquire()
        for _ in range(5):
            beat.tick()
    assert beat.leader.holds_lease
    assert caplog.text.count("giving up the lead") == 1


def test_a_leader_whose_lease_outlives_an_outage_of_redis_sends_at_once_when_it_is_over(
    make_app: MakeApp, make_beat: MakeBeat, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """No other beat can lead meanwhile. If this one dropped the lease, nobody could before it expires."""
    beat = make_beat(make_app(**{**HASTY, "redbeat_lite_lease": 60}, redbeat_lite_url=proxy.url))
    beat.max_interval = 0.01
    beat.tick()
    proxy.refuse()
    eventually(lambda: beat.tick() or (beat._parts.state.failing_for or 0) > 2, what="an outage", within=20)
    proxy.heal()
    beat.tick()
    assert "working again after" in caplog.text
    assert "giving up the lead" not in caplog.text
    assert beat.leader.term.number == 1


def test_the_time_without_redis_does_not_count_when_the_broker_fails_after_it(
    make_app: MakeApp,
    make_beat: MakeBeat,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    beat = make_beat(make_app(**HASTY, redbeat_lite_url=proxy.url))
    beat.max_interval = 0.01
    beat.tick()
    proxy.refuse()
    eventually(lambda: beat.tick() or not beat.leader.has_term, what="the end of its term", within=20)
    eventually(lambda: beat.tick() or (beat._parts.state.failing_for or 0) > 2, what="an outage", within=20)
    proxy.heal()
    monkeypatch.setattr(beat._parts.dispatcher, "run", mock.Mock(side_effect=BrokerDown("gone")))
    eventually(lambda: beat.tick() or beat.leader.has_term, what="another term", within=20)
    beat.tick()
    assert "cannot reach the broker: gone" in caplog.text
    assert "giving up the lead" not in caplog.text


def test_the_time_with_a_key_of_another_program_does_not_count_when_the_broker_fails_after_it(
    make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beat = make_beat(make_app(**HASTY))
    beat.max_interval = 0.01
    beat.tick()
    errors = [redis.ConnectionError("gone"), ForeignKey("key", "list", "zset"), BrokerDown("gone")]
    monkeypatch.setattr(beat._parts.dispatcher, "run", mock.Mock(side_effect=errors))
    beat.tick()
    beat.tick()
    failed_at = elapsed()
    eventually(lambda: elapsed() > failed_at + HASTY["redbeat_lite_lease"], within=5)
    eventually(lambda: beat.tick() or beat.leader.has_term, what="another term", within=20)
    eventually(lambda: beat.tick() or "cannot reach the broker: gone" in caplog.text, within=20)
    assert "giving up the lead" not in caplog.text
