"""The servers and apps that tests share."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

_WITH_ASSERTS = ("support", "harness", "faults", "once", "pipeline", "beat.incidents")
pytest.register_assert_rewrite(*(f"tests.{module}" for module in _WITH_ASSERTS))

import redis
from celery import Celery, _state
from hypothesis import settings

from tests.support.aftermath import hear
from tests.support.nursery import nursery
from tests.support.process_table import descendants, states
from tests.support.processes import Process, celery_beat
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import eventually
from tests.support.wheel import Installation

# Whoever starts the tests in the background may have them ignore SIGINT, and the processes that they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a test that fails must fail again. `make soak` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
if "SOAK_MINUTES" not in os.environ:
    settings.load_profile("repeatable")


_PLUGINS = ("aftermath", "litter", "marks", "own_lines", "pacing", "redispy")
pytest_plugins = [*(f"tests.support.{name}" for name in _PLUGINS), "tests.harness.audited"]


@pytest.fixture(autouse=True)
def no_task_is_left() -> Iterator[None]:
    """A task that a test registers goes with it, though Celery shares it with every app that is made from then on."""
    before = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers = before


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """All files of the run lie in one directory, which goes when it ends; no process has to be ended then."""
    directory = nursery().directory
    hear(nursery(), "processes of this run", lambda: states(nursery().pid))
    before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), str(directory)
    tempfile.tempdir = None
    yield
    tempfile.tempdir = None
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before
    try:
        eventually(lambda: not descendants(nursery().pid), what="the end of all processes")
    finally:
        nursery().close()
    assert not directory.exists(), "files are left"


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """One server for all tests that leave it running."""
    with Server() as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared server, empty."""
    shared_server.own_client.flushall()
    yield shared_server
    shared_server.own_client.flushall()


@pytest.fixture(
    scope="session",
    params=[pytest.param(True, id="linked"), pytest.param(False, id="from the index", marks=pytest.mark.soak)],
)
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel in an environment of its own, and a directory to work in."""
    return Installation(tmp_path_factory.mktemp("installed"), linked=request.param).make()


@pytest.fixture
def owned() -> Iterator[ExitStack]:
    """Processes and servers that end with the test: ``owned.enter_context(process)``."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def own_server(owned: ExitStack) -> Callable[..., Server]:
    """Starts servers that a test may stop, kill and configure."""
    return lambda **options: owned.enter_context(Server(**options))


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A client of the shared server."""
    with server.client() as client:
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the server; where a module has one of its own, before that."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def make_app(server: Server) -> Iterator[Callable[..., Celery]]:
    """Makes Celery apps whose broker is the shared server."""
    apps: list[Celery] = []

    def make(name: str = "proj", **conf: Any) -> Celery:
        app = Celery(name, broker=conf.pop("broker_url", server.url), set_as_current=False)
        app.conf.update(conf)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    """An app with two tasks."""
    app = make_app()

    @app.task(name="add", shared=False)
    def add(x: int = 0, y: int = 0) -> int:
        return x + y

    return app


@pytest.fixture
def beat(server: Server, owned: ExitStack) -> Callable[..., Process]:
    """Starts ``celery beat`` processes; keyword arguments are environment variables of the app they run."""

    def start(app: str = "tests.acceptance.proj", *words: str, url: str | None = None, **env: Any) -> Process:
        return owned.enter_context(celery_beat(app, *words, **{"PROJ_URL": url or server.url, **env}))

    return start
