"""Pages that show the beats, the entries, their runs and the changes.

Each page is read once for all visitors who look at it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from .._base.clock import wall_ms
from .._base.errors import EntryNotFound
from .._base.times import MAX_MS, from_ms, to_ms
from ..api.run_history import OUTCOMES, RunQuery
from ..beat.status import read
from ..entries.as_json import entry_fields
from ..entries.entry import STATUSES, Entry
from ..entries.freezes import Freezes
from ..entries.last_runs import with_sent
from ..entries.selection import Selection, is_pattern, matches
from ..operate.coming_runs import next_runs
from ..operate.option_values import parse_span
from ..operate.texts import entry_lines, status_lines, value_text
from ..operate.why import explain
from ..operate.why_case import gather
from ..runs.run import NOT_DONE, Run
from ..store.changes import OF_OTHERS, Change
from .actions import BULK_ACTIONS
from .call import Call, EntryFilter, SharedParts
from .editing import ARGUMENTS, visible_arguments
from .http import Response
from .rendering import link

#: Time that the first page looks ahead.
_AHEAD = timedelta(minutes=15)

#: Most runs to come on the first page.
_COMING = 30

#: Most incidents that the first page counts.
_INCIDENTS = 1000

#: Entries on a page of the list.
_ENTRIES = 50

#: Last outcomes of each entry in the list.
_OUTCOMES_SHOWN = 15

#: Runs, and changes, on the page of an entry.
_PAST = 20

#: Runs to come on the page of an entry.
_NEXT = 10

#: Fields that the page of an entry shows in places of their own.
_SHOWN_APART = (
    "name",
    "task",
    "status",
    "next run",
    "last run",
    "last error",
    "description",
    "params",
    *ARGUMENTS,
)

#: States that the filter of the list offers.
_STATES = (*STATUSES, "failing", "failed")

#: States of entries that will not fire by themselves.
_PARKED = ("paused", "finished", "disabled", "manual")

#: Runs on a page.
_RUNS = 100

#: Ends of runs that the page looks through for one outcome.
_ENDS = 1500

#: Ends of runs that the page looks through for some entries.
_ENDS_OF_SOME = 1000

#: Choices of the page of runs -> the outcomes that they show.
_OUTCOMES = {"failed": NOT_DONE, "expired": ("expired",), "lost": ("lost",)}

#: Changes on a page.
_LINES = 100

#: Changes that a filter looks through. 1,000 take one round trip.
_LOOKED_AT = 2000

#: Changes whose entry is gone or never existed, so its name is no link.
_GONE = ("removed", "discarded", "quarantined", *OF_OTHERS)


def now(call: Call) -> Response:
    """Show the leader, the open incidents and the next runs."""
    data = call.read(_now)
    summary = []
    for label, value in data["summary"]:
        if label == "refused":
            value = call.visible_error(str(value))
        summary.append((label, value))
    return call.page("now.html", **{**data, "summary": summary})


def _now(site: SharedParts) -> dict[str, Any]:
    """Read the data of the first page."""
    beats = read(site.store)
    until = datetime.now(UTC) + _AHEAD
    coming = site.schedules.soonest(until, _COMING, freezes=Freezes(beats.freezes))
    return {
        "beats": beats,
        # The page has a table of freezes.
        "summary": [field for field in status_lines(beats, site.zone) if field[0] != "frozen"],
        "incidents": site.schedules.incidents(limit=_INCIDENTS),
        "coming": coming,
        "most": _COMING,
    }


def entries(call: Call) -> Response:
    """Show a page of the entries that the filter leaves."""
    entry_filter = call.filter
    (state,) = call.texts("state")
    text = call.params.get("offset", "")
    offset = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    data = call.read(_entries, entry_filter, state, offset)
    words = entry_filter.words()
    if state == "failed":
        words.append("--failed")
    elif state in _STATES:
        words += ["--status", state]
    return call.page(
        "entries.html",
        states=_STATES,
        parked=_PARKED,
        offset=offset,
        size=_ENTRIES,
        bulk=[name for name, action in BULK_ACTIONS.items() if call.may(action.right)],
        # The command line cannot select entries by a state.
        selects=any(entry_filter) and not state,
        words=words,
        **data,
    )


def _entries(
    site: SharedParts,
    entry_filter: EntryFilter,
    state: str,
    offset: int,
) -> dict[str, Any]:
    """Read a page of entries; without a filter, only the entries of that page."""
    schedules = site.schedules
    looked_at = None
    if not (any(entry_filter) or state):
        total, freezes, _ = site.store.count_and_freezes()
        stored = schedules.list(offset, _ENTRIES + 1)
        page = [*schedules.freezes.marked(stored, Freezes.of(freezes))]
    else:
        filtered = entry_filter.select(schedules)
        sample = filtered.sample(parked=state in _PARKED, failed=state == "failed")
        marked = schedules.freezes.marked(sample, sample.freezes)
        left = (entry for entry in marked if _has_state(entry, state))
        page = [*islice(left, offset, offset + _ENTRIES + 1)]
        total = sample.total
        if not sample.complete:
            looked_at = sample.looked_at
    more = len(page) > _ENTRIES
    del page[_ENTRIES:]
    schedules.load_runs(page)
    instant = wall_ms()
    history = site.settings.history
    rows = []
    for entry in page:
        runs = with_sent(entry, entry.rows, history, instant, _OUTCOMES_SHOWN)
        rows.append((entry, runs[::-1]))
    return {"rows": rows, "more": more, "total": total, "looked_at": looked_at}


def _has_state(entry: Entry, state: str) -> bool:
    if state == "failing":
        return entry.last_error is not None
    # The sample for "failed" has no other entries.
    return state in ("", "failed", entry.status)


def entry(call: Call) -> Response:
    """Show one entry: its definition, its runs before and after now, and the actions.

    An entry that is gone has a page that says who removed it.
    """
    name = call.name
    more = call.params.get("more", "")
    try:
        data = call.read(_entry, name, more)
    except EntryNotFound:
        if more == "why":
            raise
        # The explanation knows entries that are gone, too.
        return Response.redirect(link("entry", name=name, more="why"))
    if data["entry"] is None:
        return call.page("gone.html", 404, **data)
    visible = visible_arguments(call, entry_fields(data["entry"]))
    arguments = {field: value_text(value) for field, value in visible.items()}
    return call.page("entry.html", arguments=arguments, more=more, **data)


def _entry(site: SharedParts, name: str, more: str) -> dict[str, Any]:
    """Read the data of one entry's page.

    Parameters:
        more: ``"why"`` or ``"changes"`` to read these, too.
    """
    if more == "why":
        case = gather(site.app, name, datetime.now(UTC), site.zone, site.store)
        entry = case.entry
        freezes = Freezes(case.freezes)
        data: dict[str, Any] = {
            "runs": [*case.runs[:_PAST]],
            "changes": [*case.changes[:_PAST]],
            "why": explain(case, None),
        }
        if entry is None:
            return {"entry": None, "quarantined": case.quarantine is not None, **data}
    else:
        changes = _PAST if more == "changes" else 0
        record = site.schedules.record_of(name, runs=_PAST, changes=changes)
        entry = record.entry
        freezes = record.freezes
        data = {"runs": record.runs, "changes": record.changes, "why": None}
    fields = entry_lines(entry, site.zone)
    return {
        "entry": entry,
        "fields": [field for field in fields if field[0] not in _SHOWN_APART],
        "coming": next_runs(entry, site.zone, freezes, _NEXT),
        **data,
    }


def runs(call: Call) -> Response:
    """Show the last runs, or those between two instants; of all entries, of some, or of one."""
    outcome = call.params.get("outcome", "")
    names = ("q", "task", "since", "until")
    texts = {name: text for name, text in zip(names, call.texts(*names), strict=True) if text}
    data = call.read(_runs, outcome, *call.texts(*names))
    words = []
    if outcome == "failed":
        words.append("--failed")
    elif outcome in _OUTCOMES:
        words += ["--outcome", outcome]
    words += ["--limit", str(_RUNS)]
    for name in names[1:]:
        if name in texts:
            words += [f"--{name}", texts[name]]
    return call.page(
        "runs.html",
        outcomes=_OUTCOMES,
        outcome=outcome,
        most=_RUNS,
        looked_at=_ENDS,
        words=words,
        texts=texts,
        **data,
    )


def _runs(
    site: SharedParts,
    outcome: str,
    name: str,
    task: str,
    since_text: str,
    until_text: str,
) -> dict[str, Any]:
    """Read the last runs of one entry, or of all entries that the filter selects."""
    outcomes = _OUTCOMES.get(outcome, OUTCOMES)
    fields = ("since", "until")
    since, until = parse_span(fields, since_text or None, until_text or None, site.zone)
    if name and not task and not is_pattern(name):
        one = name
        ends = _RUNS
        shown = list[Run]()
        with suppress(EntryNotFound):
            shown = site.schedules.runs(name, since=since, until=until, limit=_RUNS)
    else:
        one = None
        ends = _RUNS
        if name or task:
            ends = _ENDS_OF_SOME
        elif outcome in _OUTCOMES:
            ends = _ENDS
        query = RunQuery.of(None, since, until, ends)
        shown = site.schedules.run_history.of_all(query, None, looked_at=_ENDS)
        if name or task:
            shown = _of_entries(site, shown, name, task)
    shown = [run for run in shown if run.outcome in outcomes][:_RUNS]
    return {"one": one, "ends": ends, "runs": shown}


def _of_entries(site: SharedParts, runs: list[Run], name: str, task: str) -> list[Run]:
    """Return the runs of the entries that a pattern of names and one of tasks select."""
    names = {run.name for run in runs}
    pattern = name or "*"
    if name in names:
        # An entry may be named like a pattern; then the page shows that entry alone.
        pattern = Selection.one(name).name
    selected = {*site.schedules.select(pattern, task=task or None).among(names).names()}
    return [run for run in runs if run.name in selected]


def changes(call: Call) -> Response:
    """Show a page of the changes that the filter leaves, the newest first."""
    name, actor, text = call.texts("q", "by", "until")
    until = None
    if text.isascii() and text.isdigit() and len(text) < 16:
        until = min(int(text), MAX_MS)
    data = call.read(_changes, name, actor, until)
    return call.page("changes.html", gone=_GONE, until=until, looked_at=_LOOKED_AT, **data)


def _changes(site: SharedParts, name: str, actor: str, until: int | None) -> dict[str, Any]:
    """Read a page of the record of changes."""
    # The selection refuses a pattern that is too long: to compile that would take minutes.
    pattern = Selection.of(name if is_pattern(name) else f"{name}*").name
    most = (_LOOKED_AT if name or actor else _LINES) + 1
    read_until = None if until is None else from_ms(until)
    recorded = site.schedules.changes(until=read_until, limit=most)
    left = [change for change in recorded if actor in change.actor]
    if name:
        left = [change for change in left if _is_of(change, name, pattern)]
    # The next page begins with the first change that this page leaves out, and repeats changes of
    # the same millisecond.
    beyond = [*left[_LINES : _LINES + 1], *recorded[most - 1 :]]
    older = to_ms(beyond[0].at) if beyond else None
    return {"changes": left[:_LINES], "older": older}


def _is_of(change: Change, name: str, pattern: str) -> bool:
    return name in change.names or any(matches(each, pattern) for each in change.names)
