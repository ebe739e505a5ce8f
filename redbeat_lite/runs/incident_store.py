"""Incidents in Redis: the leader's look and its write, lists, and acknowledgements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..store.keys import Keys
from ..store.records import Term, check_term
from ..store.redis_values import readable, text
from ..store.scripts import Scripts
from .incident import Case
from .incident_fold import Deadline, Decision, End, Failures
from .run import BACKFILLED, LIFE_MS, Row
from .run_store import Line, RunKeys

#: Most lines of the feed, and most deadlines, in one look.
PAGE = 500

#: Lines that a feed has at least once ``shared/record.lua`` has cut it.
_FEED_LINES = 100_000

#: Milliseconds between a deadline and the look at it, because records of runs in time
#: may arrive late.
MARGIN_MS = 2000

#: Most open incidents. Further ones do not open.
_MOST = 1000

#: One change for ``runs/incidents.lua``: action, object and value.
Change = tuple[str, str, str | int]

#: Incident for which there is no room -> the deadline after which it is tried again.
_NO_ROOM = {
    "missed": "start",
    "not_consumed": "start",
    "too_long": "finish",
    "no_success": "success",
}

#: Milliseconds until such an incident is tried again.
_RETRY_MS = 60_000


class Look(NamedTuple):
    """Content of Redis at one moment.

    Parameters:
        read: id in the feed up to which it was read before; empty: never.
        reads: id up to which it is read with this look.
        overdue: deadlines whose time has come, without rows. Those of successes appear only if the
            feed is read to its end, because a success may lie further on.
        cases: incidents that are open, or closed and not announced.
        first_due: score of the entry that is due first; ``None``: there is none.
        unread: first and last instant, in epoch ms, of lines that were cut from the feed unread.
    """

    read: str
    reads: str
    ends: list[End]
    overdue: list[Deadline]
    cases: list[Case]
    first_due: float | None
    quarantined: int
    more: bool
    unread: tuple[int, int] | None = None


class IncidentStore:
    """The incidents of one prefix on one client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self.keys = RunKeys(prefix)
        self._schedule = Keys.of(prefix)
        self._scripts = Scripts(client)

    def look(self, now: int) -> Look:
        """Read what is new, in two round trips. If the feed was never read, its content is skipped.

        Parameters:
            now: the server's time, in epoch milliseconds.
        """
        keys = self.keys
        schedule = self._schedule
        read = text(self._client.hget(schedule.meta, "feed") or b"")
        pipe = self._client.pipeline(transaction=False)
        if read:
            pipe.xrange(keys.feed, f"({read}", "+", PAGE)
        else:
            pipe.xrevrange(keys.feed, "+", "-", 1)
        latest = now - MARGIN_MS
        pipe.zrange(
            keys.deadlines, "-inf", latest, byscore=True, offset=0, num=PAGE, withscores=True
        )
        pipe.hgetall(keys.incidents)
        pipe.zrange(schedule.due, 0, 0, withscores=True)
        pipe.hlen(schedule.quarantine)
        pipe.xrange(keys.feed, "-", read or "+", 1)
        pipe.xlen(keys.feed)
        lines, members, cases, first, quarantined, before, count = pipe.execute()

        ends = []
        for line in readable(lines if read else (), Line.decode):
            # Runs of backfills are not expected to be in time, and do not count as failures.
            if line.row.task_id[14:15] != BACKFILLED:
                ends.append(_end(line))
        overdue = [_deadline(text(member), int(score)) for member, score in members]
        if len(lines) == PAGE:
            overdue = [deadline for deadline in overdue if deadline.what != "success"]
        unread = None
        # A feed with fewer lines was removed and has begun again, so nothing is known
        # about its past.
        if read and lines and not before and count >= _FEED_LINES:
            unread = (_ms(read), _ms(lines[0][0]))
        return Look(
            read,
            reads=text(lines[-1][0]) if lines else read or "0-0",
            ends=ends,
            overdue=overdue,
            cases=_cases(cases),
            first_due=first[0][1] if first else None,
            quarantined=quarantined,
            more=bool(read) and PAGE in (len(lines), len(members)),
            unread=unread,
        )

    def with_rows(self, deadlines: Sequence[Deadline]) -> list[Deadline]:
        """Return the deadlines with the rows of their runs, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for deadline in deadlines:
            nominal = deadline.nominal or 0
            pipe.zrange(self.keys.rows(deadline.name), nominal, nominal, byscore=True)
        replies = pipe.execute(raise_on_error=False)
        dated = []
        for deadline, reply in zip(deadlines, replies, strict=True):
            # A key of a foreign type has no rows, and must not stop the others.
            members = () if isinstance(reply, Exception) else reply
            dated.append(deadline._replace(row=_row(members, deadline)))
        return dated

    def failures(self, names: Sequence[str]) -> dict[str, Failures]:
        """Return the failures in a row of these entries."""
        if not names:
            return {}
        failures = {}
        for name, raw in zip(names, self._client.hmget(self.keys.failures, names), strict=True):
            with suppress(ValueError):
                times, nominal, generation, strikes = text(raw or b"").split("|")
                failures[name] = Failures(int(times), int(nominal), generation, int(strikes))
        return failures

    def quarantined(self, look: Look) -> set[str]:
        """Return the names of entries in quarantine, at most as many as incidents may be open.

        Entries with an open incident come first.
        """
        key = self._schedule.quarantine
        known = [
            case.name for case in look.cases if case.kind == "quarantined" and case.until is None
        ]
        pipe = self._client.pipeline(transaction=False)
        for name in known:
            pipe.hstrlen(key, name)
        names = {name for name, length in zip(known, pipe.execute(), strict=True) if length}
        if len(names) < look.quarantined:
            for field, _ in self._client.hscan_iter(key, count=100):
                if len(names) >= _MOST:
                    break
                names.add(text(field))
        return names

    def apply(self, term: Term | None, look: Look | None, changes: Iterable[Change]) -> int | None:
        """Write changes in one step.

        Parameters:
            term: of the leader; ``None`` for others, who may only open and acknowledge.
            look: the look behind the leader's decision.

        Returns:
            how many incidents were opened, closed or acknowledged; ``None`` if another process has
            read on since the look, and nothing was written.

        Raises:
            Lost: the term is over, and nothing was written.
        """
        keys = self.keys
        schedule = self._schedule
        script_keys = (
            schedule.leader,
            schedule.meta,
            keys.incidents,
            keys.closed,
            keys.deadlines,
            keys.failures,
        )
        args: list[Any] = [*(term or ("", ""))]
        args += ("", "") if look is None else (look.read, look.reads)
        args += [_MOST, LIFE_MS]
        for change in changes:
            args += change
        reply = self._scripts.run("runs/incidents", script_keys, args)
        check_term(reply)
        return None if reply[0] == 2 else int(reply[1])

    def open(self) -> list[Case]:
        """Return the open incidents, the oldest first."""
        cases = [case for case in self._stored() if case.until is None]
        return sorted(cases, key=lambda case: case.since)

    def closed(self, limit: int) -> list[Case]:
        """Return the incidents that closed last, the newest first."""
        cases = [case for case in self._stored() if case.until is not None]
        for _, fields in self._client.xrevrange(self.keys.closed, "+", "-", max(limit, 1)):
            cases += _cases({fields.get(b"of", b""): fields.get(b"incident")})
        return cases[:limit]

    def acknowledge(self, case: Case, note: str) -> bool:
        """Note who has taken up an incident. Returns whether it was still open."""
        change = ("note", case.field, case._replace(note=note).encode())
        return bool(self.apply(None, None, [change]))

    def _stored(self) -> list[Case]:
        return _cases(self._client.hgetall(self.keys.incidents))


def changes_of(decision: Decision, look: Look, now: int) -> list[Change]:
    """Return the changes that a decision makes. They remove the deadlines of the look."""
    changes: list[Change] = []
    for deadline in look.overdue:
        changes.append(("done", deadline.member, deadline.at))
    for case in decision.closed:
        changes.append(("end", case.field, now))
    room = _MOST - len(look.cases)
    for case in decision.opened:
        if case.name:  # incidents of the whole schedule need no room
            room -= 1
        if room >= 0 or not case.name:
            changes.append(("open", case.field, case.encode()))
        elif case.kind in _NO_ROOM:
            retry = Deadline(_NO_ROOM[case.kind], None, case.name)
            changes.append(("set", retry.member, now + _RETRY_MS))
    for case in decision.counted:
        changes.append(("count", case.field, case.encode()))
    for name, failures in decision.failures.items():
        stored = "" if failures.nominal is None else "|".join(map(str, failures))
        changes.append(("fails", name, stored))
    for member, at in decision.deadlines.items():
        changes.append(("set", member, at))
    return changes


def _cases(fields: Mapping[Any, Any]) -> list[Case]:
    return [*readable(fields.items(), lambda field, raw: Case.decode(field.decode(), raw))]


def _end(line: Line) -> End:
    row = line.row
    error = line.error or ""
    at = _ms(row.feed)
    return End(at, line.name, row.nominal, row.outcome, row.begin, row.duration, error)


def _ms(line: str | bytes) -> int:
    """Return the instant of a line's id, in epoch ms of the server."""
    return int(text(line).partition("-")[0])


def _deadline(member: str, at: int) -> Deadline:
    what, _, rest = member.partition("|")
    nominal, _, name = rest.partition("|")
    is_number = nominal.lstrip("-").isdecimal()
    return Deadline(what, int(nominal) if is_number else None, name, at)


def _row(members: Sequence[bytes], deadline: Deadline) -> Row | None:
    """Return the row of the deadline's run.

    Several runs may have one nominal time. Then a row of a run that has begun is preferred.
    """
    nominal = deadline.nominal or 0
    first = None
    for row in readable(((text(member), nominal) for member in members), Row.decode):
        if row.is_range:
            continue
        if row.begin is not None:
            return row
        first = first or row
    return first
