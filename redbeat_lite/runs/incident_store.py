"""What the incidents do in Redis: one look, one step that writes, and what people ask and say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..storage.keys import Keys
from ..storage.replies import text
from ..storage.scripts import Scripts
from ..storage.stored import Term, check_term
from ..storage.streams import readable
from .facts import Deadline, Decision, End, Failures
from .incident import Case
from .keys import RunKeys
from .row import LIFE_MS, Row
from .run import BACKFILLED
from .store import Line

#: Lines of the feed, and deadlines, of one look.
PAGE = 500

#: Lines of the feed at least once it was ever cut, as shared/record.lua does.
_LINES = 100_000

#: Milliseconds after a deadline at which it is looked at: what is recorded in time may come so late.
MARGIN_MS = 2000

#: Most incidents that are open at once; what comes beyond them is not opened.
_MOST = 1000

#: One change for ``runs/incidents.lua``: what, of what, and a value.
Change = tuple[str, str, str | int]

#: By which deadline what finds no room is looked at again, and after how many milliseconds.
_NO_ROOM = {"missed": "start", "not_consumed": "start", "too_long": "finish", "no_success": "success"}
_AGAIN_MS = 60_000


class Look(NamedTuple):
    """What lies in Redis at a moment.

    Parameters:
        read: id of the feed up to which it was read before; empty: never.
        reads: id up to which it is read with this look.
        overdue: deadlines whose time has come, without rows; those of successes once the feed has been read to its end.
        cases: incidents that are open, or closed and not told.
        first_due: score of the entry that is due first; ``None``: there is none.
        unread: from when to when there were lines of the feed that were cut unread, epoch milliseconds.
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

    def look(self, now: int, ahead: int = 0) -> Look:
        """Read what is new; two round trips. Where the feed was never read, what is in it already is passed over.

        Parameters:
            now: epoch milliseconds.
            ahead: by how many milliseconds this clock is ahead of the server's, which dates the ends.
        """
        keys, schedule = self.keys, self._schedule
        read = text(self._client.hget(schedule.meta, "feed") or b"")
        pipe = self._client.pipeline(transaction=False)
        if read:
            pipe.xrange(keys.feed, f"({read}", "+", PAGE)
        else:
            pipe.xrevrange(keys.feed, "+", "-", 1)
        pipe.zrange(keys.deadlines, "-inf", now - MARGIN_MS, byscore=True, offset=0, num=PAGE, withscores=True)
        pipe.hgetall(keys.incidents)
        pipe.zrange(schedule.due, 0, 0, withscores=True)
        pipe.hlen(schedule.quarantine)
        pipe.xrange(keys.feed, "-", read or "+", 1)
        pipe.xlen(keys.feed)
        lines, members, cases, first, quarantined, before, count = pipe.execute()
        new = readable(lines if read else (), Line.decode)
        overdue = [_deadline(text(member), int(score)) for member, score in members]
        reads = text(lines[-1][0]) if lines else read or "0-0"
        return Look(
            read,
            reads,
            # Of runs of backfills nothing is expected, and they are no failures of one of which it is.
            [_end(line, ahead) for line in new if line.row.task_id[14:15] != BACKFILLED],
            # A success may lie further on in the feed.
            [each for each in overdue if each.what != "success" or len(lines) < PAGE],
            _cases(cases),
            first[0][1] if first else None,
            quarantined,
            more=bool(read) and PAGE in (len(lines), len(members)),
            # Of a feed that somebody has removed, and that begins anew, nobody knows.
            unread=(_ms(read), _ms(lines[0][0])) if read and lines and not before and count >= _LINES else None,
        )

    def with_rows(self, deadlines: Sequence[Deadline]) -> list[Deadline]:
        """The same with what is recorded of their runs, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for each in deadlines:
            rows, nominal = self.keys.rows(each.name), each.nominal or 0
            pipe.zrange(rows, nominal, nominal, byscore=True)
        # Where rows are of a foreign type there are none, and the others are read nevertheless.
        found = (() if isinstance(reply, Exception) else reply for reply in pipe.execute(raise_on_error=False))
        return [each._replace(row=_row(members, each)) for each, members in zip(deadlines, found, strict=True)]

    def failures(self, names: Sequence[str]) -> dict[str, Failures]:
        """How many failures in a row these entries have."""
        found = self._client.hmget(self.keys.failures, names) if names else []
        failures = {}
        for name, raw in zip(names, found, strict=True):
            with suppress(ValueError):
                times, nominal, generation, strikes = text(raw or b"").split("|")
                failures[name] = Failures(int(times), int(nominal), generation, int(strikes))
        return failures

    def quarantined(self, look: Look) -> set[str]:
        """Names of entries that are set aside, as many as incidents may be open; first those of which one is."""
        known = [case.name for case in look.cases if case.kind == "quarantined" and case.until is None]
        pipe = self._client.pipeline(transaction=False)
        for name in known:
            pipe.hstrlen(self._schedule.quarantine, name)
        names = {name for name, length in zip(known, pipe.execute(), strict=True) if length}
        if len(names) < look.quarantined:
            others = self._client.hscan_iter(self._schedule.quarantine, count=100)
            while len(names) < _MOST and (found := next(others, None)):
                names.add(text(found[0]))
        return names

    def apply(self, term: Term | None, look: Look | None, changes: Iterable[Change]) -> int | None:
        """Write what was decided, in one step; tells how many incidents that has opened, closed or noted.

        Parameters:
            term: of the leader; ``None`` for anybody else, who may only open and acknowledge some.
            look: what the leader went by.

        Returns:
            ``None`` if somebody else has read on since the look; nothing was written.

        Raises:
            Lost: the term is over, nothing was written.
        """
        keys, schedule = self.keys, self._schedule
        where = (schedule.leader, schedule.meta, keys.incidents, keys.closed, keys.deadlines, keys.failures)
        read = (look.read, look.reads) if look is not None else ("", "")
        args = [*(term or ("", "")), *read, _MOST, LIFE_MS, *(part for change in changes for part in change)]
        reply = self._scripts.run("runs/incidents", where, args)
        check_term(reply)
        return None if reply[0] == 2 else int(reply[1])

    def open(self) -> list[Case]:
        """Those that are open, the oldest first."""
        return sorted((case for case in self._stored() if case.until is None), key=lambda case: case.since)

    def closed(self, limit: int) -> list[Case]:
        """Those that were closed last, the newest first."""
        lines = self._client.xrevrange(self.keys.closed, "+", "-", max(limit, 1))
        told = [case for _, fields in lines for case in _cases({fields.get(b"of", b""): fields.get(b"incident")})]
        return [*(case for case in self._stored() if case.until is not None), *told][:limit]

    def acknowledge(self, case: Case, note: str) -> bool:
        """Note who has taken up an incident; whether it was still open."""
        return bool(self.apply(None, None, [("note", case.field, case._replace(note=note).encode())]))

    def _stored(self) -> list[Case]:
        return _cases(self._client.hgetall(self.keys.incidents))


def changes_of(decision: Decision, look: Look, now: int) -> list[Change]:
    """What to write for a decision; the deadlines of the look have had their time."""
    changes: list[Change] = [("done", each.member, each.at) for each in look.overdue]
    changes += [("end", case.field, now) for case in decision.closed]
    room = _MOST - len(look.cases)
    for case in decision.opened:
        room -= bool(case.name)
        if room >= 0 or not case.name:
            changes.append(("open", case.field, case.encode()))
        elif case.kind in _NO_ROOM:
            changes.append(("set", Deadline(_NO_ROOM[case.kind], None, case.name).member, now + _AGAIN_MS))
    changes += [("count", case.field, case.encode()) for case in decision.counted]
    for name, failures in decision.failures.items():
        changes.append(("fails", name, "" if failures.nominal is None else "|".join(map(str, failures))))
    changes += [("set", member, at) for member, at in decision.deadlines.items()]
    return changes


def _cases(found: Mapping[Any, Any]) -> list[Case]:
    return [*readable(found.items(), lambda field, raw: Case.decode(field.decode(), raw))]


def _end(line: Line, ahead: int) -> End:
    row = line.row
    at = _ms(row.feed) + ahead
    return End(at, line.name, row.nominal, row.outcome, row.begin, row.duration, line.error or "")


def _ms(line: str | bytes) -> int:
    return int(text(line).partition("-")[0])


def _deadline(member: str, at: int) -> Deadline:
    what, nominal, name = [*member.split("|", 2), "", ""][:3]
    return Deadline(what, int(nominal) if nominal.lstrip("-").isdecimal() else None, name, at)


def _row(members: Sequence[bytes], deadline: Deadline) -> Row | None:
    """The row of a run; of several for one nominal time that which has begun."""
    told = ((text(raw), deadline.nominal or 0) for raw in members)
    rows = [row for row in readable(told, Row.decode) if not row.is_range]
    return max(rows, key=lambda row: row.begin is not None, default=None)
