"""The last runs of an entry: what its state says was sent, with the rows that tell what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..instants import delay_ms
from ..runs.row import Row
from ..schedules import Question
from .entry import Entry
from .message import expires_with_gap, lock_life_ms
from .state import task_id


def with_sent(entry: Entry, rows: Sequence[Row]) -> list[Row]:
    """The rows, and one that says ``waiting`` for each occurrence that was sent and has none; the newest first.

    Parameters:
        rows: of the entry, the newest first.
    """
    told, generation = {row.task_id for row in rows}, entry.known_state.generation
    sent = [(nominal, task_id(entry.name, generation, nominal)) for nominal in entry.known_state.sent]
    # As many rows as times: what is older than all of them had a row that was dropped, not one that never came.
    oldest = rows[-1].nominal if rows and len(rows) >= len(sent) else None
    untold = [
        Row(nominal, "waiting", id_, None, None, 0, "")
        for nominal, id_ in sent
        if id_ not in told and (oldest is None or nominal > oldest)
    ]
    return sorted((*rows, *untold), key=lambda row: row.nominal, reverse=True)


def must_have_expired(entry: Entry, nominal: int, now: int, slack: int) -> bool:
    """Whether the message of an occurrence, if it was sent in time, cannot be waiting any more.

    Never where it has no end, nor where nobody knows which run comes after it. One that is made up for has none either,
    so that of an entry with ``misfire="all"`` nothing is known to have expired.

    Parameters:
        nominal: nominal time of the occurrence, epoch milliseconds.
        now: epoch milliseconds.
        slack: by how many milliseconds the clocks of beats and workers may differ.
    """
    life = None
    if expires_with_gap(entry):
        after = _after(entry, nominal)
        if after is None or entry.misfire.policy == "all":
            return False
        life = after - nominal
    life = lock_life_ms(entry, life, nominal)
    return 0 < life < now - nominal - entry.jitter_ms - delay_ms(entry.options, nominal) - slack


def _after(entry: Entry, nominal: int) -> int | None:
    """The occurrence after this one: another that was sent, or the planned one."""
    if later := [*takewhile(lambda other: other > nominal, entry.known_state.sent)]:
        return later[-1]
    planned = entry.known_state.nominal
    return None if isinstance(planned, Question) else planned
