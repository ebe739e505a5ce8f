"""The keys of the record of runs, and what they hold; they begin with the scheduler's prefix in braces.

======================  ======  ======================================================================================
key                     type    holds
======================  ======  ======================================================================================
``{p}:runs:of:<name>``  zset    rows of an entry's last runs (:mod:`redbeat_lite.runs.row`) -> nominal time, epoch ms;
                                as many as its ``history`` says, until 35 days after the last of them was written
``{p}:runs:feed``       stream  every end of a run, in order of time: ``name``, ``nominal`` (ms), ``id``, ``outcome``
                                (its letter), ``begin`` (ms after ``nominal``), ``duration`` (ms), ``attempt``,
                                ``worker``, ``error``; empty where not known; the last 100,000 or a few more
``{p}:runs:incidents``  hash    ``kind:entry`` -> JSON of an incident that is open (:mod:`redbeat_lite.runs.incident`),
                                ``since:kind:entry`` of one that was closed and is not told yet; 1,000 at most, besides
                                those of the whole schedule
``{p}:runs:closed``     stream  the last 1,000 incidents, or a few more, that were closed: ``of`` and ``incident``
``{p}:runs:deadlines``  zset    ``what|nominal time|entry`` -> when the leader looks whether a run has begun, or ended,
                                and ``success||entry`` -> when one has to have succeeded, epoch ms; for entries that
                                expect something, some 100 of each at most, without runs that were in time; where an
                                incident is open that these end, ``begun`` or ``ended`` ``|nominal time|entry`` -> 0;
                                ``start`` or ``finish`` ``||entry`` of what has found no room among the incidents;
                                ``pause <generation>|nominal time|entry`` -> 0 of what the leader has to pause
``{p}:runs:failures``   hash    entry -> its failures in a row, the nominal time of the last one, its generation, and
                                how many of them count for ``on_failure``; for those that have it, or expect something;
                                lives for 35 days after the last failure
``{p}:runs:alive``      zset    ``task id|attempt`` -> until when a worker vouches that this attempt runs, epoch ms; the
                                worker removes it at the end, so a past time is of a killed worker;
                                kept for 35 days
======================  ======  ======================================================================================
"""

from __future__ import annotations

from ..settings import key_root


class RunKeys:
    """The names under one prefix, for example ``"redbeat-lite"``."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._root = f"{key_root(prefix)}:runs:"
        parts = ("feed", "incidents", "closed", "deadlines", "failures")
        self.feed, self.incidents, self.closed, self.deadlines, self.failures = (self._root + part for part in parts)
        self.alive = f"{self._root}alive"

    @property
    def whole(self) -> tuple[str, str, str]:
        """Those that ``shared/record.lua`` takes besides the rows of an entry."""
        return self.feed, self.deadlines, self.incidents

    def rows(self, name: str) -> str:
        return f"{self._root}of:{name}"
