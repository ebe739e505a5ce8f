"""One scenario of the fault suite: servers and beats under load, faults, a history, and its audit.

The instants of faults are drawn from a seed that is printed: ``SEED=… make test ARGS="-k name"``
draws them again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import redis

from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.runs.run_store import RunKeys
from tests.faults.beats import Beats
from tests.faults.collector import Collector
from tests.faults.verdict import Verdict, verdict_of
from tests.faults.workers import FaultWorkers
from tests.harness.history import HistoryLog, now_ms
from tests.support.audit import Record, check
from tests.support.beats import KEYS
from tests.support.chance import draw_seed
from tests.support.processes import Process
from tests.support.waiting import eventually

#: Entries of every scenario: in the soak, and in the ordinary run.
ENTRIES = 500 if "SOAK_MINUTES" in os.environ else 50
PERIOD = 1.0
PERIOD_MS = 1000

#: Seconds from a recovery to the first message, at most.
BACK = 5.0

#: Seconds from the end of a dead leader's lease to the first message, at most. They include a
#: period, because an entry is due only once in a period.
CRASH = 0.5 + PERIOD

#: Milliseconds by which a message may arrive before its nominal time, because of rounding.
SLACK_MS = 2

ONCE_KEYS = OnceKeys("redbeat-lite")
RUN_KEYS = RunKeys("redbeat-lite")

#: Prefixes of keys that expire, such as the guard's memory of each task, and a lock of kombu's.
PASSING_KEYS = (KEYS.reply(""), ONCE_KEYS.guard(""), RUN_KEYS.rows(""), "unacked_mutex")

#: Keys that do not expire.
LASTING_KEYS = (
    *(getattr(KEYS, name) for name in KEYS.__slots__),
    *(ONCE_KEYS.index, ONCE_KEYS.fence, ONCE_KEYS.workers),
    *(RUN_KEYS.feed, RUN_KEYS.incidents, RUN_KEYS.news),
    *(RUN_KEYS.deadlines, RUN_KEYS.failures, RUN_KEYS.alive),
    "celery",
)


def load(count: int = ENTRIES, **fields: Any) -> dict[str, Any]:
    """Return a ``beat_schedule`` of so many entries of one second that may lose no run."""
    entry = {"task": "proj.add", "schedule": PERIOD, "misfire": "all", "expires": 3600, **fields}
    return {f"e{number:03}": entry for number in range(count)}


class Begin(NamedTuple):
    """Entries begin to run between two instants in epoch ms, or begin again with another phase.

    ``None`` stands for the entries that were there from the start.
    """

    began: int
    returned: int
    entries: frozenset[str] | None = None


class Scenario:
    """Beats and workers on a server, under load, and everything that happens to them.

    Parameters:
        seconds: how long it runs under load.
        schedule: opens a client of the server that holds the schedule.
        url: of the broker, with a password.
        broker: opens a client of the server that holds the queue, if it is another one.
        trim: whether the queue is kept short.
        settings: settings of the package, without their prefix.
    """

    def __init__(
        self,
        seconds: float,
        log: HistoryLog,
        schedule: Callable[[], Any],
        url: str,
        broker: Callable[[], redis.Redis] | None = None,
        conf: dict[str, Any] | None = None,
        trim: bool = False,
        **settings: Any,
    ) -> None:
        seed = draw_seed()
        prefixed = {f"redbeat_lite_{name}": value for name, value in settings.items()}
        conf = {"beat_schedule": load(), **prefixed, **(conf or {})}
        self.seed = seed
        self.chance = random.Random(seed)
        self.seconds = seconds
        #: Seconds from the end of a fault to the next message, at most.
        self.bound = max(BACK, settings.get("lease", 4.0) + CRASH)
        self.log = log
        self.beats = Beats(schedule, url, conf)
        self.workers = FaultWorkers(log, url, conf, self.chance)
        self.collector = Collector(broker or schedule, log, trim=trim)
        self._schedule = schedule
        self._misfire = next(iter(conf["beat_schedule"].values()))["misfire"]
        self._faults: list[Record] = []
        self._begins: list[Begin] = []
        self._began_ms = now_ms()
        self._started = time.monotonic()
        self.beats.watch.start()

    def begin(self) -> Process:
        """Start two beats unless one was started, wait for the load, and return the leader."""
        if not self.beats.running:
            self.beats.start()
            self.beats.start()
        self.await_message()
        self._begins.append(Begin(self._began_ms, now_ms()))
        self._started = time.monotonic()
        return self.beats.leader()

    # -- time --------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds that are left for faults. The last two periods are kept for catching up."""
        return self._started + self.seconds - 2 * PERIOD - time.monotonic()

    def pause(self, least: float, most: float | None = None) -> None:
        """Wait for a number of seconds that is drawn at random."""
        if most is None:
            most = least
        time.sleep(self.chance.uniform(least, most))

    def rest(self) -> None:
        """Wait until no time is left for faults."""
        time.sleep(max(self.left, 0))

    def await_message(self) -> None:
        """Wait until a message arrives after this call."""
        start = now_ms()

        def has_arrived() -> bool:
            last = self.collector.messages[-1:]
            return bool(last) and last[0].at >= start

        eventually(has_arrived, what="messages")

    def await_latest_runs(self, entries: Collection[str], within: float = 60.0) -> None:
        """Wait until the latest run of each of these entries has come."""

        def names_behind() -> list[str]:
            since = now_ms() - 2 * PERIOD_MS
            latest = self.collector.latest
            return [name for name in entries if latest.get(name, 0) < since]

        eventually(lambda: not names_behind(), within=within, what="the latest run of each entry")

    # -- faults ------------------------------------------------------------------------------------

    @contextmanager
    def outage(
        self,
        *,
        quiet: float = 0.0,
        new_phase: bool = False,
        what: str = "a fault",
    ) -> Iterator[None]:
        """Note a fault that lasts as long as the block. After it, messages have to come again.

        The fault ends one period after the last entry has caught up.

        Parameters:
            quiet: for how many seconds, at least, the fault has to stop all messages.
            new_phase: whether the entries begin again, with another phase.
        """
        began = now_ms()
        yield
        recovered = now_ms()
        self.await_message()
        self.await_latest_runs(load().keys() & self.beats.conf["beat_schedule"].keys())
        assert self._longest_pause(began) > quiet, "the fault has stopped nothing"
        self._note(began, recovered, now_ms() + PERIOD_MS, new_phase, what)

    def note_fault(self, excused: float, *, new_phase: bool = False) -> None:
        """Note a momentary fault. For this number of seconds after it runs may be late.

        With ``new_phase``, the entries begin again within this time, with another phase.
        """
        now = now_ms()
        self._note(now, now, now + round(1000 * excused), new_phase)

    def kill_leader(self, lease: float) -> None:
        """Kill the leader, start another beat, and wait until one leads and sends."""
        leader = self.beats.leader()
        self.note_fault(lease + 1.5)
        self.beats.kill(leader)
        self.beats.start()
        self.beats.leader()
        self.await_message()

    @contextmanager
    def begins(self, entries: Collection[str]) -> Iterator[None]:
        """Note that entries of the same kind as the load are added in the block."""
        began = now_ms()
        yield
        self._begins.append(Begin(began, now_ms(), frozenset(entries)))

    def _note(
        self,
        began: int,
        recovered: int,
        ended: int,
        new_phase: bool,
        what: str = "a fault",
    ) -> None:
        fault = {"began": began - PERIOD_MS, "recovered": recovered, "ended": ended}
        self._faults.append({"kind": "fault", "what": what, **fault})
        if new_phase:
            self._begins.append(Begin(began, ended))

    def _longest_pause(self, since: int) -> float:
        """Return the longest time in seconds without a message that ended after this instant."""
        messages = self.collector.messages
        first = len(messages)
        while first > 0 and messages[first - 1].at > since:
            first -= 1
        arrivals = [message.at for message in messages[max(first - 1, 0) :]]
        return max(after - before for before, after in pairwise(arrivals)) / 1000

    # -- judgement ---------------------------------------------------------------------------------

    def verdict(
        self,
        *,
        entries: Collection[str] = tuple(load()),
        period: int | None = PERIOD_MS,
        delivery: str = "exactly",
        shifted: bool = False,
        strays: int = 0,
        batch: int | None = None,
        late: float = PERIOD,
        silent: float | None = None,
        back: float | None = None,
    ) -> Verdict:
        """Wait for the end, stop everything, audit the history, and return its figures.

        Times are in seconds.

        Parameters:
            entries: names of the entries whose rule the audit knows.
            period: the interval in ms; None where a fault changes the phase of entries, so that
                losses cannot be counted.
            delivery: ``exactly``, or ``at least`` where a run may be sent twice.
            shifted: whether the clock of beats is shifted, so that they cannot say when they began
                to lead.
            strays: how many messages may come from a beat that has not noticed yet that it no
                longer leads.
            batch: how many messages a beat may have sent last without a commit; None for any
                number.
            late: the longest delay of a run that is not due in a fault.
            silent: the longest time from one message of an entry to the next, in faults too.
            back: the longest time from the end of a fault to the next message; None for the bound
                of the scenario.
        """
        assert self._faults, "there was no fault"
        self.rest()
        time.sleep(2 * PERIOD)
        self.await_latest_runs(entries)
        self.log.append({"kind": "end", "at": now_ms()})
        self._end()
        withheld = self.beats.watch.worst(self.bound, since=self._started)

        def bound(seconds: float) -> int:
            """Return a bound in ms. It grows by the time that the machine withheld."""
            return round(1000 * (seconds + withheld))

        back_ms = bound(self.bound if back is None else back)
        self.log.append(*(fault | {"back": back_ms} for fault in self._faults))
        setup: Record = {"kind": "setup", "late": bound(PERIOD), "delivery": delivery}
        setup |= {"strays": strays, "batch": batch, "slack": SLACK_MS}
        bounds = {}
        if silent is not None:
            bounds["silent"] = bound(silent)
        bounds["punctual"] = bound(late)
        if not shifted:
            self.log.append(*self.beats.terms())
        self.log.append(setup)
        self._note_begins(entries, bounds)
        records = self.log.records()
        verdict = verdict_of(records, entries, period)
        verdict.withheld = withheld
        print(verdict)
        check(records)
        self._check_keys()
        return verdict

    def _note_begins(self, entries: Collection[str], bounds: Record) -> None:
        """Note for each begin that its entries were added. They have these bounds in ms."""
        added = {name for begin in self._begins for name in begin.entries or ()}
        for begin in self._begins:
            add: Record = {"kind": "call", "act": "add", "ok": True, "misfire": self._misfire}
            add |= {"rule": {"every": PERIOD_MS}, **bounds}
            add |= {"began": begin.began, "returned": begin.returned}
            names = begin.entries or set(entries) - added
            self.log.append(*(add | {"entry": name} for name in names))

    def _end(self) -> None:
        self.beats.stop_all()
        if self.workers.running:
            # Even a busy machine finishes the rest of the work in the time that the load took.
            within = max(self.seconds, 60)
            eventually(self._is_drained, within=within, what="the end of all work")
            self.workers.stop_all()
        time.sleep(0.1)  # so that the last message is collected
        self.collector.stop()

    def _is_drained(self) -> bool:
        """Return whether no message waits, no worker has one, and no lock is held.

        This looks twice, because a message that kombu moves is in no queue for a moment.
        """
        if self._has_work():
            return False
        time.sleep(1)
        return not self._has_work()

    def _has_work(self) -> bool:
        self.workers.revive()
        queues = (self.workers.queue, "unacked", "unacked_index", ONCE_KEYS.guard_index)
        with self._schedule() as client:
            return bool(client.exists(*queues) or client.keys(ONCE_KEYS.lock("*")))

    def _check_keys(self) -> None:
        """Check that no key is left behind."""
        with self._schedule() as client:
            keys = {key.decode() for key in client.scan_iter(count=1000)}
            passing = {key for key in keys if key.startswith(PASSING_KEYS)}
            expiring = {key for key in passing if client.ttl(key) != -1}
        leaked = keys - expiring - {*LASTING_KEYS}
        leaked = {key for key in leaked if not key.startswith("_kombu.")}
        assert not leaked, leaked
        assert KEYS.leader not in keys, "the lease was not given back"

    def close(self) -> None:
        """End everything."""
        self.collector.stop()
        try:
            self.workers.close()
        finally:
            self.beats.close()
