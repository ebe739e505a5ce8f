"""The ways to a server that people have, each with real servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis
from celery import Celery

from tests.support.deployments import Cluster, Sentinels
from tests.support.processes import Process
from tests.support.server import Server, binaries, with_tls
from tests.support.tls import Authority

PASSWORD = "pass-wörd/with:@;specials"
QUOTED = "pass-w%C3%B6rd%2Fwith%3A%40%3Bspecials"


#: Whether a broker's URL may name a credential provider, as from kombu 5.6 on.
BROKER_URLS_NAME_PROVIDERS = tuple(kombu.VERSION[:2]) >= (5, 6)


class Provider(redis.CredentialProvider):
    """Gives out a name and a password, as those of clouds do."""

    def get_credentials(self) -> tuple[str, str]:
        return "someone", PASSWORD


@dataclass
class Place:
    """Where a schedule may lie.

    Parameters:
        conf: the app's settings, broker included; nothing in them but what a user has to say.
        flush: empties it.
        queue: a client of the broker.
        one_step: whether the broker is the database of the schedule.
    """

    conf: dict[str, Any]
    flush: Callable[[], Any]
    queue: redis.Redis
    one_step: bool = True


def _at(server: Server, url: str, db: int = 0, **conf: Any) -> Place:
    client = server.client(db=db)
    return Place({"broker_url": url, **conf}, client.flushall, client)


def _plain(stack: ExitStack, kind: str) -> Place:
    server = stack.enter_context(Server(kind))
    return _at(server, server.url)


def _unix(stack: ExitStack) -> Place:
    server = stack.enter_context(Server())
    return _at(server, f"redis+socket://{server.socket}?virtual_host=3", db=3)


def _password(stack: ExitStack) -> Place:
    server = stack.enter_context(Server(requirepass=PASSWORD))
    return _at(server, f"redis://:{QUOTED}@127.0.0.1:{server.port}/0")


def _with_user(stack: ExitStack) -> Server:
    server = stack.enter_context(Server())
    with server.client() as client:
        client.acl_setuser(
            "someone", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], channels=["*"], commands=["+@all"]
        )
    return server


def _user(stack: ExitStack) -> Place:
    server = _with_user(stack)
    return _at(server, f"redis://someone:{QUOTED}@127.0.0.1:{server.port}/0")


def _provider(stack: ExitStack) -> Place:
    server = _with_user(stack)
    with server.client() as client:
        # Nobody gets in over TCP without the provider's name.
        client.acl_setuser("default", enabled=True, passwords=["+other"], nopass=False, keys=["*"], commands=["+@all"])
    url = f"redis://127.0.0.1:{server.port}/0?credential_provider=tests.topologies.conftest.Provider"
    place = _at(server, url)
    if not BROKER_URLS_NAME_PROVIDERS:
        place.conf.update(broker_url=f"redis://someone:{QUOTED}@127.0.0.1:{server.port}/0", redbeat_lite_url=url)
    place.queue = server.client(username="someone", password=PASSWORD)
    place.flush = place.queue.flushall
    return place


def _provider_option(stack: ExitStack) -> Place:
    place = _provider(stack)
    options = {"credential_provider": Provider()}
    url = place.conf.get("redbeat_lite_url", place.conf["broker_url"]).split("?")[0]
    place.conf.update(redbeat_lite_url=url, redbeat_lite_redis_options=options)
    return place


def _tls(stack: ExitStack, directory: Path) -> Place:
    server, authority = stack.enter_context(Server()), Authority(directory)
    proxy = stack.enter_context(authority.proxy(server.port))
    return _at(server, proxy.url, broker_use_ssl=authority.options)


def _tls_server(stack: ExitStack, directory: Path) -> Place:
    authority = Authority(directory)
    server, url = authority.server(with_tls() or "")
    stack.enter_context(server)
    return _at(server, url, broker_use_ssl=authority.options)


def _sentinel(stack: ExitStack) -> Place:
    password = PASSWORD.replace("ö", "o")
    sentinels = stack.enter_context(Sentinels(password, sentinel_password="of-the-sentinels"))
    sentinels_url = sentinels.url.replace(sentinels.password, QUOTED.replace("%C3%B6", "o"))
    client = sentinels.client()
    return Place({"broker_url": sentinels_url, "broker_transport_options": sentinels.options}, client.flushall, client)


def _cluster(stack: ExitStack) -> Place:
    cluster = stack.enter_context(Cluster())
    broker = stack.enter_context(Server())
    client = broker.client()

    def flush() -> None:
        cluster.flush()
        client.flushall()

    return Place({"broker_url": broker.url, "redbeat_lite_url": cluster.url}, flush, client, one_step=False)


_KINDS: dict[str, Callable[..., Place]] = {
    "unix": _unix,
    "password": _password,
    "user": _user,
    "provider": _provider,
    "provider-option": _provider_option,
    "tls": _tls,
    **({"tls-server": _tls_server} if with_tls() else {}),
    "sentinel": _sentinel,
    "cluster": _cluster,
}
_PLAIN = binaries()

#: Every way to a server.
KINDS = [*_PLAIN, *_KINDS]


@pytest.fixture(scope="module", params=KINDS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    kind = request.param
    with ExitStack() as stack:
        if kind in _PLAIN:
            yield _plain(stack, _PLAIN[kind])
        elif kind.startswith("tls"):
            yield _KINDS[kind](stack, tmp_path_factory.mktemp("tls"))
        else:
            yield _KINDS[kind](stack)


@pytest.fixture
def place(started: Place) -> Place:
    """One way to a server, and the server empty."""
    started.flush()
    return started


@pytest.fixture
def placed_app(place: Place) -> Iterator[Celery]:
    """An app that keeps its schedule there."""
    app = Celery("placed", set_as_current=False)
    app.conf.update(place.conf)

    @app.task(name="add", shared=False)
    def add(x: int = 0, y: int = 0) -> int:
        return x + y

    yield app
    app.close()


@pytest.fixture(autouse=True)
def _no_password_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("DEBUG", "celery")  # under which Celery puts the loggers that it gives out
    said = StringIO()  # by the threads of other tests, too
    logging.getLogger().addHandler(handler := logging.StreamHandler(said))
    yield
    logging.getLogger().removeHandler(handler)
    for secret in ("specials", "of-the-sentinels"):
        assert secret not in said.getvalue()


@pytest.fixture
def running() -> Iterator[list[Process]]:
    """Processes that end with the test."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.destroy()
