"""Incidents in Redis: the leader's look and its write, lists, and acknowledgements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..store.keys import Keys
from ..store.records import Term
from ..store.redis_values import readable, scored, text
from ..store.scripts import Scripts, checked
from ..store.store import TRIES
from ..store.transact import GuardFailed, Step, transact
from .incident import Case
from .incident_fold import Deadline, Decision, Failures
from .run import LIFE_MS, Row
from .run_store import Line, RunKeys, ms_of

#: Maximum number of lines of the feed, and of deadlines, in one look. For twice as many, the write
#: after the look would keep the server busy for 5 ms.
PAGE = 250

#: Minimum number of lines that remain in a feed after ``shared/record.lua`` has cut it.
_FEED_LINES = 100_000

#: Milliseconds between a deadline and the look at it. A run may have been in time although its
#: record arrives later.
MARGIN_MS = 2000

#: Maximum number of open incidents. Further ones do not open.
_MOST = 1000

# Value $1: id up to which the feed was read.
_IS_READ = "IF HGET meta feed IS $1"
_READ_ON = "HSET meta feed $1"

# Values: field, and the stored text or the text to store.
_IS_STORED = "IF HGET incidents $1 IS $2"
_SAVE = "HSET incidents $1 $2"
_DROP = "HDEL incidents $1"
_OPEN = """
    IF HGET incidents $1 IS NONE
    HSET incidents $1 $2
"""

# Values $1 and $2: field, text. About 1,000 closed incidents are kept.
_ARCHIVE = "XADD closed MAXLEN ~ 1000 * of $1 incident $2"

# Values $1 to $3: field, old text, new text.
_NOTE = """
    IF HGET incidents $1 IS $2
    HSET incidents $1 $3
"""

# Values $1 and $2: entry, its failures.
_SAVE_FAILURES = f"""
    HSET failures $1 $2
    PEXPIRE failures {LIFE_MS}
"""
_FORGET_FAILURES = "HDEL failures $1"

# Values $1 and $2: member, its time. A deadline that was set again meanwhile is not removed.
_SET_DEADLINE = "ZADD deadlines $2 $1"
_TAKE_DEADLINE = """
    IF ZSCORE deadlines $1 IS $2
    ZREM deadlines $1
