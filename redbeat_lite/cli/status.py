"""``status``: how the beats fare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import tzinfo

import click
from celery import Celery

from ..beat.config_check import differing
from ..beat.status import LeaderStatus, StandBy, Status
from ..beat.status import status as ask
from ..clock import CLOCK_OFF
from ..entries.words import counted, listed, span
from ..settings import Settings
from ..storage.refused import Refused
from ..storage.store import Store
from .command import Command, Length, app_of, json_option
from .output import distance, echo_fields, echo_json, when


@click.command(cls=Command)
@click.option("--timeout", type=Length(0.1), default="5s", show_default=True, help="How long the server is waited for.")
@json_option
def status(ctx: click.Context, timeout: float) -> None:
    """Show who leads, who stands by, and whether anything is late.

    SENT, FAILED and LEFT OUT count from when the leader's process first led. LAG is how late the first entry in line
    is; OVERDUE are those that are late by more than a second. REFUSED are entries of beat_schedule with which something
    is wrong. DIFFERING are those that the leader has stored with another definition than this app.

    \b
    Examples:
      celery -A proj redbeat status
      celery -A proj redbeat status --json
    """
    app = app_of(ctx)
    found = ask(app, timeout=timeout)
    names = _differing(app, found, timeout)
    echo_json({**_as_json(found), "differing": names})
    rows = [*lines(found, app.timezone)]
    if names:
        which = counted(len(names), "entry", "entries")
        what = f"the leader has stored other definitions of {which}: {listed(names)}"
        rows.append(("differing", what))
    echo_fields(rows)


def _differing(app: Celery, found: Status, timeout: float) -> list[str]:
    """Return the names of config entries that differ from what a leader of this owner stored."""
    settings = Settings.from_app(app)
    if found.leader is None or found.leader.owner != settings.owner:
        return []
    store = Store.of(settings, timeout=timeout)
    try:
        return sorted(differing(app, store, settings))
    finally:
        store.backend.close()


def _as_json(found: Status) -> dict[str, object]:
    fields = asdict(found)
    fields["stand_bys"] = [
        {"host": each.host, "pid": each.pid, "owner": each.owner} for each in found.standbys if each.well
    ]
    del fields["standbys"]
    fields["freezes"] = [each._asdict() for each in found.freezes]
    return fields


def lines(found: Status, zone: tzinfo) -> Iterator[tuple[str, object]]:
    """How the beats fare, by label."""
    leader = found.leader
    if leader is None:
        yield "leader", "nobody leads"
    else:
        yield from _of_leader(leader, found, zone)
    yield "stand-bys", ", ".join(_place(each) for each in found.standbys if each.well) or "none"
    yield "last tick", "never" if found.last_tick is None else distance(found.last_tick, found.now)
    yield "lag", span(found.lag)
    yield "overdue", found.overdue
    yield "entries", found.entries
    yield "quarantined", found.quarantined
    yield "workers", f"{len(found.clocks)} with install()"
    yield "refused", "\n".join(_of_refused(found.refused))
    for each in found.freezes:
        yield "frozen", f"{each.selection}, until {when(each.until, zone)} ({distance(each.until, found.now)})"
    if found.freezes:
        waiting = found.messages
        messages = "messages: not known" if waiting is None else counted(waiting, "message waits", "messages wait")
        yield "goes on", f"{messages}; {counted(found.pipelines, 'run', 'runs')} of pipelines"
    for worker, ahead in sorted(found.clocks.items()):
        if abs(ahead) >= CLOCK_OFF:
            yield "clock", f"that of worker {worker} is {span(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"


def _of_refused(refused: Refused) -> Iterator[str]:
    yield str(refused.count)
    for name, error in refused.errors.items():
        yield f"{name!r}: {error}"
    if refused.count > len(refused.errors):
        yield f"and {refused.count - len(refused.errors)} more"


def _of_leader(leader: LeaderStatus, found: Status, zone: tzinfo) -> Iterator[tuple[str, object]]:
    yield "leader", _place(leader)
    yield "since", f"{when(leader.since, zone)} ({distance(leader.since, found.now)}), term {leader.term}"
    yield "sent", leader.sent
    yield "not sent", leader.failed
    yield "left out", leader.skipped
    yield "dispatch", leader.dispatch or "nothing was sent yet"
    if leader.backfill_left:
        yield "backfills", f"{leader.backfill_left} left to send"
    if leader.failing_for is not None:
        yield "trouble", f"{leader.why}, for {span(leader.failing_for)}"


def _place(beat: LeaderStatus | StandBy) -> str:
    return f"pid {beat.pid} on {beat.host}"
