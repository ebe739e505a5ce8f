"""Results of batches: counts, events for hooks, and log lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from celery import Celery
from celery.utils.log import get_logger

from ..._base.times import from_ms
from ...entries import lifecycle
from ...entries.entry import Entry
from ...entries.message import may_lose_retries
from ...entries.stored_entry import shown_name
from ...entries.words import counted_missed
from ...events import Dispatched, Event, Failed, Misfired, Quarantined, Skipped
from ...store.records import Bad
from ..beat_state import BeatState
from ..server_clock import ServerClock
from .entry_steps import Deadlines
from .planner import Job

logger = get_logger(f"celery.{__name__}")


@dataclass(eq=False)
class BatchLog:
    """Reports of one beat's batches."""

    app: Celery
    state: BeatState
    clock: ServerClock
    deadlines: Deadlines
    #: Names of entries for which the log has warned that retries are lost.
    warned: set[str] = field(default_factory=set)

    def log_mode(self, mode: str) -> None:
        """Log how messages are sent, if that has changed since the last batch."""
        if mode != self.state.dispatch:
            self.state.dispatch = mode
            logger.info("beat: messages go out %s", mode)

    def report_quarantined(self, bad: Bad) -> None:
        """Report an entry that was put in quarantine."""
        name = shown_name(bad.stored)
        logger.error("beat: entry %r cannot be used and is quarantined: %s", name, bad.error)
        self.state.announce(Quarantined(name, bad.error))

    def report_failed(self, job: Job) -> None:
        """Report a publish that failed and will be tried again."""
        name = job.entry.name
        logger.error("beat: could not publish %r, trying again later: %s", name, job.error)
        self.state.failed += 1
        self.state.unpublished.add(name)
        # ``job.state`` does not count this failure yet; the commit will store it.
        self.state.announce(Failed(name, job.entry.task, job.error, job.state.attempts + 1))

    def report_advanced(self, jobs: Sequence[Job]) -> None:
        """Report entries whose next state a commit has stored, in the log, counts and hooks.

        A publish that fails is reported at once, by :meth:`report_failed`.
        """
        events: list[Event] = []
        for job in jobs:
            if not job.error:
                self._count_runs(job)
                if self.state.announcer.listening:
                    events += self._events(job)
            elif not job.plan.emit and not job.state.attempts:
                # An error of a job without runs is from the planner: this beat cannot use the
                # entry. It is tried again and again, so log only the first attempt.
                logger.error(
                    "beat: entry %r cannot run here, trying again later: %s",
                    job.entry.name,
                    job.error,
                )
        self.state.announce(*events)

    def _count_runs(self, job: Job) -> None:
        """Count the runs of an entry that was advanced, and log what is notable about it."""
        name = job.entry.name
        plan = job.plan
        self.state.sent += len(plan.emit)
        if job.life and not self.deadlines.workers_record:
            # The messages of this job expire. A worker with redbeat_lite.install() records runs,
            # and keeps retries from expiring. Here no worker records runs, so retries may expire.
            self._warn_of_lost_retries(job.entry)
        if plan.ranges:
            self.state.skipped += plan.skipped
            logger.warning(
                "beat: %r was late: it left out %s and sent %d (misfire policy %r)",
                name,
                counted_missed(plan.skipped),
                len(plan.emit),
                job.entry.misfire.policy,
            )
        if job.left_out:
            self.state.skipped += len(job.left_out)
            logger.info(
                "beat: %r is left out while its once-lock is held: a run is queued or running, "
                "or no worker with install() gives the lock back",
                name,
            )
        if plan.next is None:
            logger.info("beat: %r has finished", name)

    def _warn_of_lost_retries(self, entry: Entry) -> None:
        """Warn once of an entry whose retries may be discarded as expired.

        Celery gives a retry the ``expires`` of the first message. A worker that has called
        ``redbeat_lite.install()`` removes it. Call this only if no such worker reports.
        """
        name = entry.name
        if name not in self.warned and may_lose_retries(entry, self.app.tasks.get(entry.task)):
            self.warned.add(name)
            logger.warning(
                "beat: no worker with install() reports, so a retry of %r is discarded if it is "
                "due after the next run; call redbeat_lite.install(app), or set expires=None",
                name,
            )

    def _events(self, job: Job) -> Iterator[Event]:
        """Yield the events for the hooks of users, after a commit has advanced an entry."""
        now = self.clock.now_ms()
        entry = job.entry
        plan = job.plan
        if plan.ranges:
            yield Misfired(entry.name, entry.task, plan.skipped, entry.misfire.policy)
        for nominal in job.left_out:
            yield Skipped(entry.name, entry.task, from_ms(nominal))
        for nominal in plan.emit:
            # Jitter is an intended delay, so it does not make a run late. The score is the nominal
            # time plus jitter. A manual entry has no score.
            due = lifecycle.score(entry, nominal) or nominal
            yield Dispatched(
                entry.name, entry.task, job.id_of(nominal), from_ms(nominal), (now - due) / 1000
            )
