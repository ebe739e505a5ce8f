"""The laws of runs that are due: what became of each, and what the package recorded of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from tests.support.audit.history import FOREVER, Broken, History, Line, Record
from tests.support.audit.work import bodies_by, was_away, was_killed

#: Outcome -> the end of a body that it reports.
ENDS = {"succeeded": "well", "failed": "ill", "retrying": "again"}

#: Outcomes that report no end of a body.
OTHERS = ("expired", "lost", "waiting", "unknown")

#: Outcomes of runs of which nothing was reported.
OPEN = ("waiting", "unknown")

#: If two copies of an attempt end within so many ms, either end may be recorded.
AT_ONCE = 1000


class Runs:
    """All that a history says of runs that were due, by the ids of their tasks."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.due = history.lines("due")
        self.ids = {task for _, due in self.due for task in due["ids"]}
        all_bodies = bodies_by(history, "id")
        #: The bodies of each run that was due, in the order in which they began.
        self.bodies = {task: bodies for task, bodies in all_bodies.items() if task in self.ids}
        #: How many runs the beat left out.
        self.left_out: int = sum(due["left_out"] for _, due in self.due)
        received = [record["id"] for record in history.records("received") if record["stayed"]]
        self._refused = {record["id"] for record in history.records("refused")} & self.ids
        #: Runs whose message a worker received that stayed.
        self._received = {*received} & self.ids

    @property
    def refused(self) -> set[str]:
        """Runs that workers refused, and that no body ran."""
        return self._refused - self.bodies.keys()

    @property
    def vanished(self) -> set[str]:
        """Runs that a worker received, which stayed but neither ran nor refused them."""
        return self._received - self.bodies.keys() - self._refused

    @property
    def unfinished(self) -> set[str]:
        """Runs that bodies began but did not finish, and that no worker refused later."""
        finished = {task for task, bodies in self.bodies.items() if is_finished(bodies)}
        return self.bodies.keys() - finished - self._refused

    @property
    def taken(self) -> int:
        """How many runs were sent and then lost without a trace.

        With kombu's Redis transport, a message is lost if its worker is killed after it took the
        message from the queue and before it noted that in the server.
        """
        traced = self._received | self._refused | self.bodies.keys()
        return len(self.ids) - self.left_out - len(traced)

    @cached_property
    def outlived(self) -> dict[str, int]:
        """Run -> for how many ms its lock was seen after the end of its last body.

        Locks that could not be given back are left out, because the server was away.
        """
        seen = {lock["id"]: lock["at"] for lock in self.history.records("lock")}
        times = {}
        for task in self.bodies.keys() & seen.keys():
            began = [body for _, body in self.bodies[task] if body["began"] < seen[task]]
            if began and not self.history.is_away(began[-1]["ended"], seen[task]):
                times[task] = max(0, seen[task] - began[-1]["ended"])
        return times


def is_finished(bodies: Collection[Line]) -> bool:
    return any(body.get("done") for _, body in bodies)


# -- runs and messages -----------------------------------------------------------------------------


def runs_were_due(runs: Runs) -> Iterator[Broken]:
    """Each body of an entry is a run that was due."""
    entries = {due["entry"] for _, due in runs.due}
    for line, body in runs.history.lines("body"):
        if body.get("entry") in entries and body["id"] not in runs.ids:
            yield body["entry"], (line,), f"{body['id']} was not due"


def none_vanishes(runs: Runs) -> Iterator[Broken]:
    """A run that a worker received is run, or the worker refuses it."""
    for task in sorted(runs.vanished):
        yield task, (), "was received, and neither run nor refused"


def few_are_lost(runs: Runs) -> Iterator[Broken]:
    """At most one run is lost per worker that was killed while it may have had one."""
    if not any(due["noted"] == "received" for _, due in runs.due):
        return
    if not runs.history.lines("received"):
        yield "all entries", (), "there is no record of what workers received"
    unfinished = len(runs.unfinished)
    takers = runs.history.setup.takers
    if runs.taken + unfinished > takers:
        what = f"{runs.taken} were taken and {unfinished} were not finished; {takers} may be lost"
        yield "all entries", (), what


def locks_end(runs: Runs) -> Iterator[Broken]:
    """A lock does not outlive its run by more than its lease."""
    lease = runs.history.setup.lease
    for task, outlived in runs.outlived.items():
        if lease is not None and outlived > lease:
            lines = tuple(line for line, _ in runs.bodies[task])
            what = f"its lock was there {outlived} ms after its end"
            yield task, lines, what


