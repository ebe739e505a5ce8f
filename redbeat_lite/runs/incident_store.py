"""Incidents in Redis: the facts and the decision of the leader, lists, and acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any

from msgspec import json
from msgspec.structs import replace

from .._base.json_values import dumps
from ..entries.run import LIFE_MS, Row
from ..store.keys import Keys
from ..store.records import Term
from ..store.redis_values import newest_first, readable, scored, text, texts
from ..store.scripts import Scripts, checked
from ..store.store import TRIES
from ..store.transact import GuardFailed, Step, transact
from .incident import Incident
from .incident_fold import Deadline, Decision, Facts, Failures
from .run_store import NO_LINE, Line, RunKeys, ms_of

#: Maximum number of lines of the feed (the ends of runs), and of deadlines, that the leader reads
#: at once. For twice as many, the write of its decision would keep the server busy for 5 ms.
PAGE = 250

#: Milliseconds from a deadline until the leader reads it. A run may have been in time although its
#: record arrives after the deadline.
MARGIN_MS = 2000

# The statements below are in the notation of :mod:`redbeat_lite.store.transact`.

# Value $1: id up to which the feed, the stream of the ends of runs, was read. In _IS_READ, this is
# the id before this read. In _READ_ON, it is the id after it.
_IS_READ = "IF HGET meta feed IS $1"
_READ_ON = "HSET meta feed $1"

# Value $1: id up to which hooks have handled the news (incidents that were opened or closed). The
# field is called ``announced``, but a line counts only once hooks have handled it.
_HANDLED = "HSET meta announced $1"

# Value $1: field of an incident. Value $2 of _IS_STORED: the stored text, which is empty if there
# is none. Value $2 of the next three statements: the new text. The news (incidents that were opened
# or closed) keep about 2,000 lines.
_IS_STORED = "IF HGET incidents $1 IS $2"
_SAVE = "HSET incidents $1 $2"
_OPEN = """
    HSET incidents $1 $2
    XADD news MAXLEN ~ 2000 * of $1 incident $2
"""
_CLOSE = """
    HDEL incidents $1
    XADD news MAXLEN ~ 2000 * of $1 incident $2
"""

# Values $1 and $2: entry, its failures.
_SAVE_FAILURES = f"""
    HSET failures $1 $2
    PEXPIRE failures {LIFE_MS}
