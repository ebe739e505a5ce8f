"""What a server or a certificate refuses is told in one line, and nothing is ever sent around it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import redis
from celery import Celery

from redbeat_lite import ConfigurationError, Scheduler, Schedules, every
from tests.support.cases import together
from tests.support.deployments import Cluster
from tests.support.processes import Process
from tests.support.server import Server
from tests.support.tls import Authority

Beat = Callable[..., Process]


@pytest.mark.parametrize("fault", ["a foreign authority", "no client certificate"])
def test_tls_lets_in_nobody_whom_the_certificates_do_not(
    server: Server, make_app: Callable[..., Celery], tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    given = authority.options
    if fault == "a foreign authority":
        given["ssl_ca_certs"] = other.ca
    else:
        del given["ssl_certfile"], given["ssl_keyfile"]
    with authority.proxy(server.port) as proxy, server.client() as client:
        app = make_app(broker_url=proxy.url, broker_use_ssl=given)
        with pytest.raises(redis.ConnectionError):
            Schedules(app).add("entry", "add", every(1))
        scheduler = Scheduler(app)
        scheduler._parts.wakeup.wait = lambda *args, **kwargs: None  # type: ignore[method-assign]
        scheduler.tick()
        assert not scheduler.leader.has_term
        scheduler.close()
        assert client.dbsize() == 0
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "cannot use rediss://127.0.0.1" in line
    if fault == "a foreign authority":
        assert "certificate verify failed" in line


def test_a_beat_with_a_wrong_password_says_so_and_exits(own_server: Callable[..., Server], beat: Beat) -> None:
    server = own_server(requirepass="right-secret")
    process = beat(url=f"redis://:wrong-secret@127.0.0.1:{server.port}/0")
    assert process.wait() == 1
    [line] = process.lines("CRITICAL")
    assert "refuses to let us in" in line
    assert "secret" not in process.output
    assert "Traceback" not in process.output


def test_a_beat_sent_to_one_node_of_a_cluster_says_what_to_write(server: Server, beat: Beat) -> None:
    with Cluster() as cluster:
        [other] = [each for each in cluster.nodes if each is not cluster.master_of("{redbeat-lite}:due")][:1]
        process = beat(url=server.url, PROJ_CONF=f'{{"redbeat_lite_url": "{other.url}"}}')
        assert process.wait() == 1
        [line] = process.lines("CRITICAL")
        assert "a node of a Redis Cluster" in line
        assert "redis-cluster://" in line


def test_a_password_that_a_process_shows_would_be_noticed() -> None:
    url = "redis://:some-secret@h/0"
    for words, shown in ((["redis://:**@h/0"], False), ([url], True)):
        process = Process(["echo", *words], {"PROJ_URL": url, "PATH": os.environ["PATH"]})
        assert process.wait() == 0
        if shown:
            with pytest.raises(AssertionError, match="password"):
                process.destroy()
        else:
            process.destroy()


@together(
    ("url", "options", "said"),
    [
        ("redis://h", {"sockt_timeout": 1}, "redis_options: .*'sockt_timeout'"),
        ("redis://h", {"ssl_ca_certs": "ca.pem"}, "redis_options: .*'ssl_ca_certs'"),
        ("sentinel://h", {"master_name": "m", "sockt_timeout": 1}, "redis_options: .*'sockt_timeout'"),
        ("redis://h?credential_provider=no.Such", {}, "provider that can be imported and made, got 'no.Such'"),
        ("redis://h?credential_provider=collections.abc.Sized", {}, "got 'collections.abc.Sized'"),
    ],
)
def test_options_that_nobody_knows_are_told_before_anything_is_opened(
    url: str, options: dict[str, object], said: str
) -> None:
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_lite_url=url, redbeat_lite_redis_options=options)
    with pytest.raises(ConfigurationError, match=said):
        len(Schedules(app))
    with pytest.raises(click.ClickException, match=said):
        Scheduler(app)
