"""A change takes effect at once, although the beat may sleep for five minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, at, every
from tests.harness.queues import check_queue
from tests.support.beats import KEYS, WakeChannel, leads
from tests.support.cases import together
from tests.support.messages import of_entry
from tests.support.processes import Process, celery, celery_beat
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

#: Seconds within which an entry that is due in one second has to be in the queue.
BOUND = 1.1


class Sleeper:
    """A beat that leads and sleeps, and the schedule it sleeps on."""

    def __init__(self, server: Server, process: Process) -> None:
        self.server = server
        self.process = process
        self.client: redis.Redis = server.client()
        self.schedules = Schedules(Celery("proj", broker=server.url, set_as_current=False))

    def empty(self) -> None:
        self.schedules.clear()
        self.client.delete("celery", KEYS.quarantine)
        self.asleep()

    def has_one_entry(self) -> None:
        """Remove all entries, add one that is due in an hour, and wait until the beat sleeps."""
        self.empty()
        self.schedules.add("hourly", "proj.add", every(3600))
        self.asleep()

    def asleep(self) -> None:
        """Wait until the beat has nothing to do: for a while it does not look for due entries."""

        def still() -> bool:
            before = self._looks()
            time.sleep(0.15)
            return self._looks() == before

        eventually(still, what="a sleeping beat")

    def _looks(self) -> int:
        # Every look at the schedule reads a range of the sorted set.
        return int(self.client.info("commandstats").get("cmdstat_zrange", {}).get("calls", 0))

    @contextmanager
    def sends_in_time(self, name: str, bound: float = BOUND) -> Iterator[None]:
        """After what is done in the block, a message of this entry has to be in the queue within so many seconds."""
        with Stopwatch(self.process, self.server) as watch:
            yield
            eventually(lambda: of_entry(self.client, name), what=f"a message of {name!r}")
        watch.at_most(bound)


@pytest.fixture(scope="module")
def shared_sleeper() -> Iterator[Sleeper]:
    with Server() as server, celery_beat("tests.acceptance.proj", PROJ_URL=server.url) as process:
        with server.client() as client:
            leads(process, client)
        process.says("beat: leading")
        yield Sleeper(server, process)


@pytest.fixture
def busy_sleeper(shared_sleeper: Sleeper) -> Sleeper:
    """A beat that leads, and sleeps until its only entry is due in an hour."""
    shared_sleeper.has_one_entry()
    return shared_sleeper


def in_a_second() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)


def add_to_an_empty_schedule(sleeper: Sleeper) -> None:
    sleeper.empty()
    with sleeper.sends_in_time("soon"):
        sleeper.schedules.add("soon", "proj.add", every(1))


def add_before_all_others(sleeper: Sleeper) -> None:
    with sleeper.sends_in_time("soon"):
        sleeper.schedules.add("soon", "proj.add", at(in_a_second()))


def edit_forward(sleeper: Sleeper) -> None:
    with sleeper.sends_in_time("hourly"):
        sleeper.schedules.update("hourly", schedule=every(1))


def replace(sleeper: Sleeper) -> None:
    with sleeper.sends_in_time("hourly"):
        sleeper.schedules["hourly"] = Entry("hourly", "proj.add", every(1))


def resume(sleeper: Sleeper) -> None:
    schedules = sleeper.schedules
    schedules.add("paused", "proj.add", every(1))
    schedules.pause("paused")
    sleeper.asleep()
    sleeper.client.delete("celery")
    with sleeper.sends_in_time("paused"):
        schedules.resume("paused")


def resume_to_catch_up(sleeper: Sleeper) -> None:
    """It is sent at once."""
    schedules = sleeper.schedules
    schedules.add("paused", "proj.add", at(datetime.now(UTC) + timedelta(seconds=0.3)))
    schedules.pause("paused")
    nominal = schedules["paused"].next_run_at
    eventually(lambda: nominal is None or datetime.now(UTC) > nominal, what="the nominal time")
    sleeper.asleep()
    assert not of_entry(sleeper.client, "paused")
    with sleeper.sends_in_time("paused", 0.2):
        schedules.resume("paused", catch_up=True)


def release(sleeper: Sleeper) -> None:
    schedules, client = sleeper.schedules, sleeper.client
    schedules.add("broken", "proj.add", every(1))
    # A state that nobody can read, found by the tick that comes to it; the definition is sound.
    client.hset(KEYS.state, "broken", "junk")
    eventually(schedules.quarantined, what="the quarantine")
    sleeper.asleep()
    assert not of_entry(client, "broken")
    with sleeper.sends_in_time("broken"):
        schedules.release("broken")


CHANGES = (add_to_an_empty_schedule, add_before_all_others, edit_forward, replace, resume, resume_to_catch_up, release)


# One test, so that its beat starts once.
@together("change", CHANGES)
def test_an_entry_that_was_changed_is_sent_in_time(shared_sleeper: Sleeper, change: Callable[[Sleeper], None]) -> None:
    shared_sleeper.has_one_entry()
    change(shared_sleeper)
    check_queue(shared_sleeper.client)


def test_many_entries_added_together_wake_the_beat_once(busy_sleeper: Sleeper) -> None:
    with closing(WakeChannel(busy_sleeper.client)) as channel:
        due = datetime.now(UTC) + timedelta(seconds=2)
        busy_sleeper.schedules.add_many(Entry(f"bulk-{n}", "proj.add", at(due)) for n in range(1000))
        assert channel.words() == [b"head"]


def test_a_change_that_is_not_the_next_thing_to_do_wakes_nobody(busy_sleeper: Sleeper) -> None:
    def change() -> None:
        schedules = busy_sleeper.schedules
        schedules.add("later", "proj.add", every(7200))
        schedules.pause("later")
        schedules.remove("later")

    before = busy_sleeper.client.info("commandstats")["cmdstat_publish"]["calls"]
    change()
    assert busy_sleeper.client.info("commandstats")["cmdstat_publish"]["calls"] == before


def test_a_sleeping_beat_renews_and_looks_for_stuck_pipelines_and_incidents_and_nothing_else(
    busy_sleeper: Sleeper,
) -> None:
    client = busy_sleeper.client

    def calls(command: str) -> int:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))

    # With the second look, all that the first one begins with is loaded. And a test before this one has made
    # an incident, which a look may close.
    client.config_resetstat()
    eventually(lambda: calls("zrangebyscore") >= 2 and calls("xrange") >= 2, what="threads that have begun")
    eventually(lambda: not busy_sleeper.schedules.incidents(), what="no incident")
    client.config_resetstat()
    eventually(lambda: calls("zrangebyscore") >= 1 and calls("evalsha") >= 2, what="a look and renewals")
    ran = client.info("commandstats")
    own = {"cmdstat_info", "cmdstat_config|resetstat", "cmdstat_ping"}
    inside_renewal = ("hmget", "hset", "pexpire", "zcard", "hlen", "exists", "zcount", "zadd", "time", "hget")
    renewal = {"cmdstat_evalsha", *(f"cmdstat_{name}" for name in inside_renewal)}
    sweep = {"cmdstat_zrangebyscore", "cmdstat_zrange"}
    # And some of the above.
    incidents = {"cmdstat_hgetall", "cmdstat_hkeys", "cmdstat_xrange", "cmdstat_xrevrange", "cmdstat_xlen"}
    assert {name for name in ran if name.startswith("cmdstat_")} <= own | renewal | sweep | incidents


def test_a_change_is_noticed_within_seconds_over_a_subscription_that_is_half_open(
    server: Server, client: redis.Redis, app: Celery
) -> None:
    """The server hears nothing of that connection any more, nor the beat, and neither is told."""
    schedules = Schedules(app)
    with Proxy(server.port) as proxy:
        process = celery("tests.acceptance.proj", "beat", "-S", "redbeat_lite.Scheduler", PROJ_URL=proxy.url)
        leads(process, client)
        Sleeper(server, process).asleep()
        proxy.swallow_open()
        with Stopwatch(process, server) as watch:
            schedules.add("quick", "proj.add", 1.0)
            eventually(lambda: of_entry(client, "quick"), what="the message")
        watch.at_most(12)  # Four of them until a command over a connection that does not answer is given up.
        process.destroy()


def test_a_backfill_is_noticed_within_seconds_over_a_subscription_that_is_half_open(
    server: Server, client: redis.Redis, app: Celery
) -> None:
    schedules = Schedules(app)
    schedules.add("hourly", "proj.add", every(3600, align=True))
    with Proxy(server.port) as proxy:
        process = celery("tests.acceptance.proj", "beat", "-S", "redbeat_lite.Scheduler", PROJ_URL=proxy.url)
        leads(process, client)
        Sleeper(server, process).asleep()
        proxy.swallow_open()
        now = datetime.now(UTC)
        with Stopwatch(process, server) as watch:
            schedules.backfills.start("hourly", now - timedelta(hours=3), now, max_active=None)
            eventually(lambda: of_entry(client, "hourly"), what="the message")
        watch.at_most(12)
        process.destroy()
