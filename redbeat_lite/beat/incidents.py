"""The look that the leader takes every two seconds at what became of runs: incidents opened, closed and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import tzinfo

from celery import Celery
from celery.utils.log import get_logger

from ..actors import BEAT
from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.freezes import Freezes
from ..entries.stored_entry import edit_of, readable_parts
from ..entries.words import counted, local
from ..events import IncidentClosed, IncidentOpened
from ..instants import from_ms
from ..runs.facts import Deadline, Seen
from ..runs.fold import fold
from ..runs.incident import Case, Key, Kind
from ..runs.incident_store import Change, IncidentStore, Look, changes_of
from ..runs.keys import RunKeys
from ..settings import Settings
from ..storage.changes import line_of
from ..storage.lazy import lazy
from ..storage.store import Store
from ..storage.stored import Edit, Lost, Stored, Term
from ..threads import Ticker
from .dispatch.deadlines import Deadlines
from .fresh_starts import FreshStarts
from .leader import Leader
from .vitals import Vitals
from .watched_entries import Found, Heard, WatchedEntries

logger = get_logger(f"celery.{__name__}")

#: Seconds between two looks, and after which a command that hangs is given up.
PERIOD, _TIMEOUT = 2.0, 5.0

#: Pages of one look, and seconds until the next one where there are more: for others who want the interpreter's lock.
_PAGES, _BREATH = 20, 0.1

#: Looks in a row after which what holds at the moment is an incident: a new leader finds much that it is about to mend.
LASTING = 5

#: What was told: of which incident, and whether it has begun or is over; and what tells whether that was heard.
_Telling = dict[tuple[str, type], Callable[[], bool]]

#: Failed publishes of one occurrence after which its entry cannot be published.
_ATTEMPTS = 3

#: Milliseconds after which an entry that is still due is behind.
_BEHIND_MS = 60_000

#: Milliseconds for which somebody has to record after something was expected: most entries run again within them.
_DAY_MS = 86_400_000


class IncidentWatch:
    """Looks in a thread of its own, over connections of its own, while this process leads."""

    def __init__(self, app: Celery, settings: Settings, leader: Leader, vitals: Vitals) -> None:
        self._settings, self._zone = settings, app.timezone
        self._leader = leader
        self._vitals = vitals
        #: What the dispatcher notes of runs that something is expected of.
        self.deadlines = Deadlines(
            RunKeys(settings.key_prefix).deadlines, settings.expect, app.timezone, settings.history
        )
        self._entries = WatchedEntries(self.deadlines)
        self._heard = Heard(app, settings.key_prefix)
        self._fresh_starts = FreshStarts()
        #: How many looks were taken, and at which of them something began to hold.
        self._looks, self._since = 0, dict[Kind, int]()
        self._pause = PERIOD  #: seconds until the next one
        self._telling: _Telling = {}
        self.ticker = Ticker(
            "redbeat-lite-incidents", lambda: self._pause, self.look, "beat: cannot look for incidents"
        )

    @lazy
    def _store(self) -> Store:
        return Store.of(self._settings, timeout=_TIMEOUT)

    @lazy
    def _incidents(self) -> IncidentStore:
        return IncidentStore(self._store.backend.client, self._settings.key_prefix)

    def look(self) -> None:
        """Take one look, if this process leads."""
        goes_on, self._pause = self._pause < PERIOD, PERIOD
        if not self._leader.leading:
            # What this process knows will be old when it leads again.
            self.deadlines.recorded = True
            self._since.clear()
            return
        try:
            self._looks += not goes_on
            self._heard.ask(self._store.backend.client)
            self.deadlines.recorded = self._heard.records
            for _ in range(_PAGES):
                if not self._look(self._leader.term):
                    return
            self._pause = _BREATH
        except Lost:
            return  # The main loop finds it too, and says so.

    def _look(self, term: Term) -> bool:
        """Read a page and write what follows; whether another look is worth while at once."""
        now = wall_ms()
        look = self._incidents.look(now, self._heard.ahead)
        states = self._states_now(look, now)
        failing = self._vitals.unpublished
        names = {
            *(end.name for end in look.ends),
            *(each.name for each in look.overdue),
            *(case.name for case in look.cases if case.name),
            *failing,
        }
        found = self._entries.read(self._store, names)
        attempts = {name: each.state.attempts for name, each in found.items() if each.state.attempts}
        failing.difference_update(names - attempts.keys())
        states |= {
            ("cannot_publish", name): f"{count} publishes failed: {found[name].state.error}"
            for name, count in attempts.items()
            if count >= _ATTEMPTS
        }
        freezes = Freezes.of(self._store.freezes())
        watched = {name: each.watched(freezes.until(now, each.entry) is not None) for name, each in found.items()}
        expecting = [name for name, each in watched.items() if each.expect or each.on_failure]
        self._pause_failing({each.name: each for each in look.overdue if each.what.startswith("pause ")}, term)
        overdue = self._overdue(look, found, now)
        not_begun = {each.name for each in overdue if each.what == "start" and each.row is None}
        untaken = {name: queue for name in not_begun if (queue := self._heard.untaken(found[name].entry))}
        failures = self._incidents.failures(expecting)
        decision = fold(Seen(now, look.ends, overdue, watched, failures, untaken, states, look.cases))
        changes = [*self._told(look.cases), *changes_of(decision, look, now)]
        if not changes and look.read == look.reads:
            return look.more
        changed = self._incidents.apply(term, look, changes)
        return changed is None or changed > 0 or look.more

    def _pause_failing(self, failed: Mapping[str, Deadline], term: Term) -> None:
        """Pause entries whose runs have failed too often, unless somebody has paused or resumed them since."""

        def edits(stored: Stored) -> list[Edit]:
            entry, state = readable_parts(stored)
            if entry is None or state is None or entry.on_failure is None or state.paused:
                return []
            last = failed[entry.name]
            if last.what != f"pause {state.generation}" or (last.nominal or 0) <= state.forgiven:
                return []
            note = f"paused after {counted(entry.on_failure.after, 'failure', 'failures')} in a row"
            line = line_of(BEAT, "paused", note)
            return [edit_of(entry, lifecycle.paused(state, note), self._zone, expected=stored.state, line=line)]

        self._store.rewrite(failed, edits, term)

    def _overdue(self, look: Look, found: Mapping[str, Found], now: int) -> list[Deadline]:
        """Return the deadlines to decide on, with the rows of their runs."""
        overdue = [each for each in look.overdue if each.name in found and found[each.name].expect]
        if not self._heard.records:
            # What is not recorded may have been done all the same: that nobody records is the one incident.
            if overdue:
                self.deadlines.wanted = now
            return []
        return [*self._dated(self._incidents.with_rows(overdue), found, now)]

    def _dated(self, overdue: list[Deadline], found: Mapping[str, Found], now: int) -> Iterator[Deadline]:
        """These with the instants from which they count, by the entries as they are now."""
        owing = {each.name: found[each.name].entry for each in overdue if each.nominal is None}
        anew = self._fresh_starts.of(self._store, owing, now, self._heard.ahead)
        for each in overdue:
            entry, nominal = found[each.name].entry, each.nominal
            since = anew.get(each.name) if nominal is None else self.deadlines.due(entry, nominal, now)
            yield each._replace(since=since)

    def _states_now(self, look: Look, now: int) -> dict[Key, str]:
        states: dict[Key, str] = {}
        open_ = {case.kind for case in look.cases if case.until is None}
        late = 0 if look.first_due is None or self._vitals.freezes().until(now) else now - look.first_due
        if self._lasts("behind", late > _BEHIND_MS, open_):
            states["behind", ""] = f"an entry has been due for {late / 1000:.0f} s"
        if self._lasts("nobody_records", self._in_vain(now, open_), open_):
            text = "something is expected of runs, and no worker that records them was heard of for a minute"
            states["nobody_records", ""] = text
        if look.unread is not None:
            first, last = (from_ms(each).isoformat(timespec="seconds") for each in look.unread)
            states["unread", ""] = (
                f"ends of runs from {first} to {last} were cut from the feed before a leader had read them"
            )
        if look.quarantined:
            text = "it cannot be used and is set aside; quarantine says why"
            states |= {("quarantined", name): text for name in self._incidents.quarantined(look)}
        return states

    def _in_vain(self, now: int, open_: Collection[Kind]) -> bool:
        """Whether something was expected within a day, and nobody records."""
        deadlines = self.deadlines
        if deadlines.recorded:
            deadlines.wanted = None
        elif deadlines.wanted is None and "nobody_records" in open_:
            deadlines.wanted = now  # A leader before this one has found it.
        return deadlines.wanted is not None and now - deadlines.wanted < _DAY_MS

    def _lasts(self, kind: Kind, holds: bool, open_: Collection[Kind]) -> bool:
        """Whether what holds is an incident: it has held for some looks, or is open, whoever leads by now."""
        if not holds:
            self._since.pop(kind, None)
            return False
        return self._looks - self._since.setdefault(kind, self._looks) >= LASTING - 1 or kind in open_

    def _told(self, cases: Iterable[Case]) -> Iterator[Change]:
        """Tell what nobody was told yet. That it was is written once all have heard it: who dies before leaves it to
        the next one, who tells it again by the same id."""
        before, self._telling = self._telling, {}
        count: Counter[str] = Counter()
        for case in cases:
            if case.until is None:
                count[case.kind] += 1
            about = (case.id, case.kind, case.name or None, from_ms(case.since), case.text)
            is_told = case.told or self._is_told(before, IncidentOpened(*about))
            if is_told and not case.told:
                yield "told", case.field, ""
            if case.until is not None:
                closed = IncidentClosed(*about, from_ms(case.until))
                if self._is_told(before, closed) and is_told:
                    yield "gone", case.field, ""
        self._vitals.incidents = count

    def _is_told(self, before: _Telling, event: IncidentOpened | IncidentClosed) -> bool:
        """Whether all have heard this, but for those that hang; tells it where that was not done."""
        what = event.id, type(event)
        if (heard := before.get(what)) is None:
            _log(event, self._zone)
            self._vitals.tell(event)
            heard = self._vitals.announcer.hearing()
        self._telling[what] = heard
        return heard()


def _log(event: IncidentOpened | IncidentClosed, zone: tzinfo) -> None:
    field = f"{event.kind}:{event.entry}" if event.entry else event.kind
    if isinstance(event, IncidentOpened):
        logger.warning("beat: incident %s is open, %s: %s", event.id, field, local(event.text, zone))
    else:
        logger.info("beat: incident %s is over, %s", event.id, field)
