"""What Prometheus reads from a beat, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
import socket
from collections import defaultdict
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
from redbeat_lite.runs.keys import RunKeys
from tests.support.beats import FAST, KEYS, conf, leads
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.processes import Process
from tests.support.run_records import Worker
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
    "redbeat_lite_backfill_left": "gauge",
    "redbeat_lite_freezes": "gauge",
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
    beat._incidents.look()
    assert [value(port, "incidents", kind=kind) for kind in ("quarantined", "failed")] == [1, 0]
    assert beat.vitals.failed > 0
    eventually(lambda: value(port, "failed_total", task="nobody.knows") == beat.vitals.failed, what="the failures")
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
    Schedules(app).freezes.add("nobody", seconds=600)
    eventually(lambda: value(port, "freezes") == 1, what="the number of freezes")
    # The port is taken: it is said, and the beat goes on without.
    second = beat(PROJ_CONF=conf(lease=1, metrics_port=port))
    second.says(rf"ERROR.*cannot serve metrics on 127.0.0.1, port {port}, trying again later: Address already in use")
    second.says("beat: standing by")
    third_port = free_port()
    third = beat(PROJ_CONF=conf(lease=1, metrics_port=third_port))
    third.says("beat: standing by")
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
    monkeypatch.setattr("redbeat_lite.beat.metrics.find_spec", lambda name: None)
    with pytest.raises(click.ClickException) as raised:
        Scheduler(app, lazy=True)
    assert raised.value.message == (
        f"redbeat_lite_metrics_port: {port} needs the package prometheus-client, which is not installed; "
        "in the checkout of redbeat_lite: pip install '.[prometheus]'"
    )


@pytest.mark.parametrize("wrong", [0, 65_536, "9100", True, 1.5])
def test_what_is_no_port_is_refused(make_app: MakeApp, wrong: object) -> None:
    with pytest.raises(click.ClickException) as raised:
        Scheduler(make_app(redbeat_lite_metrics_port=wrong), lazy=True)
    assert raised.value.message == f"redbeat_lite_metrics_port: expected a port from 1 to 65535, got {wrong!r}"


def test_no_port_is_opened_before_the_first_tick(app: Celery, inner_beat: Scheduler, port: int) -> None:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    inner_beat.max_interval = 0.01
    inner_beat.tick()
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
        assert beat._exporter is not None
        beat._exporter.serve()
        try:
            assert {each for each in ("127.0.0.1", "127.0.0.2") if is_open(each, port)} == reached
        finally:
            beat.close()


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize("wrong", ["", "localhost", "256.0.0.1", "127.0.0.1:9540", 1, None])
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


class Watched:
    """A beat with metrics of some entries, and a worker as far as its records go."""

    def __init__(self, make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, clock: Clock) -> None:
        self._make_app, self._make_beat, self._clock = make_app, make_beat, clock
        self.worker = Worker(client)
        self.starts()
        self.schedules = Schedules(self.beat.app)

    def starts(self, entries: int = 2) -> None:
        """Have a beat lead that has not led before."""
        self.port = free_port()
        app = self._make_app(redbeat_lite_metrics_port=self.port, redbeat_lite_metrics_entries=entries)
        self.beat: Scheduler = self._make_beat(app)
        assert self.beat._exporter is not None
        self.beat._exporter.serve()
        self.turn(0)

    def turn(self, seconds: float, **outcomes: Any) -> None:
        """Let time pass and a run of each entry go out, with these outcomes by their names."""
        self._clock.forward(seconds)
        self.beat.run_due()
        for name, outcome in outcomes.items():
            self.worker.tells(name, outcome, 1, 2)
        self.beat._incidents.look()

    def by_entry(self, metric: str, **labels: str) -> dict[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        for (name, of), number in scrape(self.port)[1].items():
            if name == f"redbeat_lite_entry_{metric}" and labels.items() <= dict(of).items():
                found[dict(of)["entry"]] += number
        return {**found}


@pytest.fixture
def watched(make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, clock: Clock) -> Watched:
    return Watched(make_app, make_beat, client, clock)


def test_the_entries_that_are_seen_first_have_metrics_of_their_own(watched: Watched, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        watched.schedules.add(name, "add", every(60))
        watched.turn(60, **{name: "succeeded"})
    watched.turn(60, a="failed", b="retrying", c="succeeded")
    watched.turn(60, a="failed", b="succeeded", c="failed")
    assert watched.by_entry("runs_total", outcome="succeeded") == {"a": 1, "b": 2, "": 2}
    assert watched.by_entry("runs_total", outcome="failed") == {"a": 2, "": 1}
    assert watched.by_entry("runs_total", outcome="retrying") == {"b": 1}
    assert watched.by_entry("failures_in_a_row") == {"a": 2, "b": 0}
    now = round(clock.now.timestamp())
    assert watched.by_entry("last_success_timestamp_seconds") == {"a": now - 240, "b": now}
    # In three turns more were sent than ended.
    eventually(
        lambda: watched.by_entry("dispatched_total") == {"a": 5, "b": 4, "": 3}, what="the counters of what was sent"
    )


def test_an_entry_that_is_removed_is_said_nothing_of_and_keeps_its_place(watched: Watched) -> None:
    for name in ("a", "b"):
        watched.schedules.add(name, "add", every(60))
    watched.turn(60, a="failed", b="failed")
    watched.schedules.remove("a")
    watched.schedules.add("c", "add", every(60))
    watched.turn(60, b="failed", c="failed")
    assert watched.by_entry("failures_in_a_row") == {"b": 2}
    assert watched.by_entry("runs_total") == {"a": 1, "b": 2, "": 1}


def test_who_leads_next_counts_anew_and_knows_what_came_before(
    watched: Watched, client: redis.Redis, clock: Clock
) -> None:
    watched.schedules.add("a", "add", every(60))
    watched.turn(60, a="succeeded")
    success = {"a": watched.worker.nominal_of("a") / 1000}
    watched.turn(60, a="failed")
    first, before = watched.port, watched.beat
    before.leader.resign()
    before.vitals.lost("as asked")
    watched.starts()
    assert watched.by_entry("runs_total") == {}
    watched.turn(60, a="failed")
    assert watched.by_entry("runs_total") == {"a": 1}
    assert watched.by_entry("failures_in_a_row") == {"a": 2}
    assert watched.by_entry("last_success_timestamp_seconds") == success
    client.zremrangebyrank(RunKeys("redbeat-lite").rows("a"), 0, 1)
    watched.turn(60, a="failed")
    assert watched.by_entry("failures_in_a_row") == {"a": 2}
    assert watched.by_entry("last_success_timestamp_seconds") == success
    watched.beat.leader.resign()
    watched.port = first
    eventually(lambda: watched.by_entry("failures_in_a_row") == {}, what="an old number is forgotten")
    assert watched.by_entry("runs_total") == {"a": 2}


def test_what_another_look_has_read_on_is_counted_by_that_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.schedules.add("a", "add", every(60))
    store, refused = watched.beat._incidents._incidents, [None]
    write = store.apply
    monkeypatch.setattr(store, "apply", lambda *args: refused.pop() if refused else write(*args))
    watched.turn(60, a="failed")
    assert watched.by_entry("runs_total") == {"a": 1}


def test_none_of_this_is_done_unless_one_asks_for_it(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.beat.leader.resign()
    watched.starts(entries=0)
    watched.schedules.add("a", "add", every(60))
    watched.turn(60, a="failed")
    assert not [name for name in scrape(watched.port)[0] if "entry" in name]
