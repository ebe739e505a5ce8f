"""Sends backfills, a batch at a time, after what is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError

from ..actors import BEAT
from ..clock import elapsed, wall_ms
from ..entries.backfilling import merged, room, times, went_out
from ..entries.entry import Entry
from ..entries.message import Occurrence
from ..entries.state import backfill_id
from ..entries.stored_entry import state_of
from ..errors import describe
from ..once.claims import Claim, give_back, headers, take
from ..once.store import DOWN, LockStore
from ..runs.keys import RunKeys
from ..runs.run import BACKFILL_HEADER, EXPECT_HEADER, HISTORY_HEADER
from ..settings import MAX_HISTORY, Settings
from ..storage.backfills import Backfill, BackfillStore, Ranges
from ..storage.changes import line_of
from ..storage.leader_store import LeaderStore
from ..storage.replies import text
from ..storage.stored import Command, Lost
from .dispatch.broker import BrokerDown
from .dispatch.planner import Planner
from .dispatch.publisher import Publisher
from .leader import Leader
from .vitals import Vitals

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds until another look at one that waits for an end or a lock, and at one that has failed.
_LOOK, _RETRY = 0.2, 10.0

#: Milliseconds before an entry is due in which nothing else is begun; for so many seconds at most.
_MAKES_WAY, _PATIENCE = 20, 1.0

#: Lines of the feed of one look.
_LINES = 1000


class Backfills:
    """Sends the backfills of one schedule. What goes wrong with one stays with it.

    Parameters:
        app, store, settings, leader, publisher, locks, vitals, local: as a dispatcher has them.
    """

    def __init__(
        self,
        app: Celery,
        store: LeaderStore,
        settings: Settings,
        leader: Leader,
        publisher: Publisher,
        locks: LockStore,
        vitals: Vitals,
        local: Callable[[str], Entry | None],
    ) -> None:
        self._store, self._leader, self._publisher, self._locks, self._vitals = store, leader, publisher, locks, vitals
        self._backfills, self._feed, self._zone = BackfillStore(store), RunKeys(store.keys.prefix).feed, app.timezone
        # Of its own, so that no message of a backfill takes the place of an entry's prepared one.
        self._planner = Planner(
            zone=app.timezone,
            tasks=lambda name: app.tasks.get(name),
            local=local,
            prefix=store.keys.prefix,
            slack=settings.slack_ms,
            progress=leader.progress,
        )
        self._seen: bytes | int = 1
        self._known: dict[str, Backfill] = {}  #: those that run
        self._next: dict[str, float] = {}  #: when each may go on
        self._last = 0.0

    def go_on(self, upcoming: int | None) -> float:
        """Let the one go on whose turn it is; tells after how many seconds it is worth another look.

        Parameters:
            upcoming: when the next entry is due, epoch ms; ``None`` if nobody knows.

        Raises:
            Lost: the term is over.
            BrokerDown: the broker cannot be reached.
        """
        if self._store.running != self._seen:
            self._seen = self._store.running
            self._known = {id_: each for id_, each in self._backfills.all().items() if each.runs}
            self._next = dict.fromkeys(self._known, 0.0)
        self._vitals.backfill_left = sum(each.left for each in self._known.values())
        id_ = min(self._next, key=self._next.__getitem__, default=None)
        if id_ is None:
            return float("inf")
        if (wait := self._next[id_] - elapsed()) > 0:
            return wait
        if upcoming is not None and upcoming - wall_ms() < _MAKES_WAY and elapsed() - self._last < _PATIENCE:
            return float("inf")
        self._last = elapsed()
        if (pause := self._step(self._known[id_])) is None:
            del self._next[id_], self._known[id_]
        else:
            self._next[id_] = elapsed() + pause
        return 0.0

    def _step(self, known: Backfill) -> float | None:
        """Send what may be sent, and note it; tells the seconds until the next step, ``None`` if there is none."""
        claims: list[Claim] = []
        try:
            before, covered = self._backfills.read(known)
            if before is None or not before.runs:
                return None
            after, sent, commands = self._send(before, covered, claims)
        except Exception as exc:
            self._give_back(claims)
            if isinstance(exc, (BrokerDown, OperationalError)):
                self._publisher.close()
            if isinstance(exc, (BrokerDown, Lost)):
                raise
            return self._failed(known, describe(exc))
        if after == before:
            return _LOOK
        covered = merged(covered, before.cursor or sent[0], sent[-1]) if sent else covered
        try:
            done = self._backfills.change(before, after, covered, self._leader.term, commands)
        except NoPermissionError:
            if not commands:
                raise
            self._publisher.send_apart("the schedule's user may not write to a queue")
            return 0.0
        if not done and not commands and (now := self._backfills.read(before)[0]) is not None:
            # Paused or cancelled meanwhile; but what is out is out.
            after = replace(after, paused=now.paused, ended=now.ended or after.ended)
            done = self._backfills.change(now, after, covered, self._leader.term)
        if done is not True:
            self._give_back(claims)
            return self._failed(before, done) if done else 0.0
        self._known[after.id] = after
        self._vitals.sent += len(sent)
        if after.ended:
            line = line_of(BEAT, "backfill", f"{after.id} {after.ended}: {after.sent} sent")
            self._store.record(line, [after.name])
        return len(sent) / after.rate if after.max_active is None else 0.0

    def _send(
        self, backfill: Backfill, covered: Ranges, claims: list[Claim]
    ) -> tuple[Backfill, list[int], list[Command]]:
        """Publish what may be sent now: the backfill after that, the nominal times, and what is left to send of them.

        Parameters:
            claims: gets the once-lock that is taken.
        """
        [stored] = self._store.read([backfill.name])
        state = None if stored.state is None else state_of(stored)
        if state is None or state.generation != backfill.generation:
            return replace(backfill, ended="cancelled: the entry was removed"), [], []
        entry, backfill = self._planner.entry(stored), self._with_ends(backfill)
        if (most := room(backfill, entry)) < 1:
            return backfill, [], []
        found = [*islice(times(backfill, covered, entry, state, self._zone), most + 1)]
        extra: dict[str, object] = {BACKFILL_HEADER: backfill.id, EXPECT_HEADER: False}
        if backfill.max_active is not None:  # of an old run, the end is told only where there is room for it
            extra[HISTORY_HEADER] = MAX_HISTORY
        if entry.once is not None and found:
            claim = self._planner.claim(entry, entry.once, _id_of(backfill, found[0]), wall_ms())
            if not take(self._locks, [claim])[0]:
                return backfill, [], []
            claims.append(claim)
            extra |= headers(claim)
        sent, commands = self._publish(backfill, entry, found[:most], extra) if found else ([], [])
        return went_out(backfill, sent, is_all=len(sent) == len(found)), sent, commands

    def _publish(
        self, backfill: Backfill, entry: Entry, nominals: list[int], extra: Mapping[str, object]
    ) -> tuple[list[int], list[Command]]:
        self._leader.progress("connecting to the broker", within=self._publisher.gives_up_after)
        self._publisher.connect(self._store, self._leader.term)
        sent, commands = list[int](), list[Command]()
        doing = f"sending a backfill of {backfill.name!r}, in term "
        # Whoever leads no more learns it here.
        with self._publisher.batch(lambda _: self._leader.progress(f"{doing}{self._leader.term.number}")) as publish:
            for nominal in nominals:
                try:
                    commands += publish(Occurrence(entry, _id_of(backfill, nominal), nominal, None, extra))
                except Exception:
                    if not (self._publisher.at_once and sent):
                        raise
                    return sent, []  # which is out; the rest is tried again
                sent.append(nominal)
        if commands and not self._publisher.one_step:
            [error] = self._publisher.send([commands])
            if error is not None:
                raise error
            commands = []
        return sent, commands

    def _with_ends(self, backfill: Backfill) -> Backfill:
        """The backfill, if it waits for one, without those of whose end the feed tells."""
        if backfill.max_active is None or len(backfill.active) < backfill.max_active:
            return backfill
        client: Any = self._store.backend.client
        lines = client.xrange(self._feed, f"({backfill.feed}", "+", _LINES)
        ended = {text(fields.get(b"id", b"")) for _, fields in lines if fields.get(b"outcome") != b"y"}
        active = tuple(nominal for nominal in backfill.active if _id_of(backfill, nominal) not in ended)
        return replace(backfill, active=active, feed=text(lines[-1][0]) if lines else backfill.feed)

    def _failed(self, backfill: Backfill, why: str) -> float:
        self._vitals.failed += 1
        told = "beat: backfill %s of %r cannot go on, trying again later: %s"
        logger.error(told, backfill.id, backfill.name, why)
        return _RETRY

    def _give_back(self, claims: list[Claim]) -> None:
        with suppress(*DOWN):
            give_back(self._locks, claims)


def _id_of(backfill: Backfill, nominal: int) -> str:
    return backfill_id(backfill.name, backfill.generation, nominal, backfill.again)
