"""The figures of a scenario, computed from its history. The audit alone says what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.support.audit import History, Record
from tests.support.audit.runs import Runs
from tests.support.audit.schedule import delays, silences, time_to_next_message
from tests.support.audit.work import one_per_key


@dataclass
class Verdict:
    """The figures of one scenario. Times are in seconds.

    Parameters:
        occurrences: nominal times of which a message came.
        faults: how many there were.
        lost: nominal times, between the first and the last one of an entry, of which no message
            came; None where a fault changes the phase of entries.
        doubled: messages of a nominal time after the first one.
        late: the longest delay of a run that was not due in a fault.
        wait: the longest time from one message of an entry to the next, in faults too.
        back: the longest time from the end of a fault to the next message.
        handovers: how often a message came from another beat than the one before it.
        withheld: the most time that the machine kept from beats and suite during one recovery.
        work: the figures of workers, where there are any.
    """

    occurrences: int
    faults: int
    lost: int | None
    doubled: int
    late: float
    wait: float
    back: float
    handovers: int
    withheld: float = 0.0
    work: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what is published."""
        names = ("occurrences", "faults", "lost", "doubled")
        figures = {name: getattr(self, name) for name in names}
        for name in ("late", "wait", "back"):
            figures[name] = round(getattr(self, name), 2)
        if self.work:
            figures["work"] = self.work
        return figures


def verdict_of(records: Sequence[Record], entries: Collection[str], period: int | None) -> Verdict:
    """Compute the figures of entries with one interval in ms, from the whole history.

    ``period`` is None where a fault changes the phase.
    """
    history = History(records)
    known = [entry for name, entry in history.entries.items() if name in entries]
    sent = [message for message in history.records("sent") if message["entry"] in entries]
    nominals = [{message["nominal"] for _, message in entry.sent} for entry in known]
    occurrences = sum(map(len, nominals))
    recoveries = [fault["recovered"] for fault in history.faults if "recovered" in fault]
    lost = None
    if period is not None:
        lost = sum(missing(times, period) for times in nominals if times)
    late = [delay for entry in known for _, _, delay in delays(history, entry)]
    wait = [silence for entry in known for _, silence in silences(history, entry)]
    back = [time_to_next_message(history, recovered) for recovered in recoveries]
    return Verdict(
        occurrences=occurrences,
        faults=len(recoveries),
        lost=lost,
        doubled=len(sent) - occurrences,
        late=max(late, default=0) / 1000,
        wait=max(wait, default=0) / 1000,
        back=max(back, default=0) / 1000,
        handovers=sum(before["sender"] != after["sender"] for before, after in pairwise(sent)),
    )


def work_of(records: Sequence[Record]) -> dict[str, Any]:
    """Compute the figures of workers.

    Returns:
        ``runs`` that a body ran; ``left_out`` by the beat, because the last one was queued or ran;
        ``refused`` by a worker; ``vanished`` after a worker received them; ``unfinished`` by their
        body; ``taken`` by a worker and never heard of again; ``overlaps`` of bodies of one key; and
        ``stuck``, the longest time in seconds for which a lock outlived its run.
    """
    history = History(records)
    runs = Runs(history)
    return {
        "runs": len(runs.bodies),
        "left_out": runs.left_out,
        "refused": len(runs.refused),
        "vanished": len(runs.vanished),
        "unfinished": len(runs.unfinished),
        "taken": runs.taken,
        "overlaps": len([*one_per_key(history)]),
        "stuck": round(max(runs.outlived.values(), default=0) / 1000, 2),
    }


def missing(nominals: Collection[int], period: int) -> int:
    """Return how many nominal times between the first and the last one are missing."""
    return len(set(range(min(nominals), max(nominals) + 1, period)) - set(nominals))
