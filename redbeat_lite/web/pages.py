"""Pages that show the beats, the entries, their runs and the changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from .._base.clock import wall_ms
from .._base.errors import EntryNotFound
from ..api.run_history import OUTCOMES, RunQuery, with_sent
from ..api.selected import Sample
from ..beat.status import read
from ..entries.changes import OF_OTHERS
from ..entries.entry import STATUSES, Entry
from ..entries.freezes import Freezes
from ..entries.model import entry_fields
from ..entries.run import NOT_DONE, Run
from ..entries.selection import Selection, is_pattern, matches
from ..operate.coming_runs import next_runs
from ..operate.entry_options import has_state, parse_span
from ..operate.texts import entry_lines, status_lines
from ..operate.why import explain
from ..operate.why_case import gather
from .actions import BULK_ACTIONS
from .call import ARGUMENTS, Params, SharedParts, View, filtered, selection_words, texts
from .http import Response
from .rendering import link

#: The first page shows the runs that come within this time from now.
_AHEAD = timedelta(minutes=15)

#: Maximum number of coming runs on the first page.
_COMING = 30

#: Maximum number of incidents that the first page counts.
_INCIDENTS = 1000

#: Maximum number of entries on a page of the list.
_ENTRIES = 50

#: Maximum number of last outcomes of each entry in the list.
_OUTCOMES_SHOWN = 15

#: Maximum number of runs, and of changes, on the page of an entry.
_PAST = 20

#: Maximum number of coming runs on the page of an entry.
_NEXT = 10

#: Fields that the page of an entry does not show in its table, but elsewhere.
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

#: States by which the list can be filtered.
_STATES = (*STATUSES, "failing", "failed")

#: States of entries without a next run.
_PARKED = ("paused", "finished", "disabled", "manual")

#: Maximum number of runs on a page.
_RUNS = 100

#: Maximum number of ended runs that are searched if the page of runs has a filter.
_ENDS = 1500

#: Filter of the page of runs -> the outcomes that it shows.
_OUTCOMES = {"failed": NOT_DONE, "expired": ("expired",), "lost": ("lost",)}

#: Maximum number of changes on a page.
_LINES = 100

#: Actions of changes after which there is no entry, so that the page shows its name without a link.
#: Those in OF_OTHERS are about a lock, a pipeline or a leader.
_GONE = ("removed", "discarded", "quarantined", *OF_OTHERS)


def now(site: SharedParts, params: Params) -> View:
    """Show the leader, the open incidents and the next runs."""
    beats = read(site.store)
    until = datetime.now(UTC) + _AHEAD
    coming = site.schedules.soonest(until, _COMING, freezes=Freezes(beats.freezes))
    return View(
        "now.html",
        {
            "beats": beats,
            # The page shows freezes in a table of their own.
            "summary": [field for field in status_lines(beats, site.zone) if field[0] != "frozen"],
            "incidents": site.schedules.incidents(limit=_INCIDENTS),
            "coming": coming,
            "most": _COMING,
        },
    )


def entries(site: SharedParts, params: Params) -> View:
    """Show a page of the entries that match the filter, and the command that lists the same ones.

    Without a filter, only the entries of that page are read.
    """
    selected = filtered(site, params)
    state, offset_text = texts(params, "state", "offset")
    offset = 0
    # An offset that is no number of at most eight digits is ignored.
    if offset_text.isdecimal() and len(offset_text) < 9:
        offset = int(offset_text)
    sample = None
    # Each branch reads one entry more than the page shows, to know whether there is a next page.
    if selected.selection.is_all and not state:
        # The last part of the result has the replies to further commands; none is passed here.
        total, freezes, _ = site.store.count_and_freezes()
        stored = site.schedules.list(offset, _ENTRIES + 1)
        page = [*site.schedules.freezes.marked(stored, Freezes.of(freezes))]
    else:
        # A sample has the matching entries that are due next. It may not reach entries without a
        # next run, so with ``parked`` it has only such entries. With ``failed``, it leaves out
        # entries that have not failed since their last success, which the record of runs shows.
        sample = selected.sample(parked=state in _PARKED, failed=state == "failed")
        matching = _with_state(site, sample, state)
        page = [*islice(matching, offset, offset + _ENTRIES + 1)]
        total = sample.total
    words = selection_words(selected.selection)
    if state == "failed":
        words.append("--failed")
    elif state in _STATES:
        words += ["--status", state]
    return View(
        "entries.html",
        {
            "rows": _with_last_runs(site, page[:_ENTRIES]),
            "more": len(page) > _ENTRIES,
            "total": total,
            # How many entries were looked at; ``None`` if no entry beyond them can match.
            "looked_at": None if sample is None or sample.complete else sample.looked_at,
            "states": _STATES,
            "parked": _PARKED,
            "offset": offset,
            "size": _ENTRIES,
            "actions": BULK_ACTIONS,
            # Whether a bulk action may use the filter: not if it is empty, or has a state.
            "selects": any(texts(params, "q", "tag", "task")) and not state,
            "words": words,
        },
    )


def _with_state(site: SharedParts, sample: Sample, state: str) -> Iterator[Entry]:
    """Yield the entries of a sample that have this state; all entries if ``state`` is empty."""
    # The status of an entry depends on the freezes, so mark the frozen entries first.
    for entry in site.schedules.freezes.marked(sample, sample.freezes):
        # If the state is "failed", the sample itself has only entries that have failed.
        if state == "failed" or has_state(entry, state):
            yield entry


def _with_last_runs(site: SharedParts, page: list[Entry]) -> list[tuple[Entry, list[Any]]]:
    """Return each entry of a page with its last runs, the oldest first, as the list draws them."""
    # This sets ``entry.rows``, the recorded runs, of all these entries in one round trip.
    site.schedules.load_runs(page)
    instant = wall_ms()
    history = site.settings.history
    rows = []
    for entry in page:
        # with_sent() adds runs that were sent and have no record yet, as waiting. It returns the
        # newest run first.
        runs = with_sent(entry, entry.rows, history, instant, _OUTCOMES_SHOWN)
        rows.append((entry, runs[::-1]))
    return rows


def entry(site: SharedParts, params: Params) -> View | Response:
    """Show one entry: its definition, its past and coming runs, and the buttons for actions.

    With ``more=why``, the page also explains why the entry did not run. If the entry is gone, the
    explanation says who removed it, so a request without ``more=why`` is redirected to it.
    """
    name = params.get("name", "")
    if params.get("more") == "why":
        case = gather(site.app, name, datetime.now(UTC), site.zone, site.store)
        entry = case.entry
        freezes = Freezes(case.status.freezes)
        data: dict[str, Any] = {"runs": [*case.runs[:_PAST]], "why": explain(case, None)}
        if entry is None:
            return View("gone.html", {"changes": [*case.changes[:_PAST]], **data}, status=404)
    else:
        try:
            record = site.schedules.record_of(name, runs=_PAST, changes=0)
        except EntryNotFound:
            return Response.redirect(link("entry", name=name, more="why"))
        entry = record.entry
        freezes = record.freezes
        data = {"runs": record.runs, "why": None}
    lines = entry_lines(entry, site.zone)
    return View(
        "entry.html",
        {
            "entry": entry,
            "fields": [line for line in lines if line[0] not in _SHOWN_APART],
            "arguments": entry_fields(entry),
            "coming": next_runs(entry, freezes, _NEXT),
            **data,
        },
    )


def runs(site: SharedParts, params: Params) -> View:
    """Show the last runs, or the runs between two instants, of all entries or of some.

    The page also shows the command (``words``) that lists the same runs.
    """
    outcome = params.get("outcome", "")
    name, since, until = texts(params, "q", "since", "until")
    words = []
    if outcome == "failed":
        words.append("--failed")
    elif outcome in _OUTCOMES:
        words += ["--outcome", outcome]
    words += ["--limit", str(_RUNS)]
    if since:
        words += ["--since", since]
    if until:
        words += ["--until", until]
    return View(
        "runs.html",
        {
            "outcomes": _OUTCOMES,
            "outcome": outcome,
            "texts": {"q": name, "since": since, "until": until},
            "most": _RUNS,
            "looked_at": _ENDS,
            "words": words,
            **_runs(site, outcome, name, since, until),
        },
    )


def _runs(
    site: SharedParts,
    outcome: str,
    name: str,
    since_text: str,
    until_text: str,
) -> dict[str, Any]:
    """Read the last runs of one entry, or of the entries whose names match a pattern.

    Of one entry, all recorded runs are searched. Of several entries, only runs that have ended are
    searched, because the ends of the runs of all entries are recorded together.

    Parameters:
        outcome: key of ``_OUTCOMES``; any other text: all outcomes.
        name: name of the entry, or a pattern; empty: all entries.
        since_text, until_text: bounds of the nominal times as typed; empty: no bound.

    Returns:
        ``one``: whether the runs of one entry were read. ``ends``: maximum number of ends that were
        searched. ``runs``: the runs.
    """
    fields = ("since", "until")
    since, until = parse_span(fields, since_text or None, until_text or None, site.zone)
    is_one = bool(name) and not is_pattern(name)
    # With a filter, search more ends than the page shows, because most of them may not match.
    ends = _ENDS if name or outcome in _OUTCOMES else _RUNS
    if is_one:
        shown = list[Run]()
        with suppress(EntryNotFound):  # If there is no such entry, the page shows no run.
            shown = site.schedules.runs(name, since=since, until=until, limit=_RUNS)
    else:
        # Names and outcomes are filtered below, so the query has neither.
        query = RunQuery.of(ends, since=since, until=until)
        ended = site.schedules.run_history.of_all(query, names=None, looked_at=_ENDS)
        # Selection.of() checks the pattern, because to compile a very long one would take minutes.
        pattern = Selection.of(name or "*").name
        shown = [run for run in ended if matches(run.name, pattern)]
    outcomes = _OUTCOMES.get(outcome, OUTCOMES)
    shown = [run for run in shown if run.outcome in outcomes]
    return {"one": is_one, "ends": ends, "runs": shown[:_RUNS]}


def changes(site: SharedParts, params: Params) -> View:
    """Show the latest changes, of all entries or of one."""
    (name,) = texts(params, "q")
    recorded = site.schedules.changes(name or None, limit=_LINES)  # ``None`` means all entries.
    return View("changes.html", {"changes": recorded, "gone": _GONE, "most": _LINES})
