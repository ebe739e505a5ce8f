"""What Prometheus reads from a beat, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import pytest
import redis
from celery import Celery
from prometheus_client.parser import text_string_to_metric_families

from redbeat_lite import Scheduler, Schedules, every
from tests.support.beats import FAST, KEYS, conf, leads
from tests.support.cases import together
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.processes import Process
from tests.support.server import free_port
from tests.support.waiting import eventually

DASHBOARD = Path(__file__).resolve().parents[2] / "examples" / "grafana" / "redbeat_lite.json"
NAMES = {
    "redbeat_lite_lateness_seconds": "histogram",
    "redbeat_lite_tick_duration_seconds": "histogram",
    "redbeat_lite_dispatched": "counter",
    "redbeat_lite_failed": "counter",
    "redbeat_lite_skipped": "counter",
    "redbeat_lite_quarantined": "counter",
    "redbeat_lite_leader": "gauge",
    "redbeat_lite_entries": "gauge",
    "redbeat_lite_due": "gauge",
    "redbeat_lite_refused": "gauge",
    "redbeat_lite_frozen": "gauge",
    "redbeat_lite_incidents": "gauge",
}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int) -> tuple[dict[str, str], Samples]:
    """The kinds by name, and all samples by name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        families = [*text_string_to_metric_families(page.read().decode())]
    samples = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    return {family.name: family.type for family in families}, samples


def value(port: int, name: str, **labels: str) -> float | None:
    return scrape(port)[1].get((f"redbeat_lite_{name}", frozenset(labels.items())))


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def app(make_app: MakeApp, port: int) -> Celery:
    wrong = {"task": "add", "schedule": "whenever"}
    app = make_app(redbeat_lite_metrics_port=port, beat_schedule={"wrong": wrong})

    @app.task(name="add", shared=False)
    def add(x: int = 0, y: int = 0) -> int:
        return x + y

    return app


def test_each_number_is_what_happened(
    app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, port: int
) -> None:
    beat = inner_beat
    beat.max_interval = 0.01
    beat.tick()
    schedules.add("a", "add", every(10))
    schedules.add("held", "add", every(10), once=True)
    schedules.add("broken", "nobody.knows", every(10), options={"queue": "not-a-list"})
    client.set("not-a-list", "text", ex=600)
    schedules.add("corrupt", "add", every(10))
    client.hset(KEYS.entries, "corrupt", "{")
    clock.forward(10.02)
    beat.tick()
    clock.forward(32)
    beat.tick()
    beat.tick()
    eventually(lambda: value(port, "dispatched_total", task="add") == 3, what="the counters")
    assert {name: kind for name, kind in scrape(port)[0].items() if not name.endswith("_created")} == NAMES
    assert value(port, "skipped_total", reason="misfire") == 4
    assert value(port, "skipped_total", reason="once-lock") == 1
    assert value(port, "quarantined_total") == 1
    assert value(port, "refused") == 1
    beat._parts.incidents.check()
    assert [value(port, "incidents", kind=kind) for kind in ("quarantined", "failed")] == [1, 0]
    assert beat._parts.state.failed > 0
    state = beat._parts.state
    eventually(lambda: value(port, "failed_total", task="nobody.knows") == state.failed, what="the failures")
    assert value(port, "lateness_seconds_count") == 3
    # Two went out 20 ms after their time, and one two seconds after, when the rest of an outage was made up for.
    assert value(port, "lateness_seconds_bucket", le="0.01") == 0
    assert value(port, "lateness_seconds_bucket", le="0.1") == 2
    assert value(port, "lateness_seconds_bucket", le="5.0") == 3
    assert value(port, "leader") == 1
    assert (value(port, "tick_duration_seconds_count") or 0) >= 3


