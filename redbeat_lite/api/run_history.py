"""History of runs: the occurrences that were sent, merged with the records of workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Self, get_args

from .._base import times
from .._base.clock import wall_ms
from .._base.fields import choice
from ..entries.entry import Entry
from ..entries.message import expires_with_gap, lock_life_ms
from ..entries.run import LIFE_MS, Outcome, Row, Run, run_of, sign_of
from ..entries.state import task_id
from ..once.lock_store import OnceKeys
from ..pipeline.pipeline_keys import RunKeys as PipelineKeys
from ..rules import Question
from ..runs.run_store import NO_LINE, Line
from ..settings import MAX_HISTORY
from ..store.records import PAGE, chunks
from ..store.redis_values import readable
from .reader import Reader, not_found

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_OUTCOME = choice(*OUTCOMES)

#: Outcomes of runs that have not ended.
_UNDER_WAY = {"waiting", "running", "retrying"}

#: Milliseconds after the start of a run in which its worker gives the first sign of life.
_FIRST_SIGN_MS = 5_000

#: Milliseconds after which an overdue retry is ``unknown``, even if its message never expires.
_RETRY_MS = 86_400_000

#: Maximum number of runs whose details are read in one round trip.
_TOGETHER = 100


class RunQuery(NamedTuple):
    """Query for runs.

    Parameters:
        outcomes: outcomes that the runs may have.
        since, until: bounds of their nominal times, in epoch ms.
        limit: maximum number of runs.
    """

    outcomes: Collection[str]
    since: int
    until: int
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
        first = times.MIN_MS if since is None else times.to_ms(since, "since")
        last = times.MAX_MS if until is None else times.to_ms(until, "until")
        return cls(_outcomes(outcome), first, last, limit)

    def spans(self, row: Row) -> bool:
        """Return whether a row lies between ``since`` and ``until``.

        A row may stand for a range of runs that were not sent. Then one run of the range is enough.
        """
        last = row.nominal
        if row.is_range:
            # The duration of a range is the time from its first run to its last.
            last += row.duration or 0
        return self.since <= last and row.nominal <= self.until


def _outcomes(value: object) -> tuple[Any, ...]:
    """Return the outcomes of a user's parameter, which may be ``None``, one or several."""
    if value is None:
        return OUTCOMES
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    return tuple(_OUTCOME.read("outcome", outcome) for outcome in value)