"""
_FORGET_FAILURES = "HDEL failures $1"

# Values $1 and $2: text of a deadline, its time.
_SET_DEADLINE = "ZADD deadlines $2 $1"
_IS_SET = "IF ZSCORE deadlines $1 IS $2"
_REMOVE_DEADLINE = "ZREM deadlines $1"


class IncidentStore:
    """The incidents of one prefix on one client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self.keys = RunKeys(prefix)
        self._schedule = Keys.of(prefix)
        self._scripts = Scripts(client)

    def read_facts(self, now: int, announced: str = NO_LINE) -> Facts:
        """Read the new ends of runs, passed deadlines and news, and the open incidents.

        This takes two round trips. If runs have ended, one more reads the failures of their
        entries. If deadlines have passed, one more reads the rows of their runs.

        After a loss of data, it is not known what the leader has read before, so lines of the feed
        and of the news can be old. In that case, the result has no ends of runs, and all open
        incidents instead of the news.

        Parameters:
            now: the server's time, in epoch milliseconds.
            announced: id of the last line of the news that this process has announced.
        """
        reply = self._client.hmget(self._schedule.meta, "feed", "announced", "freeze")
        stored_begin, stored_handled, freeze = [value or b"" for value in reply]
        feed_begin = text(stored_begin)
        handled = text(stored_handled)
        # Read the news after the later one of two ids. Lines up to ``announced`` were announced by
        # this process. Lines up to ``handled`` were handled by the hooks of some leader. If
        # ``handled`` is not known, read only the last line, for its id.
        news_begin = max(announced, handled, key=ms_of) if handled else ""
        limit = ("LIMIT", 0, PAGE, "WITHSCORES")
        commands = [
            _lines_after(self.keys.feed, feed_begin),
            ("ZRANGE", self.keys.deadlines, 0, now - MARGIN_MS, "BYSCORE", *limit),
            ("HGETALL", self.keys.incidents),
            _lines_after(self.keys.news, news_begin),
            ("ZRANGE", self._schedule.due, 0, 0, "WITHSCORES"),
            ("HKEYS", self._schedule.quarantine),
        ]
        # The replies are in the order of the commands.
        lines, passed, stored, news, first, quarantined = checked(self._scripts.together(commands))
        # Runs of backfills are not expected to be in time, and do not count as failures.
        ends = [line for line in readable(lines, Line.decode) if not line.row.is_backfilled]
        # Pass over a time with a fraction, which another program has written. The guard of such a
        # deadline (``_IS_SET``) would never hold.
        deadlines = [
            Deadline.decode(text(member), int(at))
            for member, at in scored(passed)
            if at.is_integer()
        ]
        # After a full page of lines or of deadlines, perhaps more follow.
        more = PAGE in (len(lines), len(deadlines))
        if len(lines) == PAGE:
            # A success among the lines that follow would set such a deadline again.
            deadlines = [deadline for deadline in deadlines if deadline.what != "success"]
        incidents = [*readable(stored.items(), Incident.decode)]
        unannounced = [*readable(news, _decode_news)]
        # Without the id up to which a stream was read, nobody knows which of its lines are new.
        if not feed_begin:
            ends = []
        if not handled:
            unannounced = incidents  # Announce all open incidents, perhaps once more.
        return Facts(
            feed_begin,
            feed_end=_last_id(lines, feed_begin),
            ends=ends,
            overdue=self._with_rows(deadlines),
            failures=self._read_failures([line.name for line in ends]),
            incidents=incidents,
            stored=stored,
            handled=handled,
            unannounced=unannounced,
            news_end=_last_id(news, news_begin),
            first_due=min((due for _, due in scored(first)), default=inf),
            quarantined=texts(quarantined),
            freeze=freeze,
            more=more,
        )

    def _with_rows(self, deadlines: Sequence[Deadline]) -> list[Deadline]:
        """Return the deadlines with the rows of their runs, in one round trip."""
        commands = []
        for deadline in deadlines:
            # A deadline of the kind "success" is about no single run, and nobody uses its row.
            key = self.keys.rows(deadline.name)
            commands.append(("ZRANGE", key, deadline.nominal, deadline.nominal, "BYSCORE"))
        replies = self._scripts.together(commands)
        completed = []
        for deadline, reply in zip(deadlines, replies, strict=True):
            # A reply is an error if another program uses the key for something else. Go on without
            # rows, so that the other deadlines are handled.
            members = () if isinstance(reply, Exception) else reply
            completed.append(deadline._replace(row=_row(members, deadline.nominal)))
        return completed

    def _read_failures(self, names: Sequence[str]) -> dict[str, Failures]:
        """Return name -> consecutive failures of these entries.

        A record that is missing or cannot be read is left out.
        """
        if not names:
            return {}
        pairs = zip(names, self._client.hmget(self.keys.failures, names), strict=True)
        return dict(readable(pairs, lambda name, raw: (name, json.decode(raw, type=Failures))))

    def write_decision(self, term: Term, facts: Facts, decision: Decision, handled: str) -> bool:
        """Write the decision that follows from some facts, in one call.

        Parameters:
            term: proof of this leader's term. The server refuses the write once the term is over.
            facts: content of Redis on which the decision is based.
            decision: incidents and deadlines to change, and failures to store.
            handled: id up to which hooks have handled the news.

        Returns:
            whether to read facts again at once. One reason is that an incident was opened, changed
            or closed, because it must perhaps be announced. The other reason is that nothing was
            written, because another process has read on or has changed one of these incidents or
            deadlines.

        Raises:
            Lost: the term is over, and nothing was written.
        """
        # The guards make the server refuse all steps if another process has read on, or has changed
        # one of these incidents or deadlines. A worker removes the deadline of a run that was in
        # time, and its record may arrive after this leader has read that there is none.
        guards = [Step(_IS_READ, (facts.feed_begin,))]
        steps = []
        open_keys = {incident.key for incident in facts.incidents}
        for incident in decision.incidents:
            if incident.until is not None:
                statement = _CLOSE
            elif incident.key in open_keys:
                statement = _SAVE
            else:
                statement = _OPEN
            # If the stored text of this field is unreadable, the new incident replaces it.
            before = facts.stored.get(incident.field.encode(), b"")
            guards.append(Step(_IS_STORED, (incident.field, before)))
            steps.append(Step(statement, (incident.field, incident.encode())))
        for name, failures in decision.failures.items():
            if failures.nominal is None:  # The last run has succeeded.
                steps.append(Step(_FORGET_FAILURES, (name,)))
            else:
                steps.append(Step(_SAVE_FAILURES, (name, dumps(failures))))
        for deadline in facts.overdue:
            handled_deadline = (deadline.member, deadline.at)
            guards.append(Step(_IS_SET, handled_deadline))
            steps.append(Step(_REMOVE_DEADLINE, handled_deadline))
        for member_and_time in decision.deadlines.items():
            steps.append(Step(_SET_DEADLINE, member_and_time))
        if facts.feed_end != facts.feed_begin:
            steps.append(Step(_READ_ON, (facts.feed_end,)))
        if handled != facts.handled:
            steps.append(Step(_HANDLED, (handled,)))
        try:
            transact(self._scripts, self._schedule, steps, guards, others=self.keys, term=term)
        except GuardFailed:
            return True
        return bool(decision.incidents)

    def open_incident(self, incident: Incident) -> bool:
        """Open an incident, unless it is open; return whether it was opened."""
        return self._store(_OPEN, incident, before=b"")

    def open(self) -> list[Incident]:
        """Return the open incidents, the oldest first."""
        stored = self._client.hgetall(self.keys.incidents)
        return sorted(
            readable(stored.items(), Incident.decode), key=lambda incident: incident.since
        )

    def closed(self, limit: int) -> list[Incident]:
        """Return the incidents that closed last, the newest first."""
        news = newest_first(self._client, self.keys.news, _decode_news, PAGE)
        closed = (incident for incident in news if incident.until is not None)
        return [*islice(closed, limit)]

    def acknowledge(self, incident: Incident, note: str) -> bool:
        """Store a person's note in an open incident, so that others know that it is handled.

        Returns:
            whether the note was stored; ``False`` if the incident is closed, or if other processes
            have changed it during each of ``TRIES`` attempts.
        """
        for _ in range(TRIES):
            raw = self._client.hget(self.keys.incidents, incident.field)
            # The result is ``None`` if no incident has this field, or if it cannot be read.
            stored = next(readable([(incident.field.encode(), raw)], Incident.decode), None)
            if stored is None or stored.since != incident.since:
                return False  # The incident is closed. Another one perhaps has its field now.
            if self._store(_SAVE, replace(stored, acknowledged=note), before=raw):
                return True
        return False

    def _store(self, statement: str, incident: Incident, before: bytes) -> bool:
        """Store an incident, unless another process has changed it; return whether it was stored.

        Parameters:
            before: the stored text, as it was read; empty if the incident must not be open.
        """
        guards = [Step(_IS_STORED, (incident.field, before))]
        steps = [Step(statement, (incident.field, incident.encode()))]
        try:
            transact(self._scripts, self._schedule, steps, guards, others=self.keys)
        except GuardFailed:
            return False
        return True


