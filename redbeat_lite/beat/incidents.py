"""Incident watch: every two seconds the leader checks runs, and opens and closes incidents.

A write that opens or closes an incident adds a line to the *news*, a stream in Redis. The next read
finds this line, and the incident is announced to the hooks of the user.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from ..runs.incident_fold import Decision, Facts, Fold, is_forgiven
from ..runs.incident_store import IncidentStore
from ..runs.run_store import NO_LINE
from ..settings import Settings
from ..store.records import Lost, Term
from ..store.store import Store
from .dispatch.entry_steps import Deadlines
from .leader import Leader

logger = get_logger(f"celery.{__name__}")

#: Seconds between two checks.
PERIOD = 2.0

#: Timeout of a command in seconds.
_TIMEOUT = 5.0

#: Number of checks in a row that must see a state, such as ``behind``, before its incident opens.
#: So no incident opens for a state that a new leader ends within its first checks.
LASTING = 5

#: Count of failed publishes of one occurrence at which the incident ``cannot_publish`` opens.
_ATTEMPTS = 3

#: The incident ``behind`` opens if an entry is late by more than so many milliseconds.
_BEHIND_MS = 60_000

#: A day in milliseconds. The incident ``nobody_records`` closes if, for a day, no run has needed a
#: worker that records its end. Most entries run again within a day. So perhaps there is no entry
#: any more whose runs need such a worker.
_DAY_MS = 86_400_000


class IncidentWatch:
    """While this process leads, a thread opens and closes incidents, for example of a late run.

    The thread has its own connections.
    """

    def __init__(self, app: Celery, settings: Settings, leader: Leader) -> None:
        self._app = app
        self._store = Store.of(settings, timeout=_TIMEOUT)
        client = self._store.backend.client
        self._incidents = IncidentStore(client, settings.key_prefix)
        #: The store of locks also has the reports of the workers.
        self._locks = LockStore(client, settings.key_prefix)
        self._leader = leader
        self._state = leader.state
        #: Shared with the dispatcher, which gives deadlines to the runs that it sends, but only if
        #: workers record runs. This watch sets in it whether they do.
        self.deadlines = Deadlines(settings.expect, settings.history)
        #: Queues of the workers that report to Redis. Only workers with ``install()`` do.
        self._queues: set[str] = set()
        #: Count of the checks so far.
        self._checks = 0
        #: Kind of incident -> number of the first check in a row that has seen its condition. A
        #: check that does not see the condition removes the kind. An incident opens only when some
        #: checks in a row have seen the condition.
        self._first_seen: dict[Kind, int] = {}
        #: Redis has a line for each incident that was opened or closed (the news). This is the id
        #: of the last line that this process has announced to the hooks. The hooks run in other
        #: threads, so perhaps they have not handled it yet.
        self._announced = NO_LINE
        #: Delivery of the announced incidents to the hooks.
        self._delivery = leader.state.announcer.delivery()
        self.ticker = Ticker(
            "redbeat-lite-incidents",
            lambda: PERIOD,
            self.check,
            "beat: cannot look for incidents",
        )

    def check(self) -> None:
        """Check the runs once, if this process leads.

        A check reads the new ends of runs and the passed deadlines, in pages of a limited size. It
        writes the decision about a page before it reads the next one.
        """
        if not self._leader.holds_lease:
            # A new leader may send runs before its first check. They must get deadlines, so assume
            # that workers record them.
            self.deadlines.workers_record = True
            # When this process leads again, what its checks saw before is out of date.
            self._first_seen.clear()
            return
        self._checks += 1
        try:
            self._read_workers()
            # Each call handles one page, and returns whether to read another one.
            while self._handle_page(self._leader.term):
                pass
        except Lost:
            return  # This process leads no more. The main loop notices that, too, and logs it.

    def _read_workers(self) -> None:
        """Read the reports of the workers that have reported within the last minute."""
        reports = workers(self._locks).values()
        self._queues = {queue for report in reports for queue in report.queues}
        # A worker reports and records runs if its app has called install(), and else does neither.
        self.deadlines.workers_record = bool(reports)

    def _handle_page(self, term: Term) -> bool:
        """Read one page of facts, and write the decision. Return whether to read another at once.

        Incidents are announced when they are read back, and not when they are written. So if this
        leader dies after the write, the next one announces them.
        """
        now = self._leader.clock.now_ms()
        facts = self._incidents.read_facts(now, self._announced)
        entries = self._read_entries(facts, now)
        # If an entry has failed too often, an incident of the kind ``paused`` opens first, so that
        # the hooks hear of it even if this leader dies. Only then is the entry paused. If the
        # decision below opens one, the caller calls this method again at once, which pauses it.
        self._pause_failing(facts, entries, now, term)
        self._state.incidents = facts.open_kinds
        if self._leader.term != term:
            # This process was suspended after it had read the facts. Another leader announces them,
            # and perhaps has announced already that the incidents are over.
            raise Lost
        handled = self._announce(facts)
        decision = self._decide(facts, entries, now)
        # If the decision has opened or closed incidents, read them back at once.
        must_read_back = self._incidents.write_decision(term, facts, decision, handled)
        return must_read_back or facts.more

    def _read_entries(self, facts: Facts, now: int) -> dict[str, Entry]:
        """Read all entries that the facts name, and the entries whose last publish failed.

        The result has no entry that is not stored or cannot be read.
        """
        # Copy the set, because the dispatcher can add names while this method runs.
        unpublished = set(self._state.unpublished)
        names = set(unpublished)
        names.update(end.name for end in facts.ends)
        names.update(deadline.name for deadline in facts.overdue)
        names.update(incident.entry for incident in facts.incidents if incident.entry)
        entries = {}
        for stored in self._store.present(names):
            entry, state = readable_parts(stored, self._app)
            if entry is not None and state is not None:
                # Ignore a pause that has ended, which the stored state can still have.
                entry.state = lifecycle.after_pause(state, now)
                entries[entry.name] = entry
        # Forget the names of entries that are gone, or were published since. The dispatcher adds a
        # name before its commit stores the failure. If an entry is read between the two, its name
        # is forgotten after the first failure. The second failure adds it again, which is in time,
        # because an incident needs ``_ATTEMPTS`` failures.
        failing = {name for name, entry in entries.items() if entry.state.attempts}
        self._state.unpublished.difference_update(unpublished - failing)
        return entries

    def _decide(self, facts: Facts, entries: Mapping[str, Entry], now: int) -> Decision:
        """Decide which incidents open and close."""
        # For the incident ``nobody_records``: when a run last needed a worker that records its end.
        self._update_needed_at(facts, entries, now)
        if not self.deadlines.workers_record:
            # Without records, a run that was in time looks like one that was not. So no deadline
            # opens an incident. The incident ``nobody_records`` says that records are missing.
            facts = facts._replace(overdue=[])
        states = self._states_now(facts, entries, now)
        return Fold(now, facts, entries, states, self.deadlines.default, self._queues).decide()

    def _update_needed_at(self, facts: Facts, entries: Mapping[str, Entry], now: int) -> None:
        """Remember when a run last needed a worker that records its end, and there was none.

        A run needs one if something is expected of it. If its deadline is over, and no worker
        records ends, nobody can tell whether it was in time.

        The incident ``nobody_records`` stays open for a day after this time. The dispatcher updates
        the time, too, for the runs that it sends.
        """
        deadlines = self.deadlines
        if deadlines.workers_record:
            deadlines.needed_at = None
            return
        for deadline in facts.overdue:
            entry = entries.get(deadline.name)
            if entry and expected_of(entry, deadlines.default):
                deadlines.needed_at = now
        if deadlines.needed_at is None and "nobody_records" in facts.open_kinds:
            # An earlier leader has opened the incident, and this one does not know when a run last
            # needed a record. So keep the incident open for a day from now on.
            deadlines.needed_at = now

    def _pause_failing(
        self, facts: Facts, entries: Mapping[str, Entry], now: int, term: Term
    ) -> None:
        """Pause the entries whose runs have failed as often as ``on_failure`` allows.

        An earlier decision has opened the incident ``paused`` of such an entry. The entry stays as
        it is if somebody has paused, resumed or replaced it, or has removed its ``on_failure``,
        since its last failure.
        """
        # Name of an entry that is not paused -> its open incident ``paused``. First the incident
        # opens, and then the entry is paused.
        failing: dict[str, Incident] = {}
        for incident in facts.incidents:
            kind, name = incident.key
            if kind == "paused" and name in entries and not entries[name].state.paused:
                failing[name] = incident

        def edit(stored: Stored) -> Edit | None:
            """Return the edit that pauses an entry; ``None`` if it needs no pause."""
            entry, state = readable_parts(stored, self._app)
            if entry is None or state is None:
                return None
            state = lifecycle.after_pause(state, now)
            incident = failing[entry.name]
            policy = entry.on_failure
            was_replaced = incident.generation != state.generation
            was_resumed = is_forgiven(state, incident.nominal)
            # An edit after the failure can have removed the policy.
            if policy is None or state.paused or was_replaced or was_resumed:
                return None
            note = f"paused after {counted(policy.after, 'failure', 'failures')} in a row"
            return edit_of(
                entry,
                lifecycle.paused(state, note),
                expected=stored.state,
                line=line_of(BEAT, "paused", note),
            )

        self._store.rewrite(failing, edit, term)

    def _states_now(self, facts: Facts, entries: Mapping[str, Entry], now: int) -> dict[Key, str]:
        """Return the incidents that must be open now, as key -> text, except those about runs.

        A key is the kind of the incident and the name of its entry. The name is empty if the
        incident is about the whole schedule.
        """
        states: dict[Key, str] = {}
        for name, entry in entries.items():
            state = entry.state
            if state.attempts >= _ATTEMPTS:
                states["cannot_publish", name] = f"{state.attempts} publishes failed: {state.error}"
        text = "it cannot be used and is set aside; quarantine says why"
        states |= {("quarantined", name): text for name in facts.quarantined}
        seen = self._seen_states(facts, now)
        # Forget a state that this check does not see.
        self._first_seen = {kind: self._first_seen.get(kind, self._checks) for kind in seen}
        for kind, text in seen.items():
            # Count of the checks in a row that have seen the state, with this one.
            checks = self._checks - self._first_seen[kind] + 1
            # An open incident stays open, although a new leader counts its checks from 1.
            if checks >= LASTING or kind in facts.open_kinds:
                states[kind, ""] = text
        return states

    def _seen_states(self, facts: Facts, now: int) -> dict[Kind, str]:
        """Return the states of the whole schedule that this check sees, as kind -> text."""
        seen: dict[Kind, str] = {}
        late = now - facts.first_due
        # While everything is frozen, entries are late on purpose.
        if late > _BEHIND_MS and end_of(facts.freeze) <= now:
            seen["behind"] = f"an entry has been due for {late / 1000:.0f} s"
        # When a run last needed a worker that records its end; ``None`` if there is such a worker.
        needed_at = self.deadlines.needed_at
        if needed_at is not None and now - needed_at < _DAY_MS:
            seen["nobody_records"] = (
                "something is expected of runs, "
                "and no worker that records them has reported for a minute"
            )
        return seen

    def _announce(self, facts: Facts) -> str:
        """Announce to the hooks which incidents were opened or closed.

        This process announces each line of the news once. If its term ends before all hooks have
        handled a line, another leader announces the line again, with the same id of the incident.

        Returns:
            id up to which all hooks have handled the news: ``news_end`` if they have handled all
            lines, else ``handled`` of the facts.
        """
        # The next read takes only the lines after this id.
        self._announced = facts.news_end
        for incident in facts.unannounced:
            self._announce_incident(incident)
        if facts.unannounced:
            # Replace the delivery by one that also includes the events announced just now.
            self._delivery = self._state.announcer.delivery()
        # In a new schedule and after a loss of data, Redis has no such id (``facts.handled``). Then
        # store one at once, although the hooks may not have handled these lines. If the process
        # dies before they do, nobody announces these lines again.
        is_handled = self._delivery.is_complete or not facts.handled
        return facts.news_end if is_handled else facts.handled

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