class RunHistory:
    """Reader of the runs of one app's schedule."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._settings = reader.settings
        self._store = reader.runs

    def of_all(
        self,
        query: RunQuery,
        is_wanted: Callable[[str], bool] | None = None,
        looked_at: int | None = None,
    ) -> list[Run]:
        """Return ended runs, the last to end first.

        Parameters:
            is_wanted: whether the runs of an entry of this name are wanted; ``None``: of all.
            looked_at: maximum number of recorded ends to read; ``None``: all.
        """
        runs: list[Run] = []
        # A run with retries has one end per attempt. The last end comes first, and only it counts.
        seen: set[tuple[str, str]] = set()
        # A run ends after its nominal time, unless clocks differ. So older lines need no search.
        oldest = query.since - self._settings.slack_ms
        for line in islice(self._store.lines(oldest), looked_at):
            if len(runs) == query.limit:
                break
            row = line.row
            run = (line.name, row.task_id)
            if run in seen:
                continue
            seen.add(run)
            is_named = is_wanted is None or is_wanted(line.name)
            if is_named and query.spans(row) and row.outcome in query.outcomes:
                runs.append(run_of(line.name, row, line.worker, line.error))
        return runs

    def of_entry(self, entry: str | Entry, query: RunQuery) -> list[Run]:
        """Return the runs of an entry, the newest first.

        Parameters:
            entry: an entry or its name; the entry may have been removed.

        Raises:
            EntryNotFound: there is no entry of this name, and no record of a run.
            CorruptEntry: the stored entry cannot be read.
        """
        if isinstance(entry, Entry):
            return self.of_stored(entry.name, entry, query)
        stored = self._reader.read(entry)
        # An entry that was removed may have left rows.
        if stored is None and not self._rows(entry)[0]:
            raise not_found(entry)
        return self.of_stored(entry, stored, query)

    def of_stored(self, name: str, entry: Entry | None, query: RunQuery) -> list[Run]:
        """Return the runs of an entry, the newest first.

        The entry gets its rows, so that its last run needs no further round trip.

        Parameters:
            entry: the entry; ``None`` if none is stored. The caller must have read it before its
                rows are read here. Then a run that is sent in between is in the rows. In the other
                order, the run could be missing in the rows, and the entry shows only that it was
                sent.
        """
        rows, now = self._rows(name)
        if entry is not None:
            # The entry calls this function when its last run is needed.
            entry.read_rows = partial(list, rows)
            rows = with_sent(entry, rows, self._settings.history, wall_ms())
        candidates = filter(query.spans, rows)
        runs = chain.from_iterable(
            self._with_details(name, entry, chunk, now) for chunk in chunks(candidates, _TOGETHER)
        )
        # The details may show another outcome than the row, so compare the outcome only here.
        matching = (run for run in runs if run.outcome in query.outcomes)
        return [*islice(matching, query.limit)]

    def _rows(self, name: str) -> tuple[Sequence[Row], int]:
        """Return the rows of an entry, and the server's time (epoch ms) at which they were read."""
        (rows,), now = self._store.rows_and_time([name], PAGE)
        return rows, now

    def _with_details(
        self, name: str, entry: Entry | None, rows: Sequence[Row], now: int
    ) -> Iterator[Run]:
        """Yield the runs of these rows with their details, which take one round trip.

        Parameters:
            entry: the entry; ``None`` if none is stored.
            now: time of the server before the guard's records are read, in epoch ms. If a record is
                renewed meanwhile, its time is later, so its run does not count as lost.
        """
        for row, details in zip(rows, self._read_details(rows), strict=True):
            outcome = _outcome_now(row, details, now)
            if outcome == row.outcome:
                # The row is up to date, and its line in the feed is about the same outcome.
                run = _run_of_line(name, row, details.lines)
            else:
                run = _run_under_way(name, row, outcome)
            yield self._unless_expired(entry, run)

    def _read_details(self, rows: Sequence[Row]) -> list[_Details]:
        """Return the details of these rows, read in one round trip."""
        keys = self._store.keys
        guard_of = OnceKeys(keys.prefix).guard
        # Use no transaction, because a cluster's client does not convert its replies.
        pipe = self._store.client.pipeline(transaction=False)
        for row in rows:
            line_id = row.feed or NO_LINE
            # The row of a run that is to be retried has the number of the failed attempt.
            attempt = row.attempt + 1 if row.outcome == "retrying" else row.attempt
            pipe.hmget(guard_of(row.task_id), "state", "until")
            pipe.hget(PipelineKeys.of(keys.prefix, row.task_id).run, "state")
            pipe.xrevrange(keys.feed, line_id, line_id)
            pipe.zscore(keys.alive, sign_of(row.task_id, attempt))
        # Instead of a reply there may be an error, for instance if the Redis user may not read a
        # key. It counts as a missing value.
        replies = [
            None if isinstance(reply, Exception) else reply
            for reply in pipe.execute(raise_on_error=False)
        ]
        return [_Details(*group) for group in chunks(replies, len(_Details._fields))]

    def _unless_expired(self, entry: Entry | None, run: Run) -> Run:
        """Return a run, with the outcome ``unknown`` if probably no worker will run it any more.

        No worker will run it if its message must have expired, or if its retry is long overdue.
        Only runs that wait for a worker or for their retry are changed.

        Parameters:
            entry: the entry; ``None`` if it is not stored, so that the life of its message is
                unknown.
        """
        if run.outcome == "waiting":
            # No worker has recorded this run, so only the entry's state shows that it was sent.
            run = replace(run, source="schedule")
        elif run.outcome != "retrying":
            return run
        # A waiting run has no retry. Of another run, the feed may have lost the line that has the
        # time of the retry.
        due = times.to_ms(run.retry_at or run.ended_at or run.scheduled_at)
        now = wall_ms()
        slack = self._settings.slack_ms
        is_overdue = run.outcome == "retrying" and now - due > _RETRY_MS
        if is_overdue or (entry is not None and must_have_expired(entry, due, now, slack)):
            return replace(run, outcome="unknown")
        return run


class _Details(NamedTuple):
    """Details of a run beside its row. Each of them may be ``None``.

    Parameters:
        guard: the record that a worker keeps of a running task: its state, and the time (epoch ms)
            until which the worker has renewed it. Both are ``None`` if there is no such record.
        pipeline: state of the pipeline that the run has started; ``None``: it has started none.
        lines: list with the line of the run's end in the feed; empty if there is none.
        sign: sign of life: the time (epoch ms) until which the worker vouches for the run;
            ``None``: there is none.
    """

    guard: Any
    pipeline: Any
    lines: Any
    sign: Any


def _run_of_line(name: str, row: Row, lines: Any) -> Run:
    """Return the run of a row, with worker, error and retry from its line in the feed.

    Parameters:
        lines: list with the line; ``None`` or empty if the feed has no such line any more.
    """
    line = next(readable(lines or (), Line.decode), None)
    if line is None:
        return run_of(name, row)
    run = run_of(name, row, line.worker, line.error)
    return run if line.retry is None else replace(run, retry_at=times.from_ms(line.retry))


