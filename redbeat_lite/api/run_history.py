"""What became of runs: what was sent and what is recorded of it, merged; and what else can be asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, get_args

from .. import instants
from ..clock import wall_ms
from ..entries.entry import Entry
from ..entries.fields import is_name
from ..entries.last_runs import must_have_expired, with_sent
from ..errors import EntryNotFound, shorten
from ..once.keys import OnceKeys
from ..runs.feed import Line, line_in, line_named, lines
from ..runs.keys import RunKeys
from ..runs.reading import run_of
from ..runs.row import Row
from ..runs.run import Outcome, Run
from ..runs.store import RunStore
from ..storage.replies import server_ms, text
from ..storage.store import Store
from ..storage.stored import PAGE, chunks
from .reader import Reader
from .results import Told, results_of

if TYPE_CHECKING:
    from celery import Celery

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are asked for.

    Parameters:
        outcomes: those that are wanted.
        since, until: their nominal times, epoch milliseconds; ``None``: no bound.
        limit: how many at most.
    """

    outcomes: Collection[str]
    since: int | None
    until: int | None
    limit: int

    @classmethod
    def of(cls, outcome: object, since: datetime | None, until: datetime | None, limit: int) -> Self:
        """Read what a user asks for.

        Raises:
            ValueError, InvalidEntry: names the parameter, what was expected and what came.
        """
        given = OUTCOMES if outcome is None else (outcome,) if isinstance(outcome, str) else outcome
        words = tuple(given) if isinstance(given, Iterable) else (given,)
        for word in words:
            if word not in OUTCOMES:
                raise ValueError(f"outcome: expected one of {', '.join(OUTCOMES)}, got {shorten(word)}")
        first, last = (
            None if instant is None else instants.to_ms(instants.aware(field, instant))
            for field, instant in (("since", since), ("until", until))
        )
        return cls(words, first, last, limit)

    def spans(self, row: Row) -> bool:
        """Whether it lies between the two instants, or some of a range do."""
        last = row.nominal + (row.duration or 0) if row.is_range else row.nominal
        return (self.since is None or last >= self.since) and (self.until is None or row.nominal <= self.until)


class RunHistory:
    """Reads the runs of one app's schedule.

    Parameters:
        app: the Celery app.
        reader: reads its entries.
        store: where they are.
        slack: by how many milliseconds the clocks of beats and workers may differ.
    """

    def __init__(self, app: Celery, reader: Reader, store: Store, slack: int) -> None:
        self._app = app
        self._reader = reader
        self._store = store
        self._slack = slack
        self._keys = RunKeys(store.keys.prefix)

    def of_all(self, wanted: Wanted) -> list[Run]:
        """What has ended of all entries, the last to end first."""
        return [*islice(self._ended(wanted), wanted.limit)]

    def of_entry(self, name: str, wanted: Wanted) -> list[Run]:
        """The runs of one entry, the newest first.

        Raises:
            EntryNotFound: there is none, and nothing is recorded of one that there was.
            CorruptEntry: what Redis holds of it cannot be read.
        """
        entry, rows = self._stored(name)
        known = [row for row in (with_sent(entry, rows) if entry else rows) if wanted.spans(row)]
        found: list[Run] = []
        for chunk in chunks(known, min(wanted.limit, PAGE)) if wanted.limit else ():
            found += [run for run in self._told(name, entry, chunk) if run.outcome in wanted.outcomes]
            if len(found) >= wanted.limit:
                break
        return found[: wanted.limit]

    def _stored(self, name: str) -> tuple[Entry | None, Sequence[Row]]:
        missing = entry = None
        # The entry first: a row that is written in between is one more, not one that is missing.
        try:
            entry = self._reader.entry(self._reader.stored(name))
        except EntryNotFound as exc:
            missing = exc
        rows = RunStore(self._client, self._store.keys.prefix).rows([name], PAGE)[0] if is_name(name) else []
        if missing is not None and not rows:
            raise missing
        return entry, rows

    @property
    def _client(self) -> Any:
        return self._store.backend.client

    def _ended(self, wanted: Wanted) -> Iterator[Run]:
        seen: set[tuple[str, str]] = set()  # an attempt that is retried has ended, too
        # A run cannot have ended before its nominal time, but for clocks that differ.
        oldest = 0 if wanted.since is None else wanted.since - self._slack
        for line in lines(self._client, self._keys, oldest) if wanted.limit else ():
            row, run = line.row, (line.name, line.row.task_id)
            if run not in seen and wanted.spans(row) and row.outcome in wanted.outcomes:
                with suppress(OverflowError):
                    yield run_of(line.name, row, line.worker, line.error)
            seen.add(run)

    def _told(self, name: str, entry: Entry | None, rows: Sequence[Row]) -> Iterator[Run]:
        """These runs, with all that can be asked of them."""
        details = self._details(rows)
        results = results_of(self._app, [row.task_id for row in rows if row.outcome == "waiting"])
        for row in rows:
            with suppress(OverflowError):
                if row.outcome != "waiting":
                    yield _recorded(name, row, details.get(row))
                elif (told := results.get(row.task_id)) is not None:
                    yield _of_result(run_of(name, row), told)
                else:
                    gone = entry is not None and must_have_expired(entry, row.nominal, wall_ms(), self._slack)
                    yield replace(run_of(name, row), outcome="unknown" if gone else "waiting", source="schedule")

    def _details(self, rows: Sequence[Row]) -> dict[Row, Line | bool | None]:
        """For a row that names one its line, and for one that runs whether it is lost.

        In one round trip, and one for the server's time where something runs.
        """
        # Not in the pipeline, where a cluster has no node for it; and before: what is renewed meanwhile is not lost.
        now = server_ms(self._client) if any(row.outcome == "running" for row in rows) else 0
        # Without a transaction, in which a cluster hands on what the server says as it is.
        pipe = self._client.pipeline(transaction=False)
        asked = [row for row in rows if self._ask(pipe, row)]
        replies = pipe.execute() if asked else []
        return {
            row: _is_lost(reply, now) if row.outcome == "running" else line_in(reply)
            for row, reply in zip(asked, replies, strict=True)
        }

    def _ask(self, pipe: Any, row: Row) -> bool:
        if row.outcome != "running":
            return line_named(pipe, self._keys, row)
        pipe.hmget(OnceKeys(self._store.keys.prefix).guard(row.task_id), "state", "until")
        return True


def _is_lost(guard: Sequence[bytes | None], now: int) -> bool:
    """Whether nobody renews the record of the guard of a run any more, though it has not ended.

    Only what is guarded is recorded when it begins: one that has no such record any more had one.
    """
    state, until = (None if field is None else text(field) for field in guard)
    return state in (None, "dead") or (state == "running" and (until is None or float(until) <= now))


def _recorded(name: str, row: Row, detail: Line | bool | None) -> Run:
    if isinstance(detail, Line):
        return run_of(name, row, detail.worker, detail.error)
    return run_of(name, row._replace(outcome="lost") if detail else row)


def _of_result(run: Run, told: Told) -> Run:
    return replace(
        run, outcome=told.outcome, worker=told.worker, error=told.error, attempts=told.attempts, source="result"
    )
