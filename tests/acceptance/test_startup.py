"""What a beat says when it starts, and that it says why when it cannot.

These tests judge words. They wait for a message only to know that a beat works, so the audit has nothing to judge.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis

from tests.support.beats import FAST, KEYS, complaints, conf, leads
from tests.support.messages import of_entry
from tests.support.processes import Process, celery_beat
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

Beat = Callable[..., Process]

PROJ, DJANGO = "tests.acceptance.proj", "tests.acceptance.djangoproj"
SECRET = "s3cr3t-w0rd"


REASONS = {
    "unknown": "redbeat_lite_leese: there is no such setting; did you mean redbeat_lite_lease?",
    "unknown in Django": "CELERY_REDBEAT_LITE_LEESE: there is no such setting; did you mean CELERY_REDBEAT_LITE_LEASE?",
    "unknown without a namespace": (
        "Error: REDBEAT_LITE_LEESE: there is no such setting; did you mean REDBEAT_LITE_LEASE?"
    ),
    "amqp": "redbeat_lite_url: expected the URL of a Redis server, because the broker (amqp) cannot hold the schedule",
    "lease": "redbeat_lite_lease: expected seconds, at least 1 and at most 86400, got 0.5",
    "not a url": "redbeat_lite_url: expected a URL such as redis://host:6379/0",
    "wrong password": "refuses to let us in: ",
    "no password": "refuses to let us in: it wants a password, and the URL has none",
    "time zone": "timezone: expected the name of a time zone such as \"Europe/Berlin\", got 'Asia/Nowhere'",
    "newer format": "the schedule in Redis has format 99; this redbeat_lite reads format 3: update redbeat_lite here",
}


@contextmanager
def refused_beats() -> Iterator[dict[str, Process]]:
    """Start a beat for each reason."""
    with Server() as plain, Server(requirepass=SECRET) as locked, Server() as newer, ExitStack() as stack:
        with newer.client() as client:
            client.hset(KEYS.meta, "format", 99)
        wrong = locked.url.replace("://", "://:wrong-" + SECRET + "@")
        django = {"CELERY_BROKER_URL": plain.url, "CELERY_REDBEAT_LITE_LEESE": 4}
        plainly = {"BROKER_URL": plain.url, "REDBEAT_LITE_LEESE": 4}
        processes = {
            "unknown": celery_beat(PROJ, PROJ_URL=plain.url, PROJ_CONF=conf(leese=4)),
            "unknown in Django": celery_beat(DJANGO, DJANGO_CONF=json.dumps(django)),
            "unknown without a namespace": celery_beat(DJANGO, DJANGO_CONF=json.dumps(plainly), DJANGO_NAMESPACE=""),
            "amqp": celery_beat(PROJ, PROJ_URL="amqp://user:" + SECRET + "@localhost//"),
            "lease": celery_beat(PROJ, PROJ_URL=plain.url, PROJ_CONF=conf(lease=0.5)),
            "not a url": celery_beat(PROJ, PROJ_URL=plain.url, PROJ_CONF=conf(url="localhost:6379/" + SECRET)),
            "wrong password": celery_beat(PROJ, PROJ_URL=wrong),
            "no password": celery_beat(PROJ, PROJ_URL=locked.url),
            "newer format": celery_beat(PROJ, PROJ_URL=newer.url),
            "time zone": celery_beat(PROJ, PROJ_URL=plain.url, PROJ_CONF=json.dumps({"timezone": "Asia/Nowhere"})),
        }
        for process in processes.values():
            stack.callback(process.destroy)
        yield processes


def test_what_cannot_work_is_said_in_one_line_and_ends_the_process() -> None:
    with refused_beats() as beats:
        assert beats.keys() == REASONS.keys()
        for case, process in beats.items():
            assert process.wait(30) == 1, case
            assert len(process.lines(re.escape(REASONS[case]))) == 1, process.output
            assert len(process.lines("ERROR|Error|CRITICAL")) == 1, process.output
            assert "Traceback" not in process.output
            assert SECRET not in process.output


@pytest.mark.parametrize("namespace", ["CELERY", ""])
def test_the_settings_of_a_django_project_are_used(
    beat: Beat, server: Server, client: redis.Redis, namespace: str
) -> None:
    names = {"BROKER_URL": "memory://", "REDBEAT_LITE_URL": server.url, "REDBEAT_LITE_LEASE": 7}
    settings = {f"{namespace}_{name}" if namespace else name: value for name, value in names.items()}
    process = beat(DJANGO, DJANGO_CONF=json.dumps(settings), DJANGO_NAMESPACE=namespace)
    leads(process, client)
    process.says("lease -> 7 s")
    assert client.pttl(KEYS.leader) > 4000


def test_a_project_that_imports_celery_redbeat_starts_a_beat_of_ours(
    beat: Beat, server: Server, client: redis.Redis
) -> None:
    """As Sentry's SDK does wherever it is installed; its handler of ``beat_init`` takes each scheduler for its own."""
    process = beat(PROJ_CONF=json.dumps({"imports": ["redbeat.schedulers"], "beat_schedule": {"fast": FAST}}))
    process.says("Sending due task")
    assert not process.lines("Traceback|ERROR|redbeat::"), process.output
    assert not client.keys("redbeat:*")


