"""Last runs of an entry: the sent occurrences in its state, merged with the recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile

from .._base.times import delay_ms, message_ms
from ..rules import Question
from ..runs.run import LIFE_MS, Row
from ..settings import MAX_HISTORY
from .entry import Entry
from .message import expires_with_gap, lock_life_ms
from .state import task_id


def with_sent(
    entry: Entry, rows: Sequence[Row], history: int, now: int, limit: int = MAX_HISTORY
) -> list[Row]:
    """Return the rows, with a ``waiting`` one added for each sent occurrence without a row.

    The newest row comes first.

    Parameters:
        rows: rows of the entry, the newest first; all of them, or at least ``limit``.
        history: number of rows that are kept if the entry does not say.
        now: epoch milliseconds.
    """
    recorded = {row.task_id for row in rows}
    generation = entry.known_state.generation
    kept = history if entry.history is None else entry.history
    # All rows of an entry expire together.
    oldest = now - LIFE_MS
    if rows and len(rows) >= kept:
        # Only `kept` rows stay. So an occurrence before the oldest row may have had a row that was
        # dropped, and may not be waiting.
        oldest = max(oldest, rows[-1].nominal)
    waiting = []
    for nominal in entry.known_state.sent[:limit]:
        id_ = task_id(entry.name, generation, nominal)
        if nominal > oldest and id_ not in recorded:
            waiting.append(Row(nominal, "waiting", id_, None, None, 0, ""))
    return sorted((*rows, *waiting), key=lambda row: row.nominal, reverse=True)[:limit]


def must_have_expired(entry: Entry, nominal: int, now: int, slack: int) -> bool:
    """Return whether the message of an occurrence cannot be waiting any more.

    The time of sending is not recorded. The message was sent at its nominal time or, after an
    outage, later, but before the next occurrence. So its life is counted from the next occurrence,
    unless it expires at a fixed instant.

    A message without an end never expires. The answer is also ``False`` if the next occurrence is
    unknown. With ``misfire="all"``, a missed run may be sent after later ones and has no end, so
    the answer is always ``False``.

    Parameters:
        nominal: nominal time of the occurrence, in epoch ms.
        now: epoch ms.
        slack: maximum number of milliseconds by which clocks of beats and workers may differ.
    """
    expires = entry.options.get("expires", entry.expires)
    if isinstance(expires, str | datetime) and not expires_with_gap(entry):
        return message_ms(expires) + slack < now
    after = _after(entry, nominal)
    if after is None or entry.misfire.policy == "all":
        return False
    life = lock_life_ms(entry, after - nominal, nominal)
    return 0 < life < now - after - entry.jitter_ms - delay_ms(entry.options, nominal) - slack


def _after(entry: Entry, nominal: int) -> int | None:
    """Return the occurrence after ``nominal``: the next one that was sent, or the planned one."""
    later = [*takewhile(lambda other: other > nominal, entry.known_state.sent)]
    if later:
        return later[-1]
    planned = entry.known_state.nominal
    return None if isinstance(planned, Question) else planned
