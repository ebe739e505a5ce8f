"""Dispatch: publish every occurrence that is due, and commit its advance.

A batch goes peek, plan, publish, commit. Only the first and the last talk to the server, one round trip each, whatever
the number of entries; a batch with once-locks needs one more, to take them, and a broker in another Redis one to send.
What goes wrong with one entry stays with it: a definition that cannot be used is quarantined, a publish that fails is
tried again later, under the same task id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import tzinfo
from functools import partial

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError, ResponseError

from ...clock import elapsed, wall_ms
from ...entries.message import Occurrence
from ...errors import describe, text_of
from ...once.claims import headers as once_headers
from ...once.store import LockStore
from ...runs.keys import RunKeys
from ...storage.leader_store import LeaderStore
from ...storage.stored import Command, Lost, Refrozen, Stored, Term, chunks
from ..freezing import Freezing
from ..leader import Leader
from ..vitals import Vitals
from .advances import Advances
from .broker import BrokerDown
from .collector import refused_for_all
from .deadlines import Deadlines
from .no_gc import no_collection
from .once_locks import Claiming
from .planner import LEAST, MAX_ERROR, MOST, Job, Planner
from .publisher import Publisher
from .reports import Reports

logger = get_logger(__name__)

#: Seconds after which the rest of what is due waits until the beat has looked after its other affairs.
_TURN = 10.0

#: Seconds that a batch takes to go out, about: what comes due meanwhile waits for it.
_BATCH = 0.15

#: Parts in which a batch is committed, where there is something to do meanwhile.
_PARTS = 4


class Dispatcher:
    """Dispatches what is due, at most ``batch_size`` entries in a round trip."""

    def __init__(
        self,
        store: LeaderStore,
        leader: Leader,
        publisher: Publisher,
        locks: LockStore,
        vitals: Vitals,
        planner: Planner,
        *,
        zone: tzinfo,
        batch_size: int,
        deadlines: Deadlines,
        freezing: Freezing,
    ) -> None:
        self._store = store
        self._leader = leader
        self._publisher = publisher
        self._freezing = freezing
        self._claiming = Claiming(locks)
        self._reports = Reports(vitals, zone)
        self._advances = Advances(RunKeys(store.keys.prefix), deadlines, zone)
        self._batch_size = batch_size
        #: Entries of the batch before of which a part was gone: what has not been mended is set aside.
        self._torn: set[bytes] = set()
        #: What is out and not committed, with its term and its time: the messages of these jobs, and of nothing else.
        self._out: tuple[Term, int, list[Job]] | None = None
        #: Looks at what came of the commit that was sent last, if nobody has done so yet.
        self._under_way: Callable[[], None] | None = None
        self._planner = planner
        self._most = MOST  #: entries and messages of the next batch, by the time that the last one took

    @no_collection()
    def run(self) -> int | None:
        """Dispatch until nothing is due any more, or for some seconds.

        Returns when the next entry is due, in epoch milliseconds, now if there is more; ``None`` when none is to come.

        Raises:
            BrokerDown: the broker cannot be reached; what is due stays due.
        """
        began = elapsed()
        while True:
            term, now = self._leader.term, wall_ms()
            self._leader.progress("looking for due entries")
            due, upcoming = self._freezing.peek(term, now, min(self._batch_size, self._most))
            if not due:
                return upcoming
            if elapsed() - began > _TURN or self._lost_parts(due):
                return now
            with suppress(Refrozen):  # what is not frozen by now is found again at once
                self._dispatch(term, due, now)

    def _lost_parts(self, due: list[Stored]) -> bool:
        """Whether to have the schedule mended first: parts of what is due are gone, which no mending has met yet."""
        names = {stored.name for stored in due if stored.state is None or stored.definition is None}
        known, self._torn = self._torn, names
        if names <= known:
            return False
        self._leader.note_damage()
        return True

    def _dispatch(self, term: Term, due: list[Stored], now: int) -> None:
        """Dispatch a batch: where the commit sends it, in parts, each planned while the server commits the one before.

        What a part finds on its way out is raised once that commit has been looked at.
        """
        number_of = max(min(len(due) // LEAST, _PARTS), 1) if self._publisher.one_step else 1
        # An even number each, so that the oldest and the newest end stay in turn, as the planner expects.
        parts = [*chunks(due, 2 * -(-len(due) // (2 * number_of)))]
        began, jobs = elapsed(), list[Job]()
        try:
            for number, part in enumerate(parts, 1):
                planned = self._plan(term, part, now)
                jobs += planned
                is_last = number == len(parts) or elapsed() - began > _BATCH
                self._send_out(term, now, planned, is_last)
                if is_last:
                    break
        except Exception:
            self._settle()
            raise
        finally:
            self._claiming.give_back(jobs)

    def _plan(self, term: Term, due: list[Stored], now: int) -> list[Job]:
        jobs, bad = self._planner.plan(due, now, self._freezing.known, self._most)
        if bad:
            done = self._store.quarantine(term, bad)
            self._reports.set_aside(each for each, is_done in zip(bad, done, strict=True) if is_done)
        return jobs

    def _send_out(self, term: Term, now: int, jobs: list[Job], is_last: bool) -> None:
        messages = sum(len(job.plan.emit) for job in jobs)
        if not messages:
            self._commit(term, now, jobs)
            return
        self._leader.progress("connecting to the broker", within=self._publisher.gives_up_after)
        self._publisher.connect(self._store, term)
        began = elapsed()
        self._claiming.take(jobs)
        try:
            tried, line_holds = self._publish(term, now, jobs)
            # What is out already is noted before anything else goes out.
            self._commit(term, now, tried, wait=is_last or not line_holds or not self._publisher.one_step)
            if not line_holds:
                self._publisher.close()
        except BrokerDown:
            # A channel that was shut, a server that has become a replica: so it stays for who keeps the connection.
            self._publisher.close()
            raise
        in_time = messages * _BATCH / max(elapsed() - began, _BATCH / MOST)
        self._most = max(LEAST, min(MOST, int(in_time)))

    def finish(self, store: LeaderStore) -> None:
        """Commit what is out, for a beat that is told to stop in the middle of a batch.

        The store has a connection of its own: what was interrupted may be using the other one.
        """
        out, self._out = self._out, None
        if out is not None:
            term, now, jobs = out
            done = self._advance(store, term, now, jobs := [*jobs])()
            self._reports.committed(job for job, is_done in zip(jobs, done, strict=True) if is_done)

    # -- publish ------------------------------------------------------------------------------------------------------

    def _publish(self, term: Term, now: int, jobs: list[Job]) -> tuple[list[Job], bool]:
        """Publish the jobs in turn; returns those that were tried, and whether the connection held.

        The others stay due, for a new connection.
        """
        tried: list[Job] = []
        line_holds, at_once = True, self._publisher.at_once
        if at_once:
            self._out = term, now, tried
        # What a message that is only filled in, for the commit to send, need not care about.
        with self._publisher.batch(lambda each: self._still_leading(f"publishing {each.entry.name!r}")) as publish:
            self._reports.goes_out(self._publisher.mode)
            for job in jobs:
                try:
                    line_holds = self._publish_job(publish, job)
                except BrokerDown:
                    if at_once:
                        self._commit(term, now, tried)  # they are out, and need not be sent again
                    raise
                job.out = at_once and not job.error
                tried.append(job)
                if not line_holds:
                    break
        if not self._publisher.one_step and any(job.commands for job in tried):
            self._send(term, now, tried)
        return tried, line_holds

    def _publish_job(self, publish: Callable[[Occurrence], list[Command]], job: Job) -> bool:
        """Publish one job; ``False`` when the connection failed and must be made anew."""
        entry, life = job.entry, job.ahead.life
        locks = {claim.task_id: once_headers(claim) for claim in job.claims} if job.claims else None
        for nominal in job.plan.emit:
            name = job.id_of(nominal)
            try:
                commands = publish(Occurrence(entry, name, nominal, life, locks and locks.get(name)))
            except Lost:
                raise
            except Exception as exc:  # noqa: BLE001 - see the module's docstring
                return self._failed(job, exc)
            job.commands = [*job.commands, *commands] if job.commands else commands
        return True

    def _still_leading(self, doing: str) -> None:
        if not self._leader.leading:
            raise Lost
        self._leader.progress(doing)

    def _send(self, term: Term, now: int, jobs: list[Job]) -> None:
        """Send what was collected and is not left to the commit; what the broker refuses of it fails alone."""
        self._still_leading("sending a batch")
        down, left = None, []
        for job, error in zip(jobs, self._publisher.send([job.commands for job in jobs]), strict=True):
            job.commands = ()
            if isinstance(error, BrokerDown) or refused_for_all(error):
                down = error
                continue
            if error is not None:
                self._note_failure(job, f"the broker refused the message: {text_of(error)}", error)
            left.append(job)
        self._out = term, now, left
        if down is not None:
            self._commit(term, now, left)
            raise down if isinstance(down, BrokerDown) else _refuses_all(down)

    def _failed(self, job: Job, exc: Exception) -> bool:
        """Keep a failure with its entry, unless the broker turns out to be gone for all."""
        self._note_failure(job, describe(exc), exc)
        cause = exc.__cause__
        if cause is not None and refused_for_all(cause):
            raise _refuses_all(cause) from exc
        # Celery makes an OperationalError of each error that the transport names, and kombu's for Redis names KeyError:
        # for a key of a message. An unknown compression, say, is one too, and has not touched the connection. Nor has
        # what the server answered.
        if not isinstance(exc, OperationalError) or isinstance(cause, (LookupError, ResponseError)):
            return True
        self._leader.progress("looking whether the broker answers", within=self._publisher.gives_up_after)
        if not self._publisher.answers():
            raise BrokerDown(job.error) from exc
        return False

    # -- commit -------------------------------------------------------------------------------------------------------

    def _commit(self, term: Term, now: int, jobs: list[Job], *, wait: bool = True) -> None:
        """Commit jobs; what came of it is looked at now, or without ``wait`` before the next commit."""
        self._settle()
        self._leader.progress("committing")
        for job in jobs:
            # Also if the commit fails: its reply may be all that was lost.
            job.out = not job.error
        results = self._advance(self._store, term, now, jobs, self._publisher.one_step)
        self._under_way = partial(self._committed, term, now, jobs, results)
        if wait:
            self._settle()

    def _settle(self) -> None:
        """Look at what came of the commit that is under way."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way()

    def _committed(self, term: Term, now: int, jobs: list[Job], results: Callable[[], list[bool | str]]) -> None:
        try:
            done = zip(jobs, results(), strict=True)
            self._out = None
        except (Lost, Refrozen):
            for job in jobs:
                job.out = not job.error and not job.commands  # which nobody has sent
            raise
        except NoPermissionError as exc:
            if not any(job.commands for job in jobs):
                raise
            # The server looks before it runs a script, so nothing was done. The broker's own user may be another.
            for job in jobs:
                job.out = False
            logger.warning("beat: the schedule's user may not write to a queue, so the broker's will: %s", text_of(exc))
            self._publisher.send_apart("the schedule's user may not write to a queue")
            self._send(term, now, jobs)
            self._commit(term, now, jobs)
            return
        refused, advanced = [], []
        for job, result in done:
            if isinstance(result, str):
                self._note_failure(job, f"the broker refused the message: {result}")
                job.out = False
                refused.append(job)
            elif result:
                self._reports.advanced(job)
                advanced.append(job)
            elif job.commands:
                job.out = False  # Edited or removed meanwhile, so nothing was sent.
        if refused:
            self._advance(self._store, term, now, refused)()
        self._reports.committed(advanced)

    def _advance(
        self, store: LeaderStore, term: Term, now: int, jobs: Sequence[Job], one_step: bool = False
    ) -> Callable[[], list[bool | str]]:
        steps = [self._advances.of(job, now) for job in jobs]
        revision = self._freezing.known.revision if one_step else b"|"  # what is out is out
        return store.commit(term, now, steps, self._advances.deadlines, revision) if steps else list

    def _note_failure(self, job: Job, error: str, exc: BaseException | None = None) -> None:
        job.error, job.commands = error[:MAX_ERROR], ()
        self._reports.failed(job, exc)


def _refuses_all(error: BaseException) -> BrokerDown:
    return BrokerDown(f"it refuses every message: {text_of(error)}")
