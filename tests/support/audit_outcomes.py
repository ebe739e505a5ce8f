"""The laws of runs that are due, and of their records, for `tests.support.audit`.

Records of these kinds are read here, beside ``setup``, ``body`` and ``fault``:

``due``
    All runs of an ``entry`` that were due: their ``nominals``, and the ``ids`` that they have or
    would have. ``left_out`` says how many of them the beat left out.
``received``
    A worker received the message of a task ``id``. ``stayed`` says whether that worker ran to the
    end of the history and never lost its broker.
``refused``
    A worker did not run the task ``id``, because another run held its lock.
``lock``
    The lock of the task ``id`` was last seen ``at`` this instant, while the task was running.
``death``
    The process ``pid``, or the main process of its worker, was killed ``at`` this instant.
``outcome``
    The package's record of a run of an ``entry``: its ``outcome``, the task ``id`` or ``null``, the
    ``nominals`` that it covers, and the number of ``attempts``.

A body of a run may have its ``attempt``, from 0, and its ``end``: ``well``, ``ill``, or ``again``
if it is retried. During a fault that is ``away``, nobody could write to the server.

A setup may have
    ``lease``: ms for which a lock may outlive its run;
    ``takers``: how many workers may have had messages when they or the server were killed;
    ``hands``: how many messages each of them may have had.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from tests.support.audit_bodies import Line, Record, Violation, Work

#: Outcome -> the end of a body that it reports.
ENDS = {"succeeded": "well", "failed": "ill", "retrying": "again"}

#: Outcomes that report no end of a body.
OTHERS = ("expired", "lost", "waiting", "unknown")

#: Outcomes of runs of which nothing was reported.
OPEN = ("waiting", "unknown")

#: If two copies of an attempt end within so many ms, either end may be recorded.
AT_ONCE = 1000


class Outcomes:
    """All that a history says of runs that were due.

    Parameters:
        work: its bodies, deaths and faults.
    """

    KINDS = ("due", "received", "refused", "lock", "outcome")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.lease: int | None = None
        self.takers = 0
        self.hands = 1
        self.locks: dict[str, int] = {}
        self.outcomes: list[Line] = []
        self.due: list[Line] = []
        self.received: dict[str, bool] = {}
        self._refused: set[str] = set()

    def take(self, line: int, record: Record) -> None:
        """Add a record of one of these kinds."""
        kind = record["kind"]
        if kind == "due":
            self.due.append((line, record))
        elif kind == "received":
            stayed = self.received.get(record["id"], False)
            self.received[record["id"]] = stayed or record["stayed"]
        elif kind == "refused":
            self._refused.add(record["id"])
        elif kind == "lock":
            self.locks[record["id"]] = record["at"]
        else:
            self.outcomes.append((line, record))

    def set_up(self, record: Record) -> None:
        """Take what a setup says of runs."""
        self.lease = record.get("lease", self.lease)
        self.takers = record.get("takers", self.takers)
        self.hands = record.get("hands", self.hands)

    @cached_property
    def ids(self) -> set[str]:
        """The ids of all runs that were due."""
        return {task for _, due in self.due for task in due["ids"]}

    @cached_property
    def bodies(self) -> dict[str, list[Line]]:
        """The bodies of each run that was due, in the order in which they began."""
        return {task: bodies for task, bodies in self.work.by("id").items() if task in self.ids}

    @property
    def refused(self) -> set[str]:
        """Runs that workers refused, and that no body ran."""
        return (self._refused & self.ids) - self.bodies.keys()

    @property
    def vanished(self) -> set[str]:
        """Runs that a worker received, which stayed but neither ran nor refused them."""
        return self._received_by_stayers() - self.bodies.keys() - self._refused

    @property
    def unfinished(self) -> set[str]:
        """Runs that bodies began but did not finish, and that no worker refused later."""
        finished = {task for task, bodies in self.bodies.items() if is_finished(bodies)}
        return self.bodies.keys() - finished - self._refused

    @property
    def left_out(self) -> int:
        """How many runs the beat left out."""
        return sum(due["left_out"] for _, due in self.due)

    @property
    def taken(self) -> int:
        """How many runs were sent and then lost without a trace.

        With kombu's Redis transport, a message is lost if its worker is killed after it took the
        message from the queue and before it noted that in the server.
        """
        traced = self._received_by_stayers() | (self._refused & self.ids) | self.bodies.keys()
        return len(self.ids) - self.left_out - len(traced)

    def _received_by_stayers(self) -> set[str]:
        return {task for task, stayed in self.received.items() if stayed} & self.ids

    @property
    def stuck(self) -> int:
        """The longest time in ms for which a lock outlived a run that could give it back."""
        return max((outlived for _, outlived in self.locks_that_outlived()), default=0)

    def locks_that_outlived(self) -> Iterator[tuple[str, int]]:
        """Yield the runs whose lock was seen after their last body, and for how many ms."""
        for task, bodies in self.bodies.items():
            began_before = [body for _, body in bodies if body["began"] < self.locks.get(task, 0)]
            if not began_before:
                continue
            last = began_before[-1]
            seen = self.locks[task]
            faults = [fault for fault in self.work.faults if fault.get("away")]
            if not any(was_away_after(fault, last, seen) for fault in faults):
                yield task, max(0, seen - last["ended"])


def was_away_after(fault: Record, body: Record, seen: int) -> bool:
    """Return whether the server was away between the end of a body and the sight of its lock."""
    return bool(fault["began"] <= seen and body["ended"] <= fault["ended"])


def is_finished(bodies: Collection[Line]) -> bool:
    return any(body.get("done") for _, body in bodies)


# -- runs and messages -----------------------------------------------------------------------------


def runs_were_due(outcomes: Outcomes) -> Iterator[Violation]:
    """Each body of an entry is a run that was due."""
    known = {due["entry"] for _, due in outcomes.due}
    for line, body in outcomes.work.bodies:
        if body.get("entry") in known and body["id"] not in outcomes.ids:
            yield Violation("runs were due", body["entry"], (line,), f"{body['id']} was not due")


def none_vanishes(outcomes: Outcomes) -> Iterator[Violation]:
    """A run that a worker received is run, or the worker refuses it."""
    for task in sorted(outcomes.vanished):
        yield Violation("none vanishes", task, (), "was received, and neither run nor refused")


def few_are_lost(outcomes: Outcomes) -> Iterator[Violation]:
    """At most one run is lost per worker that was killed while it may have had one."""
    lost = outcomes.taken + len(outcomes.unfinished)
    if outcomes.received and lost > outcomes.takers:
        unfinished = len(outcomes.unfinished)
        what = f"{outcomes.taken} were taken and {unfinished} were not finished; "
        what += f"{outcomes.takers} may be lost"
        yield Violation("few are lost", "all entries", (), what)


def locks_end(outcomes: Outcomes) -> Iterator[Violation]:
    """A lock does not outlive its run by more than its lease."""
    for task, outlived in outcomes.locks_that_outlived():
        if outcomes.lease is not None and outlived > outcomes.lease:
            lines = tuple(line for line, _ in outcomes.bodies[task])
            what = f"its lock was there {outlived} ms after its end"
            yield Violation("locks end", task, lines, what)


# -- the record of runs ----------------------------------------------------------------------------


def one_outcome_each(outcomes: Outcomes) -> Iterator[Violation]:
    """Each run that was due has one record."""
    recorded: dict[str, Counter[int]] = defaultdict(Counter)
    for _, outcome in outcomes.outcomes:
        recorded[outcome["entry"]].update(outcome["nominals"])
    for line, due in outcomes.due:
        counts = recorded[due["entry"]]
        expected: Counter[int] = Counter(due["nominals"])
        if outcomes.outcomes and counts != expected:
            surplus = [*(counts - expected)]
            missing = [*(expected - counts)]
            what = f"too many records of {surplus}, none of {missing}"
            yield Violation("one outcome each", due["entry"], (line,), what)


def outcomes_are_true(outcomes: Outcomes) -> Iterator[Violation]:
    """A record reports what a body did, or an outcome that needs no body."""
    law = "outcomes are true"
    ids = {
        (due["entry"], nominal): task
        for _, due in outcomes.due
        for nominal, task in zip(due["nominals"], due["ids"], strict=True)
    }
    for line, outcome in outcomes.outcomes:
        tasks = {ids.get((outcome["entry"], nominal)) for nominal in outcome["nominals"]}
        ran = [item for task in tasks if task for item in outcomes.bodies.get(task, [])]
        lines = (line, *(number for number, _ in ran))
        if outcome["id"] is None and ran:
            yield Violation(law, outcome["entry"], lines, "it has no task, and a body ran")
        elif outcome["id"] is not None and tasks != {outcome["id"]}:
            yield Violation(law, outcome["entry"], lines, f"{outcome['id']} is not its task")
        elif outcome["id"] is not None and not is_true(outcome, ran):
            what = f"{outcome['outcome']} after {outcome['attempts']} attempts is not true"
            yield Violation(law, outcome["entry"], lines, what)


def is_true(outcome: Record, bodies: Sequence[Line]) -> bool:
    """Return whether a record reports the end of one of these bodies, or no end."""
    if outcome["outcome"] not in ENDS:
        return outcome["outcome"] in OTHERS
    end = (outcome["attempts"] - 1, ENDS[outcome["outcome"]])
    return end in [(body["attempt"], body.get("end")) for _, body in bodies]


def outcomes_are_whole(outcomes: Outcomes) -> Iterator[Violation]:
    """A record says all that could be known, unless a process was killed before it reported it."""
    law = "outcomes are whole"
    unfinished = 0
    in_hand = 0
    for line, outcome in outcomes.outcomes:
        ran = outcomes.bodies.get(outcome["id"], [])
        if outcome["id"] is None or not is_true(outcome, ran):
            continue
        bodies = [body for _, body in ran]
        says_all = is_whole(outcome, bodies)
        if not says_all:
            unfinished += 1
        elif outcome["outcome"] not in OPEN:
            continue
        cause = cause_of_silence(outcomes.work, bodies, outcome["nominals"][0])
        if cause == "in hand":
            in_hand += 1
        if not cause:
            lines = (line, *(number for number, _ in ran))
            what = f"{outcome['outcome']} says less than could be known, and no process was killed"
            yield Violation(law, outcome["entry"], lines, what)
    if in_hand > outcomes.hands * outcomes.takers:
        what = f"{in_hand} messages were in hand of {outcomes.takers} killed workers"
        yield Violation(law, "all entries", (), what)
    if unfinished > max(outcomes.takers, outcomes.hands):
        what = f"{unfinished} records say less than could be known"
        yield Violation(law, "all entries", (), what)


def is_whole(outcome: Record, bodies: Sequence[Record]) -> bool:
    """Return whether a record says all that could be known of the last attempt."""
    last = max((body["attempt"] for body in bodies), default=None)
    ended = [body for body in bodies if body["attempt"] == last and body.get("end")]
    ended.sort(key=lambda body: int(body["ended"]))
    first = [body["end"] for body in ended if body["ended"] <= ended[0]["ended"] + AT_ONCE]
    if any(body["end"] != "again" for body in ended):
        return outcome["attempts"] - 1 == last and ENDS.get(outcome["outcome"]) in first
    if ended or last is None:
        # No worker took the run in time, or its retry.
        return bool(outcome["outcome"] == "expired")
    # The body was killed. If no guard watched it, nobody may be left to report that.
    return bool(outcome["outcome"] != "retrying" or outcome["attempts"] == last)


def cause_of_silence(work: Work, bodies: Sequence[Record], due: int) -> str:
    """Return why nobody reported the end of the last attempt; empty if there is no reason.

    Its process was ``killed`` in the body or before the report, the server was ``away``, or a
    process that was killed had its message, or that of its retry, ``in hand``.
    """
    attempt = max((body["attempt"] for body in bodies), default=0)
    last = [body for body in bodies if body["attempt"] == attempt]
    for body in last:
        if work.was_killed(body):
            return "killed"
        if work.was_away(body):
            return "away"
    since = max((body["ended"] for body in last), default=due)
    is_sent = all(body.get("end") == "again" for body in last)
    away = [fault["ended"] for fault in work.faults if fault.get("away")]
    strikes = [*work.deaths.values(), *away]
    if is_sent and any(strike >= since for strike in strikes):
        return "in hand"
    return ""


OUTCOME_LAWS: Sequence[Callable[[Outcomes], Iterator[Violation]]] = (
    runs_were_due,
    none_vanishes,
    few_are_lost,
    locks_end,
    one_outcome_each,
    outcomes_are_true,
    outcomes_are_whole,
)
