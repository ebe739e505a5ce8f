"""History of runs: the occurrences that were sent, merged with the records of workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice
from typing import Any, Self, get_args

from .._base import times
from .._base.clock import wall_ms
from .._base.errors import EntryNotFound, InvalidEntry
from ..entries.entry import Entry
from ..entries.last_runs import must_have_expired, with_sent
from ..entries.model import is_name
from ..once.lock_store import OnceKeys
from ..pipeline.pipeline_keys import START
from ..pipeline.pipeline_keys import RunKeys as PipelineKeys
from ..runs.run import Outcome, Row, Run, run_of, sign_of
from ..runs.run_store import Line, RunStore, line_in, rows_in
from ..store.records import PAGE, chunks
from ..store.scripts import Call
from .reader import Reader

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

#: Outcomes of runs that have not ended.
_UNDER_WAY = {"waiting", "running", "retrying"}

#: Milliseconds after the start of a run in which its worker gives the first sign of life.
_FIRST_SIGN_MS = 5_000

#: Milliseconds after which an overdue retry is ``unknown``, even if its message never expires.
_RETRY_MS = 86_400_000

#: Maximum number of runs whose details are read in one round trip.
_TOGETHER = 100


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Query for runs.

    Parameters:
        outcomes: outcomes that the runs may have.
        since, until: bounds of their nominal times, in epoch ms; ``None``: no bound.
        limit: maximum number of runs.
    """

    outcomes: Collection[str]
    since: int | None
    until: int | None
    limit: int

    @classmethod
    def of(
        cls,
        limit: int,
        outcome: object = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Self:
        """Return the query for a user's parameters.

        Raises:
            InvalidEntry: a parameter is wrong; the error names it.
        """
        outcomes = _outcomes(outcome)
        return cls(outcomes, _epoch_ms("since", since), _epoch_ms("until", until), limit)

    def spans(self, row: Row) -> bool:
        """Return whether a row lies between ``since`` and ``until``; of a range, any part of it."""
        last = row.nominal
        if row.is_range:
            last += row.duration or 0
        if self.since is not None and last < self.since:
            return False
        return self.until is None or row.nominal <= self.until


def _outcomes(value: object) -> tuple[Any, ...]:
    """Return the outcomes of a user's parameter, which may be ``None``, one or several."""
    if value is None:
        return OUTCOMES
    if isinstance(value, str) or not isinstance(value, Iterable):
        outcomes: tuple[Any, ...] = (value,)
    else:
        outcomes = tuple(value)
    for outcome in outcomes:
        if outcome not in OUTCOMES:
            raise InvalidEntry("outcome", f"one of {', '.join(OUTCOMES)}", outcome)
    return outcomes


def _epoch_ms(field: str, instant: datetime | None) -> int | None:
    return None if instant is None else times.to_ms(times.aware(field, instant))


class RunHistory:
    """Reader of the runs of one app's schedule."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._settings = reader.settings
        self._store = RunStore(reader.store.backend.client, reader.store.keys.prefix)

    def of_all(
        self, query: RunQuery, names: Collection[str] | None, looked_at: int | None = None
    ) -> list[Run]:
        """Return ended runs, the last to end first.

        Parameters:
            names: names of entries; ``None`` for all entries.
            looked_at: maximum number of recorded ends to read; ``None``: all.
        """
        ended = self._ended(query, looked_at)
        runs = (run for run in ended if names is None or run.name in names)
        return [*islice(runs, query.limit)]

    def of_entry(self, entry: str | Entry, query: RunQuery) -> list[Run]:
        """Return the runs of an entry, the newest first.

        Parameters:
            entry: an entry or its name; the entry may have been removed.

        Raises:
            EntryNotFound: there is no entry of this name, and no record of a run.
            CorruptEntry: the stored entry cannot be read.
        """
        if isinstance(entry, Entry):
            rows, now = self._rows(entry.name)
            return self.of_rows(entry.name, entry, rows, now, query)
        stored, rows, now = self._stored(entry)
        return self.of_rows(entry, stored, rows, now, query)

    def of_rows(
        self, name: str, entry: Entry | None, rows: Sequence[Row], now: int, query: RunQuery
    ) -> list[Run]:
        """Return the runs of an entry from its rows, the newest first.

        Parameters:
            entry: the entry, read before its rows or with them; ``None`` if it was removed.
            now: time of the server at which the rows were read, in epoch ms.
        """
        if entry is not None:
            rows = with_sent(entry, rows, self._settings.history, wall_ms())
        # The details may show another outcome of a run whose row says that it has not ended. So
        # such a row is a candidate, too.
        outcomes = _UNDER_WAY.union(query.outcomes)
        candidates = [row for row in rows if query.spans(row) and row.outcome in outcomes]
        size = _TOGETHER
        if outcomes.issuperset(OUTCOMES):
            # Every candidate is a result, so read no details beyond the limit.
            size = min(query.limit, _TOGETHER)
        runs = chain.from_iterable(
            self._with_details(name, entry, chunk, now) for chunk in chunks(candidates, size)
        )
        return [*islice((run for run in runs if run.outcome in query.outcomes), query.limit)]

    def _stored(self, name: str) -> tuple[Entry | None, Sequence[Row], int]:
        """Read an entry (``None`` if it was removed), its rows, and the server's time."""
        try:
            # Read the entry first. If a run is sent and its row written in between, it is in the
            # rows. In the other order it could be in neither.
            entry = self._reader.entry(self._reader.stored(name))
            return entry, *self._rows(name)
        except EntryNotFound:
            if not is_name(name):
                raise
            rows, now = self._rows(name)
            if not rows:
                raise
            return None, rows, now

    def asking(self, name: str) -> Call:
        """Return the call that reads the rows of an entry, to be sent together with other calls."""
        return self._store.asking([name], PAGE)

    def _rows(self, name: str) -> tuple[Sequence[Row], int]:
        """Return the rows of an entry, and the server's time (epoch ms) at which they were read."""
        (rows,), now = rows_in(self._store.scripts.send(self.asking(name)))
        return rows, now

    def _ended(self, query: RunQuery, looked_at: int | None) -> Iterator[Run]:
        """Yield the recorded ends of runs, the newest first, and of each run only its last end."""
        # A run with retries has one end per attempt. The last of them comes first.
        seen: set[tuple[str, str]] = set()
        # A run ends after its nominal time, unless clocks differ.
        oldest = 0 if query.since is None else query.since - self._settings.slack_ms
        for line in islice(self._store.lines(oldest), looked_at):
            row = line.row
            run = (line.name, row.task_id)
            if run not in seen and query.spans(row) and row.outcome in query.outcomes:
                yield run_of(line.name, row, line.worker, line.error)
            seen.add(run)

    def _with_details(
        self, name: str, entry: Entry | None, rows: Sequence[Row], now: int
    ) -> Iterator[Run]:
        """Yield the runs of these rows with their details.

        A waiting run whose message must have expired is ``unknown``.
        """
        for run in self._recorded(name, entry, rows, now):
            if run.outcome != "waiting":
                yield run
                continue
            nominal = times.to_ms(run.scheduled_at)
            slack = self._settings.slack_ms
            expired = entry is not None and must_have_expired(entry, nominal, wall_ms(), slack)
            outcome: Outcome = "unknown" if expired else "waiting"
            yield replace(run, outcome=outcome, source="schedule")

    def _recorded(
        self, name: str, entry: Entry | None, rows: Sequence[Row], now: int
    ) -> Iterator[Run]:
        """Yield the runs of these rows, with details from the feed, the guard and signs of life.

        It takes one round trip, and further ones if the guard shows that a run has ended.

        Parameters:
            now: time of the server before the guard's records are read, in epoch ms. If a record is
                renewed meanwhile, its time is later, so its run does not count as lost.
        """
        details, signs = self._read_details(rows)
        outcomes = _outcomes_under_way(details, signs, now)
        if entry is not None and entry.task == START:
            unknown = [row for row, outcome in outcomes.items() if outcome == "unknown"]
            outcomes |= self._pipelines(unknown)
        newer: dict[str, Row] = {}
        if "unknown" in outcomes.values():
            # If a run has ended since its row was read, it has a newer row. Read the rows again.
            newer = {row.task_id: row for row in self._rows(name)[0]}
        for row in rows:
            if outcomes.get(row) == "unknown" and newer.get(row.task_id, row) != row:
                yield from self._recorded(name, entry, [newer[row.task_id]], now)
            elif row in outcomes:
                yield _run_under_way(name, row, outcomes[row])
            else:
                yield self._run_of_line(name, entry, row, line_in(details.get(row)))

    def _read_details(self, rows: Sequence[Row]) -> tuple[dict[Row, Any], dict[Row, Any]]:
        """Read, in one round trip, row -> details, and row -> sign of life.

        The details of a running row are the guard's record, those of another row its line in the
        feed. Only rows of runs that have not ended have a sign of life, which may be ``None``.
        """
        # Use no transaction, because a cluster's client does not convert its replies.
        pipe = self._store.client.pipeline(transaction=False)
        detailed = [row for row in rows if row.outcome == "running" or row.feed]
        for row in detailed:
            if row.outcome == "running":
                pipe.hmget(OnceKeys(self._store.keys.prefix).guard(row.task_id), "state", "until")
            else:
                pipe.xrevrange(self._store.keys.feed, row.feed, row.feed)
        under_way = [row for row in rows if row.outcome in _UNDER_WAY]
        for row in under_way:
            # The row of a run that is to be retried has the number of the failed attempt.
            attempt = row.attempt + 1 if row.outcome == "retrying" else row.attempt
            pipe.zscore(self._store.keys.alive, sign_of(row.task_id, attempt))
        # A reply may be an error, for instance if the Redis user may not read a key. The caller
        # takes it for a missing value.
        replies = pipe.execute(raise_on_error=False)
        details = dict(zip(detailed, replies[: len(detailed)], strict=True))
        signs = dict(zip(under_way, replies[len(detailed) :], strict=True))
        return details, signs

    def _run_of_line(self, name: str, entry: Entry | None, row: Row, line: Line | None) -> Run:
        """Return the run of a row, with worker, error and retry from its line in the feed."""
        run = run_of(name, row, line and line.worker, line and line.error)
        if line is not None and line.retry is not None:
            run = replace(run, retry_at=times.from_ms(line.retry))
        if row.outcome == "retrying":
            run = self._retried(entry, run)
        return run

    def _retried(self, entry: Entry | None, run: Run) -> Run:
        """Return a run that is to be retried. It is ``unknown`` if the retry is long overdue."""
        due = times.to_ms(run.retry_at or run.ended_at or run.scheduled_at)
        now = wall_ms()
        expired = entry is not None and must_have_expired(entry, due, now, self._settings.slack_ms)
        outcome: Outcome = "unknown" if expired or now - due > _RETRY_MS else "retrying"
        return replace(run, outcome=outcome)

    def _pipelines(self, rows: Sequence[Row]) -> dict[Row, Outcome]:
        """Return row -> ``running`` for runs whose pipeline still runs.

        The task of such a run has ended, after it had started the pipeline.
        """
        pipe = self._store.client.pipeline(transaction=False)
        for row in rows:
            pipe.hget(PipelineKeys.of(self._store.keys.prefix, row.task_id).run, "state")
        states = pipe.execute(raise_on_error=False)
        return {
            row: "running"
            for row, state in zip(rows, states, strict=True)
            if state in (b"RUNNING", b"WAITING")
        }


def _outcomes_under_way(
    details: dict[Row, Any], signs: dict[Row, Any], now: int
) -> dict[Row, Outcome]:
    """Return row -> outcome for runs that have not ended, by the guard and the signs of life."""
    outcomes: dict[Row, Outcome] = {}
    for row, guard in details.items():
        if row.outcome == "running":
            outcomes[row] = _of_guard(guard, now)
    for row, until in signs.items():
        # The guard's record, if there is one, is more exact than a sign of life.
        has_guard = row.outcome == "running" and details[row] != [None, None]
        if has_guard:
            continue
        outcome = _of_sign(row, until, now)
        if outcome is not None:
            outcomes[row] = outcome
    return outcomes


def _run_under_way(name: str, row: Row, outcome: Outcome) -> Run:
    """Return the run of a row whose outcome has changed to this one since it was written."""
    run = run_of(name, row._replace(outcome=outcome))
    if row.outcome == "retrying":
        # The row describes the failed attempt, and the next one has begun.
        run = replace(run, began_at=None, seconds=None, attempts=run.attempts + 1)
    return run


def _of_sign(row: Row, until: Any, now: int) -> Outcome | None:
    """Return the outcome of a run by its sign of life; ``None`` if that does not show it.

    Parameters:
        until: epoch ms until which the sign of life is valid; ``None`` without a sign.
    """
    if isinstance(until, float):
        return "running" if until > now else "lost"
    just_began = row.outcome == "running" and now - row.nominal - (row.begin or 0) < _FIRST_SIGN_MS
    return "running" if just_began else None


def _of_guard(guard: Any, now: int) -> Outcome:
    """Return the outcome of a run without a recorded end, by the guard's record.

    If that record says that the run has ended, or if it does not exist any more, the outcome is
    ``unknown``.
    """
    state, until = guard if isinstance(guard, list) else (None, None)
    with suppress(ValueError):
        if state == b"running" and float(until or 0) <= now:
            return "lost"
    if state == b"dead":
        # The broker redelivers the message. If it does not, the worker soon reports the end.
        return "waiting"
    return "running" if state == b"running" else "unknown"
