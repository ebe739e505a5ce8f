"""The loop over batches: peek, plan, make messages, commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..._base.clock import elapsed
from ...entries.changes import Stored
from ...entries.stored_entry import shown_name
from ...store.records import Frozen
from ..freezing import FreezeMemory
from ..leader import Leader
from .batch_sender import BatchSender
from .planner import Planner
from .publisher import Publisher

#: Seconds after which :meth:`Dispatcher.run` returns even if more entries are due, so that the main
#: loop does its other work.
_TURN_SECONDS = 10.0

#: Seconds per batch for entries with a user's own schedule class, which may be slow. One of them is
#: dispatched in any case.
_ASK_SECONDS = 0.05


@dataclass(eq=False)
class Dispatcher:
    """Loop over the batches of due entries."""

    leader: Leader
    freeze_memory: FreezeMemory
    planner: Planner
    publisher: Publisher
    sender: BatchSender
    #: Names of entries in the last batch that lacked their definition or state.
    torn: set[bytes] = field(default_factory=set)

    def run(self) -> int | None:
        """Dispatch until no entry is due, or for some seconds.

        Returns:
            time at which the next entry is due, in epoch ms: now if more entries are due already,
            ``None`` if no entry will become due.

        Raises:
            BrokerDown: the broker cannot be reached; what is due stays due.
            Lost: another process leads.
        """
        began = elapsed()
        while True:
            self.leader.checkpoint("looking for due entries")
            now = self.leader.clock.now_ms()
            batch_size = self.publisher.batch_size
            due, upcoming = self.freeze_memory.peek(self.leader.term, now, batch_size)
            if not due:
                return upcoming
            if elapsed() - began > _TURN_SECONDS:
                return now  # The main loop does its other work, and then calls this again.
            if self._request_repair(due):
                return now  # The main loop repairs the torn entries, and then calls this again.
            if self.publisher.connect():
                continue  # Opening the connection may have taken seconds, so more runs may be due.
            self.leader.progress("planning")
            batch = self.planner.plan(due, now, batch_size)
            # Frozen means that a freeze has begun since peek. The entries stay due, but while the
            # freeze holds, the next peek returns no entry, and this function returns.
            with suppress(Frozen):
                self.sender.send(batch)
                # These entries come last, because a user's own schedule class may be slow.
                self._dispatch_custom_entries(batch.custom_entries)

    def _dispatch_custom_entries(self, entries: Sequence[Stored]) -> None:
        """Dispatch entries with a user's own schedule class, for :data:`_ASK_SECONDS`.

        The first entry is dispatched in any case. Entries that are not reached stay due.
        """
        until = elapsed() + _ASK_SECONDS
        for stored in entries:
            # A failure in the batch before this one may have closed the connection.
            self.publisher.connect()
            self.leader.progress(f"asking the schedule of {shown_name(stored)!r}")
            # Read the clock for each entry, because the one before it may have taken long.
            now = self.leader.clock.now_ms()
            self.sender.send(self.planner.plan([stored], now, most=1, may_ask=True))
            if elapsed() >= until:
                return

    def _request_repair(self, due: Sequence[Stored]) -> bool:
        """Request a repair if due entries are torn. Return whether this call has requested it.

        A torn entry lacks its definition or its state. If it was torn in the last batch, too, the
        repair could not help. So do not request it again, and let the planner quarantine the entry.
        """
        torn = {stored.name for stored in due if stored.state is None or stored.definition is None}
        newly_torn = torn - self.torn
        self.torn = torn
        if newly_torn:
            self.leader.needs_repair = True  # The main loop begins the repair when it sees this.
        return bool(newly_torn)
