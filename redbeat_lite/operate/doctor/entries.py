"""The doctor's look at entries: late, failing, refused, unreadable, of unknown tasks, wanted twice, without a beat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches

from celery import Celery

from ...api.reader import Reader
from ...beat.config_check import differing as stored_otherwise
from ...beat.config_check import left_behind, refused_here
from ...beat.status import OVERDUE_MS, Status
from ...entries.entry import Entry
from ...entries.stored_entry import UNREADABLE, shown_name
from ...entries.words import counted, in_zone, listed
from ...once.canvas import CANVAS, sent
from ...pipeline.definition import Definition
from ...pipeline.keys import START
from ...settings import Settings
from ...storage.store import Store
from ...storage.stored import Stored
from .finding import Finding


def sorted_out(reader: Reader, found: Iterable[Stored]) -> tuple[list[Entry], dict[str, str]]:
    """The entries that can be read, and what is wrong with the others, by their names."""
    entries, wrong = [], {}
    for stored in found:
        try:
            entries.append(reader.entry(stored))
        except UNREADABLE as exc:
            wrong[shown_name(stored)] = str(exc)
    return entries, wrong


def unreadable(wrong: Mapping[str, str]) -> Iterator[Finding]:
    """Entries that nobody can read, the beat neither; ``wrong`` says what is wrong, by their names."""
    if wrong:
        yield Finding(
            "unreadable",
            "error",
            f"{counted(len(wrong), 'entry', 'entries')} cannot be read: {listed(wrong)}",
            "They do not run. The beat quarantines each when it is due, but keeps those whose "
            f"schedule class it does not know. The first one: {next(iter(wrong.values()))}.",
            "Add them anew, or restore them from a backup. Those of a newer redbeat_lite need that version here.",
            tuple(wrong),
        )


def frozen(app: Celery, status: Status) -> Iterator[Finding]:
    """Freezes of everything, and those that hold for more than a week to come."""
    for each in status.freezes:
        if each.selection.is_all or each.until - status.now > timedelta(days=7):
            yield Finding(
                "freeze",
                "warning",
                f"{each.selection}: frozen by {each.actor} until {in_zone(each.until, app.timezone)}",
                "Nothing of it runs by itself until then.",
                f"Nothing, if that is meant; else: celery -A ... redbeat thaw {each.id}",
            )


def overdue(app: Celery, status: Status, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Entries whose time has come long ago, or nobody who would send them.

    On a server that is new, or was flushed, nothing is stored before a beat leads.
    """
    if status.leader is None and (status.entries or app.conf.beat_schedule):
        last = "no beat has ever led" if status.silence is None else f"a leader last ticked {status.silence:.0f} s ago"
        yield Finding(
            "leader",
            "error",
            f"no beat leads; {last}",
            "Nothing is sent.",
            "Start a beat: celery -A proj beat -S redbeat_lite.Scheduler. If one runs, look at its log.",
        )
    if not status.overdue:
        return
    now = status.now.timestamp() * 1000
    late = tuple(entry.name for entry in entries if entry.due is not None and now - entry.due > OVERDUE_MS)
    trouble = status.leader.why if status.leader is not None and status.leader.failing_for is not None else ""
    yield Finding(
        "overdue",
        "error",
        f"{counted(status.overdue, 'entry is', 'entries are')} overdue, the first one by {status.lag:.0f} s"
        + (f": {listed(late)}" if late else ""),
        "They should have been sent by now.",
        f"The leading beat says: {trouble}." if trouble else "Look at status, and at the log of the leading beat.",
        late,
    )


