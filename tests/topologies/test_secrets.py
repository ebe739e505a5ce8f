"""No password leaves us with an error, and none is sent to a server that is not the one it is for."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

import redbeat_lite
from redbeat_lite import Scheduler, Schedules
from redbeat_lite.cli import redbeat
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import FAULTS, Backend
from tests.support.cases import together
from tests.support.server import Server, free_port
from tests.support.tls import Authority

#: Nothing of it is found by its form: it has all that ends a value where an option is shown.
SECRET = "of-the-sentinels,db=1)>)> x"


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients show all of their options, as those of redis-py 6.4 to 7 do, whichever is installed."""

    def shown(client: redis.Redis) -> str:
        options = client.connection_pool.connection_kwargs
        return f"<redis.client.Redis(<Connection({','.join(f'{name}={value}' for name, value in options.items())})>)>"

    monkeypatch.setattr(redis.Redis, "__repr__", shown)


@pytest.fixture
def lost(make_app: Callable[..., Celery], tmp_path: Path, talkative: None) -> Celery:
    """An app none of whose sentinels answers."""
    return make_app(
        broker_url="memory://",
        redbeat_lite_url=f"sentinel://:of-the-master@127.0.0.1:{free_port()}/0",
        redbeat_lite_redis_options={"master_name": "main", "sentinel_kwargs": {"username": "me", "password": SECRET}},
        redbeat_lite_heartbeat_file=str(tmp_path / "heartbeat"),
    )


def is_clean(text: str) -> bool:
    return "No master found for 'main' : 127.0.0.1:" in text and "of-the" not in text


def test_the_sentinels_password_is_neither_logged_nor_written_down(
    lost: Celery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "celery")
    scheduler = Scheduler(lost)
    scheduler._parts.wakeup.wait = lambda *args, **kwargs: None  # type: ignore[method-assign]
    scheduler.tick()
    scheduler._parts.state.give_sign_of_life()
    written = (tmp_path / "heartbeat").read_text()
    scheduler.close()
    assert is_clean(caplog.text)
    assert is_clean(written)


def test_the_sentinels_password_is_in_no_error(lost: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redbeat_lite.once.lock_client.PATIENCE", 0)
    with pytest.raises(redbeat_lite.LockUnavailable) as raised, redbeat_lite.lock(lost, "key"):
        pass
    assert is_clean("".join(traceback.format_exception(raised.value))), "what a result or a log keeps of it"
    said = CliRunner().invoke(redbeat, ["status"], obj=CLIContext(app=lost, no_color=True, workdir=None))
    assert said.exit_code == 2
    assert is_clean(said.output)


@pytest.mark.parametrize("scheme", ["rediss", "rediss-cluster", "sentinel"])
def test_a_certificate_for_another_host_is_refused(
    server: Server, make_app: Callable[..., Celery], tmp_path: Path, scheme: str
) -> None:
    authority = Authority(tmp_path, "elsewhere.example")
    options: dict[str, Any] = authority.options
    if scheme == "sentinel":
        options |= {"ssl": True, "master_name": "main", "sentinel_kwargs": {**authority.options, "ssl": True}}
    with authority.proxy(server.port) as proxy, server.client() as client:
        url = f"{scheme}://127.0.0.1:{proxy.url.rpartition(':')[2]}"
        schedules = Schedules(
            make_app(broker_url="memory://", redbeat_lite_url=url, redbeat_lite_redis_options=options)
        )
        client.config_resetstat()
        with pytest.raises(FAULTS):
            len(schedules)
        assert set(client.info("commandstats")) <= {"cmdstat_config|resetstat"}, "nothing was said to it"


@together(
    ("given", "told"),
    [
        ({}, True),
        ({"ssl_check_hostname": False}, False),
        ({"ssl_cert_reqs": "none", "ssl_check_hostname": False}, False),
    ],
)
def test_the_hosts_name_is_checked_unless_one_says_otherwise(given: dict[str, Any], told: bool) -> None:
    assert _pool("rediss://h", given).connection_kwargs["ssl_check_hostname"] is told
    secure = {"ssl": True, **given}
    of_master = _pool("sentinel://h", {"master_name": "main", "sentinel_kwargs": secure, **secure})
    [sentinel] = of_master.sentinel_manager.sentinels
    for pool in (of_master, sentinel.connection_pool):
        assert pool.connection_kwargs["ssl_check_hostname"] is told


def test_without_certificates_there_is_no_host_to_check() -> None:
    for url in ("rediss://h?ssl_cert_reqs=none", "rediss://h?ssl_cert_reqs=CERT_NONE"):
        assert "ssl_check_hostname" not in _pool(url, {}).connection_kwargs


def _pool(url: str, options: dict[str, Any]) -> Any:
    return Backend(Settings(url=url, redis_options=options)).client.connection_pool
