"""Incident watch: every two seconds the leader checks runs, and opens and closes incidents.

One such check is a *look*. A change that opens or closes an incident adds a line to the *news*, a
stream in Redis. The next look reads this line, and announces it to the hooks of the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from celery import Celery
from celery.utils.log import get_logger

from .._base.actors import BEAT
from .._base.threads import Ticker
from ..entries import lifecycle
from ..entries.changes import Edit, Stored, line_of
from ..entries.entry import Entry
from ..entries.freeze import end_of
from ..entries.lifecycle import expected_of
from ..entries.stored_entry import edit_of, readable_parts
from ..entries.words import counted, local
from ..events import IncidentClosed, IncidentOpened
from ..once.lock_store import LockStore
from ..once.worker_reports import workers
from ..runs.incident import Incident, Key, Kind
from ..runs.incident_fold import Decision, Fold, Look, may_pause
from ..runs.incident_store import IncidentStore
from ..runs.run_store import NO_LINE
from ..settings import Settings
from ..store.records import Lost, Term
from ..store.store import Store
from .dispatch.entry_steps import Deadlines
from .leader import Leader

logger = get_logger(f"celery.{__name__}")

#: Seconds between two looks.
PERIOD = 2.0

#: Timeout of a command in seconds.
_TIMEOUT = 5.0

#: Number of consecutive looks that must see a state, such as ``behind``, before its incident opens.
#: So no incident opens for a state that a new leader ends within its first looks.
LASTING = 5

#: Count of failed publishes of one occurrence at which the incident ``cannot_publish`` opens.
_ATTEMPTS = 3

#: The incident ``behind`` opens if an entry is late by more than so many milliseconds.
_BEHIND_MS = 60_000

#: A day in milliseconds. The incident ``nobody_records`` closes if no run for so long has needed a
#: worker to record it. Most entries run again within a day.
_DAY_MS = 86_400_000


class IncidentWatch:
    """Thread that watches runs while this process leads. It has its own connections."""

    def __init__(self, app: Celery, settings: Settings, leader: Leader) -> None:
        self._app = app
        self._store = Store.of(settings, timeout=_TIMEOUT)
        client = self._store.backend.client
        self._incidents = IncidentStore(client, settings.key_prefix)
        self._locks = LockStore(client, settings.key_prefix)
        self._default_expect = settings.expect
        self._leader = leader
        self._state = leader.state
        #: Shared with the dispatcher, which sets the deadlines of the runs that it sends. The watch
        #: says in it whether workers record runs, because otherwise runs get no deadlines.
        self.deadlines = Deadlines(settings.expect, settings.history)
        #: Queues that workers with ``install()`` consume.
        self._queues: set[str] = set()
        #: Count of the looks so far.
        self._looks = 0
        #: Kind of incident -> number of the look that first saw its state. If a later look does not
        #: see the state, the kind is removed.
        self._since: dict[Kind, int] = {}
        #: Id of the last line of the news that this process has announced to the hooks. The hooks
        #: run in other threads, so perhaps they have not handled it yet.
        self._announced = NO_LINE
        #: Function that returns whether the hooks have handled all announced news.
        self._is_handled = leader.state.announcer.delivery()
        self.ticker = Ticker(
            "redbeat-lite-incidents",
            lambda: PERIOD,
            self.look,
            "beat: cannot look for incidents",
        )

    def look(self) -> None:
        """Take one look, if this process leads.

        A look reads the new ends of runs and the passed deadlines, in pages of a limited size. It
        writes the decision about a page before it reads the next one.
        """
        if not self._leader.holds_lease:
            # A new leader may send runs before its first look. They must get deadlines, so assume
            # that workers record them.
            self.deadlines.workers_record = True
            # When this process leads again, what its looks saw before is out of date.
            self._since.clear()
            return
        self._looks += 1
        try:
            self._read_workers()
            # Each call of _look() handles one page, and returns whether to read another one.
            while self._look(self._leader.term):
                pass
        except Lost:
            return  # This process leads no more. The main loop notices that, too, and logs it.

    def _read_workers(self) -> None:
        """Read the reports of the workers that have reported within the last minute."""
        reports = workers(self._locks).values()
        self._queues = {queue for report in reports for queue in report.queues}
        # Only workers with install() report, and these workers also record runs.
        self.deadlines.workers_record = bool(reports)

    def _look(self, term: Term) -> bool:
        """Read one page, and write the decision. Return whether to read another page at once."""
        now = self._leader.clock.now_ms()
        look = self._incidents.look(now, self._announced)
        entries = self._read_entries(look, now)
        self._pause_failing(look, entries, term)
        handled = self._announce(look)
        decision = self._decide(look, entries, now)
        # The incidents that are opened or closed here are announced after the next read. So read
        # again at once.
        must_look_again = self._incidents.write(term, look, decision, handled)
        return must_look_again or look.more

    def _read_entries(self, look: Look, now: int) -> dict[str, Entry]:
        """Read all entries that the look names, and the entries whose last publish failed.

        The result has no entry that is not stored or cannot be read.

        The set ``unpublished`` in the beat's state has the names of entries whose last publish
        failed. A name is removed from it when its entry is gone, or was published since.
        """
        # Copy the set, because the dispatcher can add names while this method runs.
        unpublished = self._state.unpublished
        names = set(unpublished)
        names.update(end.name for end in look.ends)
        names.update(deadline.name for deadline in look.overdue)
        names.update(incident.entry for incident in look.incidents if incident.entry)
        entries = {}
        for stored in self._store.present(names):
            entry, state = readable_parts(stored, self._app)
            if entry is not None and state is not None:
                entry.state = lifecycle.after_pause(state, now)
                entries[entry.name] = entry
        failing = {name for name, entry in entries.items() if entry.state.attempts}
        unpublished.difference_update(names - failing)
        return entries

    def _decide(self, look: Look, entries: Mapping[str, Entry], now: int) -> Decision:
        """Decide which incidents open and close."""
        if not self.deadlines.workers_record:
            # Note the time at which a run last needed a record.
            for deadline in look.overdue:
                entry = entries.get(deadline.name)
                if entry and expected_of(entry, self._default_expect):
                    self.deadlines.needed_at = now
            # Without records, a run that was in time looks like one that was not. So no deadline
            # opens an incident. The incident ``nobody_records`` says that records are missing.
            look = look._replace(overdue=[])
        states = self._states_now(look, entries, now)
        return Fold(now, look, entries, states, self._default_expect, self._queues).decide()

    def _pause_failing(self, look: Look, entries: Mapping[str, Entry], term: Term) -> None:
        """Pause the entries whose runs have failed as often as ``on_failure`` allows.

        An earlier look has opened the incident ``paused`` of such an entry. The entry stays as it
        is if somebody has paused, resumed or replaced it since its last failure.
        """
        # Name of an entry that is not paused yet -> its open incident ``paused``.
        failing: dict[str, Incident] = {}
        for incident in look.incidents:
            kind, name = incident.key
            if kind == "paused" and name in entries and not entries[name].state.paused:
                failing[name] = incident

        def edits(stored: Stored) -> list[Edit]:
            """Return a list with the edit that pauses an entry; empty if it needs no pause."""
            entry, state = readable_parts(stored, self._app)
            if entry is None or state is None or entry.on_failure is None or state.paused:
                return []
            entry.state = state
            incident = failing[entry.name]
            if incident.generation != state.generation or not may_pause(entry, incident.nominal):
                return []  # The entry was replaced or resumed after the last failure.
            note = f"paused after {counted(entry.on_failure.after, 'failure', 'failures')} in a row"
            line = line_of(BEAT, "paused", note)
            paused = lifecycle.paused(state, note)
            return [edit_of(entry, paused, expected=stored.state, line=line)]

        self._store.rewrite(failing, edits, term)

    def _states_now(self, look: Look, entries: Mapping[str, Entry], now: int) -> dict[Key, str]:
        """Return the incidents that must be open now, as key -> text, except those about runs.

        A key is the kind of the incident and the name of its entry. The name is empty if the
        incident is about the whole schedule.
        """
        states: dict[Key, str] = {}
        for name, entry in entries.items():
            state = entry.state
            if state.attempts >= _ATTEMPTS:
                states["cannot_publish", name] = f"{state.attempts} publishes failed: {state.error}"
        open_kinds = {incident.kind for incident in look.incidents}
        late = 0.0
        # While everything is frozen, entries are late on purpose.
        if look.first_due is not None and end_of(look.freeze) <= now:
            late = now - look.first_due
        # _note_state() returns whether the state has lasted long enough to be an incident.
        if self._note_state("behind", late > _BEHIND_MS, open_kinds):
            states["behind", ""] = f"an entry has been due for {late / 1000:.0f} s"
        lacks_recorder = self._note_recorder(now, open_kinds)
        if self._note_state("nobody_records", lacks_recorder, open_kinds):
            states["nobody_records", ""] = (
                "something is expected of runs, "
                "and no worker that records them has reported for a minute"
            )
        text = "it cannot be used and is set aside; quarantine says why"
        states |= {("quarantined", name): text for name in look.quarantined}
        return states

    def _note_recorder(self, now: int, open_kinds: Collection[Kind]) -> bool:
        """Check whether runs need a worker that records their ends, and there is none.

        ``needed_at`` is the time at which a run last needed a record. It is reset to ``None`` if a
        worker records runs.

        Returns:
            whether no worker records runs, although a run of the last day needed a record.
        """
        deadlines = self.deadlines
        if deadlines.workers_record:
            deadlines.needed_at = None
        elif deadlines.needed_at is None and "nobody_records" in open_kinds:
            # An earlier leader has opened the incident, and this one does not know when a run last
            # needed a record. So count the day from now on.
            deadlines.needed_at = now
        return deadlines.needed_at is not None and now - deadlines.needed_at < _DAY_MS

    def _note_state(self, kind: Kind, is_true: bool, open_kinds: Collection[Kind]) -> bool:
        """Note whether this look sees a state, such as ``"behind"``.

        Parameters:
            kind: the state, which is also the kind of its incident.
            is_true: whether this look sees it.
            open_kinds: kinds of the open incidents.

        Returns:
            whether its incident must be open. It must if the last ``LASTING`` looks have all seen
            the state, or if this look sees it and the incident is open already.
        """
        if not is_true:
            self._since.pop(kind, None)
            return False
        first_look = self._since.setdefault(kind, self._looks)
        has_lasted = self._looks - first_look >= LASTING - 1
        return has_lasted or kind in open_kinds

    def _announce(self, look: Look) -> str:
        """Announce the news to the hooks: which incidents were opened or closed.

        This process announces each line of the news once. If its term ends before all hooks have
        handled a line, another leader announces the line again, with the same id of the incident.

        Returns:
            id up to which all hooks have handled the news: ``news_end`` if they have handled all
            lines, else ``news_begin``. If ``news_begin`` is empty, because it is not known, all
            lines count as handled.
        """
        # The next look announces only the lines after this id.
        self._announced = look.news_end
        for incident in look.news:
            self._announce_incident(incident)
        if look.news:
            # From now on, ask about the lines announced just now as well.
            self._is_handled = self._state.announcer.delivery()
        self._state.incidents = Counter(incident.kind for incident in look.incidents)
        is_handled = self._is_handled() or not look.news_begin
        return look.news_end if is_handled else look.news_begin

    def _announce_incident(self, incident: Incident) -> None:
        """Log that an incident was opened or closed, and announce it to the hooks."""
        # For the log: "kind:name of the entry", or only the kind if the incident is about the whole
        # schedule.
        field = incident.field if incident.entry else incident.kind
        event = IncidentOpened(
            incident.id, incident.kind, incident.entry, incident.since, incident.text
        )
        if incident.until is None:
            # local() shows the instants in the text in the time zone of the app.
            text = local(incident.text, self._app.timezone)
            logger.warning("beat: incident %s is open, %s: %s", incident.id, field, text)
            self._state.announce(event)
        else:
            logger.info("beat: incident %s is over, %s", incident.id, field)
            # IncidentClosed has the fields of IncidentOpened, and then the end of the incident.
            self._state.announce(IncidentClosed(*event, incident.until))