def failing(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Entries whose last publish failed, as ``list --status failing`` has them."""
    errors = {entry.name: entry.last_error for entry in entries if entry.last_error is not None}
    if errors:
        yield Finding(
            "failing",
            "warning",
            f"{counted(len(errors), 'entry', 'entries')} cannot be published: {listed(errors)}",
            "Their runs stay due and are tried again, at least once a minute; the others are sent. The first one: "
            f"{next(iter(errors.values()))}.",
            "Mend what the error names: arguments, options or queue of the entry, or a signal handler of the app. "
            "celery -A ... redbeat show NAME has the error of each.",
            tuple(errors),
        )


def quarantined(store: Store) -> Iterator[Finding]:
    """Entries that were set aside."""
    found = store.quarantined()
    if found:
        first = next(iter(found))
        yield Finding(
            "quarantine",
            "error",
            f"{counted(len(found), 'entry is', 'entries are')} in quarantine: {listed(found)}",
            f"They could not be used and do not run. The first one: {found[first].get('error')}.",
            "Mend the cause, then release them, or add them anew.",
            tuple(found),
        )


def unregistered(app: Celery, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Tasks that this app does not know."""
    by_task = defaultdict(list)
    for entry in entries:
        for task in sorted(sent(entry.task, entry.args) - app.tasks.keys()):
            by_task[task].append(entry.name)
    for task, names in by_task.items():
        known = [each for each in app.tasks if not each.startswith("celery.")]
        near = get_close_matches(task, known, n=1, cutoff=0.8)  # of those of one module half of each name is alike
        hint = "Call install(app). " if task == CANVAS else f"Did you mean {near[0]!r}? " if near else ""
        yield Finding(
            "task",
            "warning",
            f"{listed(names)} {'sends' if len(names) == 1 else 'send'} {task!r}, which is no task of this app",
            "A worker of this app throws such a message away, with an error in its log.",
            f"{hint}Correct the name, or import the task's module; nothing, if workers of another app run it.",
            tuple(names),
        )


def overlapping(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Entries whose once-lock looks as if the runs of their pipelines could not overlap, which they may."""
    names = [entry.name for entry in entries if entry.once is not None and entry.task == START and _overlaps(entry)]
    if names:
        yield Finding(
            "overlap",
            "warning",
            f"{counted(len(names), 'entry starts a pipeline and has', 'entries start pipelines and have')} a "
            f"once-lock: {listed(names)}",
            "It keeps one start at a time queued; the run that is started goes on beside the one before.",
            'Make the pipeline with overlap="skip" or overlap="wait", and take once from the entry.',
            tuple(names),
        )


def _overlaps(entry: Entry) -> bool:
    try:
        return Definition.decode(str(entry.kwargs["definition"])).overlap == "allow"
    except (*UNREADABLE, LookupError):  # its start will say so
        return False


def refused(
    app: Celery, settings: Settings, store: Store, status: Status, missing: Mapping[str, Entry | None]
) -> Iterator[Finding]:
    """Config entries that are refused: by the beat that leads; and of this app, by a look at them, if none of it does.

    ``missing`` are those that are not stored, with who has their names; :func:`clashes` tells of those.
    """
    told = status.refused
    clashing = {name for name, existing in missing.items() if existing is not None}
    if status.leader is not None:
        errors = {name: error for name, error in told.errors.items() if name not in clashing}
        yield from _refused(told.owner, errors, told.count - len(told.errors) + len(errors))
    if status.leader is None or told.owner != settings.owner:
        errors = refused_here(app, store, settings)
        yield from _refused(settings.owner, errors, len(errors))


def _refused(owner: str, errors: Mapping[str, str], count: int) -> Iterator[Finding]:
    if errors:
        yield Finding(
            "refused",
            "error",
            f"{counted(count, 'config entry', 'config entries')} of {owner!r} refused: {listed(errors)}",
            "They do not run; one that was right before goes on as it was stored then. The first one: "
            f"{next(iter(errors.values()))}.",
            "Mend them in beat_schedule, and restart the beat.",
            tuple(errors),
        )


def clashes(settings: Settings, store: Store, status: Status, missing: Mapping[str, Entry | None]) -> Iterator[Finding]:
    """Config entries of this app that are not stored: somebody else has the name, or another app's beat leads.

    ``missing`` says who has their names, ``None`` where nobody has.
    """
    taken: dict[str | None, list[str]] = defaultdict(list)
    waiting = []
    for name, existing in missing.items():
        if existing is None:
            waiting.append(name)
        else:
            taken[existing.owner].append(name)
    for owner, names in taken.items():
        whose = "are runtime entries" if owner is None else f"belong to the configuration of {owner!r}"
        yield Finding(
            "clash",
            "error",
            f"{counted(len(names), 'name', 'names')} of beat_schedule {whose} in Redis: {listed(names)}",
            f"The entries of {settings.owner!r} by these names are refused.",
            "Rename one of the two, or remove the one in Redis. Apps that share a prefix need names of their own.",
            tuple(names),
        )
    held = store.quarantined() if waiting else {}
    waiting = [name for name in waiting if name not in held]
    if waiting and status.leader is not None and status.leader.owner != settings.owner:
        yield Finding(
            "not-stored",
            "warning",
            f"{counted(len(waiting), 'entry', 'entries')} of beat_schedule not stored: {listed(waiting)}",
            f"A beat of {status.leader.owner!r} leads, which does not know them; they run once one of "
            f"{settings.owner!r} leads.",
            "Nothing, if the two apps are to share a schedule. Else give each a redbeat_lite_key_prefix of its own.",
            tuple(waiting),
        )


def differing(app: Celery, settings: Settings, store: Store, status: Status) -> Iterator[Finding]:
    """Config entries that differ between this process and what the leader has stored."""
    leader = status.leader
    if leader is None or leader.owner != settings.owner:
        return
    names = tuple(sorted(stored_otherwise(app, store, settings)))
    if names:
        yield Finding(
            "configuration",
            "warning",
            f"{counted(len(names), 'entry', 'entries')} of beat_schedule differ here from what the leader, pid "
            f"{leader.pid} on {leader.host}, has stored: {listed(names)}",
            "The leader runs another release, has other settings, or its code gives entries to its "
            "Scheduler. Its configuration counts while it leads.",
            "Restart the beats that have the old configuration. Nothing, if only this process has it.",
            names,
        )


def unattended(settings: Settings, store: Store, status: Status) -> Iterator[Finding]:
    """Config entries of which no beat is there that knows them."""
    for owner, names in left_behind(store, {*status.owners(), settings.owner}).items():
        yield Finding(
            "owner",
            "warning",
            f"{counted(len(names), 'entry', 'entries')} of the configuration of {owner!r} without a beat of "
            f"{owner!r}: {listed(names)}",
            "They go on as they were stored last. If the app was renamed, nobody will ever change or remove them.",
            f"Nothing, if that beat is only down. Else set redbeat_lite_owner = {owner!r}, or remove each that is not "
            "wanted: celery -A ... redbeat remove NAME.",
            tuple(names),
        )
