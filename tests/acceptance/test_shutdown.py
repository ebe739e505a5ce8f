"""Being told to stop, in every state: at once, with the right exit code, and the lease given back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from tests.support.beats import FAST, KEYS, WakeChannel, conf, doubled, leader_pid, leads
from tests.support.messages import queued
from tests.support.processes import Process
from tests.support.server import Server, free_port
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

Beat = Callable[..., Process]

#: Seconds that the end may take, however badly the moment is chosen.
BOUND = 2.0

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


@pytest.fixture
def freezable(own_server: Callable[..., Server]) -> Server:
    """A server that a test may freeze."""
    return own_server()


def stops(process: Process, number: int = signal.SIGTERM) -> None:
    """Send the signal, and check how the process ends."""
    with Stopwatch(process) as watch:
        process.signal(number)
        code = process.wait(30)
    assert code == 0, process.output
    watch.at_most(BOUND)
    assert "Traceback" not in process.output, process.output


@SIGNALS
def test_an_idle_leader_gives_the_lease_back_once(
    beat: Beat, client: redis.Redis, wake_channel: WakeChannel, number: int
) -> None:
    process = beat()
    process.says("beat: leading")
    stops(process, number)
    assert not client.exists(KEYS.leader)
    assert wake_channel.words().count(b"vacant") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("dispatch", "batch", "twice"), [("auto", 20, 0), ("plain", 500, 1)])
def test_a_leader_stopped_in_the_middle_of_its_work_loses_and_doubles_nothing(
    beat: Beat,
    client: redis.Redis,
    schedules: Schedules,
    wake_channel: WakeChannel,
    number: int,
    dispatch: str,
    batch: int,
    twice: int,
) -> None:
    """But for the one message that may be under way where each goes out by itself."""
    first = beat(PROJ_CONF=conf(batch_size=batch, dispatch=dispatch))
    leads(first, client)
    due = datetime.now(UTC) + timedelta(seconds=2)
    schedules.add_many(Entry(f"entry-{n}", "proj.add", every(3600), start_at=due, expires=None) for n in range(1000))
    assert datetime.now(UTC) < due, "what is added later runs an hour later"
    eventually(lambda: client.llen("celery") >= 40, what="the middle of the dispatch")
    stops(first, number)
    assert client.llen("celery") < 1000
    assert not client.exists(KEYS.leader)
    assert wake_channel.words().count(b"vacant") == 1
    beat()
    eventually(lambda: client.llen("celery") >= 1000, what="the rest")
    eventually(lambda: client.zcount(KEYS.due, "-inf", time.time() * 1000) == 0, what="the commit of the rest")
    messages = queued(client)
    assert len({m.id for m in messages}) == len({m.entry for m in messages}) == 1000
    assert len(doubled(messages)) <= twice


@SIGNALS
def test_a_stand_by_leaves_the_lease_to_the_leader(
    beat: Beat, client: redis.Redis, wake_channel: WakeChannel, number: int
) -> None:
    leader = beat()
    leads(leader, client)
    other = beat()
    other.says("beat: standing by")
    stops(other, number)
    assert leader_pid(client) == leader.pid
    assert b"vacant" not in wake_channel.words()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.02, 0.05])
def test_a_beat_that_has_just_started_stops(beat: Beat, client: redis.Redis, delay: float) -> None:
    process = beat(PROJ_CONF=conf(schedule={"fast": FAST}))
    process.says("beat: Starting")
    time.sleep(delay)  # not a wait for anything: it chooses the moment
    stops(process)
    assert not client.exists(KEYS.leader)


@SIGNALS
def test_a_beat_stops_that_was_told_to_while_it_was_made(beat: Beat, number: int) -> None:
    """Python ignores the exit that the signal handler asks for, as it does in a finalizer."""
    interrupted = ("-S", "tests.acceptance.interrupted:Interrupted")
    process = beat("tests.acceptance.proj", *interrupted, INTERRUPTED_BY=str(int(number)))
    assert process.wait(30) == 0, process.output
    assert "beat: leading" not in process.output


@pytest.mark.parametrize("function", ["reset", "subscribe"])
def test_a_beat_stops_that_was_told_to_while_its_subscription_held_a_lock(beat: Beat, function: str) -> None:
    """As that is made, or made use of: whoever takes it apart would wait for the lock for ever."""
    interrupted = ("-S", "tests.acceptance.interrupted:InSubscription")
    process = beat("tests.acceptance.proj", *interrupted, INTERRUPTED_IN=function)
    assert process.wait(20) == 0, process.output
    assert "Traceback" not in process.output


@SIGNALS
def test_a_beat_that_never_reached_its_server_stops(beat: Beat, number: int) -> None:
    process = beat(url=f"redis://127.0.0.1:{free_port()}/0")
    process.says("ERROR.*cannot use")
    stops(process, number)


@SIGNALS
def test_a_leader_whose_server_is_gone_stops(beat: Beat, freezable: Server, number: int) -> None:
    process = beat(url=freezable.url, PROJ_CONF=conf(schedule={"fast": FAST}))
    process.says("Sending due task")
    freezable.stop()
    process.says("ERROR.*cannot use")
    stops(process, number)


@pytest.mark.parametrize(
    ("lease", "schedule", "dispatch"),
    [(4, {"fast": FAST}, "auto"), (4, {"fast": FAST}, "plain"), (8, {}, "auto")],
    ids=["busy", "busy, one by one", "idle"],
)
def test_a_leader_whose_server_hangs_stops(
    beat: Beat, freezable: Server, lease: float, schedule: dict[str, object], dispatch: str
) -> None:
    options = {"socket_timeout": 30, "retry_on_timeout": True}
    settings = conf(schedule=schedule, lease=lease, redis_options=options, dispatch=dispatch)
    process = beat(url=freezable.url, PROJ_CONF=settings)
    process.says("beat: leading")
    if schedule:
        process.says("Sending due task")
    freezable.freeze()
    try:
        # Not a wait for anything: at this moment a renewal hangs, and the main thread too if it has something to do.
        time.sleep(lease / 4 + 0.3)
        stops(process)
    finally:
        freezable.thaw()


def test_hooks_that_hang_and_metrics_keep_no_leader_from_stopping(
    beat: Beat, freezable: Server, tmp_path: Path
) -> None:
    settings = conf(lease=8, metrics_port=free_port(), heartbeat_file=str(tmp_path / "beat"))
    process = beat(url=freezable.url, PROJ_CONF=settings, PROJ_HUNG_HOOKS=5)
    process.says("beat: serving metrics")
    process.says("beat: leading")
    freezable.freeze()
    try:
        stops(process)
    finally:
        freezable.thaw()
    assert not list(tmp_path.iterdir())


def test_a_leader_that_hangs_in_a_publish_stops_and_gives_the_lease_back(
    beat: Beat, client: redis.Redis, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    stuck.touch()
    sticky = {"task": "proj.sticky", "schedule": 0.1}
    process = beat(PROJ_CONF=conf(schedule={"sticky": sticky}), PROJ_STUCK=stuck)
    process.says("Sending due task sticky")
    stops(process)
    assert not client.exists(KEYS.leader)
    assert client.llen("celery") == 0


def test_a_signal_that_comes_in_a_finalizer_is_not_lost(beat: Beat, client: redis.Redis) -> None:
    process = beat(PROJ_CONF=conf(schedule={"fast": FAST}), PROJ_TOLD_IN_FINALIZER=1)
    assert process.wait() == 0
    assert process.lines("told in a finalizer")
    assert not process.lines("SystemExit|Traceback"), "of what Python ignores there, nobody needs to know"
    assert not process.lines("no longer leading"), process.output
    assert not client.exists(KEYS.leader)


def test_a_crash_exits_non_zero_and_gives_the_lease_back(beat: Beat, client: redis.Redis) -> None:
    process = beat(PROJ_CRASH=1)
    assert process.wait() == 1
    assert "a defect nobody foresaw" in process.says("CRITICAL")
    assert not client.exists(KEYS.leader)


def test_a_second_signal_while_stopping_does_not_keep_the_lease_from_being_given_back(
    beat: Beat, freezable: Server
) -> None:
    process = beat(url=freezable.url)
    process.says("beat: leading")
    freezable.freeze()
    process.terminate()
    time.sleep(0.3)  # not a wait for anything: at this moment the lease is being given back
    process.signal(signal.SIGINT)
    time.sleep(0.1)  # not a wait for anything: the signal comes before the server does
    freezable.thaw()
    assert process.wait() == 0
    assert "Traceback" not in process.output
    with freezable.client() as client:
        assert not client.exists(KEYS.leader)
