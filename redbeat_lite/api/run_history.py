"""History of runs: what the beat has sent, merged with what workers have recorded."""

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
from ..entries.fields import is_name
from ..entries.last_runs import must_have_expired, with_sent
from ..once.lock_store import OnceKeys
from ..pipeline.pipeline_keys import START
from ..pipeline.pipeline_keys import RunKeys as PipelineKeys
from ..runs.run import Outcome, Row, Run, run_of, sign_of
from ..runs.run_store import RunStore, line_in, rows_in
from ..store.records import PAGE, chunks
from ..store.scripts import Call
from .reader import Reader

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

#: Outcomes of runs that have not ended.
_UNDER_WAY = {"waiting", "running", "retrying"}

#: A worker gives the first sign of life of a run within so many milliseconds of its beginning.
_FIRST_SIGN_MS = 5_000

#: A retry that is overdue by so many milliseconds is ``unknown``, even if its message never
#: expires.
_RETRY_MS = 86_400_000

#: Runs whose details are read in one round trip.
_TOGETHER = 100


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs are asked for; ``since`` and ``until`` bound their nominal times (epoch ms)."""

    outcomes: Collection[str]
    since: int | None
    until: int | None
    limit: int

    @classmethod
    def of(
        cls, outcome: object, since: datetime | None, until: datetime | None, limit: int
    ) -> Self:
        """Read what a user asks for; raises InvalidEntry, which names the parameter."""
        given = OUTCOMES if outcome is None else (outcome,) if isinstance(outcome, str) else outcome
        words = tuple(given) if isinstance(given, Iterable) else (given,)
        for word in words:
            if word not in OUTCOMES:
                raise InvalidEntry("outcome", f"one of {', '.join(OUTCOMES)}", word)
        first, last = (
            None if instant is None else times.to_ms(times.aware(field, instant))
            for field, instant in (("since", since), ("until", until))
        )
        return cls(words, first, last, limit)

    def spans(self, row: Row) -> bool:
        """Whether it lies between the two instants, or some of a range do."""
        last = row.nominal + (row.duration or 0) if row.is_range else row.nominal
        return (self.since is None or last >= self.since) and (
            self.until is None or row.nominal <= self.until
        )


class RunHistory:
    """Reads the runs of one app's schedule."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._settings = reader.settings
        self._store = RunStore(reader.store.backend.client, reader.store.keys.prefix)

    def of_all(
        self, wanted: RunQuery, names: Collection[str] | None, looked_at: int | None = None
    ) -> list[Run]:
        """Return what has ended of all entries, or of these, the last to end first.

        Parameters:
            looked_at: how many ends are looked through at most; ``None`` for all that are kept.
        """
        ended = self._ended(wanted, looked_at)
        found = (run for run in ended if names is None or run.name in names)
        return [*islice(found, wanted.limit)]

    def of_entry(self, given: str | Entry, wanted: RunQuery) -> list[Run]:
        """The runs of one entry, or of that of a name, the newest first; raises EntryNotFound where
        there is none, and nothing is recorded of one that there was, or CorruptEntry.
        """
        entry, (rows, now) = (
            (given, self._rows(given.name)) if isinstance(given, Entry) else self._stored(given)
        )
        return self.of_rows(
            given.name if isinstance(given, Entry) else given, entry, rows, now, wanted
        )

    def of_rows(
        self, name: str, entry: Entry | None, rows: Sequence[Row], now: int, wanted: RunQuery
    ) -> list[Run]:
        """The runs of an entry, by rows that were read after it, or with it, at ``now`` (epoch ms
        of the server).
        """
        if entry is not None:
            rows = with_sent(entry, rows, self._settings.history, wall_ms())
        may_be = _UNDER_WAY.union(wanted.outcomes)
        known = [row for row in rows if wanted.spans(row) and row.outcome in may_be]
        # Where each is wanted, nothing is asked of more than are shown.
        size = min(wanted.limit, _TOGETHER) if may_be.issuperset(OUTCOMES) else _TOGETHER
        told = chain.from_iterable(
            self._told(name, entry, chunk, now) for chunk in chunks(known, size)
        )
        return [*islice((run for run in told if run.outcome in wanted.outcomes), wanted.limit)]

    def _stored(self, name: str) -> tuple[Entry | None, tuple[Sequence[Row], int]]:
        # The entry first: a row that is written in between is one more, not one that is missing.
        try:
            return self._reader.entry(self._reader.stored(name)), self._rows(name)
        except EntryNotFound:
            rows, now = self._rows(name) if is_name(name) else ([], 0)
            if not rows:
                raise
            return None, (rows, now)

    def asking(self, name: str) -> Call:
        """What the rows of an entry are asked by, to be read together with other things."""
        return self._store.asking([name], PAGE)

    def _rows(self, name: str) -> tuple[Sequence[Row], int]:
        """The rows of an entry, and the server's time at which they were read."""
        (rows,), now = rows_in(self._store.scripts.run(*self.asking(name)))
        return rows, now

    def _ended(self, wanted: RunQuery, looked_at: int | None) -> Iterator[Run]:
        seen: set[tuple[str, str]] = set()  # an attempt that is retried has ended, too
        # A run cannot have ended before its nominal time, but for clocks that differ.
        oldest = 0 if wanted.since is None else wanted.since - self._settings.slack_ms
        for line in islice(self._store.lines(oldest), looked_at):
            row, run = line.row, (line.name, line.row.task_id)
            if run not in seen and wanted.spans(row) and row.outcome in wanted.outcomes:
                yield run_of(line.name, row, line.worker, line.error)
            seen.add(run)

    def _told(self, name: str, entry: Entry | None, rows: Sequence[Row], now: int) -> Iterator[Run]:
        """Yield these runs; one that waits is ``unknown`` if its message must have expired."""
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
        """What rows tell, with what the lines that they name say besides, and the guards of those
        that run.

        In one round trip, and one where the guard of one that runs says that it ended.

        Parameters:
            now: epoch milliseconds of the server, before the guards are read: what is renewed
                meanwhile is not lost.
        """
        # Without a transaction, in which a cluster hands on what the server says as it is.
        pipe = self._store.client.pipeline(transaction=False)
        asked = [row for row in rows if row.outcome == "running" or row.feed]
        for row in asked:
            if row.outcome == "running":
                pipe.hmget(OnceKeys(self._store.keys.prefix).guard(row.task_id), "state", "until")
            else:
                pipe.xrevrange(self._store.keys.feed, row.feed, row.feed)
        under_way = [row for row in rows if row.outcome in _UNDER_WAY]
        for row in under_way:
            # The row of a retry is that of the attempt before.
            attempt = row.attempt + 1 if row.outcome == "retrying" else row.attempt
            pipe.zscore(self._store.keys.alive, sign_of(row.task_id, attempt))
        # What lies in the place of a key, or may not be read, tells nothing.
        replies = pipe.execute(raise_on_error=False)
        details = dict(zip(asked, replies[: len(asked)], strict=True))
        signs = dict(zip(under_way, replies[len(asked) :], strict=True))
        guards = {row: _of_guard(details[row], now) for row in asked if row.outcome == "running"}
        for row, until in signs.items():
            if row.outcome == "running" and details[row] != [None, None]:
                continue  # Its guard has decided.
            outcome = _of_sign(row, until, now)
            if outcome is not None:
                guards[row] = outcome
        if entry is not None and entry.task == START:
            guards |= self._pipelines(
                [row for row, outcome in guards.items() if outcome == "unknown"]
            )
        # What has ended since its row was read has another row by now.
        newer = (
            {row.task_id: row for row in self._rows(name)[0]}
            if "unknown" in guards.values()
            else {}
        )
        for row in rows:
            if guards.get(row) == "unknown" and newer.get(row.task_id, row) != row:
                yield from self._recorded(name, entry, [newer[row.task_id]], now)
            elif row in guards:
                run = run_of(name, row._replace(outcome=guards[row]))
                if row.outcome == "retrying":  # The row is that of the attempt before.
                    run = replace(run, began_at=None, seconds=None, attempts=run.attempts + 1)
                yield run
            else:
                line = line_in(details.get(row))
                run = run_of(name, row, line and line.worker, line and line.error)
                if line is not None and line.retry is not None:
                    run = replace(run, retry_at=times.from_ms(line.retry))
                if row.outcome == "retrying":
                    run = self._retried(entry, run)
                yield run

    def _retried(self, entry: Entry | None, run: Run) -> Run:
        """Return a run that has to be retried; ``unknown`` if the retry is long overdue."""
        due = times.to_ms(run.retry_at or run.ended_at or run.scheduled_at)
        now = wall_ms()
        expired = entry is not None and must_have_expired(entry, due, now, self._settings.slack_ms)
        outcome: Outcome = "unknown" if expired or now - due > _RETRY_MS else "retrying"
        return replace(run, outcome=outcome)

    def _pipelines(self, rows: Sequence[Row]) -> dict[Row, Outcome]:
        """Those that go on although their task has ended: it has started a pipeline."""
        pipe = self._store.client.pipeline(transaction=False)
        for row in rows:
            pipe.hget(PipelineKeys.of(self._store.keys.prefix, row.task_id).run, "state")
        states = pipe.execute(raise_on_error=False)
        return {
            row: "running"
            for row, state in zip(rows, states, strict=True)
            if state in (b"RUNNING", b"WAITING")
        }


def _of_sign(row: Row, until: Any, now: int) -> Outcome | None:
    """Return the outcome that a sign of life shows; ``None`` if it shows none.

    Parameters:
        until: epoch ms until which the worker vouches for the run; ``None`` without a sign.
    """
    if isinstance(until, float):
        return "running" if until > now else "lost"
    just_began = row.outcome == "running" and now - row.nominal - (row.begin or 0) < _FIRST_SIGN_MS
    return "running" if just_began else None


def _of_guard(guard: Any, now: int) -> Outcome:
    """What has become of a run of which nobody has written the end, by the record of its guard.

    Its end may not have come to be written down: where the guard says that it has ended, or has no
    record of it any more, nobody knows how.
    """
    state, until = guard if isinstance(guard, list) else (None, None)
    with suppress(ValueError):
        if state == b"running" and float(until or 0) <= now:
            return "lost"
    if state == b"dead":
        return "waiting"  # Its message is redelivered, or its worker soon reports that it is not.
    return "running" if state == b"running" else "unknown"
