"""Results of batches: counts, events for hooks, and log lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo

from celery import Celery
from celery.utils.log import get_logger

from ..._base.times import from_ms
from ...entries import lifecycle
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


class BatchLog:
    """Reports of one beat's batches."""

    def __init__(
        self, app: Celery, state: BeatState, clock: ServerClock, deadlines: Deadlines
    ) -> None:
        self._app = app
        self._state = state
        self._clock = clock
        self._zone: tzinfo = app.timezone
        self._deadlines = deadlines
        #: Entries whose lost retries were warned of.
        self._warned: set[str] = set()

    def note_mode(self, mode: str) -> None:
        """Log how messages are sent, if that has changed."""
        if mode != self._state.dispatch:
            self._state.dispatch = mode
            logger.info("beat: messages go out %s", mode)

    def report_quarantined(self, bad: Iterable[Bad]) -> None:
        """Report entries that were put in quarantine."""
        events = [Quarantined(shown_name(entry.stored), entry.error) for entry in bad]
        for event in events:
            logger.error(
                "beat: entry %r cannot be used and is quarantined: %s", event.name, event.error
            )
        self._state.announce(*events)

    def report_failed(self, job: Job, exc: BaseException | None) -> None:
        """Report a publish that failed and will be tried again.

        Parameters:
            exc: the exception, for the debug log; ``None`` if the server has answered with an
                error.
        """
        name = job.entry.name
        logger.error("beat: could not publish %r, trying again later: %s", name, job.error)
        logger.debug("beat: how it came to that", exc_info=exc)
        self._state.failed += 1
        self._state.unpublished.add(name)
        # The state has the earlier failures only. The commit will store this one.
        self._state.announce(Failed(name, job.entry.task, job.error, job.state.attempts + 1))

    def report_advanced(self, jobs: Sequence[Job]) -> None:
        """Report entries that a commit has advanced: log them, count their runs, and call hooks."""
        for job in jobs:
            self._log_advanced(job)
        # A job with an error was put off to a retry, so it has sent and skipped nothing.
        done = [job for job in jobs if not job.error]
        # A worker that records runs has called install(), and so loses no retries.
        if not self._deadlines.recorded:
            self._warn_of_lost_retries(done)
        state = self._state
        state.sent += sum(len(job.plan.emit) for job in done)
        state.skipped += sum(job.plan.skipped + len(job.left_out) for job in done)
        if done and state.announcer.listening:
            now = self._clock.now_ms()
            state.announce(*(event for job in done for event in self._events(job, now)))

    def _log_advanced(self, job: Job) -> None:
        """Log what is notable about an entry that a commit has advanced, or put off to a retry."""
        name = job.entry.name
        plan = job.plan
        if job.error:
            # A failed publish (the plan has runs) is logged already. Log other errors once.
            is_first_failure = not job.state.attempts
            if is_first_failure and not plan.emit:
                logger.error(
                    "beat: entry %r cannot run here, trying again later: %s", name, job.error
                )
            return
        if plan.skipped:
            missed = counted_missed(plan.skipped)
            policy = job.entry.misfire.policy
            logger.warning(
                "beat: %r was late: it left out %s and sent %d (misfire policy %r)",
                name,
                missed,
                len(plan.emit),
                policy,
            )
        if job.left_out:
            logger.info(
                "beat: %r is left out while its once-lock is held: a run is queued or running, "
                "or no worker with install() gives the lock back",
                name,
            )
        if plan.next is None:
            logger.info("beat: %r has finished", name)

    def _warn_of_lost_retries(self, jobs: Iterable[Job]) -> None:
        """Warn once per entry whose retries a worker without ``install()`` discards.

        Parameters:
            jobs: jobs whose messages were sent.
        """
        for job in jobs:
            entry = job.entry
            if not job.plan.emit or entry.name in self._warned:
                continue
            if may_lose_retries(entry, self._app.tasks.get(entry.task)):
                self._warned.add(entry.name)
                logger.warning(
                    "beat: no worker with install() reports, so a retry of %r is discarded if it "
                    "is due after the next run; call redbeat_lite.install(app), or set "
                    "expires=None",
                    entry.name,
                )

    def _events(self, job: Job, now: int) -> Iterator[Event]:
        """Yield the events of an advanced entry, for the hooks of users.

        Parameters:
            now: epoch ms, by which the delay of sent runs is measured.
        """
        entry = job.entry
        plan = job.plan
        if plan.skipped:
            yield Misfired(entry.name, entry.task, plan.skipped, entry.misfire.policy)
        for nominal in job.left_out:
            yield Skipped(entry.name, entry.task, from_ms(nominal))
        for nominal in plan.emit:
            # The delay counts from the due time, because a run is not late by its jitter.
            due = nominal
            if entry.jitter:
                # A manual entry has no score. Its run is due at the nominal time.
                due = lifecycle.score(entry, nominal, self._zone) or nominal
            yield Dispatched(
                entry.name, entry.task, job.id_of(nominal), from_ms(nominal), (now - due) / 1000
            )