def _lines_after(key: str, begin: str) -> tuple[str | int, ...]:
    """Return the command that reads a page of a stream after an id.

    Parameters:
        begin: the id; if it is empty, the command reads only the last line of the stream, whose id
            is where the next read begins.
    """
    if begin:
        # The parenthesis makes the range begin after the line with this id.
        return "XRANGE", key, f"({begin}", "+", "COUNT", PAGE
    return "XREVRANGE", key, "+", "-", "COUNT", 1


def _last_id(lines: Sequence[Any], begin: str) -> str:
    """Return the id of the last of these lines, which were read after the id ``begin``."""
    return text(lines[-1][0]) if lines else begin or NO_LINE


def _decode_news(_: bytes, fields: Mapping[bytes, bytes]) -> Incident:
    """Return the incident that a line of the news is about."""
    return Incident.decode(fields[b"of"], fields[b"incident"])


def _row(members: Sequence[bytes], nominal: int) -> Row | None:
    """Return the row of the run with a deadline; ``None`` if nothing of the run is recorded.

    Parameters:
        members: texts of the rows with the nominal time of the run.
    """
    for row in readable(((text(member), nominal) for member in members), Row.decode):
        # Skip other rows of this nominal time. The row of a range stands for several runs that were
        # not sent. The row of a backfilled run is not about the run that has the deadline.
        if not row.is_range and not row.is_backfilled:
            return row
    return None