def test_tasks_beyond_a_number_share_a_series(
    app: Celery, schedules: Schedules, make_beat: MakeBeat, clock: Clock, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat_lite.beat.metrics._TASKS", 2)
    beat = make_beat(app)
    beat.max_interval = 0.01
    beat.tick()
    for n in range(5):
        schedules.add(f"e{n}", f"task{n}", every(10 + n))
    clock.forward(15)
    beat.tick()
    eventually(lambda: value(port, "dispatched_total", task="") == 3, what="the others together")
    assert [value(port, "dispatched_total", task=f"task{n}") for n in range(3)] == [1, 1, None]


def test_a_leader_shows_how_many_entries_are_stored_and_due_and_a_stand_by_does_not(
    beat: Callable[..., Process], client: redis.Redis, server: Any, port: int, app: Celery
) -> None:
    leader = beat(PROJ_CONF=conf(schedule={"fast": FAST}, lease=1, metrics_port=port))
    leads(leader, client)
    leader.says(f"beat: serving metrics on 127.0.0.1, port {port}")
    eventually(lambda: value(port, "entries") == 1, what="the number of entries")
    eventually(lambda: (value(port, "dispatched_total", task="proj.add") or 0) > 2, what="what is sent")
    assert value(port, "due") in (0, 1)
    Schedules(app).freeze(600)
    eventually(lambda: value(port, "frozen") == 1, what="whether a freeze holds")
    # The port is taken: it is said, and the beat goes on without.
    second = beat(PROJ_CONF=conf(lease=1, metrics_port=port))
    second.says(rf"WARNING.*cannot serve metrics on 127.0.0.1, port {port}, trying again: .*Address already in use")
    second.says("beat: standing by")
    third_port = free_port()
    third = beat(PROJ_CONF=conf(lease=1, metrics_port=third_port))
    third.says("beat: standing by")
    eventually(lambda: is_open("127.0.0.1", third_port), what="the port")
    kinds, _ = scrape(third_port)
    assert value(third_port, "leader") == 0
    assert not {"redbeat_lite_entries", "redbeat_lite_due", "redbeat_lite_refused"} & kinds.keys()
    leader.terminate()
    assert leader.wait(2.5) == 0
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_without_the_extra_the_beat_says_at_the_start_what_to_install(
    app: Celery, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(click.ClickException) as raised:
        Scheduler(app, lazy=True)
    assert raised.value.message == (
        f"redbeat_lite_metrics_port: {port} needs the package prometheus-client, which is not installed; "
        "in the checkout of redbeat_lite: pip install '.[prometheus]'"
    )


@together("wrong", [0, 65_536, "9100", True, 1.5])
def test_what_is_no_port_is_refused(make_app: MakeApp, wrong: object) -> None:
    with pytest.raises(click.ClickException) as raised:
        Scheduler(make_app(redbeat_lite_metrics_port=wrong), lazy=True)
    expected = "expected a whole number from 1 to 65535, or None"
    assert raised.value.message == f"redbeat_lite_metrics_port: {expected}, got {wrong!r}"


def test_no_port_is_opened_before_the_first_tick(app: Celery, inner_beat: Scheduler, port: int) -> None:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    inner_beat.max_interval = 0.01
    inner_beat.tick()
    eventually(lambda: is_open("127.0.0.1", port), what="the port")
    assert value(port, "leader") == 1
    inner_beat.close()
    inner_beat.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_metrics_are_for_the_machine_alone_unless_one_says_otherwise(make_app: MakeApp) -> None:
    # Every address of 127.0.0.0/8 is one of this machine.
    for host, reached in ((None, {"127.0.0.1"}), ("127.0.0.2", {"127.0.0.2"}), ("0.0.0.0", {"127.0.0.1", "127.0.0.2"})):
        port = free_port()
        given = {} if host is None else {"redbeat_lite_metrics_host": host}
        beat = Scheduler(make_app(redbeat_lite_metrics_port=port, **given), lazy=True)
        assert beat._parts.exporter is not None
        beat._parts.exporter.serve()
        try:
            assert {each for each in ("127.0.0.1", "127.0.0.2") if is_open(each, port)} == reached
        finally:
            beat.close()


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@together("wrong", ["", "localhost", "256.0.0.1", "127.0.0.1:9540", 1, None])
def test_what_is_no_address_is_refused(make_app: MakeApp, wrong: object) -> None:
    with pytest.raises(click.ClickException) as raised:
        Scheduler(make_app(redbeat_lite_metrics_host=wrong), lazy=True)
    expected = "the IP address to listen on, such as 127.0.0.1 or 0.0.0.0"
    assert raised.value.message == f"redbeat_lite_metrics_host: expected {expected}, got {wrong!r}"


def test_the_dashboard_uses_exactly_the_metrics_there_are() -> None:
    expressions = re.findall(r'"expr": (".*")', DASHBOARD.read_text())
    assert expressions
    used = {name for expression in expressions for name in re.findall(r"redbeat_lite_\w+", json.loads(expression))}
    suffixes = {"counter": "_total", "histogram": "_bucket", "gauge": ""}
    assert used == {name + suffixes[kind] for name, kind in NAMES.items()}
    by = {label for expression in expressions for label in re.findall(r"by \((\w+)\)", expression)}
    assert by == {"le", "task", "reason", "kind"}
    board = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
