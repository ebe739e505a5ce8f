"""What is told of a dispatch: counts, the hooks, and lines in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import tzinfo

from celery.utils.log import get_logger

from ...clock import wall_ms
from ...entries import lifecycle
from ...entries.stored_entry import shown_name
from ...entries.words import counted
from ...events import Dispatched, Event, Failed, Misfired, Quarantined, Skipped
from ...instants import from_ms
from ...storage.stored import Bad
from ..vitals import Vitals
from .planner import Job

logger = get_logger(f"celery.{__name__}")


class Reports:
    """Tells what became of entries."""

    def __init__(self, vitals: Vitals, zone: tzinfo) -> None:
        self._vitals = vitals
        self._zone = zone

    def goes_out(self, mode: str) -> None:
        """This is how messages go out, in words: said where it changes, not with each of many connections."""
        if mode != self._vitals.dispatch:
            self._vitals.dispatch = mode
            logger.info("beat: messages go out %s", mode)

    def set_aside(self, bad: Iterable[Bad]) -> None:
        """These are in quarantine now."""
        events = [Quarantined(shown_name(each.stored), each.error) for each in bad]
        for event in events:
            logger.error("beat: entry %r cannot be used and is quarantined: %s", event.name, event.error)
        self._vitals.tell(*events)

    def failed(self, job: Job, exc: BaseException | None) -> None:
        """A publish failed, and is tried again."""
        logger.error("beat: could not publish %r, trying again later: %s", job.entry.name, job.error)
        logger.debug("beat: how it came to that", exc_info=exc)
        self._vitals.failed += 1
        self._vitals.unpublished.add(job.entry.name)
        self._vitals.tell(Failed(job.entry.name, job.entry.task, job.error, job.state.attempts + 1))

    def advanced(self, job: Job) -> None:
        """A commit has advanced this entry: say what a person should know of it."""
        name, plan = job.entry.name, job.plan
        is_first_failure = job.error and not job.state.attempts
        if is_first_failure and not plan.emit:
            logger.error("beat: entry %r cannot run here, trying again later: %s", name, job.error)
        if plan.skipped and not job.error:
            missed = counted(plan.skipped, "occurrence", "occurrences")
            policy = job.entry.misfire.policy
            logger.warning("beat: %r missed %s, left out by its policy %r", name, missed, policy)
        if plan.next is None and not job.error:
            logger.info("beat: %r has finished", name)

    def committed(self, jobs: Iterable[Job]) -> None:
        """Count what a commit has done, and tell the hooks."""
        done, vitals = [job for job in jobs if not job.error], self._vitals
        vitals.sent += sum(len(job.plan.emit) for job in done)
        vitals.skipped += sum(job.plan.skipped + len(job.left_out) for job in done)
        if done and vitals.announcer.listening:
            now = wall_ms()
            vitals.tell(*(event for job in done for event in self._events(job, now)))

    def _events(self, job: Job, now: int) -> Iterator[Event]:
        entry, plan = job.entry, job.plan
        if plan.skipped:
            yield Misfired(entry.name, entry.task, plan.skipped, entry.misfire.policy)
        for nominal in job.left_out:
            yield Skipped(entry.name, entry.task, from_ms(nominal))
        for nominal in plan.emit:
            due = (lifecycle.score(entry, nominal, self._zone) or nominal) if entry.jitter else nominal
            yield Dispatched(entry.name, entry.task, job.id_of(nominal), from_ms(nominal), (now - due) / 1000)
