"""Checks of the doctor for entries: their definitions, owners, last runs, and runs to come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from itertools import chain

from celery import Celery

from .._base.clock import wall_ms
from .._base.times import from_ms, in_zone
from ..beat.config_check import left_behind
from ..beat.status import OVERDUE_MS
from ..entries.canvas import CANVAS, sent_tasks
from ..entries.entry import Entry
from ..entries.words import counted, listed
from ..rules.celery_schedules import AnsweringRule, ForeignRule
from ..rules.cron import either_day_words
from ..runs.run_store import RunStore
from ..store.records import PAGE, chunks
from .examination import Finding, Subject

#: A calendar that ends within this time is reported.
_SOON = timedelta(days=60)

#: If at least this many entries run next at one instant, they are reported.
CROWD = 20

_MINUTE = 60_000  # ms


def unreadable(subject: Subject) -> Iterator[Finding]:
    """Report entries that cannot be read."""
    errors = subject.unreadable
    if errors:
        yield Finding(
            "unreadable",
            "error",
            f"{counted(len(errors), 'entry', 'entries')} cannot be read: {listed(errors)}",
            "They do not run. The beat quarantines each when it is due, unless it only lacks the "
            f"schedule class. The first one: {next(iter(errors.values()))}.",
            "Add them again, or restore them from a backup. If a newer redbeat_lite has stored "
            "them, install it here.",
            tuple(errors),
        )


def freeze(subject: Subject) -> Iterator[Finding]:
    """Find a freeze, which keeps all entries from running until it ends."""
    present = subject.status.freeze
    if present is not None:
        until = in_zone(present.until, subject.app.timezone)
        yield Finding(
            "freeze",
            "warning",
            f"all entries are frozen by {present.actor} until {until}",
            "They do not run by themselves until then.",
            "Nothing, if you intend this. To end it: celery -A ... redbeat thaw",
        )


def leaderless(subject: Subject) -> Iterator[Finding]:
    """Find a schedule without a leader.

    An app without any entry needs no leader. Entries that are only in ``beat_schedule`` count, too,
    because a new or flushed server stores none before a beat leads.
    """
    status = subject.status
    if status.leader is not None or not (status.entries or subject.app.conf.beat_schedule):
        return
    last = "no beat has ever led"
    if status.silence is not None:
        last = f"a leader last ticked {status.silence:.0f} s ago"
    yield Finding(
        "leader",
        "error",
        f"no beat leads; {last}",
        "Nothing is sent.",
        "Start a beat: celery -A proj beat -S redbeat_lite.Scheduler. If one runs, look at its "
        "log.",
    )


def overdue(subject: Subject) -> Iterator[Finding]:
    """Find overdue entries, whose due time passed more than ``OVERDUE_MS`` ago."""
    status = subject.status
    if not status.overdue:
        return
    # An entry that was due before this instant is overdue.
    bound = status.now.timestamp() * 1000 - OVERDUE_MS
    names = tuple(
        entry.name for entry in subject.entries if entry.due is not None and entry.due < bound
    )
    what = f"{counted(status.overdue, 'entry is', 'entries are')} overdue, the first one by "
    what += f"{status.lag:.0f} s"
    if names:
        what += f": {listed(names)}"
    todo = "Look at status, and at the log of the leading beat."
    if status.leader is not None and status.leader.why:
        todo = f"The leading beat says: {status.leader.why}."
    yield Finding("overdue", "error", what, "They should have been sent by now.", todo, names)


def failing(subject: Subject) -> Iterator[Finding]:
    """Find entries whose last publish failed.

    The command ``redbeat list --status failing`` lists the same entries.
    """
    # ``last_error`` is the error of the last publish; ``None`` if that succeeded.
    errors = {
        entry.name: entry.last_error for entry in subject.entries if entry.last_error is not None
    }
    if errors:
        yield Finding(
            "failing",
            "warning",
            f"{counted(len(errors), 'entry', 'entries')} cannot be published: {listed(errors)}",
            "Their runs stay due and are tried again, at least once a minute; the others are sent. "
            f"The first one: {next(iter(errors.values()))}.",
            "Mend what the error names: arguments, options or queue of the entry, or a signal "
            "handler of the app. celery -A ... redbeat show NAME has the error of each.",
            tuple(errors),
        )


def quarantined(subject: Subject) -> Iterator[Finding]:
    """Find entries in quarantine: the beat could not use them, and has set them aside."""
    quarantine = subject.store.quarantined()
    if quarantine:
        first = next(iter(quarantine.values()))
        yield Finding(
            "quarantine",
            "error",
            f"{counted(len(quarantine), 'entry is', 'entries are')} in quarantine: "
            f"{listed(quarantine)}",
            f"They could not be used and do not run. The first one: {first.get('error')}.",
            "Mend the cause, then release them, or add them again.",
            tuple(quarantine),
        )


def unregistered(subject: Subject) -> Iterator[Finding]:
    """Find entries that send a task which is not registered in this app.

    A canvas sends several tasks.
    """
    app = subject.app
    entries_by_task = defaultdict(list)
    for entry in subject.entries:
        for task in sorted(sent_tasks(entry.task, entry.args) - app.tasks.keys()):
            entries_by_task[task].append(entry.name)
    for task, names in entries_by_task.items():
        verb = "sends" if len(names) == 1 else "send"
        yield Finding(
            "task",
            "warning",
            f"{listed(names)} {verb} {task!r}, which is no task of this app",
            "A worker of this app throws such a message away, with an error in its log.",
            f"{_task_hint(app, task)}Correct the name, or import the task's module; nothing, if "
            "workers of another app run it.",
            tuple(names),
        )


def _task_hint(app: Celery, task: str) -> str:
    """Return a sentence that helps with an unknown task, with a space at its end.

    The result is empty if no task of the app has a similar name.
    """
    if task == CANVAS:
        return "Call install(app). "  # This registers the task that sends a canvas.
    names = [name for name in app.tasks if not name.startswith("celery.")]
    # With a lower cutoff, all tasks of one module would be similar, because of the module's name.
    similar = get_close_matches(task, names, n=1, cutoff=0.8)
    return f"Did you mean {similar[0]!r}? " if similar else ""


def failed_runs(subject: Subject) -> Iterator[Finding]:
    """Find entries of which a run has failed since their last success.

    The command ``redbeat list --status failed`` lists the same entries.
    """
    # Entries that have never run cannot have failed.
    names = [entry.name for entry in subject.entries if entry.state.count]
    store = subject.store
    runs = RunStore(store.backend.client, store.keys.prefix)
    failed = tuple(name for page in chunks(names, PAGE) for name in runs.failed(page))
    if failed:
        yield Finding(
            "outcomes",
            "note",
            f"{counted(len(failed), 'entry has', 'entries have')} failed and not succeeded since: "
            f"{listed(failed)}",
            "Runs were sent, but they failed, expired or were lost.",
            "celery -A ... redbeat runs NAME shows the errors. To be alerted at once, set "
            "`expect` or `on_failure` of the entry.",
            failed,
        )


def refused(subject: Subject) -> Iterator[Finding]:
    """Find config entries, those of ``beat_schedule``, that a beat refuses.

    An owner is an app that has config entries. The leading beat has reported which ones of its
    owner it refuses. If the leader belongs to another owner, or if nobody leads, also find those of
    this app that a beat of this app would refuse.
    """
    errors_by_owner: dict[str, Mapping[str, str]] = {
        subject.settings.owner: subject.differences.refused
    }
    if subject.status.leader is not None:
        reported = subject.status.refused
        errors_by_owner[reported.owner] = reported.errors  # A leader reports at most 100.
    for owner, errors in errors_by_owner.items():
        if errors:
            yield Finding(
                "refused",
                "error",
                f"{counted(len(errors), 'config entry', 'config entries')} of {owner!r} refused: "
                f"{listed(errors)}",
                "They do not run; one that was right before goes on as it was stored then. "
                f"The first one: {next(iter(errors.values()))}.",
                "Mend them in beat_schedule, and restart the beat. Of a name that is taken, rename "
                "one of the two entries, or remove the one in Redis.",
                tuple(errors),
            )


def differing(subject: Subject) -> Iterator[Finding]:
    """Find config entries that the leader has not stored, or not as this app has them."""
    leader = subject.status.leader
    if leader is None:
        return
    owner = subject.settings.owner
    missing = tuple(subject.differences.missing)
    names = tuple(subject.differences.differing_names)
    # A beat of another app does not know this configuration.
    if leader.owner != owner and missing:
        yield Finding(
            "not-stored",
            "warning",
            f"{counted(len(missing), 'entry', 'entries')} of beat_schedule not stored: "
            f"{listed(missing)}",
            f"A beat of {leader.owner!r} leads, which does not know them; they run once one of "
            f"{owner!r} leads.",
            "Nothing, if the two apps share a schedule. Otherwise give each a "
            "redbeat_lite_key_prefix of its own.",
            missing,
        )
    elif leader.owner == owner and names:
        yield Finding(
            "configuration",
            "warning",
            f"{counted(len(names), 'entry', 'entries')} of beat_schedule differ here from what the "
            f"leader, {leader}, has stored: {listed(names)}",
            "The leader runs another release, has other settings, or its code gives entries to its "
            "Scheduler. Its configuration counts while it leads.",
            "Restart the beats that have the old configuration. Nothing, if only this process has "
            "it.",
            names,
        )


def unattended(subject: Subject) -> Iterator[Finding]:
    """Find config entries whose owner, the app that has configured them, has no running beat.

    The owner of this app is left out, because other checks are about its beat.
    """
    owners = {*subject.status.owners(), subject.settings.owner}
    # left_behind() returns the config entries of all owners except these.
    for owner, names in left_behind(subject.store, owners).items():
        yield Finding(
            "owner",
            "warning",
            f"{counted(len(names), 'entry', 'entries')} of the configuration of {owner!r} without "
            f"a beat of {owner!r}: {listed(names)}",
            "They go on as they were stored last. If the app was renamed, nobody will ever change "
            "or remove them.",
            f"Nothing, if that beat is only down. Otherwise set redbeat_lite_owner = {owner!r}, or "
            "remove each that is not wanted: celery -A ... redbeat remove NAME.",
            tuple(names),
        )


def calendars(subject: Subject) -> Iterator[Finding]:
    """Find calendars in use that end soon, and entries with an old revision of a calendar.

    A calendar has the days on which its entries do not run.
    """
    soon = from_ms(wall_ms()).date() + _SOON
    for name, calendar in subject.store.calendars().items():
        users = [entry for entry in subject.entries if entry.calendar_name == name]
        names = tuple(entry.name for entry in users)
        # An entry has a copy of its calendar, which may be an old revision.
        behind = tuple(entry.name for entry in users if entry.calendar != calendar)
        command = f"celery -A ... redbeat calendars set {name} …"
        if names and calendar.until < soon:
            yield Finding(
                "calendar-ends",
                "warning",
                f"calendar {calendar} has days until {calendar.until}, and is used by "
                f"{counted(len(names), 'entry', 'entries')}: {listed(names)}",
                "After that they run every day.",
                f"Store it with later days: {command}",
                names,
            )
        if behind:
            yield Finding(
                "calendar-behind",
                "warning",
                f"calendar {calendar} is stored, and another revision is used by "
                f"{counted(len(behind), 'entry', 'entries')}: {listed(behind)}",
                "They may leave out other days than the calendar says.",
                f"Store it again: {command}",
                behind,
            )


def either_day(subject: Subject) -> Iterator[Finding]:
    """Find cron entries with both day fields, because many users expect that both must match."""
    rules: dict[str, str] = {}
    for entry in subject.entries:
        words = either_day_words(entry.schedule)
        if words is not None:
            rules[entry.name] = words
    if rules:
        yield Finding(
            "either-day",
            "warning",
            f"{counted(len(rules), 'entry runs', 'entries run')} if day of month or day of week "
            f"matches: {listed(rules)}",
            "In cron either day is enough, so they may run far more often than you expect.",
            "Nothing, if you intend this; two entries are clearer. The first one: "
            f"{next(iter(rules.values()))}.",
            tuple(rules),
        )


def hot_spots(subject: Subject) -> Iterator[Finding]:
    """Find instants at which many entries run next.

    Entries with jitter are not counted, because they spread their runs. Entries that run each
    minute are not counted, because they cause the same load at any time. An entry with a user's own
    schedule class is counted, because this check does not ask the class how often it runs.
    """
    zone = subject.app.timezone
    names_at: dict[int, list[str]] = defaultdict(list)
    for entry in subject.entries:
        due = entry.due
        if due is not None and not entry.jitter and not _runs_each_minute(entry, due):
            names_at[due].append(entry.name)
    crowds = [(instant, names) for instant, names in names_at.items() if len(names) >= CROWD]
    if not crowds:
        return
    # The largest crowd comes first, and of crowds of equal size the earliest.
    crowds.sort(key=lambda crowd: (-len(crowd[1]), crowd[0]))
    times = [f"{len(names)} at {from_ms(at).astimezone(zone):%H:%M}" for at, names in crowds]
    entries = tuple(chain.from_iterable(names for _, names in crowds))
    more = f" and at {len(times) - 5} more" if len(times) > 5 else ""
    yield Finding(
        "hot-spot",
        "note",
        f"{counted(len(entries), 'entry runs', 'entries run')} next at the same times, without "
        f"jitter: {', '.join(times[:5])}{more}",
        "Workers, databases and whatever the tasks call get all of it at once.",
        "Give entries that need not be so exact a jitter, such as jitter=300, or minutes of their "
        "own: H in cron.",
        entries,
    )


def _runs_each_minute(entry: Entry, due: int) -> bool:
    """Return whether an entry that is due at an instant is due again within a minute."""
    if isinstance(entry.rule, ForeignRule | AnsweringRule):
        return False  # The code of a user may be slow to answer, or raise an error.
    following = entry.rule.next_ms(due)
    return following is not None and following - due <= _MINUTE


#: The checks of this module, in the order in which findings of equal severity are listed.
CHECKS = (
    leaderless,
    overdue,
    freeze,
    failing,
    unreadable,
    quarantined,
    unregistered,
    refused,
    differing,
    unattended,
    either_day,
    hot_spots,
    calendars,
    failed_runs,
)
