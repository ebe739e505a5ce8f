"""One seed: beats and a user on the model server, faults for a while, then calm; and what must hold."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from redbeat_lite import Scheduler
from redbeat_lite._base.json_values import loads_as
from redbeat_lite.beat.dispatch import planner
from redbeat_lite.settings import RENEWALS_PER_LEASE
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.scripts import _sha
from tests.simulation.apps import PERIODS, Setup, draw_jitter, make_app
from tests.simulation.bodies import Bodies
from tests.simulation.broker import QUEUE, Broker
from tests.simulation.checks import LATE_MS, Checks
from tests.simulation.clearing import CLEARER, Clearer
from tests.simulation.deploys import Deploys
from tests.simulation.faults import KINDS, Faults
from tests.simulation.holders import Holder
from tests.simulation.jobs import Jobs
from tests.simulation.keepers import Keeper, draw_kept
from tests.simulation.kills import Kills
from tests.simulation.network import Network
from tests.simulation.once_entries import with_once
from tests.simulation.operators import Operator
from tests.simulation.pipeline_entries import configure, draw_pipelines
from tests.simulation.seams import seams
from tests.simulation.server import ModelServer
from tests.simulation.story import LogLines, Story
from tests.simulation.timeline import Timeline
from tests.simulation.turns import Turns
from tests.simulation.users import NAMES, User
from tests.simulation.versions import draw_deploys
from tests.simulation.workers import Requests, Worker
from tests.simulation.world import MICROS, Process, World
from tests.support.audit import Record
from tests.support.messages import Message, parse

#: Milliseconds that a message may be on its way where it is not sent in one step with the schedule.
PUBLISH_MS = 15_000

#: Seconds at the end in which the user changes nothing any more.
_STILL = 12.0

#: Seconds for which nothing may be overdue until all have recovered: each interval has been due meanwhile.
_WELL = max(PERIODS) + 3.0

#: Seconds between two looks at whether all jobs have ended.
_LOOK = 3.0

#: Seconds after that in which the user looks at what became of the backfills and of the runs.
_REPORT = 4.0

#: Seconds that a run of a pipeline may take in the calm, at most: all others of its entry may have to end before it.
_RUN = 30.0

#: How likely the user edits while a beat dispatches what it has just read.
_MEETS_DISPATCH = 0.15

_KEYS = Keys.of("redbeat-lite")


def draw_setup(seed: int) -> Setup:
    """What a seed draws before it begins."""
    world = World(seed)
    setup = Setup.draw(world.random_for("setup"), KINDS)
    setup = replace(
        setup,
        pipelines=draw_pipelines(world.random_for("entries that start pipelines"), setup.work),
        jitter=draw_jitter(world.random_for("jitter")),
        kept=draw_kept(world.random_for("kept entries"), setup),
    )
    setup = replace(setup, deploys=draw_deploys(world.random_for("deploys"), setup))
    return with_once(world.random_for("entries with a once-lock"), setup, NAMES)


class Scenario:
    """Runs one seed.

    Parameters:
        setup: what to do instead of what the seed draws.
    """

    def __init__(self, seed: int, setup: Setup | None = None) -> None:
        self.seed = seed
        self.setup = draw_setup(seed) if setup is None else setup
        self.world = World(seed, self.setup.start_us)
        self.story = Story(self.world, self.setup.left_out)
        self.server = ModelServer(lambda: self.world.now_us)
        self.network = Network(self.world, self.server, "server")
        self.broker = self._make_broker()
        self.networks = list(dict.fromkeys([self.network, self.broker.network]))
        for network in self.networks:
            network.observe = self._observe
        self._pushed: list[bytes] = []
        self.broker.server.database.note_pushed = self._note_pushed
        self.bodies = Bodies(self.world, self.story)
        self.requests = Requests(self.world)
        self.user = User(self.world, self.setup, self.story, self.bodies)
        self._user_process = self.world.process("user")
        self.jobs = Jobs(self)
        self._jobs_process = self.world.process("jobs")
        self.beats: list[Process] = []
        self.beats_started = 0
        self.schedulers: dict[str, Scheduler] = {}
        self.holders: list[Process] = []
        self._holders_started = 0
        self.workers: list[Worker] = []
        self._workers_started = 0
        self.losses_of_data = 0
        #: When data was lost last, epoch ms.
        self.lost_data = 0
        #: When each entry was sent last, epoch ms.
        self.last_sent: dict[str, int] = {}
        self._random = self.world.random_for("edits that meet a dispatch")
        self._peek = _sha("schedule/peek").encode()
        self._commit = _sha("schedule/commit").encode()
        self._acquire = _sha("leader/acquire").encode()
        self._checks = Checks(self)
        self.turns = Turns(self)
        self.deploys = Deploys(self)
        self._keeper = Keeper(self)
        self.kills = Kills(self)
        self.bodies.at_kill = self.kills.note
        self._operator = Operator(self)
        self._clearer = Clearer(self)

    def run(self) -> Story:
        """Run the seed to its end; the story has what it broke."""
        handler = LogLines(self.story)
        logger = logging.getLogger("celery")
        was = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        # A connection that is garbage is closed when it is collected, which must not depend on what ran before.
        gc.disable()
        try:
            gap = patch.object(planner, "_TAKEOVER_GAP", self.setup.once.takeover_gap)
            with gap, seams(self.world, self.networks, self.requests):
                self._run()
                self.world.close()
        finally:
            logger.removeHandler(handler)
            logger.level, logger.propagate = was
            gc.enable()
        return self.story

    def _run(self) -> None:
        setup = self.setup
        self.story.tell(f"{setup}")
        for entry in setup.pipelines.values():
            self.story.tell(f"{entry}")
        if setup.once.of:
            self.story.tell(f"{setup.once}")
        slack = 100
        if not setup.work.is_one_step:
            slack += PUBLISH_MS
        is_exact = setup.work.is_one_step and "fail over" not in setup.faults
        delivery = "exactly" if is_exact else "at least"
        deaf = self._deafness_ms
        # A command is given up after 4 s. Where its connection breaks before, it is sent once more.
        answer = 4000 if {"request late", "reply late", "half open"} & set(setup.faults) else 0
        late = LATE_MS + deaf + round(1000 * setup.jitter)
        bounds = {"late": late, "slack": slack, "answer": answer, "deaf": deaf}
        self.story.record(kind="setup", delivery=delivery, **bounds)
        self._add_config_entries()
        for _ in range(setup.beats):
            self.start_beat()
        for _ in range(setup.holders):
            self.start_holder()
        for _ in range(setup.work.workers):
            self.start_worker()
        self._user_process.start_main(self.user.run)
        if setup.work.has_jobs:
            self._jobs_process.start_main(self.jobs.run)
        if setup.pipelines:
            self.world.process("operator").start_main(self._operator.run)
        if setup.once.clears:
            self.world.process(CLEARER).start_main(self._clearer.run)
        self._checks.begin()
        self.turns.begin()
        self.deploys.begin()
        self._keeper.begin()
        timeline = Timeline(self)
        self._storm(timeline)
        self._calm(timeline)
        self.story.record(kind="end", at=self.story.now)
        self._checks.end()

    @property
    def _deafness_ms(self) -> int:
        """Milliseconds after which a beat that hears nothing knows of a new entry: at its next renewal."""
        if not {"deaf", "half open", "isolate"} & set(self.setup.faults):
            return 0
        return round(1000 * min(self.setup.lease / RENEWALS_PER_LEASE, 1.0))

    def _storm(self, timeline: Timeline) -> None:
        """Let the faults happen."""
        began = self.story.now
        fault: Record = {"kind": "fault", "began": began, "ended": began + self.setup.recovery_ms}
        self.story.records.append(fault)
        faults = Faults(self)
        faults.begin()
        timeline.live(self.setup.stormy)
        faults.end()
        self.deploys.finish()
        self.disturb()
        self.story.tell("calm from now on")
        if self.setup.faults:
            # The server may be away for some seconds more, and a request may be late.
            fault["ended"] = self.story.now + 20_000 + self.setup.recovery_ms

    def _calm(self, timeline: Timeline) -> None:
        """Let the beats recover, and then keep all promises to the letter."""
        self.user.is_calm = True
        self.jobs.is_done = True
        self._operator.end()
        self._clearer.is_done = True
        self._keeper.end()
        self.user.is_done = not self.setup.edits_in_calm
        calm_since_us = self.world.now_us
        self._recover(timeline)
        self._finish_work(timeline, calm_since_us)
        if self.setup.edits_in_calm:
            self.user.is_done = True
            timeline.live(_STILL)
        self._user_process.start_main(self.user.report)
        self._jobs_process.start_main(self.jobs.judge)
        self.kills.judge()
        if self.setup.pipelines:
            self.world.process("operator at the end").start_main(self._operator.judge)
        self.world.run_until(self.world.now_us + int(_REPORT * MICROS))

    def _recover(self, timeline: Timeline) -> None:
        """Let the beats recover; most seeds end when they have, and have sent what comes next."""
        if self.setup.is_long:
            timeline.live(self.setup.calm)
            return
        left, well = self.setup.calm, 0.0
        # The last fault may go on for long in the calm.
        while left > 0 or self._is_recovering:
            timeline.live(1.0)
            left -= 1.0
            well = well + 1.0 if self._checks.is_all_well else 0.0
            if well >= _WELL and not self.setup.lingers and not self.setup.edits_in_calm:
                return

    @property
    def _is_recovering(self) -> bool:
        """Whether the last disturbance is so near that runs may still be late."""
        return self.story.now < self._checks.disturbed + self.setup.recovery_ms + 1000 * _WELL

    def _finish_work(self, timeline: Timeline, calm_since_us: int) -> None:
        """Let workers end what is left of the storm: it is checked that they have done so."""
        work = self.setup.work
        left = work.recovery + work.seconds_for(self.broker.waiting_since(self.world.now_us))
        left += _RUN * self.turns.live
        while left > 0 and not (self._have_ended and not self.broker.held_since(calm_since_us)):
            runs = len(self.turns.runs)
            timeline.live(_LOOK)
            # What begins meanwhile may have to wait for all others of its entry.
            left += _RUN * (len(self.turns.runs) - runs) - _LOOK

    @property
    def _have_ended(self) -> bool:
        """Whether all jobs have ended, whoever has started them."""
        return self.jobs.have_ended() and not self.turns.live

    def can_send(self) -> bool:
        """Whether a server answers, a beat runs, and nothing is frozen."""
        return self._checks.can_send()

    def longest_wait(self, since: float) -> float:
        """Milliseconds for which something may be late that is due, or was disturbed, since this instant."""
        return self._checks.longest_wait(since)

    @property
    def disturbed(self) -> int:
        """The last instant at which something was wrong, epoch ms."""
        return self._checks.disturbed

    def disturb(self) -> None:
        """Note that something is wrong at this moment."""
        self._checks.disturbed = self.story.now

    @property
    def recovered_at(self) -> int:
        """When nothing has been wrong for a while, epoch ms."""
        return self._checks.disturbed + self.setup.recovery_ms if self.setup.faults else 0

    @property
    def keys_of_locks(self) -> list[str]:
        """The keys of the locks that beats have asked for."""
        return list(self._checks.once_locks.keys)

    def period_of(self, name: str) -> int | None:
        """Milliseconds of the interval that an entry has on the server; ``None`` for another schedule."""
        entries: Any = self.server.database.find(_KEYS.entries.encode()) or {}
        schedule = loads_as(dict, entries.get(name.encode())).get("schedule", {}).get("schedule")
        return round(1000 * schedule) if isinstance(schedule, float | int) else None

    def note_loss(self, process: Process) -> None:
        """Note that a request of this process is lost or late at this moment."""
        if process in self.beats:
            self._checks.losses.append(self.story.now)

    def next_due_us(self) -> int:
        """The next instant at which something is due, epoch microseconds: by the schedule, or by what was asked for.

        It is this one while something is overdue that beats can send, because they may have to recover first.
        """
        now = self.story.now
        instants = [at for at in self.user.instants if at > now]
        for key in (_KEYS.due, _KEYS.of_backfills.due):
            due: Any = self.server.database.find(key.encode())
            scores = [] if due is None else due.scores.values()
            if self._checks.can_send() and any(score < now for score in scores):
                return self.world.now_us
            instants += [round(score) for score in scores if now <= score < float("inf")]
        return 1000 * min(instants, default=now + 3_600_000)

    # -- processes ---------------------------------------------------------------------------------

    def start_beat(self) -> None:
        """Start one more beat."""
        self.beats_started += 1
        process = self.world.process(f"beat-{self.beats_started}")
        self.beats.append(process)
        self.story.tell(f"{process.name} starts")
        self.disturb()
        setup = self.deploys.assign_version(process)

        def main() -> None:
            app = make_app(self.world, setup)
            self.bodies.register(app)
            configure(app, self.setup.pipelines)
            self.deploys.add_invalid_entries(app, process)
            scheduler = Scheduler(app)
            self.schedulers[process.name] = scheduler
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
        scheduler = self.schedulers.get(process.name)
        if scheduler is None:
            process.kill()
        else:
            scheduler._stop.requested = True

    def start_holder(self) -> None:
        """Start one more process that holds locks."""
        self._holders_started += 1
        process = self.world.process(f"holder-{self._holders_started}")
        self.holders.append(process)
        process.start_main(Holder(self.world, self.setup, self.story, process).run)

    def start_worker(self) -> None:
        """Start one more worker."""
        self._workers_started += 1
        process = self.world.process(f"worker-{self._workers_started}")
        worker = Worker(self, process)
        self.workers.append(worker)
        process.start_main(worker.run)

    def _make_broker(self) -> Broker:
        server, network = self.server, self.network
        if self.setup.work.is_broker_apart:
            server = ModelServer(lambda: self.world.now_us)
            network = Network(self.world, server, "broker")
        return Broker(self.world, server, network, self.setup.work.visibility)

    # -- losses of data ----------------------------------------------------------------------------

    def forget_since(self, since: int) -> None:
        """Note that the writes since an instant are lost: what was answered then may not have happened."""
        self._lose_data()
        for record in self.story.records:
            if record["kind"] == "call" and record["returned"] is not None and record["returned"] >= since:
                record |= {"returned": None, "ok": None}
        self.deploys.note_loss_of_data()

    def forget_everything(self) -> None:
        """Note that all entries are gone; those of the configuration come back some time later."""
        self._lose_data()
        now = self.story.now
        for record in self.story.records:
            if "backfill" in record:
                record["backfill"] += " before the loss"  # Later ones may have the same names.
        for name in (*NAMES, *self.deploys.names, *self.setup.pipelines):
            self.story.record(kind="call", act="remove", entry=name, began=now, returned=now, ok=True)
        # A beat that knows the freezes puts them back.
        self.story.record(kind="call", act="thaw", began=now, returned=now, ok=None)
        self.deploys.note_loss_of_everything()
        self._add_config_entries()

    def _lose_data(self) -> None:
        self.losses_of_data += 1
        self._checks.note_loss_of_data()
        self.lost_data = self.story.now

    def _add_config_entries(self) -> None:
        pipelines = {name: entry.rule for name, entry in self.setup.pipelines.items() if entry.is_config}
        now = self.story.now
        config = {} if self.deploys.is_watched else self.setup.config
        for name, rule in {**config, **pipelines}.items():
            unanswered = {"began": now, "returned": None, "ok": None}
            self.story.record(kind="call", act="add", entry=name, owner="config", rule=rule.record, **unanswered)
            self.user.instants += [at for at in rule.record.get("at", ()) if at > now]

    def has_commit(self, commands: list[list[bytes]]) -> bool:
        """Whether one of these commands advances entries."""
        return any(command[:2] == [b"EVALSHA", self._commit] for command in commands)

    # -- what is sent ------------------------------------------------------------------------------

    def _observe(self, process: Process, command: list[bytes], reply: Any) -> None:
        is_script = command[0] == b"EVALSHA"
        if command[0] == b"PUBLISH":
            self.kills.broadcast(*command[1:])
        if not is_script and not self._pushed:
            return
        if is_script and command[1] == self._peek and isinstance(reply, list) and len(reply) == 4:
            self._meet_dispatch()
        if is_script and command[1] == self._acquire and isinstance(reply, list) and reply[0] == 1:
            self.network.let_held_arrive()
        messages = [(raw, parse(raw)) for raw in self._take_messages()]
        if is_script:
            self.deploys.observe(process)
            self._checks.observe(process, command, reply, messages)
            if self.turns.observe(command):
                self._operator.meet()
        for _, message in messages:
            if not is_script and process.name.startswith("beat"):
                self._checks.once_locks.note_published(message)
            self._note_message(process, message)

    def _meet_dispatch(self) -> None:
        """Let the user edit now and then while a beat dispatches what it has just read."""
        if self._random.random() < _MEETS_DISPATCH:
            self.user.hurry()

    def _take_messages(self) -> list[bytes]:
        """Return the messages that were sent just now, oldest first, and leave them to the workers."""
        pushed, self._pushed = self._pushed, []
        if pushed and self.setup.work.workers:
            self.broker.wake()
        elif pushed:
            self.broker.server.database.delete(QUEUE)
        return pushed

    def _note_pushed(self, key: bytes, values: Sequence[bytes]) -> None:
        if key == QUEUE:
            self._pushed.extend(values)
            self.broker.sent += len(values)
            self.broker.note_put(values)

    def _note_message(self, process: Process, message: Message) -> None:
        if message.entry is None or message.scheduled_at is None or not process.name.startswith("beat"):
            return  # A retry, a message that had been parked, or a step of a job.
        nominal = round(message.scheduled_at.timestamp() * 1000)
        backfill = message.headers.get("redbeat_backfill")
        by = "rule" if backfill is None else "backfill"
        self.story.counts[f"runs sent by {by}"] += 1
        when = datetime.fromtimestamp(nominal / 1000, UTC)
        self.story.tell(f"{process.name} sends {message.entry} of {when:%Y-%m-%d %H:%M:%S.%f} by {by}")
        record: Record = {"kind": "sent", "entry": message.entry, "nominal": nominal, "id": message.id}
        record |= {"at": self.story.now, "by": by, "left": self.broker.network.left_us // 1000}
        if backfill is not None:
            record["backfill"] = backfill
        self.story.records.append(record)
        if backfill is None:
            self.last_sent[message.entry] = self.story.now

    def trace(self) -> str:
        """A digest of all that has happened."""
        return hashlib.sha256("\n".join(self.story.lines).encode()).hexdigest()[:16]
