"""What the result backend tells of runs, for entries that trust it: asked in a thread that may hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from ..clock import elapsed
from ..entries.state import task_id
from ..errors import describe
from ..runs.facts import Deadline, End
from ..runs.results import asked
from .watched_entries import Found

logger = get_logger(f"celery.{__name__}")

#: Seconds that a look waits for the answer, results that it asks for, and how many of one entry for a success.
_PATIENCE, _MOST, _LAST = 3.0, 200, 20

#: Milliseconds after which a deadline that the result backend could not tell of decides nothing any more.
_GIVEN_UP_MS = 600_000

#: Seconds between two lines of the log.
_SILENCE = 60.0

#: Of each task that something is known of: the fields of a run, and when it ended.
_Answer = dict[str, tuple[dict[str, Any], int | None]]


class AskedResults:
    """Asks the result backend of one app, once for each look."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._backend: Any = None
        self._thread: Thread | None = None
        self._asked = False
        self._said = float("-inf")

    def new_look(self) -> None:
        """The backend may be asked again."""
        self._asked = False

    def told(
        self, overdue: Sequence[Deadline], found: Mapping[str, Found], now: int
    ) -> tuple[list[Deadline], list[Deadline]]:
        """The deadlines that can be decided on, with what the backend tells; and those to be looked at again."""
        asked_for = [each for each in overdue if each.at and each.row is None and found[each.name].trusts]
        runs = {each: _runs(each, found[each.name]) for each in asked_for}
        wanted = [task for ids in runs.values() for task in ids][:_MOST]
        answer, known = self._ask(wanted), set(wanted)
        decided, again = [each for each in overdue if each not in runs], []
        for each, ids in runs.items():
            if ids and answer is not None and known.issuperset(ids):
                decided.append(each._replace(told=_last(each, ids, answer, now)))
            elif ids and now - each.at < _GIVEN_UP_MS:
                again.append(each)
        return decided, again

    def _ask(self, ids: Sequence[str]) -> _Answer | None:
        """What is known of these tasks; ``None`` where the backend is away, or was asked in this look."""
        if self._asked or not ids:
            return None
        self._asked = True
        answers: list[_Answer | str] = []
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._answer, args=(ids, answers), name="redbeat-lite-results", daemon=True)
            self._thread.start()
            self._thread.join(_PATIENCE)
        answer = answers[0] if answers else "it does not answer"
        if not isinstance(answer, str):
            return answer
        if elapsed() - self._said >= _SILENCE:
            self._said = elapsed()
            logger.warning("beat: the result backend cannot tell what became of runs: %s", answer)
        return None

    def _answer(self, ids: Sequence[str], answers: list[_Answer | str]) -> None:
        try:
            # Kept, as Celery may have one for each thread.
            self._backend = self._backend or self._app.backend
            answers.append({task: (told, ended) for task, told, ended in asked(self._backend, ids)})
        except Exception as exc:  # noqa: BLE001 - each kind of backend raises what its own library does
            answers.append(describe(exc))


def _runs(deadline: Deadline, found: Found) -> dict[str, int]:
    """The runs that a deadline is about: task id -> nominal time; none where ids were given otherwise then."""
    state, nominal, sent = found.state, deadline.nominal, found.state.sent
    if nominal is None:
        nominals = sent[:_LAST]
    else:
        in_doubt = nominal not in sent and (len(sent) < found.history or nominal > sent[-1])
        nominals = () if in_doubt else (nominal,)
    return {task_id(deadline.name, state.generation, each): each for each in nominals}


def _last(deadline: Deadline, ids: Mapping[str, int], answer: _Answer, now: int) -> End | None:
    """What is told of the run of a deadline, or of the last success."""
    ends = []
    for task, nominal in ids.items():
        if task in answer and (deadline.nominal is not None or answer[task][0]["outcome"] == "succeeded"):
            told, ended = answer[task]
            at = now if ended is None else min(ended, now)
            ends.append(End(at, deadline.name, nominal, told["outcome"], error=told.get("error") or ""))
    return max(ends, key=lambda end: end.at, default=None)
