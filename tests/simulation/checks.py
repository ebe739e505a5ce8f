"""What must hold in a seed, beside the laws of the audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redbeat_lite.entries.freeze import end_of
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.scripts import _sha
from tests.simulation.advances import Advance, Advances
from tests.simulation.apps import PERIODS
from tests.simulation.bounds import Amounts, excesses
from tests.simulation.holdings import count_objects
from tests.simulation.holds import held_runs
from tests.simulation.once_locks import OnceLocks
from tests.simulation.users import NAMES
from tests.simulation.values import SortedSet
from tests.simulation.wakeups import Wakeups
from tests.simulation.world import MICROS, Process
from tests.support.audit import History, Violation, violations
from tests.support.messages import Message

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

#: Milliseconds after its time by which a run arrives where nothing is wrong.
LATE_MS = 1500

#: Milliseconds that a lost request costs a beat: a command is given up after 4 s, and the next try comes within 3 s.
MS_PER_LOSS = 8000

#: Milliseconds of intervals that have run several times when the calm ends.
MANY_A_MINUTE = [1000 * seconds for seconds in PERIODS]

#: Keys that live for ever: those of the schedule and of its backfills, and of fencing numbers.
MOST_LASTING_KEYS = 20

#: Objects that a beat may hold: entries, templates of messages, connections.
MOST_OBJECTS = 2000

#: How a body has ended of which the record says this.
ENDS = {"succeeded": "well", "retrying": "again", "failed": "ill"}

#: Errors of runs whose body did not begin, or did not end: the lock was taken, or their time was over, or a copy
#: of a run could not ask whether the run had ended.
ERRORS_WITHOUT_END = ("OnceRejected", "SoftTimeLimitExceeded", "TimeLimitExceeded", "LockUnavailable")

_KEYS = Keys.of("redbeat-lite")
_LEADER = _KEYS.leader.encode()
_DUE = _KEYS.due.encode()
_DUE_BACKFILLS = _KEYS.of_backfills.due.encode()

#: Seconds after which a worker that has nothing to do has taken a message.
LONGEST_TAKE = 1

#: Seconds after which a run has ended and its message is acknowledged, also where it had to wait for its time.
LONGEST_RUN = 30


class Checks:
    """Watches a scenario while it runs, and judges it at its end."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        self._setup = scenario.setup
        self._commit = _sha("schedule/commit").encode()
        self._acquire = _sha("leader/acquire").encode()
        self._wakeups = Wakeups()
        self._advances = Advances(scenario)
        self.once_locks = OnceLocks(scenario)
        #: Entries that are known to be overdue.
        self._overdue: set[bytes] = set()
        #: Each entry -> when it is due, and the look that saw this first, both in epoch ms.
        self._seen: dict[bytes, tuple[float, int]] = {}
        #: The last instant in epoch ms at which something was wrong.
        self.disturbed = 0
        #: Instants in epoch ms at which a request or a reply of a beat got lost or late.
        self.losses: list[int] = []

    def begin(self) -> None:
        """Look every second for entries that nobody sends."""
        self._look_for_silence()

    # -- while it runs -----------------------------------------------------------------------------

    def observe(
        self, process: Process, command: list[bytes], reply: Any, messages: Sequence[tuple[bytes, Message]]
    ) -> None:
        """Judge one call of a script, its reply, and the messages that it has sent."""
        if messages and command[1] == self._commit:
            self._check_sender(process, command)
        if command[1] == self._acquire and isinstance(reply, list) and reply[0] == 1:
            self._check_trust(process)
        advances = self._advances.observe(command, reply)
        self.once_locks.observe(process, command, reply, messages, advances)
        for advance in advances:
            self._note_left_out(advance)
        woken_early = self._wakeups.observe(command, reply, self._story.now)
        if woken_early is not None:
            self._story.violate("woken once", woken_early)

    def note_loss_of_data(self) -> None:
        """Note that the server has lost writes."""
        self._wakeups.forget()
        self._advances.forget()
        self.once_locks.forget()

    def _note_left_out(self, advance: Advance) -> None:
        """Note in the history which runs of an entry were left out because of its once-lock."""
        for unsent in advance.left_out_ranges:
            nominals = unsent.nominal_times()
            self._story.counts["runs left out by once-locks"] += len(nominals)
            self._story.tell(f"{advance.name} of {nominals} is left out")
            self._story.record(kind="left out", entry=advance.name, nominals=nominals, at=self._story.now)
            self._scenario.last_sent[advance.name] = self._story.now

    def _check_sender(self, process: Process, command: list[bytes]) -> None:
        """Whoever sends holds the lease, by token and by term."""
        token, term = command[3 + int(command[2]) :][:2]
        held: Any = self._scenario.server.database.find(_LEADER) or {}
        if (held.get(b"token"), held.get(b"term")) != (token, term):
            self._story.violate("one sender", f"{process.name} sent in term {term.decode()}, which was over")

    def _check_trust(self, process: Process) -> None:
        """When a beat gets the lease, no other one believes that it has it."""
        if self._story.now - self._scenario.lost_data < 1000 * self._setup.lease:
            return  # The server has forgotten the lease of the other one.
        for name, scheduler in self._scenario.schedulers.items():
            beat = next((each for each in self._world.processes if each.name == name), None)
            is_alive = beat is not None and not beat.is_dead
            if is_alive and beat is not process and scheduler.leader.holds_lease:
                self._story.violate("one leader", f"{name} trusts its lease, and {process.name} has got it")

    def _look_for_silence(self) -> None:
        self._world.after(1.0, self._look_for_silence)
        if not self.can_send():
            self.disturbed = self._story.now
            return
        for name, score in {**self._scores(_DUE), **self._scores(_DUE_BACKFILLS)}.items():
            since = max(self._due_since(name, score), self.disturbed)
            late = self._story.now - since
            if late > self.longest_wait(since) and name not in self._overdue:
                self._overdue.add(name)
                self._story.violate("never silent", f"{name.decode()} is due since {late:.0f} ms, and nobody sends it")

    def _due_since(self, name: bytes, score: float) -> float:
        """Epoch ms since which beats can send an entry: a resume may put runs back that were due long before it."""
        score_before, seen = self._seen.get(name, (None, 0))
        if score != score_before:
            seen = self._story.now
            self._seen[name] = (score, seen)
        return max(score, seen)

    def longest_wait(self, since: float) -> float:
        """Milliseconds for which an entry may be due that is due, or was disturbed, since this instant."""
        losses = sum(at >= since - MS_PER_LOSS for at in self.losses)
        return self._setup.recovery_ms + LATE_MS + losses * MS_PER_LOSS

    @property
    def is_all_well(self) -> bool:
        """Whether nothing is wrong, nothing is overdue, and the configuration is in the schedule."""
        scores = self._scores(_DUE)
        if not self._scenario.deploys.are_all_stored(scores):
            return False  # Nobody has led since the server lost them, or since the beginning.
        instants = [*scores.values(), *self._scores(_DUE_BACKFILLS).values()]
        return self.can_send() and min(instants, default=math.inf) > self._story.now - LATE_MS

    def can_send(self) -> bool:
        """Whether a server answers, a beat runs, and nothing is frozen."""
        scenario = self._scenario
        is_up = scenario.network.is_up and scenario.server.database.refusal is None
        is_up = is_up and scenario.broker.is_working and not scenario.broker.network.slowness
        some_run = any(not (beat.is_frozen or beat.is_cut_off or beat.slowness) for beat in scenario.beats)
        return is_up and some_run and not self._is_frozen()

    def _is_frozen(self) -> bool:
        """Whether everything is frozen, as the server has it."""
        meta: Any = self._scenario.server.database.find(_KEYS.meta.encode()) or {}
        return end_of(meta.get(b"freeze", b"")) > self._story.now

    def _scores(self, key: bytes) -> dict[bytes, float]:
        due: Any = self._scenario.server.database.find(key)
        return {} if due is None else due.scores

    # -- at the end --------------------------------------------------------------------------------

    def end(self) -> None:
        """Judge everything."""
        self._check_laws()
        self._check_ends()
        self._check_config()
        self._check_broker()
        self._check_fences()
        self._check_runs()
        self._check_keys()
        self._check_objects()

    def _check_laws(self) -> None:
        records = self._story.records
        if not self._setup.is_strict:
            records = [record for record in records if record["kind"] != "body"]
        history = History(records)
        for violation in [*violations(history), *_held_runs(history)]:
            lines = ", ".join(map(str, violation.lines))
            self._story.violate(violation.law, f"{violation.about}: {violation.what} (records {lines})")

    def _check_ends(self) -> None:
        for process in self._world.processes:
            if process.ended is None:
                continue
            if process.name.startswith("beat") or process.ended != "its main thread returned":
                self._story.violate("no end by itself", f"{process.name} ended: {process.ended}")

    def _check_config(self) -> None:
        """Each interval of the configuration that may run has run of late, or was stored of late."""
        scores = self._scores(_DUE)
        deploys = self._scenario.deploys
        deploys.judge()
        for name, rule in deploys.version.config.items():
            score = scores.get(name.encode())
            if score is None:
                continue
            if rule.period_ms not in MANY_A_MINUTE or score == float("inf"):
                continue  # It may not have been due since the server lost its data.
            longest = rule.period_ms + 1000 * self._setup.jitter + LATE_MS
            since = max(self._scenario.last_sent.get(name, 0), deploys.stored_at.get(name, 0))
            if since < self._story.now - longest:
                self._story.violate("never silent", f"{name} has not run for more than its period: {rule.text}")

    def _check_broker(self) -> None:
        """Every message was taken and acknowledged, but for those of the last seconds."""
        broker = self._scenario.broker
        if not self._setup.work.workers:
            return
        should_be_taken_us = self._world.now_us - LONGEST_TAKE * MICROS
        waiting = broker.waiting_since(should_be_taken_us)
        if waiting and any(worker.has_had_room_since(should_be_taken_us) for worker in self._scenario.workers):
            self._story.violate("delivered", f"{waiting} messages wait though a worker has nothing to do")
        dropped = {tag for worker in self._scenario.workers for tag in worker.pool.dropped_tags}
        held = [tag for tag in broker.held_since(self._world.now_us - LONGEST_RUN * MICROS) if tag not in dropped]
        if held:
            self._story.violate("delivered", f"messages {', '.join(held)} were taken long ago and not acknowledged")

    def _check_fences(self) -> None:
        """Whoever takes a lock has a higher number than all that had it before."""
        last: dict[str, int] = {}
        for key, fence in self._story.fences:
            if fence is None or fence <= last.get(key, 0):
                self._story.violate("fences", f"the lock {key} was taken with fence {fence} after {last.get(key)}")
            last[key] = fence or 0

    def _check_runs(self) -> None:
        """Each end in the record of runs is that of a body, or of a run whose body did not begin or did not end."""
        bodies = [record for record in self._story.records if record["kind"] == "body"]
        ends = {(body["id"], body.get("attempt"), body.get("end")) for body in bodies}
        # A time limit may kill a run after its body has returned and before its end is recorded. Or the server loses
        # the record, and then a copy of the run meets its limit before its body begins.
        lost_data = self._scenario.lost_data
        recorded = {
            (body["id"], body.get("attempt")) for body in bodies if body.get("settled") and body["ended"] > lost_data
        }
        for run in self._scenario.user.runs:
            end = ENDS.get(run.outcome)
            attempt = (run.task_id, run.attempts - 1)
            if end is None or (*attempt, end) in ends:
                continue
            error = (run.error or "").partition(":")[0]
            # Without room for its error, an end is recorded without it.
            may_lack_end = run.error is None or error in ERRORS_WITHOUT_END
            if run.outcome == "failed" and may_lack_end and attempt not in recorded:
                continue
            # A retry whose lock is taken by then is refused before its body begins.
            if error == "OnceRejected" and (*attempt, "again") in ends:
                continue
            what = f"{run.name} of {run.scheduled_at} has {run.outcome} at attempt {run.attempts}, and no body has"
            self._story.violate("record of runs", f"{what}: {run.error}")

    def _check_keys(self) -> None:
        """All keys but a few expire, parts of the schedule agree, and nothing grows without a bound."""
        database = self._scenario.server.database
        lasting = [key for key in database.all_keys() if database.expiry(key) is None]
        if len(lasting) > MOST_LASTING_KEYS:
            names = ", ".join(sorted(key.decode() for key in lasting))
            self._story.violate("bounded", f"{len(lasting)} keys live for ever: {names}")
        parts: list[Any] = [database.find(key.encode()) for key in (_KEYS.due, _KEYS.entries, _KEYS.state)]
        names_of_parts = [sorted(part.scores if isinstance(part, SortedSet) else part or {}) for part in parts]
        if any(names != names_of_parts[0] for names in names_of_parts):
            self._story.violate("bounded", f"parts of the schedule hold other entries: {names_of_parts}")
        for excess in excesses(database, self._amounts()):
            self._story.violate("bounded", excess)

    def _amounts(self) -> Amounts:
        scenario, counts = self._scenario, self._story.counts
        calls = [record for record in self._story.records if record["kind"] == "call"]
        acts = [call["act"] for call in calls]
        meta: Any = scenario.server.database.find(_KEYS.meta.encode()) or {}
        return Amounts(
            names=len(NAMES) + len(scenario.deploys.names) + len(self._setup.pipelines),
            pipelines=len(self._setup.pipelines),
            history=self._setup.history,
            calls=len(acts)
            + sum(count for name, count in counts.items() if name.startswith(("job call", "clearings"))),
            backfills=acts.count("backfill"),
            beats=scenario.beats_started,
            terms=int(meta.get(b"term", 0)),
            sent=scenario.broker.sent,
            deliveries=scenario.broker.deliveries,
            jobs=counts["job call: start"] + len(scenario.turns.runs),
            locks=counts["locks asked for"],
            processes=len(self._world.processes),
        )

    def _check_objects(self) -> None:
        for name, scheduler in self._scenario.schedulers.items():
            objects = count_objects(scheduler)
            if objects > MOST_OBJECTS:
                self._story.violate("bounded", f"{name} holds {objects} objects, more than {MOST_OBJECTS}")


def _held_runs(history: History) -> list[Violation]:
    broken = [violation for entry in history.entries.values() for violation in held_runs(history, entry)]
    return [Violation("held runs", *violation) for violation in broken]
