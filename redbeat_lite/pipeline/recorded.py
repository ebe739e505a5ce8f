"""What the record of runs is told of a run that an entry has started: its end, by whoever ends it; and what the record
of changes is told of what people do to a run."""

from __future__ import annotations

import json
import time

from celery.utils.log import get_logger

from ..actors import who
from ..errors import InvalidEntry, text_of
from ..runs.attempt import Attempt, Fate
from ..runs.row import NESTING
from ..runs.run import Outcome
from ..storage.changes import Action, Line, line_of
from ..storage.connections import FAULTS
from ..storage.keys import Keys
from ..storage.scripts import Scripts
from .store import PipelineStore

logger = get_logger(f"celery.{__name__}")

_OUTCOMES: dict[str, Outcome] = {"SUCCEEDED": "succeeded", "FAILED": "failed", "ABORTED": "revoked"}


def tell_end(store: PipelineStore, run_id: str) -> None:
    """Have recorded what became of a run. Told twice, it counts once."""
    run = store.fields(run_id, "attempt", "state", "since", "ended", "resumed", "error_step", "error")
    told, state, since, ended, resumed, step, error = run
    if not told or state not in _OUTCOMES:
        return
    # It goes on where the task that started it ends, as a replacement of that does; and again where it is resumed.
    attempt = Attempt(*json.loads(told))
    attempt = attempt._replace(number=attempt.number + NESTING * (1 + int(resumed or 0)))
    outcome = "left out" if state == "ABORTED" and error else _OUTCOMES[state]
    seconds = (int(ended or 0) - int(since or 0)) / 1000  # since its turn came, or it was resumed
    definition = store.definition(run_id) if step else None
    where = f"{definition.steps[int(step or 0)].name}: " if definition else ""
    began = None if outcome == "left out" else time.monotonic() - seconds
    fate = Fate(attempt, outcome, began, None if began is None else seconds, error=f"{where}{error or ''}")
    store.runs.record([fate])


def line_by_hand(action: Action, note: object) -> Line:
    """What the record of changes is told of what is done to a run by hand.

    Raises:
        InvalidEntry: the note is no text.
    """
    if not isinstance(note, str):
        raise InvalidEntry("note", "text", note)
    return line_of(who(), action, note.encode("utf-8", "replace").decode())


def record(store: PipelineStore, run_id: str, line: Line) -> None:
    """Write this line of a run, if the server answers. The script that has edited it cannot: on a cluster, runs lie in
    slots of their own."""
    schedule = Keys.of(store.runs.keys.prefix)
    keys, args = (schedule.changes, schedule.new_reply()), (line.change, run_id)
    try:
        Scripts(store.client).run("schedule/note_change", keys, args)
    except FAULTS as exc:
        logger.warning("Pipeline run %r: what was done is not in the record of changes: %s", run_id, text_of(exc))
