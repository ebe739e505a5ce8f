"""The last runs of an entry: what its state says was sent, with the rows that tell what became of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile

from .._base.times import MIN_MS, delay_ms, message_ms
from ..rules import Question
from ..runs.run import LIFE_MS, Row
from ..settings import MAX_HISTORY
from .entry import Entry
from .message import expires_with_gap, lock_life_ms
from .state import task_id


def with_sent(
    entry: Entry, rows: Sequence[Row], history: int, now: int, limit: int = MAX_HISTORY
) -> list[Row]:
    """The rows, and one that says ``waiting`` for each occurrence that was sent and has none; the
    newest first.

    Parameters:
        rows: of the entry, the newest first; all of them, or no fewer than ``limit``.
        history: how many are kept, where the entry does not say.
        now: epoch milliseconds.
    """
    told, generation = {row.task_id for row in rows}, entry.known_state.generation
    # Where there are as many as are kept, an older one had a row that was dropped, and need not
    # have stayed without.
    full = len(rows) >= (history if entry.history is None else entry.history)
    # All of them vanish together.
    oldest = max(now - LIFE_MS, rows[-1].nominal if rows and full else MIN_MS)
    sent = [nominal for nominal in entry.known_state.sent[:limit] if nominal > oldest]
    named = ((nominal, task_id(entry.name, generation, nominal)) for nominal in sent)
    untold = [
        Row(nominal, "waiting", id_, None, None, 0, "") for nominal, id_ in named if id_ not in told
    ]
    return sorted((*rows, *untold), key=lambda row: row.nominal, reverse=True)[:limit]


def must_have_expired(entry: Entry, nominal: int, now: int, slack: int) -> bool:
    """Whether the message of an occurrence cannot be waiting any more at ``now``; epoch ms, as
    ``nominal``.

    When it was sent is not written down: at its nominal time, or after an outage, but before the
    run after it. So its life counts from that one, unless its end is named as an instant. Never
    where it has no end, nor where nobody knows which run comes after it. One that is made up for
    has no end either, and may be sent after others: of an entry with ``misfire="all"`` nothing is
    known to have expired. Clocks of beats and workers may differ by ``slack`` ms.
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
    """The occurrence after this one: another that was sent, or the planned one."""
    if later := [*takewhile(lambda other: other > nominal, entry.known_state.sent)]:
        return later[-1]
    planned = entry.known_state.nominal
    return None if isinstance(planned, Question) else planned