def _run_under_way(name: str, row: Row, outcome: Outcome) -> Run:
    """Return the run of a row whose outcome has changed to this one since it was written."""
    run = run_of(name, row._replace(outcome=outcome))
    if row.outcome == "retrying":
        # The row describes the failed attempt. The next attempt has begun, at an unknown time.
        run = replace(run, began_at=None, seconds=None, attempts=run.attempts + 1)
    return run


def _outcome_now(row: Row, details: _Details, now: int) -> Outcome:
    """Return the outcome of a run by its row, the guard's record, and its sign of life.

    A run that counts as running is ``unknown`` if none of these shows that it still runs.

    Parameters:
        now: epoch ms.
    """
    if row.outcome not in _UNDER_WAY:
        return row.outcome
    # The worker of a run that has just begun may not have given a sign of life yet.
    just_began = now - row.nominal - (row.begin or 0) < _FIRST_SIGN_MS
    outcome = row.outcome
    state, until = details.guard or (None, None)
    # The guard's record is more exact than a sign of life, unless it says that the run has ended.
    # Then its worker records the end in a moment, or has recorded it after the row was read. A
    # worker that died in between has run the task to its end, so the run is not lost.
    if row.outcome == "running" and state == b"dead":
        # The broker redelivers the message. If it does not, the worker soon reports the end.
        outcome = "waiting"
    elif row.outcome == "running" and state == b"running":
        with suppress(ValueError):  # If the time cannot be read, the run counts as running.
            outcome = "lost" if float(until or 0) <= now else "running"
    elif details.sign is not None and details.sign > now:
        outcome = "running"
    elif details.sign is not None and state != b"done":
        outcome = "lost"
    elif row.outcome == "running" and not just_began:
        outcome = "unknown"
    # The task that starts a pipeline ends before its pipeline does. So the pipeline's state counts.
    if outcome == "unknown" and details.pipeline in (b"RUNNING", b"WAITING"):
        return "running"
    return outcome


# -- Occurrences that were sent, by the state of their entry ---------------------------------------


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
    generation = entry.state.generation
    kept = history if entry.history is None else entry.history
    # All rows of an entry expire together.
    oldest = now - LIFE_MS
    if rows and len(rows) >= kept:
        # Only `kept` rows stay. So an occurrence before the oldest row may have had a row that was
        # dropped, and may not be waiting.
        oldest = max(oldest, rows[-1].nominal)
    waiting = []
    for nominal in entry.state.sent[:limit]:
        id_ = task_id(entry.name, generation, nominal)
        if nominal > oldest and id_ not in recorded:
            waiting.append(Row(nominal, "waiting", id_, None, None, 0, ""))
    return sorted((*rows, *waiting), key=lambda row: row.nominal, reverse=True)[:limit]


def must_have_expired(entry: Entry, nominal: int, now: int, slack: int) -> bool:
    """Return whether the message of an occurrence cannot be waiting any more.

    The time of sending is not recorded. The message was sent at its nominal time or, after an
    outage, later, but before the next occurrence. So the time until it expires is counted from the
    next occurrence, unless it expires at a fixed instant.

    A message without an end never expires. The answer is also ``False`` if the next occurrence is
    unknown. With ``misfire="all"``, a missed run may be sent after later ones and has no end, so
    the answer is always ``False``.

    Parameters:
        nominal: nominal time of the occurrence, in epoch ms.
        now: epoch ms.
        slack: maximum number of milliseconds by which clocks of beats and workers may differ.
    """
    expires = entry.options.get("expires", entry.expires)
    # A text is an instant, too, unless it says that messages expire when the next run is due.
    if isinstance(expires, str | datetime) and not expires_with_gap(entry):
        return times.message_ms(expires) + slack < now
    after = _after(entry, nominal)
    if after is None or entry.misfire.policy == "all":
        return False
    # ``life`` is the time until the message expires; 0: it never expires. This time begins at the
    # latest instant at which the message was sent, plus the delay of the message.
    life = lock_life_ms(entry, after - nominal, nominal)
    latest_begin = after + entry.jitter_ms + times.delay_ms(entry.options, nominal)
    return 0 < life < now - latest_begin - slack


def _after(entry: Entry, nominal: int) -> int | None:
    """Return the occurrence after ``nominal``: the next one that was sent, or the planned one."""
    later = [other for other in entry.state.sent if other > nominal]
    if later:
        return min(later)
    planned = entry.state.nominal
    # A Question is the instant at which a schedule is asked again, and no occurrence.
    return None if isinstance(planned, Question) else planned
