"""The record of runs in Redis: its keys and its commands.

All keys begin with the scheduler's prefix in braces.

======================  ======  ==================================================================
key                     type    value
======================  ======  ==================================================================
``{p}:runs:of:<name>``  zset    row of a run (:class:`redbeat_lite.entries.run.Row`) -> its nominal
                                time, epoch ms; the entry's last runs, as many as its ``history``;
                                kept for 35 days after the last write
``{p}:runs:feed``       stream  every end of a run, in order of time: ``name``, ``nominal`` (ms),
                                ``id``, ``outcome`` (its letter), ``begin`` (ms after
                                ``nominal``), ``duration`` (ms), ``attempt``, ``worker``,
                                ``error``, ``retry`` (its due time, epoch ms), empty if not known;
                                about the last 100,000
``{p}:runs:incidents``  hash    ``kind:entry`` -> JSON of an open incident
                                (:mod:`redbeat_lite.runs.incident`); 1,000 at most, besides
                                incidents of the whole schedule and of the kind ``paused``
``{p}:runs:news``       stream  incidents that were opened or closed, in order of time: ``of``
                                (``kind:entry``) and ``incident`` (its JSON, with ``until`` if it
                                was closed); about the last 2,000
``{p}:runs:deadlines``  zset    member -> epoch ms, for entries with an expectation; up to some 100
                                per entry. The members:

                                - ``start|nominal|entry`` and ``finish|nominal|entry`` -> when the
                                  leader checks that the run has begun, or ended
                                - ``success||entry`` -> when a run has to have succeeded
                                - ``begun|nominal|entry`` and ``ended|nominal|entry`` -> 0: the
                                  run was in time, so an open incident may close
``{p}:runs:failures``   hash    entry -> JSON list of its failures in a row, nominal time of the
                                last one, its generation, and its failures that count for
                                ``on_failure``; until the entry is removed by hand, and for at
                                most 35 days after the last failure
``{p}:runs:alive``      zset    ``task id|attempt`` -> end of the lease of this running attempt,
                                epoch ms. The worker removes the member when the attempt ends, so
                                a time in the past means that the worker was killed. It is kept for
                                35 days
======================  ======  ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from ..entries.run import NOT_DONE, OUTCOMES, Fate, Row
from ..settings import MAX_HISTORY, key_root
from ..store.records import chunks
from ..store.redis_values import newest_first, readable, scored, text, text_of_hash
from ..store.scripts import Scripts

#: Maximum number of fates (starts and ends of runs) in one call of ``runs/record``. So many keep
#: the server busy for some 3 ms. The method ``failed`` reads all rows of at most so many entries in
#: one call.
BATCH = 100

#: Id before all lines of a stream.
NO_LINE = "0-0"

#: Lines of the feed (ends of runs) per round trip. They take the server some milliseconds.
_PAGE = 500


class RunKeys:
    """The keys under one prefix, for example ``"redbeat-lite"``.

    The docstring of this module says what each key holds.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._root = f"{key_root(prefix)}:runs:"
        #: Ends of runs, in order of time.
        self.feed = f"{self._root}feed"
        self.incidents = f"{self._root}incidents"
        self.news = f"{self._root}news"
        self.deadlines = f"{self._root}deadlines"
        self.failures = f"{self._root}failures"
        #: Signs of life of the running attempts.
        self.alive = f"{self._root}alive"

    def rows(self, name: str) -> str:
        """Return the key of an entry's rows."""
        return f"{self._root}of:{name}"


class Line(NamedTuple):
    """Line of the feed (a stream): the end of a run. ``None`` means not known.

    Parameters:
        name: name of the entry.
        row: row of the run at that time.
        worker: node name of the worker.
        error: the error of the run.
        retry: due time of the retry, epoch ms.
    """

    name: str
    row: Row
    worker: str | None
    error: str | None
    retry: int | None = None

    @classmethod
    def decode(cls, line_id: Any, fields: Mapping[bytes, bytes]) -> Self:
        """Return a line of the feed.

        Parameters:
            line_id: id of the line in the stream.
            fields: fields of the line; ``id`` is the id of the task.

        Raises:
            ValueError, KeyError: it is not a line of the feed.
        """
        values = text_of_hash(fields)
        row = Row(
            nominal=int(values["nominal"]),
            outcome=OUTCOMES[values["outcome"]],
            task_id=values["id"],
            begin=_number(values["begin"]),
            duration=_number(values["duration"]),
            attempt=int(values["attempt"]),
            feed=text(line_id),
        )
        worker = values["worker"] or None
        error = values["error"] or None
        # A line that an older version has written has no field ``retry``.
        return cls(values["name"], row.checked(), worker, error, _number(values.get("retry", "")))


