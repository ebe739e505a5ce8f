"""The loop over batches: peek, plan, make messages, commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..._base.clock import elapsed
from ...store.records import Refrozen, Stored
from ..freezing import Freezing
from ..leader import Leader
from .batch_sender import BatchSender
from .planner import Planner

#: Seconds after which due entries wait until the beat has done its other work.
_TURN = 10.0


class Dispatcher:
    """Dispatches due entries, at most ``batch_size`` in a round trip."""

    def __init__(
        self,
        leader: Leader,
        freezing: Freezing,
        planner: Planner,
        sender: BatchSender,
        batch_size: int,
    ) -> None:
        self._leader = leader
        self._freezing = freezing
        self._planner = planner
        self._sender = sender
        self._batch_size = batch_size
        #: Entries of the last batch that lack a part. If the next batch has them again, they are
        #: quarantined.
        self._torn: set[bytes] = set()

    def run(self) -> int | None:
        """Dispatch until no entry is due, or for some seconds.

        Returns when the next entry is due, in epoch milliseconds, now if there is more; ``None``
        when none is to come.

        Raises:
            BrokerDown: the broker cannot be reached; what is due stays due.
            Lost: another process leads.
        """
        began = elapsed()
        while True:
            self._leader.stop.check()
            term = self._leader.term
            now = self._leader.clock.now_ms()
            self._leader.progress("looking for due entries")
            limit = min(self._batch_size, self._sender.most)
            due, upcoming = self._freezing.peek(term, now, limit)
            if not due:
                return upcoming
            if elapsed() - began > _TURN or self._lost_parts(due):
                return now
            freezes = self._freezing.known
            batch = self._planner.plan(due, now, freezes, self._sender.most)
            with suppress(Refrozen):  # The next peek brings the new freezes.
                is_sent = self._sender.send(term, now, batch)
                if is_sent and batch.asking:
                    now = self._leader.clock.now_ms()
                    self._sender.send(term, now, self._planner.ask(batch.asking, now, freezes))

    def _lost_parts(self, due: Sequence[Stored]) -> bool:
        """Return whether the schedule must be mended first, because an entry lacks a part."""
        names = {stored.name for stored in due if stored.state is None or stored.definition is None}
        torn_before = self._torn
        self._torn = names
        if names <= torn_before:
            return False
        self._leader.damaged = True
        return True