def test_the_banner_and_the_log_name_server_role_lease_entries_and_owner(beat: Beat, own_server: Any) -> None:
    # On a busy machine a beat may lose a short lease, and would rightly complain.
    server = own_server(requirepass=SECRET, appendonly="yes")
    url = server.url.replace("://", f"://:{SECRET}@")
    leader = beat(url=url, PROJ_NAME="billing", PROJ_CONF=conf(schedule={"fast": FAST}, lease=60))
    leader.says(r"beat: leading \(term 1\), 1 entry$")
    leader.says("Sending due task")
    other = beat(url=url)
    other.says(rf"beat: standing by; pid {leader.pid} on ")
    for line in (
        rf"\. schedule -> redis://127\.0\.0\.1:{server.port}/0 under {{redbeat-lite}}",
        r"\. owner -> billing",
        r"\. lease -> 60 s",
        r"\. scheduler -> redbeat_lite\.Scheduler",
        r"maxinterval -> 5\.00 minutes \(300s\)",
    ):
        assert leader.lines(line), line
    assert not complaints(leader)
    # Neither process shows it, whatever else they said; nor does what the leader says when it loses its server.
    server.stop()
    leader.says(r"ERROR.*cannot use redis://127\.0\.0\.1:")
    other.says(r"ERROR.*cannot use redis://127\.0\.0\.1:")
    assert SECRET not in leader.output + other.output


def test_a_server_that_may_lose_the_schedule_is_warned_of_once(beat: Beat, own_server: Any) -> None:
    server = own_server(**{"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"})
    process = beat(url=server.url, PROJ_CONF=conf(lease=1))
    process.says("beat: leading")
    process.says(r"WARNING.*evicts keys when memory runs out \(maxmemory-policy allkeys-lru\)")
    process.says("WARNING.*keeps nothing on disk")
    with server.client() as client:
        client.delete(KEYS.leader)
    process.says(r"beat: leading \(term 2\)")
    assert len(process.lines("WARNING.*evicts")) == len(process.lines("WARNING.*on disk")) == 1


def test_a_beat_waits_for_a_server_that_is_down_and_leads_when_it_comes(beat: Beat) -> None:
    server = Server(appendonly="yes")
    try:
        process = beat(url=server.url, PROJ_CONF=conf(schedule={"fast": FAST}))
        process.says("ERROR.*cannot use redis://127.0.0.1.*trying again in 1 s")
        process.says("ERROR.*cannot use redis://127.0.0.1.*trying again in 3 s")
        assert "Traceback" not in process.output
        server.start()
        with server.client() as client, Stopwatch(process) as watch:
            leads(process, client)
            eventually(lambda: of_entry(client, "fast"), what="a message")
        watch.at_most(5)
        process.says("WARNING.*working again after")
        assert len(process.lines("ERROR")) <= 4
    finally:
        server.destroy()


def test_importing_and_building_the_app_and_the_scheduler_opens_no_connection(
    server: Server, client: redis.Redis
) -> None:
    # A guard on the socket itself, so that no client library can go around it.
    script = """
import socket, threading
def refuse(*args, **kwargs): raise SystemExit(f"a connection: {args}")
socket.socket.connect = socket.socket.connect_ex = refuse
import redbeat_lite
from tests.acceptance.proj import app
from redbeat_lite import Scheduler, Schedules
schedules = Schedules(app)
print(Scheduler(app=app, lazy=True).info)
Scheduler(app=app).close()
assert threading.active_count() == 1
print("nothing opened")
"""
    before = client.info("stats")["total_connections_received"]
    with Process([sys.executable, "-c", script], {"PROJ_URL": server.url}) as process:
        assert process.wait() == 0, process.output
        assert process.lines("nothing opened")
    assert client.info("stats")["total_connections_received"] == before