"""

#: Milliseconds until ``no_success`` is tried again if there is no room for it now.
_RETRY_MS = 60_000


class Look(NamedTuple):
    """Content of Redis at one moment.

    Parameters:
        read: id in the feed up to which it was read before; empty: never.
        reads: id up to which it is read with this look.
        ends: new ends of runs, from the feed.
        overdue: deadlines whose time has come, without rows. Those of successes appear only if the
            feed is read to its end, because a success may lie further on.
        cases: incidents that are open, or closed and not announced.
        stored: their stored text by field.
        first_due: score of the entry that is due first; ``None``: there is none.
        quarantined: count of the entries in quarantine.
        more: whether the next look will find more ends or deadlines at once.
        unread: first and last instant, in epoch ms, of lines that were cut from the feed unread.
        archived: closed incidents that were announced, so that they are archived.
    """

    read: str
    reads: str
    ends: list[Line]
    overdue: list[Deadline]
    cases: list[Case]
    stored: Mapping[str, str]
    first_due: float | None
    quarantined: int
    more: bool
    unread: tuple[int, int] | None = None
    archived: Sequence[Case] = ()


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
        read = text(self._client.hget(self._schedule.meta, "feed") or b"")
        replies = checked(self._scripts.together(self._commands(read, now)))
        lines, due_deadlines, stored, first, quarantined, oldest, count = replies
        members = scored(due_deadlines)
        first_due = scored(first)
        cases = _cases(stored)
        # Runs of backfills are not expected to be in time, and do not count as failures.
        ends = [line for line in readable(lines, Line.decode) if not line.row.is_backfilled]
        overdue = [_deadline(text(member), int(score)) for member, score in members]
        if len(lines) == PAGE:
            # More lines follow, and a success among them may set such a deadline again.
            overdue = [deadline for deadline in overdue if deadline.what != "success"]
        unread = None
        # ``oldest`` has the first line of the feed if that is not later than the line read last. If
        # it is empty, the line read last is gone, and lines after it may have been cut, too. A feed
        # of fewer lines was removed and has begun again, so nothing is known about its past.
        if read and lines and not oldest and count >= _FEED_LINES:
            unread = (ms_of(read), ms_of(lines[0][0]))
        return Look(
            read,
            # "0-0" is before every line.
            reads=text(lines[-1][0]) if lines else read or "0-0",
            ends=ends if read else [],
            overdue=overdue,
            cases=cases,
            stored={case.field: text(stored[case.field.encode()]) for case in cases},
            first_due=first_due[0][1] if first_due else None,
            quarantined=quarantined,
            more=bool(read) and PAGE in (len(lines), len(members)),
            unread=unread,
        )

    def _commands(self, read: str, now: int) -> list[tuple[Any, ...]]:
        """Return the commands of a look; :meth:`look` takes their replies in this order.

        Parameters:
            read: id up to which the feed was read before; empty: never. Then the last line is read,
                so that the next look begins after it.
        """
        feed = self.keys.feed
        lines: tuple[Any, ...] = ("XREVRANGE", feed, "+", "-", "COUNT", 1)
        if read:
            lines = ("XRANGE", feed, f"({read}", "+", "COUNT", PAGE)
        limit = ("LIMIT", 0, PAGE, "WITHSCORES")
        return [
            lines,
            ("ZRANGE", self.keys.deadlines, "-inf", now - MARGIN_MS, "BYSCORE", *limit),
            ("HGETALL", self.keys.incidents),
            ("ZRANGE", self._schedule.due, 0, 0, "WITHSCORES"),
            ("HLEN", self._schedule.quarantine),
            ("XRANGE", feed, "-", read or "+", "COUNT", 1),
            ("XLEN", feed),
        ]

    def with_rows(self, deadlines: Sequence[Deadline]) -> list[Deadline]:
        """Return the deadlines with the rows of their runs, in one round trip."""
        commands = []
        for deadline in deadlines:
            # For a deadline that is about no run, any row will do, because nobody uses it.
            nominal = deadline.nominal or 0
            commands.append(("ZRANGE", self.keys.rows(deadline.name), nominal, nominal, "BYSCORE"))
        replies = self._scripts.together(commands)
        completed = []
        for deadline, reply in zip(deadlines, replies, strict=True):
            # A key of a foreign type has no rows, and must not stop the others.
            members = () if isinstance(reply, Exception) else reply
            completed.append(deadline._replace(row=_row(members, deadline)))
        return completed

    def failures(self, names: Sequence[str]) -> dict[str, Failures]:
        """Return name -> consecutive failures, for those of these entries that have any.

        A record that cannot be read is left out.
        """
        if not names:
            return {}
        failures = {}
        for name, raw in zip(names, self._client.hmget(self.keys.failures, names), strict=True):
            if raw is None:
                continue
            with suppress(ValueError):
                times, nominal, generation, strikes = text(raw).split("|")
                failures[name] = Failures(int(times), int(nominal), generation, int(strikes))
        return failures

    def quarantined(self, look: Look) -> set[str]:
        """Return up to ``_MOST`` names of entries in quarantine.

        If more are in quarantine, entries with an open incident take precedence.
        """
        key = self._schedule.quarantine
        reported = [
            case.name for case in look.cases if case.kind == "quarantined" and case.until is None
        ]
        # Ask for the length, because the record itself is long. It is 0 if the entry is not in
        # quarantine any more.
        lengths = checked(self._scripts.together([("HSTRLEN", key, name) for name in reported]))
        names = {name for name, length in zip(reported, lengths, strict=True) if length}
        if len(names) < look.quarantined:
            for field, _ in self._client.hscan_iter(key, count=100):
                if len(names) >= _MOST:
                    break
                names.add(text(field))
        return names

    def write(self, term: Term, look: Look, decision: Decision, now: int) -> bool:
        """Write what follows from a look in one step, at ``now`` in epoch ms.

        Parameters:
            look: content of Redis on which the decision is based.
            decision: incidents and deadlines to change, and failures to store.

        Returns:
            whether to look again at once: an incident was opened or closed, or nothing was written,
            because another process has read on, or has changed one of these incidents.

        Raises:
            Lost: the term is over, and nothing was written.
        """
        # The guards make the server refuse all steps if another process has read on.
        guards = [Step(_IS_READ, (look.read,))]
        steps = [Step(_ARCHIVE, (case.field, case.encode())) for case in look.archived]
        texts = _texts_after(look, decision, now)
        for field in dict.fromkeys((*look.stored, *texts)):
            before = look.stored.get(field)
            after = texts.get(field)
            if before == after:
                continue
            if before is not None:
                guards.append(Step(_IS_STORED, (field, before)))
            steps.append(Step(_SAVE, (field, after)) if after else Step(_DROP, (field,)))
        # These steps come after the others, because one look may close an incident and open it
        # again.
        steps += _openings(look, decision, now)
        for name, failures in decision.failures.items():
            if failures.nominal is None:  # The last run has succeeded.
                steps.append(Step(_FORGET_FAILURES, (name,)))
            else:
                steps.append(Step(_SAVE_FAILURES, (name, "|".join(map(str, failures)))))
        for deadline in look.overdue:
            steps.append(Step(_TAKE_DEADLINE, (deadline.member, deadline.at)))
        for member, at in decision.deadlines.items():
            steps.append(Step(_SET_DEADLINE, (member, at)))
        if look.reads != look.read:
            steps.append(Step(_READ_ON, (look.reads,)))
        try:
            self._transact(steps, guards, term)
        except GuardFailed:
            return True
        return bool(decision.opened or decision.closed)

    def open_case(self, case: Case) -> bool:
        """Open an incident, unless it is open; return whether it was opened."""
        return self._transact([Step(_OPEN, (case.field, case.encode()))]) == [True]

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
        """Store a person's note in an open incident, so that others know that it is handled.

        Returns:
            whether the note was stored; ``False`` if the incident is closed, or if other processes
            have changed it during each of ``TRIES`` attempts.
        """
        for _ in range(TRIES):
            raw = self._client.hget(self.keys.incidents, case.field)
            stored = next(iter(_cases({case.field.encode(): raw})), None)
            if stored is None or stored.since != case.since:
                return False  # It is closed, and another one may have opened since.
            noted = Step(_NOTE, (case.field, raw, stored._replace(note=note).encode()))
            # If another process has changed the incident since it was read, nothing is written.
            if self._transact([noted]) == [True]:
                return True
        return False

    def _transact(
        self, steps: Sequence[Step], guards: Sequence[Step] = (), term: Term | None = None
    ) -> list[bool]:
        scripts = self._scripts
        return transact(scripts, self._schedule, steps, guards, others=self.keys, term=term)

    def _stored(self) -> list[Case]:
        return _cases(self._client.hgetall(self.keys.incidents))


def _texts_after(look: Look, decision: Decision, now: int) -> dict[str, str]:
    """Return the stored texts of the look's incidents after the decision, by field."""
    texts = {case.field: case.encode() for case in (*look.cases, *decision.counted)}
    for case in decision.closed:
        closed = case._replace(until=now)
        del texts[case.field]
        texts[closed.field] = closed.encode()
    return texts


