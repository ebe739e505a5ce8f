"""Health tells a beat that hangs from one that stands by, and knows how long the server has been away."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import stat
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from celery import Celery
from celery import beat as celery_beat

from redbeat_lite import Scheduler
from redbeat_lite._base.clock import elapsed
from redbeat_lite._base.errors import RedbeatError
from redbeat_lite.beat.heartbeat import Health, HeartbeatFile, judge
from redbeat_lite.beat.status import Status, status_of
from redbeat_lite.entries.changes import FORMAT
from redbeat_lite.operate.health import _checked_limit, cluster_health, health
from redbeat_lite.settings import Settings
from redbeat_lite.store.redis_values import server_ms
from redbeat_lite.store.scripts import Scripts, source
from tests.support.beats import FAST, KEYS, conf, leads, settled
from tests.support.cases import together
from tests.support.commands import commands
from tests.support.processes import Process, celery
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually, never

Beat = Callable[..., Process]

#: Seconds of silence that the tests allow.
LIMIT = 2.0

#: Seconds that the looks themselves take.
SLACK = 1.0


@pytest.fixture
def settings(server: Server) -> Settings:
    return Settings(url=server.url, lease=1)


def test_a_frozen_leader_and_a_frozen_stand_by_turn_red_and_healthy_ones_do_not(
    beat: Beat, client: redis.Redis, settings: Settings, tmp_path: Path
) -> None:
    files = [str(tmp_path / name) for name in "abc"]
    beats = [beat(PROJ_CONF=conf(lease=1, heartbeat_file=file)) for file in files]
    leader, others = settled(beats, client)
    file_of = dict(zip(beats, files, strict=True))

    def both(process: Process) -> list[Health]:
        asked = health(settings, limit=LIMIT, pid=process.pid)
        return [asked, judge(file_of[process], LIMIT)]

    eventually(lambda: all(verdict.healthy for process in beats for verdict in both(process)), what="all green")
    assert "leader" in both(leader)[0].reason
    assert "stand-by" in both(others[0])[0].reason
    for process in (leader, others[0]):
        with Stopwatch() as watch:
            process.signal(signal.SIGSTOP)
            eventually(lambda: not any(each.healthy for each in both(process)), what="red")  # noqa: B023
        watch.at_most(LIMIT + 1 + SLACK)
    eventually(lambda: all(verdict.healthy for verdict in both(others[1])), what="the one that leads now is well")
    eventually(lambda: cluster_health(settings, limit=LIMIT).healthy, what="a leader that ticks")
    # Without a pid, one healthy beat of the host is enough.
    eventually(lambda: health(settings, limit=LIMIT).healthy, what="a healthy beat of this host")
    for process in (leader, others[0]):
        process.signal(signal.SIGCONT)
        eventually(lambda: all(verdict.healthy for verdict in both(process)), what="green again")  # noqa: B023
    leader.terminate()
    leader.wait()
    assert not Path(file_of[leader]).exists(), "a beat that ends takes its file along"
    assert {str(path) for path in tmp_path.iterdir()} == set(files) - {file_of[leader]}


@pytest.mark.skipif(not hasattr(celery_beat, "BeatPidbox"), reason="this Celery has no remote control of beat")
def test_celerys_ping_is_answered_by_leader_and_stand_by_but_not_while_the_loop_hangs(
    beat: Beat, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    settings = json.loads(conf(lease=1, schedule={"sticky": {"task": "proj.sticky", "schedule": 0.2}}))
    settings |= {"beat_max_loop_interval": 0.2, "beat_remote_control_max_tick_age": 2}
    env = {"PROJ_CONF": json.dumps(settings), "PROJ_STUCK": stuck}
    names = {}
    for name in ("one", "two"):
        process = beat("tests.acceptance.proj", "--enable-remote-control", "-n", name, **env)
        names[process] = f"celerybeat@{name}"
    leader, [standby] = settled(names, client)

    def ping(process: Process) -> int:
        words = ("inspect", "ping", "-d", names[process])
        return celery("tests.acceptance.proj", *words, PROJ_URL=server.url).wait()

    def answering() -> set[str]:
        with Celery(broker=server.url) as app:
            return set(app.control.inspect(timeout=1, limit=2).ping() or {})

    eventually(lambda: answering() == set(names.values()), what="answers of both")
    eventually(lambda: ping(standby) == 0, what="an answer to the command")
    stuck.touch()
    eventually(lambda: answering() == {names[standby]}, what="the silence of the leader that hangs")
    assert ping(leader) == 69
    stuck.unlink()
    eventually(lambda: answering() == set(names.values()), what="answers of both, again")
    for process in names:
        process.terminate()
    assert [process.wait() for process in names] == [0, 0]
    assert not [line for process in names for line in process.lines("CRITICAL|Traceback")]


def test_a_frozen_leader_stays_red_when_its_lease_runs_out(server: Server, client: redis.Redis) -> None:
    settings = Settings(url=server.url, lease=4)
    scripts, token = Scripts(client), f"{socket.gethostname()}:7:0:proj"
    host = socket.gethostname()
    scripts.run("leader/acquire", KEYS, token=token, lease_ms=4000, host=host, pid=7, format=FORMAT, change="[]")
    renewal = {"lease_ms": 60_000, "least": 0, "synced": "", "silent_ms": 3800, "report": "{}", "planned_by": 0}
    scripts.run("leader/renew", KEYS, backfills_due=KEYS.of_backfills.due, token=token, number=1, **renewal)

    def red() -> str:
        verdict = health(settings, limit=3.7, pid=7)
        assert not verdict.healthy, verdict.reason
        return verdict.reason

    assert red().startswith("leader (pid 7")
    client.delete(KEYS.leader)
    assert red().startswith("stand-by (pid 7")


def test_a_beat_that_was_killed_is_named_after_the_living_and_is_not_called_alive(
    server: Server, client: redis.Redis
) -> None:
    host, settings = socket.gethostname(), Settings(url=server.url)
    client.hset(KEYS.leader, mapping={"token": f"{host}:7:0:proj", "term": 2, "host": host, "pid": 7, "since": 1})
    ms = server_ms(client)
    client.hset(KEYS.meta, "ticked", ms)
    client.zadd(KEYS.beats, {f"{host}:9:0:proj": ms - 20_000, f"{host}:8:0:proj": ms + 600_000})

    def said(pid: int | None = None, limit: float = 1000) -> str:
        verdict = health(settings, limit=limit, pid=pid)
        assert verdict.healthy, verdict.reason
        return verdict.reason

    assert said().startswith(f"leader (pid 7 on {host}): alive")
    assert said(8) == f"stand-by (pid 8 on {host}): alive"
    # As `status` has it, which lists it no more.
    assert [each.pid for each in status_of(settings).standbys if each.well] == [8]
    pattern = rf"stand-by \(pid 9 on {host}\): a sign of life has been overdue for \d+\.\d s, of 1000 s allowed"
    assert re.fullmatch(pattern, said(9))
    assert not health(settings, limit=15, pid=9).healthy
    client.hset(KEYS.meta, "ticked", ms - 100_000)
    assert said(limit=50) == f"stand-by (pid 8 on {host}): alive", "one that is well, rather than a leader that is not"
    client.delete(KEYS.leader)
    assert said() == f"stand-by (pid 8 on {host}): alive"


def test_the_beat_that_takes_over_is_the_one_that_is_named(beat: Beat, client: redis.Redis, settings: Settings) -> None:
    beats = [beat(PROJ_CONF=conf(lease=1)) for _ in range(2)]
    leader, [other] = settled(beats, client)
    for process in (leader, other):
        leads(process, client)
        eventually(lambda: f"leader (pid {process.pid} " in health(settings).reason, what="the leader")  # noqa: B023
        process.kill()


def test_a_loop_that_hangs_turns_red_although_the_lease_is_renewed(
    beat: Beat, client: redis.Redis, settings: Settings, tmp_path: Path
) -> None:
    stuck, file = tmp_path / "stuck", str(tmp_path / "beat")
    schedule = {"sticky": {"task": "proj.sticky", "schedule": 0.2, "expires": 600}}
    process = beat(PROJ_CONF=conf(schedule=schedule, lease=1, heartbeat_file=file), PROJ_STUCK=stuck)
    leads(process, client)
    eventually(lambda: client.llen("celery"), what="a message")
    checks: tuple[Callable[[], Health], ...] = (
        lambda: health(settings, limit=LIMIT, pid=process.pid),
        lambda: cluster_health(settings, limit=LIMIT),
        lambda: judge(file, LIMIT),
    )
    with Stopwatch() as watch:
        stuck.touch()
        eventually(lambda: not any(check().healthy for check in checks), what="red")
    watch.at_most(LIMIT + SLACK)
    assert client.pttl(KEYS.leader) > 0, "it still holds the lease"
    assert "no sign of life for" in health(settings, limit=LIMIT, pid=process.pid).reason
    stuck.unlink()
    eventually(lambda: health(settings, limit=LIMIT, pid=process.pid).healthy, what="green again")


def test_a_server_that_is_lost_for_longer_than_the_limit_turns_the_file_red(
    beat: Beat, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, file = own_server(appendonly="yes"), str(tmp_path / "beat")
    process = beat(url=server.url, PROJ_CONF=conf(heartbeat_file=file))
    process.says("beat: leading")
    eventually(lambda: judge(file, LIMIT).healthy, what="the file")
    server.stop()
    process.says("ERROR.*cannot use redis://")
    assert judge(file, 60).healthy, "not at once"
    eventually(lambda: not judge(file, LIMIT).healthy, what="red")
    assert "cannot use redis://127.0.0.1" in judge(file, LIMIT).reason
    server.start()
    eventually(lambda: judge(file, LIMIT).healthy, what="green again")
    with server.client() as client:
        leads(process, client)


def test_a_broker_that_swallows_everything_turns_the_leader_red(
    beat: Beat, own_server: Callable[..., Server], client: redis.Redis, settings: Settings
) -> None:
    with Proxy(own_server().port) as broker:
        options = {"url": settings.url, "lease": 1, "publish_timeout": 0.5}
        process = beat(url=broker.url, PROJ_CONF=conf(schedule={"fast": FAST}, **options))
        leads(process, client)
        process.says("Sending due task")
        assert health(settings, limit=LIMIT, pid=process.pid).healthy
        broker.black_hole = True
        eventually(lambda: not health(settings, limit=LIMIT, pid=process.pid).healthy, what="red")
        verdict = health(settings, limit=LIMIT, pid=process.pid)
        assert "cannot reach the broker" in verdict.reason
        assert not cluster_health(settings, limit=LIMIT).healthy


def test_the_cluster_is_red_when_no_leader_has_ticked_for_the_limit(
    beat: Beat, client: redis.Redis, server: Server, settings: Settings
) -> None:
    assert cluster_health(settings) == Health(False, "no beat has ever led")
    process = beat(PROJ_CONF=conf(lease=1))
    leads(process, client)
    assert cluster_health(settings, limit=LIMIT).healthy
    eventually(lambda: _commands_while_idle(server) == [RENEWAL], what="renewals and nothing for the reports")
    with Stopwatch() as watch:
        process.kill()
        eventually(lambda: not client.exists(KEYS.leader), what="nobody leads")
        assert cluster_health(settings, limit=60).healthy, "a hand-over takes a moment"
        eventually(lambda: not cluster_health(settings, limit=LIMIT).healthy, what="red")
        assert "no leader has ticked for" in cluster_health(settings, limit=LIMIT).reason
        eventually(lambda: not health(settings, limit=LIMIT).healthy, what="red")
    watch.at_most(LIMIT + SLACK)


#: How the renewal of a lease begins, as the server sees it.
RENEWAL = f"EVALSHA {hashlib.sha1(source('leader/renew').encode()).hexdigest()}"


def _commands_while_idle(server: Server) -> list[str]:
    """What a leader with nothing to do asks of the server during two renewals, without its look for stuck pipelines."""
    with commands(server) as seen:
        time.sleep(0.6)
    asked = {" ".join(command.split()[:2]) for command in seen}
    return sorted(
        command for command in asked if not re.match(r"PING|CLIENT|HELLO|ZRANGE.* \{redbeat-lite\}:pipelines", command)
    )


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_a_healthy_stand_by_is_never_red_for_a_minute(
    beat: Beat, client: redis.Redis, server: Server, tmp_path: Path
) -> None:
    file, defaults = str(tmp_path / "beat"), Settings(url=server.url)
    leader = beat(PROJ_CONF=conf(schedule={"fast": FAST}))
    leads(leader, client)
    standby = beat(PROJ_CONF=conf(heartbeat_file=file))
    standby.says("standing by")
    eventually(Path(file).exists)  # it touches it a moment later

    def bad() -> list[str]:
        verdicts = (judge(file, LIMIT), health(defaults, limit=LIMIT, pid=standby.pid))
        return [verdict.reason for verdict in verdicts if not verdict.healthy]

    never(bad, during=60, what="red")


def test_a_server_that_answers_nothing_is_given_up_in_time(server: Server) -> None:
    with Proxy(server.port) as proxy:
        proxy.black_hole = True
        with Stopwatch() as watch, pytest.raises(redis.TimeoutError):
            health(Settings(url=proxy.url))
        watch.at_most(2 + SLACK)


def test_a_beat_that_only_lost_its_lease_is_not_red(beat: Beat, client: redis.Redis, settings: Settings) -> None:
    process = beat(PROJ_CONF=conf(lease=1))
    leads(process, client)
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(KEYS.leader)
        pipe.hset(KEYS.leader, mapping={"token": "elsewhere:1:0", "term": 99, "host": "elsewhere", "pid": 1})
        pipe.pexpire(KEYS.leader, 1000)
        pipe.execute()
    seen = set()

    def leads_again() -> bool:
        verdict = health(settings, limit=20, pid=process.pid)
        assert verdict.healthy, verdict.reason
        seen.add(verdict.reason.split()[0])
        return client.hget(KEYS.leader, "pid") == str(process.pid).encode()

    eventually(leads_again, what="its lease again")
    assert "stand-by" in seen


class TestLimit:
    def test_by_default_it_is_as_long_as_a_leader_may_hang(self) -> None:
        assert _checked_limit(Settings(url="redis://x"), None) == 30
        assert _checked_limit(Settings(url="redis://x", lease=60), None) == 60

    def test_one_that_is_shorter_than_two_reports_is_refused(self, server: Server) -> None:
        expected = "seconds, at least 5, the interval at which a beat reports"
        with pytest.raises(RedbeatError, match=f"limit: expected {expected}, got 4"):
            health(Settings(url=server.url, lease=10), limit=4)
        with pytest.raises(RedbeatError, match="limit: expected seconds, at least 1"):
            cluster_health(Settings(url=server.url, lease=1), limit=0.5)
        with pytest.raises(RedbeatError, match="limit: expected seconds, at least 2"):
            health(Settings(url=server.url, heartbeat_file="beat"), limit=1.5)

    @pytest.mark.parametrize("limit", [float("nan"), float("inf")])
    def test_one_that_no_silence_reaches_is_refused(self, server: Server, tmp_path: Path, limit: float) -> None:
        for settings in (Settings(url=server.url), Settings(url=server.url, heartbeat_file=str(tmp_path / "beat"))):
            with pytest.raises(RedbeatError, match=f"limit: expected seconds, .*, got {limit}"):
                health(settings, limit=limit)
        with pytest.raises(RedbeatError, match="limit: expected seconds"):
            cluster_health(Settings(url=server.url), limit=limit)


def test_garbage_that_lies_where_beats_report_stops_nobody(client: redis.Redis, settings: Settings) -> None:
    seconds, _ = client.time()  # type: ignore[misc]
    members = [b"", b"x", b"a:b", b"a:b:c", b"::", b"h:" + b"9" * 30 + b":0", b"\xff", b"\xff:7:0:a:b"]
    client.zadd(KEYS.beats, {"h:8:0:": 1000 * seconds, **dict.fromkeys(members, float("inf")), b"y": float("-inf")})
    report = {"failing_for": "x", "sent": 10**400, "failed": None, "skipped": "y", "dispatch": 7, "why": {}}
    leader = {"token": "h:9:0:proj", "term": "x", "host": b"\xff", "pid": "-", "since": "9" * 30}
    client.hset(KEYS.leader, mapping={**leader, "report": json.dumps(report)})
    client.hset(KEYS.meta, "ticked", "9" * 17)
    found = status_of(settings)
    assert [(each.host, each.pid, each.owner) for each in found.standbys] == [("h", 8, ""), ("\\xff", 7, "a:b")]
    assert found.leader is not None
    assert (found.leader.pid, found.leader.sent, found.leader.failing_for, found.last_tick) == (0, 0, None, None)
    assert not health(settings).healthy
    assert not cluster_health(settings).healthy
    for text in ("[]", "{", '"x"', "7", f'{{"failing_for": {10**400}}}'):
        client.hset(KEYS.leader, "report", text)
        assert status_of(settings).leader is not None


class TestFile:
    @together(
        "text",
        [
            *("", "{", "[]", "7", '{"at": 1}', '{"at": "x", "failing_since": null}'),
            *(f'{{"role": "r", "pid": 1, "at": {at}, "failing_since": null}}' for at in ("NaN", "-1e999", "9" * 400)),
            '{"role": "r", "pid": 1, "at": 0, "failing_since": NaN}',
            "[" * 30_000,
            f'{{"role": "leader", "pid": 1, "at": 0, "failing_since": {"[" * 30_000}{"]" * 30_000}}}',
        ],
        ids=lambda text: text[:60],
    )
    def test_what_is_no_heartbeat_file_is_red_and_says_so(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "beat"
        path.write_text(text)
        assert judge(str(path), 5) == Health(False, f"{path} is not the heartbeat file of a beat")

    def test_one_that_is_not_there_or_cannot_be_read_is_red_and_says_so(self, tmp_path: Path) -> None:
        assert "does not exist" in judge(str(tmp_path / "none"), 5).reason
        opened = len(os.listdir("/proc/self/fd"))
        assert "cannot be read: Is a directory" in judge(str(tmp_path), 5).reason
        assert len(os.listdir("/proc/self/fd")) == opened

    def test_a_pipe_keeps_no_probe_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "beat")
        assert "is not the heartbeat file" in judge(str(tmp_path / "beat"), 5).reason

    def test_no_link_is_followed_that_somebody_has_put_in_its_way(self, tmp_path: Path) -> None:
        victim, path = tmp_path / "victim", tmp_path / "beat"
        victim.write_text("precious")
        for name in ("beat", f"beat.{os.getpid()}", f".beat.{os.getpid()}"):
            (tmp_path / name).symlink_to(victim)
        HeartbeatFile(str(path)).write("leader", None, "")
        assert victim.read_text() == "precious"
        assert judge(str(path), 5).healthy
        assert not path.is_symlink()

    def test_a_pipe_in_its_place_is_left_there_and_keeps_no_beat_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "beat")
        with pytest.raises(OSError, match="a pipe or a device"):
            HeartbeatFile(str(tmp_path / "beat")).write("leader", None, "")
        assert (tmp_path / "beat").is_fifo()

    def test_a_link_that_comes_while_it_is_written_is_not_followed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        victim = tmp_path / "victim"
        victim.write_text("precious")
        unlink = Path.unlink

        def unlink_too_early(path: Path, missing_ok: bool = False) -> None:
            unlink(path, missing_ok)
            path.symlink_to(victim)

        monkeypatch.setattr(Path, "unlink", unlink_too_early)
        with pytest.raises(FileExistsError):
            HeartbeatFile(str(tmp_path / "beat")).write("leader", None, "")
        assert victim.read_text() == "precious"

    def test_a_probe_of_another_user_may_read_it(self, tmp_path: Path) -> None:
        before = os.umask(0o022)
        try:
            HeartbeatFile(str(tmp_path / "beat")).write("leader", None, "")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "beat").stat().st_mode) == 0o644

    def test_one_from_before_the_last_start_of_the_machine_is_red(self, tmp_path: Path) -> None:
        path = tmp_path / "beat"
        HeartbeatFile(str(path)).write("leader", None, "")
        record = json.loads(path.read_text())
        assert judge(str(path), 5).healthy
        path.write_text(json.dumps({**record, "at": elapsed() + 1000}))
        assert "before the machine's last start" in judge(str(path), 5).reason

    def test_it_is_written_once_a_second_and_never_seen_half_written(self, tmp_path: Path) -> None:
        path = tmp_path / "beat"
        file = HeartbeatFile(str(path))
        file.write("leader", None, "")
        inode, first = path.stat().st_ino, path.read_text()
        file.write("stand-by", None, "")
        assert path.read_text() == first
        file._written_at -= 1
        file.write("stand-by", None, "")
        assert path.stat().st_ino != inode, "another file took its place"
        assert json.loads(path.read_text())["role"] == "stand-by"
        assert [each.name for each in tmp_path.iterdir()] == ["beat"]

    def test_a_beat_leaves_the_file_of_another_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "beat"
        file = HeartbeatFile(str(path))
        file.remove()
        file.write("leader", None, "")
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": os.getpid() + 1}))
        file.remove()
        assert path.exists()

    def test_a_file_that_cannot_be_written_is_said_once_and_stops_nobody(
        self, make_app: Any, make_beat: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        directory = tmp_path / "gone"
        directory.mkdir()
        beat: Scheduler = make_beat(make_app(redbeat_lite_heartbeat_file=str(directory / "beat")))
        directory.rmdir()
        beat.max_interval = 0.01
        for _ in range(3):
            beat.tick()
            beat._parts.state.heartbeat._written_at -= 2  # type: ignore[union-attr]
        assert beat.leader.holds_lease
        said = [r.getMessage() for r in caplog.records if "heartbeat" in r.getMessage()]
        assert said == [f"beat: cannot write the heartbeat file {directory / 'beat'}: No such file or directory"]

    @together("wrong", ["", 7, "/no/such/directory/beat"], emptied=True)
    def test_a_path_that_cannot_be_is_refused_at_the_start(self, make_app: Any, wrong: object) -> None:
        with pytest.raises(click.ClickException, match="redbeat_lite_heartbeat_file: expected") as raised:
            Scheduler(make_app(redbeat_lite_heartbeat_file=wrong), lazy=True)
        assert repr(wrong) in raised.value.message


def test_status_tells_who_leads_who_stands_by_and_what_was_sent(
    beat: Beat, client: redis.Redis, server: Server, settings: Settings
) -> None:
    before = status_of(settings)
    assert (before.leader, before.standbys, before.last_tick, before.silence) == (None, (), None, None)
    assert (before.lag, before.overdue, before.entries, before.quarantined) == (0, 0, 0, 0)
    beats = [beat(PROJ_CONF=conf(schedule={"fast": FAST}, lease=3)) for _ in range(2)]
    settled(beats, client)
    pids = {process.pid for process in beats}

    def complete() -> Status | None:
        """The status once it has the leader's report, and the stand-by is well. On a busy machine, either may lead."""
        pid, term = client.hmget(KEYS.leader, "pid", "term")
        status = status_of(settings)
        if status.leader is None or pid is None or term is None:
            return None
        is_of_leader = (status.leader.pid, status.leader.term) == (int(pid), int(term))
        has_reported = status.leader.sent > 3 and status.silence is not None
        is_listed = {each.pid for each in status.standbys if each.well} == pids - {int(pid)}
        return status if is_of_leader and has_reported and is_listed else None

    found = eventually(complete, what="a report")
    assert found.leader is not None
    assert found.leader.failed == 0
    assert found.leader.host == os.uname().nodename
    assert found.leader.dispatch == "in one step with the schedule (exactly once), prepared"
    # It is told to the second.
    assert before.now - timedelta(seconds=1) < found.leader.since <= found.now
    assert found.entries == 1
    # All gone: what is due gets late, and nobody is listed.
    for process in beats:
        process.kill()
    eventually(lambda: status_of(settings).overdue == 1, what="an overdue entry")
    late = eventually(lambda: None if (found := status_of(settings)).leader else found, what="nobody leads")
    assert late.lag > 1
    assert late.last_tick is not None
    assert late.last_tick >= found.last_tick  # type: ignore[operator]
