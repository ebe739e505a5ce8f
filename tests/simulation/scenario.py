"""One seed: beats and a user on the model server, faults for a while, then calm; and what must hold."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from redbeat_lite import Scheduler
from redbeat_lite.storage.keys import Keys
from redbeat_lite.storage.scripts import _sha
from tests.simulation.apps import Setup, make_app
from tests.simulation.faults import KINDS, Faults
from tests.simulation.network import Network
from tests.simulation.seams import seams
from tests.simulation.server import ModelServer
from tests.simulation.story import LogLines, Story
from tests.simulation.users import NAMES, User
from tests.simulation.values import CommandError
from tests.simulation.workers import Worker
from tests.simulation.world import EPOCH_US, MICROS, Process, World
from tests.support.audit import History, violations
from tests.support.messages import parse

#: Milliseconds after its time by which a run arrives where nothing is wrong.
LATE_MS = 1500

#: Milliseconds by which a clock that was set may be wrong.
CLOCK_MS = 1000

#: Keys of the schedule, about, beside those that live for a minute.
MOST_KEYS = 60

_KEYS = Keys.of("redbeat-lite")


class Scenario:
    """Runs one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.story = Story(self.world)
        self.setup = Setup.draw(self.world.random, KINDS)
        self.server = ModelServer(lambda: self.world.now_us)
        self.network = Network(self.world, self.server)
        self.network.observe = self._observe
        self._user = User(self.world, self.setup, self.story)
        self.beats: list[Process] = []
        self._beats_started = 0
        self._schedulers: dict[str, Scheduler] = {}
        self.workers: list[Process] = []
        self._workers_started = 0
        #: Whoever sent in a term, by the number of times that the data was lost and by the term.
        self._senders: dict[tuple[int, bytes], bytes] = {}
        self.losses_of_data = 0
        self._last_sent: dict[str, int] = {}
        self._peek = _sha("schedule/peek").encode()
        self._commit = _sha("schedule/commit").encode()

    def run(self) -> Story:
        """Run the seed to its end; the story has what it broke."""
        handler = LogLines(self.story)
        logger = logging.getLogger("celery")
        was = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        try:
            with seams(self.world, self.network):
                self._run()
                self.world.close()
        finally:
            logger.removeHandler(handler)
            logger.level, logger.propagate = was
        return self.story

    def _run(self) -> None:
        setup = self.setup
        self.story.tell(f"{setup}")
        slack = CLOCK_MS + 100 if "clock" in setup.faults else 100
        delivery = "at least" if "fail over" in setup.faults else "exactly"
        self.story.record(kind="setup", late=LATE_MS, slack=slack, delivery=delivery)
        for name in setup.config:
            self._add_config_entry(name)
        for _ in range(setup.beats):
            self.start_beat()
        for _ in range(2):
            self.start_worker()
        self.world.process("user").start_main(self._user.run)
        fault: dict[str, Any] = {"kind": "fault", "began": self.story.now, "ended": self.story.now + setup.recovery_ms}
        self.story.records.append(fault)
        faults = Faults(self)
        faults.begin()
        self.world.run_until(EPOCH_US + int(setup.stormy * MICROS))
        faults.end()
        self._user.is_done = True
        self.story.tell("calm from now on")
        if setup.faults:
            # The server may be away for some seconds more, and a request may be late.
            fault["ended"] = self.story.now + 20_000 + setup.recovery_ms
        self.world.run_until(self.world.now_us + int((setup.calm + 20.0) * MICROS))
        self.story.record(kind="end", at=self.story.now)
        self._check()

    def start_beat(self) -> None:
        """Start one more beat."""
        self._beats_started += 1
        process = self.world.process(f"beat-{self._beats_started}")
        self.beats.append(process)
        self.story.tell(f"{process.name} starts")

        def main() -> None:
            scheduler = Scheduler(make_app(self.world, self.setup))
            self._schedulers[process.name] = scheduler
            try:
                while True:
                    scheduler.tick()
            except SystemExit:
                if process in self.beats:
                    raise
                scheduler.close()
                process.kill()

        process.start_main(main)

    def stop_beat(self, process: Process) -> None:
        """Tell a beat to stop, as a signal would."""
        self.beats.remove(process)
        scheduler = self._schedulers.get(process.name)
        if scheduler is None:
            process.kill()
        else:
            scheduler._stop.requested = True

    def start_worker(self) -> None:
        """Start one more worker."""
        self._workers_started += 1
        process = self.world.process(f"worker-{self._workers_started}")
        self.workers.append(process)
        process.start_main(Worker(self.world, self.setup, self.story, process).run)

    def forget_since(self, since: int) -> None:
        """Note that the writes since an instant are lost: what was answered then may not have happened."""
        self.losses_of_data += 1
        for record in self.story.records:
            if record["kind"] == "call" and record["returned"] is not None and record["returned"] >= since:
                record |= {"returned": None, "ok": None}

    def forget_everything(self) -> None:
        """Note that all entries are gone; those of the configuration come back some time later."""
        self.losses_of_data += 1
        now = self.story.now
        for name in (*NAMES, *self.setup.config):
            self.story.record(kind="call", act="remove", entry=name, began=now, returned=now, ok=True)
        self.story.record(kind="call", act="thaw", began=now, returned=now, ok=True)
        for name in self.setup.config:
            self._add_config_entry(name)

    def _add_config_entry(self, name: str) -> None:
        rule = {"every": self.setup.config[name] * 1000}
        self.story.record(kind="call", act="add", entry=name, began=self.story.now, returned=None, ok=None, rule=rule)

    def has_commit(self, commands: list[list[bytes]]) -> bool:
        """Whether one of these commands advances entries."""
        return any(command[:2] == [b"EVALSHA", self._commit] for command in commands)

    # -- what is sent ------------------------------------------------------------------------------

    def _observe(self, process: Process, command: list[bytes], reply: Any) -> None:
        if command[:2] == [b"EVALSHA", self._peek] and isinstance(reply, list) and len(reply) == 4:
            self._meet_dispatch()
        queue: Any = self.server.database.find(b"celery")
        if not queue or isinstance(reply, CommandError):
            return
        if command[:2] == [b"EVALSHA", self._commit]:
            self._check_sender(command)
        while queue:
            self._note_message(process, queue.pop())
        self.server.database.delete(b"celery")

    def _meet_dispatch(self) -> None:
        """Let the user edit now and then while a beat dispatches what it has just read."""
        if self.world.random.random() < 0.15:
            self._user.hurry()

    def _check_sender(self, command: list[bytes]) -> None:
        token, term = command[3 + int(command[2]) :][:2]
        sender = self._senders.setdefault((self.losses_of_data, term), token)
        if sender != token:
            self.story.violate(f"two beats sent in term {term.decode()}")

    def _note_message(self, process: Process, raw: bytes) -> None:
        message = parse(raw)
        assert message.entry is not None
        assert message.scheduled_at is not None
        nominal = round(message.scheduled_at.timestamp() * 1000)
        self.story.counts["runs sent"] += 1
        self.story.tell(f"{process.name} sends {message.entry} of {(nominal - EPOCH_US // 1000) / 1000:.3f} s")
        self.story.record(
            kind="sent", entry=message.entry, nominal=nominal, id=message.id, at=self.story.now, by="rule"
        )
        self._last_sent[message.entry] = self.story.now

    # -- checks ------------------------------------------------------------------------------------

    def _check(self) -> None:
        records = self.story.records if self._times_are_certain else []
        if not self._locks_are_strict:
            records = [record for record in records if record["kind"] != "body"]
        for violation in violations(History(records)):
            self.story.violate(str(violation))
        for process in self.world.processes:
            if process.ended is not None and not process.is_dead and process.name.startswith("beat"):
                self.story.violate(f"{process.name} ended by itself: {process.ended}")
            elif process.ended is not None and process.ended != "its main thread returned":
                self.story.violate(f"{process.name} ended: {process.ended}")
        self._check_silence()
        self._check_fences()
        self._check_keys()

    @property
    def _times_are_certain(self) -> bool:
        """Whether the clocks of all beats were right, but for a second: else no run has one right time."""
        return "leap" not in self.setup.faults

    @property
    def _locks_are_strict(self) -> bool:
        """Whether nothing happens by which a holder may notice too late that its lease has run out."""
        return not set(self.setup.faults) - {
            "cut",
            "kill",
            "stop",
            "kill worker",
            "clock",
            "request lost",
            "reply lost",
        }

    def _check_silence(self) -> None:
        """Nothing that is stored is overdue, and each config entry that may run has run of late."""
        due: Any = self.server.database.find(_KEYS.due.encode())
        now = self.story.now
        scores = {} if due is None else due.scores
        for name, score in scores.items():
            if score < now - LATE_MS:
                self.story.violate(f"{name.decode()} has been due for {now - score:.0f} ms, and nobody sends it")
        for name, period in self.setup.config.items():
            score = scores.get(name.encode())
            if score is None:
                self.story.violate(f"{name} is in the configuration and not in the schedule")
            elif score != float("inf") and self._last_sent.get(name, 0) < now - 1000 * period - LATE_MS:
                self.story.violate(f"{name} has not run for more than its period of {period} s")

    def _check_fences(self) -> None:
        """Whoever takes a lock has a higher number than all that had it before."""
        last: dict[str, int] = {}
        for key, fence in self.story.fences:
            if fence is None or fence <= last.get(key, 0):
                self.story.violate(f"the lock {key} was taken with fence {fence} after {last.get(key)}")
            last[key] = fence or 0

    def _check_keys(self) -> None:
        keys = [key for key in self.server.database.all_keys() if b":reply:" not in key]
        if len(keys) > MOST_KEYS:
            self.story.violate(f"{len(keys)} keys are left, more than {MOST_KEYS}")

    def trace(self) -> str:
        """A digest of all that has happened."""
        return hashlib.sha256("\n".join(self.story.lines).encode()).hexdigest()[:16]
