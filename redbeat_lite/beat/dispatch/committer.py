"""Commit: one script advances the entries of a batch, and sends their messages where it can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import tzinfo
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError

from ..._base.text import text_of
from ...entries import lifecycle
from ...entries.on_calendar import with_left_out
from ...rules.misfire import Plan, Range
from ...runs.run import LIFE_MS, Outcome, Row
from ...runs.run_store import RunKeys
from ...store.leader_store import LeaderStore
from ...store.records import ANY_REVISION, Advance, Command, Lost, Refrozen, Term
from ..freezing import Freezing
from ..leader import Leader
from .batch_log import BatchLog
from .deadlines import Deadlines
from .planner import MAX_ERROR, Job
from .publisher import BrokerDown, Publisher
from .redis_batch import refused_for_all

logger = get_logger(f"celery.{__name__}")


class Steps(Protocol):
    """Next steps of entries, or of backfills."""

    def advance(self, job: Job, now: int) -> Advance:
        """Return what the commit writes for a job."""

    def report_advanced(self, jobs: Sequence[Job]) -> None:
        """Report jobs whose advance was committed."""


class Committer:
    """Commits jobs, and notes the result of each."""

    def __init__(
        self,
        store: LeaderStore,
        leader: Leader,
        publisher: Publisher,
        freezing: Freezing,
        log: BatchLog,
        steps: Steps,
    ) -> None:
        self._store = store
        self._leader = leader
        self._publisher = publisher
        self._freezing = freezing
        self._log = log
        self._steps = steps
        self._deadlines_key = RunKeys(store.keys.prefix).deadlines

    def send(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Send collected messages that the commit does not send.

        A message that the broker refuses fails alone.
        """
        self.check_lead("sending a batch")
        errors = self._publisher.send([job.commands for job in jobs])
        refused_all: Exception | None = None
        answered: list[Job] = []
        for job, error in zip(jobs, errors, strict=True):
            job.commands = ()
            if error is not None and refused_for_all(error):
                refused_all = error
                continue
            if error is not None:
                self.note_failure(job, f"the broker refused the message: {text_of(error)}", error)
            answered.append(job)
        if refused_all is not None:
            self.commit(term, now, answered)
            raise refuses_all(refused_all)

    def commit(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Advance the entries of these jobs, send the messages that are left, and note results."""
        self._leader.progress("committing")
        for job in jobs:
            # Also if the commit fails: its reply may be all that was lost.
            job.out = not job.error
        try:
            results = self._advance(term, now, jobs, self._publisher.one_step)
        except (Lost, Refrozen):
            for job in jobs:
                was_left_to_the_commit = bool(job.commands)
                job.out = not job.error and not was_left_to_the_commit
            raise
        except NoPermissionError as exc:
            if not any(job.commands for job in jobs):
                raise
            self._commit_apart(term, now, jobs, exc)
            return
        self._note_results(term, now, jobs, results)

    def _commit_apart(self, term: Term, now: int, jobs: list[Job], exc: NoPermissionError) -> None:
        """Send the messages as the broker's user, then commit as the schedule's user."""
        # The server checks the rights before it runs a script, so nothing has been sent or
        # advanced.
        for job in jobs:
            job.out = False
        logger.warning(
            "beat: the schedule's user may not write to a queue, so the broker's will: %s",
            text_of(exc),
        )
        self._publisher.send_apart("the schedule's user may not write to a queue")
        self.send(term, now, jobs)
        self.commit(term, now, jobs)

    def _note_results(
        self, term: Term, now: int, jobs: list[Job], results: list[bool | str]
    ) -> None:
        """Note the result of each job: advanced, changed meanwhile, or refused by the broker."""
        refused: list[Job] = []
        advanced: list[Job] = []
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, str):
                self.note_failure(job, f"the broker refused the message: {result}")
                job.out = False
                refused.append(job)
            elif result:
                advanced.append(job)
            elif job.commands:
                job.out = False  # Edited or removed meanwhile, so nothing was sent.
        if refused:
            self._advance(term, now, refused)
        self._steps.report_advanced(advanced)

    def _advance(
        self, term: Term, now: int, jobs: Sequence[Job], one_step: bool = False
    ) -> list[bool | str]:
        if not jobs:
            return []
        advances = [self._steps.advance(job, now) for job in jobs]
        revision = self._freezing.known.revision if one_step else ANY_REVISION
        return self._store.commit(term, now, advances, self._deadlines_key, revision)

    def check_lead(self, doing: str) -> None:
        """Report progress; raise Lost if this process does not lead any more."""
        if not self._leader.leading:
            raise Lost
        self._leader.progress(doing)

    def note_failure(self, job: Job, error: str, exc: BaseException | None = None) -> None:
        """Keep with a job why its message was not published."""
        job.error = error[:MAX_ERROR]
        job.commands = ()
        self._log.report_failed(job, exc)


def refuses_all(error: BaseException) -> BrokerDown:
    """Return the exception for a broker that answers this to every message."""
    return BrokerDown(f"it refuses every message: {text_of(error)}")


class EntrySteps:
    """Next steps of entries: state, due time, messages, deadlines, and records of unsent runs."""

    def __init__(self, prefix: str, deadlines: Deadlines, zone: tzinfo, log: BatchLog) -> None:
        self._keys = RunKeys(prefix)
        self._deadlines = deadlines
        self._zone = zone
        self._log = log

    def advance(self, job: Job, now: int) -> Advance:
        """Return what the commit writes for a job at ``now`` (epoch ms)."""
        entry = job.entry
        state = job.state
        name = job.stored.name
        plan = job.plan
        if job.error:
            after = lifecycle.failed(state, job.error, plan)
            retry = now + 1000 * lifecycle.retry_delay(after.attempts)
            return Advance(name, state.guard, after.encode(), retry)
        if job.frozen:
            return Advance(name, state.guard, state.encode(), job.ahead.score)
        commands = job.commands
        history, expect = self._deadlines.kept(entry)
        deadlines: Sequence[int] = ()
        if expect is not None and plan.emit:
            deadlines = self._deadlines.of(job, expect, now)
            if deadlines and not commands:
                commands = self._record_sent(entry.name, plan.emit)
        elif entry.on_failure and plan.emit:
            self._deadlines.wanted = now
        # An occurrence whose lock was held counts as left out only now, so no event is sent twice.
        plan = with_left_out(entry, state, plan, self._zone)
        after = lifecycle.dispatched(state, plan, len(job.left_out), history)
        ranges: Sequence[Command] = ()
        if history and (plan.skipped or job.left_out):
            ranges = self._record_unsent(job, plan, history)
        # The record of a config entry stays. Without it, the next reading of the configuration
        # would take the entry for a new one and run it again.
        if after.finished and entry.remove_when_done and entry.owner is None:
            return Advance(name, state.guard, None, None, commands, ranges)
        return Advance(
            name, state.guard, after.encode(), job.ahead.score, commands, ranges, deadlines
        )

    def report_advanced(self, jobs: Sequence[Job]) -> None:
        self._log.report_advanced(jobs)

    def _record_sent(self, name: str, nominals: Iterable[int]) -> list[Command]:
        """Return the commands that record runs which were sent before the commit."""
        return [("recorded", self._keys.rows(name), f"{nominal}|{name}") for nominal in nominals]

    def _record_unsent(self, job: Job, plan: Plan, history: int) -> list[Command]:
        key = self._keys.rows(job.entry.name)
        return [
            range_command(key, row, sent, history)
            for row, sent in unsent_rows(job, plan)[-history:]
        ]


def unsent_rows(job: Job, plan: Plan) -> list[tuple[Row, int | None]]:
    """Return a row for each range of occurrences that are not sent, oldest first.

    Beside each row stands the last nominal time before it that was sent.
    """
    decided: list[tuple[Range, Outcome | None]] = [(each, "skipped") for each in plan.ranges]
    decided += [(Range(nominal, nominal, 1), "left out") for nominal in job.left_out]
    decided += [(Range(nominal, nominal, 1), None) for nominal in plan.emit]
    sent = job.state.last
    rows: list[tuple[Row, int | None]] = []
    for outcome, group in groupby(sorted(decided, key=itemgetter(0)), key=itemgetter(1)):
        ranges = [each for each, _ in group]
        first = ranges[0].first
        last = max(each.last for each in ranges)
        if outcome is None:
            sent = last
        else:
            number = sum(each.number for each in ranges)
            rows.append((Row(first, outcome, "", None, last - first, number, ""), sent))
    return rows


def range_command(key: str, row: Row, sent: int | None, history: int) -> Command:
    """Return the command that records a range of occurrences which were not sent.

    The commit joins it with the newest row if that has the same outcome and nothing was sent
    between the two. So an entry that is left out each minute for a day keeps its other rows.

    Parameters:
        key: of the entry's rows.
        sent: the last nominal time before the range that was sent.
        history: rows that are kept, at least one.
    """
    return "range", key, f"{history} {LIFE_MS} {sent or 0} {row.encode()}"