# -- the record of runs ----------------------------------------------------------------------------


def one_outcome_each(runs: Runs) -> Iterator[Broken]:
    """Each run that was due has one record."""
    recorded: dict[str, Counter[int]] = defaultdict(Counter)
    for outcome in runs.history.records("outcome"):
        recorded[outcome["entry"]].update(outcome["nominals"])
    for line, due in runs.due:
        counts = recorded[due["entry"]]
        expected: Counter[int] = Counter(due["nominals"])
        if due["noted"] == "outcome" and counts != expected:
            surplus = [*(counts - expected)]
            missing = [*(expected - counts)]
            what = f"too many records of {surplus}, none of {missing}"
            yield due["entry"], (line,), what


def outcomes_are_true(runs: Runs) -> Iterator[Broken]:
    """A record reports what a body did, or an outcome that needs no body."""
    ids = {
        (due["entry"], nominal): task
        for _, due in runs.due
        for nominal, task in zip(due["nominals"], due["ids"], strict=True)
    }
    for line, outcome in runs.history.lines("outcome"):
        entry = outcome["entry"]
        tasks = {ids.get((entry, nominal)) for nominal in outcome["nominals"]}
        ran = [item for task in tasks if task for item in runs.bodies.get(task, [])]
        lines = (line, *(number for number, _ in ran))
        if outcome["id"] is None:
            if ran:
                yield entry, lines, "it has no task, and a body ran"
        elif tasks != {outcome["id"]}:
            yield entry, lines, f"{outcome['id']} is not its task"
        elif not is_true(outcome, ran):
            what = f"{outcome['outcome']} after {outcome['attempts']} attempts is not true"
            yield entry, lines, what


def is_true(outcome: Record, bodies: Sequence[Line]) -> bool:
    """Return whether a record reports the end of one of these bodies, or no end."""
    if outcome["outcome"] not in ENDS:
        return outcome["outcome"] in OTHERS
    end = (outcome["attempts"] - 1, ENDS[outcome["outcome"]])
    return end in [(body["attempt"], body.get("end")) for _, body in bodies]


def outcomes_are_whole(runs: Runs) -> Iterator[Broken]:
    """A record says all that could be known, unless a process was killed before it reported it."""
    setup = runs.history.setup
    unfinished = 0
    in_hand = 0
    for line, outcome in runs.history.lines("outcome"):
        ran = runs.bodies.get(outcome["id"], [])
        if outcome["id"] is None or not is_true(outcome, ran):
            continue
        bodies = [body for _, body in ran]
        if not is_whole(outcome, bodies):
            unfinished += 1
        elif outcome["outcome"] not in OPEN:
            continue
        cause = cause_of_silence(runs.history, bodies, outcome["nominals"][0])
        if cause == "in hand":
            in_hand += 1
        if not cause:
            lines = (line, *(number for number, _ in ran))
            what = f"{outcome['outcome']} says less than could be known, and no process was killed"
            yield outcome["entry"], lines, what
    if in_hand > setup.hands * setup.takers:
        what = f"{in_hand} messages were in hand of {setup.takers} killed workers"
        yield "all entries", (), what
    if unfinished > max(setup.takers, setup.hands):
        what = f"{unfinished} records say less than could be known"
        yield "all entries", (), what


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


def cause_of_silence(history: History, bodies: Sequence[Record], due: int) -> str:
    """Return why nobody reported the end of the last attempt; empty if there is no reason.

    Its process was ``killed`` in the body or before the report, the server was ``away``, or a
    process that was killed had its message, or that of its retry, ``in hand``.
    """
    attempt = max((body["attempt"] for body in bodies), default=0)
    last = [body for body in bodies if body["attempt"] == attempt]
    for body in last:
        if was_killed(history, body):
            return "killed"
        if was_away(history, body):
            return "away"
    since = max((body["ended"] for body in last), default=due)
    is_sent = all(body.get("end") == "again" for body in last)
    is_killed = any(death["at"] >= since for death in history.records("death"))
    if is_sent and (is_killed or history.is_away(since, FOREVER)):
        return "in hand"
    return ""


RUN_LAWS: tuple[Callable[[Runs], Iterator[Broken]], ...] = (
    runs_were_due,
    none_vanishes,
    few_are_lost,
    locks_end,
    one_outcome_each,
    outcomes_are_true,
    outcomes_are_whole,
)
