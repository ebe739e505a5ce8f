"""A beat stays alive whatever its turns raise, and whatever what follows a failed turn raises."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.credentials import CredentialProvider

from redbeat_lite import Scheduler
from redbeat_lite.beat import outage
from tests.support.in_process import MakeApp
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