def _openings(look: Look, decision: Decision, now: int) -> Iterator[Step]:
    """Yield the steps that open incidents, as far as there is room for more open ones."""
    room = _MOST - len(look.stored)
    for case in decision.opened:
        if case.name:  # Incidents of the whole schedule are few, and need no room.
            room -= 1
        if room >= 0 or not case.name:
            yield Step(_OPEN, (case.field, case.encode()))
        elif case.kind == "no_success":
            # Try again later, because no other deadline follows without a success. An incident
            # about a run is not opened, because later runs have deadlines of their own.
            retry = Deadline("success", nominal=None, name=case.name)
            yield Step(_SET_DEADLINE, (retry.member, now + _RETRY_MS))


def _cases(fields: Mapping[Any, Any]) -> list[Case]:
    return [*readable(fields.items(), lambda field, raw: Case.decode(field.decode(), raw))]


def _deadline(member: str, at: int) -> Deadline:
    """Return the deadline that a member of the sorted set stands for."""
    # Split from the left, because the name of an entry may contain the separator.
    what, _, rest = member.partition("|")
    nominal, _, name = rest.partition("|")
    is_number = nominal.lstrip("-").isdecimal()
    return Deadline(what, int(nominal) if is_number else None, name, at)


def _row(members: Sequence[bytes], deadline: Deadline) -> Row | None:
    """Return the row of the deadline's run; ``None`` if nothing of the run is recorded.

    Several runs may have one nominal time. Then a row of a run that has begun is preferred.

    Parameters:
        members: texts of the rows with the nominal time of the deadline.
    """
    nominal = deadline.nominal or 0
    first = None
    for row in readable(((text(member), nominal) for member in members), Row.decode):
        if row.is_range:
            continue  # These runs were not sent.
        if row.begin is not None:
            return row
        first = first or row
    return first
