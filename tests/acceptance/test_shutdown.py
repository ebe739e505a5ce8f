"""Being told to stop, in every state: at once, with the right exit code, and the lease given back."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from tests.harness import queues
from tests.harness.queues import Sent, check_messages, check_queue
from tests.support.beats import FAST, KEYS, WakeChannel, conf, leads
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
@pytest.mark.parametrize(("dispatch", "batch"), [("auto", 20), ("plain", 500)])
def test_a_leader_stopped_in_the_middle_of_its_work_loses_and_doubles_nothing(
    beat: Beat,
    client: redis.Redis,
    schedules: Schedules,
    wake_channel: WakeChannel,
    number: int,
    dispatch: str,
    batch: int,
) -> None:
    first = beat(PROJ_CONF=conf(batch_size=batch, dispatch=dispatch), PROJ_PATIENCE=30)
    leads(first, client)
    due = datetime.now(UTC) + timedelta(seconds=5)
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
    check_queue(client)


@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_a_beat_that_has_just_started_stops(beat: Beat, client: redis.Redis, delay: float) -> None:
    process = beat(PROJ_CONF=conf(schedule={"fast": FAST}))
    process.says("beat: Starting")
    time.sleep(delay)  # not a wait for anything: it chooses the moment
    stops(process)
    assert not client.exists(KEYS.leader)


@SIGNALS
def test_a_signal_in_a_finalizer_of_a_beat_that_starts_stops_it(beat: Beat, client: redis.Redis, number: int) -> None:
    """Celery's handler raises SystemExit, which Python ignores in a finalizer."""
    process = beat(PROJ_STOPS_IN_FINALIZER=int(number))
    assert process.wait(30) == 0, process.output
    assert not process.lines("Traceback|beat: leading")
    assert not client.exists(KEYS.leader)


@SIGNALS
def test_a_beat_that_never_reached_its_server_stops(beat: Beat, number: int) -> None:
    process = beat(url=f"redis://127.0.0.1:{free_port()}/0")
    process.says("ERROR.*cannot use")
    stops(process, number)


def test_a_leader_whose_server_is_gone_stops(beat: Beat, freezable: Server) -> None:
    process = beat(url=freezable.url, PROJ_CONF=conf(schedule={"fast": FAST}))
    process.says("Sending due task")
    freezable.stop()
    process.says("ERROR.*cannot use")
    stops(process)


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


@pytest.mark.parametrize(("dispatch", "number"), [("auto", signal.SIGTERM), ("plain", signal.SIGINT)])
def test_a_signal_in_the_middle_of_a_publish_leaves_nothing_half_done(
    beat: Beat, client: redis.Redis, schedules: Schedules, dispatch: str, number: int
) -> None:
    settings = conf(schedule={"fast": FAST}, dispatch=dispatch)
    process = beat(PROJ_CONF=settings, PROJ_STOPS_IN_PUBLISH=int(number))
    assert process.wait() == 0, process.output
    assert not process.lines("Traceback|no longer leading")
    assert not client.exists(KEYS.leader)
    assert schedules["fast"].total_run_count == client.llen("celery") == 1


def test_a_second_signal_right_away_belongs_to_the_first(beat: Beat, client: redis.Redis) -> None:
    for pair in itertools.product((signal.SIGTERM, signal.SIGINT), repeat=2):
        process = beat(PROJ_CONF=conf(schedule={"fast": FAST}))
        leads(process, client)
        for number in pair:
            process.signal(number)
        assert process.wait() == 0, process.output
        assert not process.lines("Traceback")
        assert not client.exists(KEYS.leader)


def test_a_later_signal_ends_a_beat_that_hangs_at_once(beat: Beat, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    stuck.touch()
    sticky = {"task": "proj.sticky", "schedule": 0.1}
    process = beat(PROJ_CONF=conf(schedule={"sticky": sticky}), PROJ_STUCK=stuck, PROJ_PATIENCE=100)
    process.says("Sending due task sticky")
    process.terminate()

    def ended() -> bool:
        process.signal(signal.SIGINT)
        return not process.alive

    eventually(ended, what="the end")
    assert process.wait() == 128 + signal.SIGINT


class Load:
    """What beats have sent under load, over many of them."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._messages: list[Sent] = []

    def take(self) -> int:
        """Take all messages from the queue; returns how many there were."""
        messages = queues.queued(self._client)
        if messages:
            self._client.ltrim("celery", 0, -1 - len(messages))
        self._messages += messages
        return len(messages)

    def is_spread(self, entries: int) -> bool:
        """Take what has come, and tell whether that is several runs of each entry."""
        self.take()
        counts = Counter(message.entry for message in self._messages)
        return len(counts) == entries and min(counts.values()) > 1

    def is_whole(self, interval: float) -> None:
        """Check that no run of an entry is missing or was sent twice."""
        for name in {message.entry for message in self._messages}:
            # One by one, because they are not all caught up with at the same moment.
            messages = [message for message in self._messages if message.entry == name]
            check_messages(messages, [name], round(1000 * interval), ordered=False)


@pytest.mark.parametrize(("dispatch", "count"), [("auto", 200), ("plain", 40)])
@pytest.mark.parametrize("stops", [4, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_stops_under_load_are_quick_and_lose_and_double_nothing(
    beat: Beat, client: redis.Redis, server: Server, dispatch: str, count: int, stops: int
) -> None:
    interval = 0.5
    entry = {"task": "proj.add", "schedule": interval, "misfire": "all", "expires": None}
    settings = conf(schedule={f"e{number}": entry for number in range(count)}, dispatch=dispatch)
    load = Load(client)
    moments = random.Random(stops)
    for _ in range(stops):
        # It is not left for its slowness, of which a busy machine may be the cause.
        process = beat(PROJ_CONF=settings, PROJ_PATIENCE=30)
        leads(process, client)
        eventually(load.take, what="the first messages")
        time.sleep(moments.uniform(0, interval))  # not a wait for anything: it chooses the moment
        with Stopwatch(process, server) as watch:
            process.signal(moments.choice((signal.SIGTERM, signal.SIGINT)))
            code = process.wait(30)
        assert code == 0, process.output
        watch.at_most(1.5)
        assert not process.lines("Traceback|ERROR")
        assert not client.exists(KEYS.leader)
    beat(PROJ_CONF=settings)
    eventually(lambda: load.is_spread(count), what="several runs of each entry")
    load.is_whole(interval)