def ms_of(line_id: str | bytes) -> int:
    """Return the instant of the id of a line, in epoch ms of the server."""
    # An id is "<milliseconds>-<number>".
    return int(text(line_id).partition("-")[0])


def _number(value: str) -> int | None:
    return int(value) if value else None


class RunStore:
    """The record of runs of one prefix on one client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.keys = RunKeys(prefix)
        self.scripts = Scripts(client)

    def rows(self, names: Sequence[str], limit: int) -> list[list[Row]]:
        """Return the last readable rows of each entry, the newest first.

        Parameters:
            names: names of at most 5,000 entries. One script reads the rows of all of them, and
                the server does nothing else meanwhile.
            limit: maximum number of rows per entry, 1 or more.
        """
        if not names:
            return []
        rows, _ = self.rows_and_time(names, limit)
        return rows

    def rows_and_time(self, names: Sequence[str], limit: int) -> tuple[list[list[Row]], int]:
        """Return what :meth:`rows` returns, and the server's time at that moment, in epoch ms.

        Parameters:
            names: as for :meth:`rows`, at least one.
        """
        entries = [self.keys.rows(name) for name in names]
        reply = self.scripts.run("runs/rows", self.keys, entries=entries, limit=limit)
        return [_decode_rows(members) for members in reply[:-1]], reply[-1]

    def failed(self, names: Sequence[str]) -> list[str]:
        """Return the names of those entries whose last run has failed.

        Runs that have not ended, were not sent, or were sent by a backfill are passed over.

        Parameters:
            names: at most 5,000 names, which take the server some 5 ms.
        """
        newest = zip(names, self.rows(names, 1), strict=True)
        # The newest run of most entries has succeeded. Read all rows of the other entries.
        doubtful = [
            name
            for name, rows in newest
            if rows and (rows[0].outcome != "succeeded" or rows[0].is_backfilled)
        ]
        failed: list[str] = []
        for chunk in chunks(doubtful, BATCH):
            all_rows = zip(chunk, self.rows(chunk, MAX_HISTORY), strict=True)
            failed += [name for name, rows in all_rows if _has_failed(rows)]
        return failed

    def record(self, fates: Sequence[Fate]) -> tuple[int, str]:
        """Record the fates (starts and ends) of attempts in one round trip.

        Recording a fate twice does no harm. A fate is ignored if a later attempt of its run is
        recorded, or if a fate of the same attempt is recorded that weighs more (``weight`` in
        ``shared/record.lua``). The end of the task's function weighs most.

        Parameters:
            fates: at most :data:`BATCH` fates.

        Returns:
            count of the fates that the server could not write, and the error of the last of them,
            which is empty if there is none.
        """
        row_keys = [self.keys.rows(fate.attempt.name) for fate in fates]
        encoded = [fate.encode() for fate in fates]
        failed, why = self.scripts.run("runs/record", self.keys, rows=row_keys, fates=encoded)
        return int(failed), text(why)

    def lines(self, oldest: int) -> Iterator[Line]:
        """Yield the readable lines of the feed (ends of runs), the newest first.

        Parameters:
            oldest: epoch ms of the server. Lines before it are left out.
        """
        return newest_first(self.client, self.keys.feed, Line.decode, _PAGE, max(oldest, 0))

    def next_lines(self, since: int, limit: int) -> tuple[list[Line], int]:
        """Return the first readable lines of the feed from ``since`` on, the oldest first.

        Parameters:
            since: epoch ms of the server.
            limit: maximum number of lines to read.

        Returns:
            the lines; and the time of the last line that was read, in epoch ms. If there is no
            line, this is ``since``. A call that begins at this time reads the last line again.
        """
        page = self.client.xrange(self.keys.feed, max(since, 0), "+", count=limit)
        # The last line counts even if it cannot be read.
        read_to = ms_of(page[-1][0]) if page else since
        return [*readable(page, Line.decode)], read_to


def _has_failed(rows: Sequence[Row]) -> bool:
    """Return whether the last run that succeeded or failed has failed; backfills do not count.

    Parameters:
        rows: rows of one entry, the newest first.
    """
    for row in rows:
        if row.is_backfilled:
            continue
        if row.outcome == "succeeded":
            return False
        if row.outcome in NOT_DONE:  # The run has failed, or something kept it from its work.
            return True
        # A run with any other outcome, such as ``running``, says nothing.
    return False


def _decode_rows(members: Sequence[bytes]) -> list[Row]:
    """Return the readable rows of one entry, from a reply with their texts and nominal times."""
    pairs = scored(members)
    return [*readable(pairs, lambda member, nominal: Row.decode(text(member), int(nominal)))]
