"""Pages that change nothing, such as those of entries, runs, locks and the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple

from .._base.clock import wall_ms
from .._base.errors import EntryNotFound
from .._base.times import to_ms
from ..api.run_history import RunQuery
from ..api.selected import PARKED
from ..beat.status import read_status
from ..entries.changes import OF_OTHERS
from ..entries.entry import Entry
from ..entries.model import entry_fields
from ..entries.preview import upcoming_runs
from ..entries.run import NOT_DONE, Row, Run
from ..entries.selection import Selection, is_pattern, matches
from ..once.locks import locks as locks_of
from ..operate.coming_runs import next_runs
from ..operate.doctor import examine
from ..operate.entry_options import STATES, has_state, parse_span
from ..operate.texts import (
    backfill_status,
    entry_lines,
    last_runs,
    quarantined_since,
    status_lines,
)
from ..operate.why import explain
from ..operate.why_case import gather
from ..pipeline import RunStatus, State, StepStatus
from ..pipeline.pipeline_run import PipelineRun
from .actions import ACTIONS, BULK_ACTIONS
from .call import ARGUMENTS, Data, Params, SharedParts, filtered, selection_words, texts
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

#: Maximum number of runs on a page.
_RUNS = 100

#: Maximum number of ended runs that the page of runs searches.
_ENDS = 1500

#: Filter of the page of runs -> the outcomes that it shows.
_OUTCOMES = {"failed": NOT_DONE, "expired": ("expired",), "lost": ("lost",)}

#: Maximum number of changes on a page.
_LINES = 100

#: Actions of changes after which there is no entry, so that the page shows its name without a link.
#: Those in OF_OTHERS are about a lock, a pipeline or a leader.
_GONE = ("removed", "discarded", "quarantined", *OF_OTHERS)

#: Maximum number of lanes of the timeline.
_LANES = 100

#: Maximum number of past runs in a lane, and of coming ones. If more may follow, a line is drawn
#: from the last of them to the right end of the lane.
_LANE_RUNS = 20

#: Name of a span -> length of the lanes in seconds. A quarter of it is past.
_SPANS = {"1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800}

#: Maximum number of locks, or quarantined entries, on a page.
_ROWS = 200

#: Maximum number of entries that the doctor examines for a page. They take a tenth of a second.
_EXAMINED = 500

#: Maximum number of steps of a run in its table.
_STEPS = 100

#: Filter of the list -> the states of the runs that it shows.
_RUN_STATES = {"running": (State.RUNNING, State.WAITING), "failed": (State.FAILED,)}

#: How many stages before and after the present one are shown.
_AROUND = 5


def now(site: SharedParts, params: Params) -> Data:
    """Show the leader, the open incidents and the next runs."""
    beats = read_status(site.store)
    until = datetime.now(UTC) + _AHEAD
    begin = beats.now if beats.freeze is None else beats.freeze.until
    coming = site.schedules.soonest(until, _COMING, begin=begin)
    return {
        "beats": beats,
        "summary": [*status_lines(beats, site.zone)],
        "incidents": site.schedules.incidents(limit=_INCIDENTS),
        "coming": coming,
        "most": _COMING,
    }


def entries(site: SharedParts, params: Params) -> Data:
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
        total = site.store.count()
        page = site.schedules.list(offset, _ENTRIES + 1)
    else:
        # A sample does not read all entries. It reads the entries that are likely in this state.
        sample = selected.sample(state)
        # A sample of failed entries has no others. To read the runs of each again takes more time.
        has_any = state == "failed"
        matching = (entry for entry in sample if has_any or has_state(entry, state))
        page = [*islice(matching, offset, offset + _ENTRIES + 1)]
        total = sample.total
    words = selection_words(selected.selection)
    if state in STATES:
        words += ["--status", state]
    return {
        "rows": _with_last_runs(site, page[:_ENTRIES]),
        "more": len(page) > _ENTRIES,
        "total": total,
        # How many entries were looked at; ``None`` if no entry beyond them can match.
        "looked_at": None if sample is None or sample.complete else sample.looked_at,
        "states": STATES,
        "parked": PARKED,
        "offset": offset,
        "size": _ENTRIES,
        "bulk_rights": {name: ACTIONS[name].right for name in BULK_ACTIONS},
        # Whether a bulk action may use the filter: not if it is empty, or has a state.
        "selects": any(texts(params, "q", "tag", "task")) and not state,
        "words": words,
    }


def _with_last_runs(site: SharedParts, page: list[Entry]) -> list[tuple[Entry, Sequence[Row]]]:
    """Return each entry of a page with its last runs, the oldest first, as the list draws them."""
    # This sets ``entry.rows``, the recorded runs, of all these entries in one round trip.
    site.schedules.load_runs(page)
    history = site.settings.history
    return [(entry, last_runs(entry, history, _OUTCOMES_SHOWN)[::-1]) for entry in page]


def entry(site: SharedParts, params: Params) -> Data | Response:
    """Show one entry: its definition, its past and coming runs, and the buttons for actions.

    If the entry is gone, the request is redirected to the page that says who removed it.
    """
    name = params.get("name", "")
    try:
        record = site.schedules.record_of(name, runs=_PAST, changes=0)
    except EntryNotFound:
        return Response.redirect(link("why", name=name))
    entry = record.entry
    lines = entry_lines(entry, site.zone)
    return {
        "entry": entry,
        "fields": [line for line in lines if line[0] not in _SHOWN_APART],
        "arguments": entry_fields(entry),
        "runs": record.runs,
        "freeze": record.freeze,
        "coming": next_runs(entry, record.freeze, _NEXT),
    }


def why(site: SharedParts, params: Params) -> Data:
    """Explain why an entry did not run, or that it did; also of an entry that is gone."""
    case = gather(site.app, params.get("name", ""), datetime.now(UTC), site.zone, site.store)
    return {
        "status": 404 if case.entry is None else 200,
        "entry": case.entry,
        "why": explain(case, None),
        "changes": case.changes[:_PAST],
        "runs": case.runs[:_PAST],
    }


def runs(site: SharedParts, params: Params) -> Data:
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
    for option, text in (("--limit", str(_RUNS)), ("--since", since), ("--until", until)):
        if text:
            words += [option, text]
    first, last = parse_span(("since", "until"), since or None, until or None, site.zone)
    query = RunQuery.of(_RUNS, _OUTCOMES.get(outcome), since=first, until=last)
    # Selection.of() checks the pattern, because to compile a very long one would take minutes.
    pattern = Selection.of(name or "*").name
    is_one = not is_pattern(pattern)
    shown: list[Run] = []
    if is_one:
        with suppress(EntryNotFound):
            shown = site.schedules.run_history.of_entry(name, query)
    else:
        # Search only ended runs, because the ends of the runs of all entries are recorded together.
        is_wanted = partial(matches, pattern=pattern)
        shown = site.schedules.run_history.of_all(query, is_wanted, looked_at=_ENDS)
    return {
        "outcomes": _OUTCOMES,
        "outcome": outcome,
        "texts": {"q": name, "since": since, "until": until},
        "most": _RUNS,
        "looked_at": _ENDS,
        "words": words,
        "one": is_one,
        "runs": shown,
    }


def changes(site: SharedParts, params: Params) -> Data:
    """Show the latest changes, of all entries or of one."""
    (name,) = texts(params, "q")
    recorded = site.schedules.changes(name or None, limit=_LINES)  # ``None`` means all entries.
    return {"changes": recorded, "gone": _GONE, "most": _LINES}


class Lane(NamedTuple):
    """The past and coming runs of an entry. A place is a time in seconds since the lane begins.

    Parameters:
        entry: the entry.
        past: each past run, as its place and its recorded row.
        coming: places of the coming runs.
    """

    entry: Entry
    past: list[tuple[int, Row]]
    coming: list[int]


def timeline(site: SharedParts, params: Params) -> Data:
    """Show the past and coming runs of the entries that match the filter, each entry in a lane."""
    selected = filtered(site, params)
    span = params.get("span", "")
    if span not in _SPANS:
        span = "1d"
    now = wall_ms()
    length = _SPANS[span]
    start = now // 1000 - length // 4
    entries = [*islice(selected.sample(), _LANES)]
    # This sets ``entry.rows``, the recorded runs, of all these entries in one round trip.
    site.schedules.load_runs(entries)
    freeze = site.schedules.frozen()
    begin = now if freeze is None else to_ms(freeze.until)
    lanes = [_lane(site, entry, start, length, begin) for entry in entries]
    return {
        "lanes": lanes,
        "quarters": [
            datetime.fromtimestamp(start + length // 4 * part, site.zone) for part in range(5)
        ],
        "length": length,
        "most": _LANE_RUNS,
        "span": span,
        "spans": _SPANS,
        "words": selection_words(selected.selection),
    }


def _lane(site: SharedParts, entry: Entry, start: int, length: int, begin: int) -> Lane:
    """Return the lane of one entry, with its past and coming runs at their places.

    Parameters:
        start: start of the lane, in epoch seconds.
        length: length of the lane, in seconds.
        begin: the present in epoch milliseconds; during a freeze, its end.
    """
    rows = last_runs(entry, site.settings.history, _LANE_RUNS)
    past = [(row.nominal // 1000 - start, row) for row in rows]
    coming = []
    for run, _ in islice(upcoming_runs([entry], now=begin), _LANE_RUNS):
        place = int(run.at.timestamp()) - start
        if place > length:
            break
        coming.append(place)
    return Lane(entry, [(place, row) for place, row in past if place >= 0], coming)


def backfills(site: SharedParts, params: Params) -> Data:
    """Show all backfills, the newest first, and the command that starts another backfill."""
    stored = [*site.schedules.backfills]
    return {"backfills": [(backfill, backfill_status(backfill)) for backfill in reversed(stored)]}


def locks(site: SharedParts, params: Params) -> Data:
    """Show the once-locks that expire first, with the tasks that hold them or wait for them."""
    listed = locks_of(site.app).list(_ROWS + 1)
    return {"locks": listed[:_ROWS], "more": len(listed) > _ROWS}


def quarantine(site: SharedParts, params: Params) -> Data:
    """Show the entries in quarantine with their errors."""
    records = site.schedules.quarantined(_ROWS + 1)
    rows = []
    for name in sorted(records)[:_ROWS]:
        record = records[name]
        rows.append((name, quarantined_since(record), str(record.get("error"))))
    return {"entries": rows, "more": len(records) > _ROWS}


def doctor(site: SharedParts, params: Params) -> Data:
    """Show the findings of the doctor, or a button that asks for them."""
    data: dict[str, Any] = {"at": None, "examined": _EXAMINED}
    if "examine" in params:
        data["at"] = datetime.now(UTC)
        data["findings"] = examine(site.app, limit=_EXAMINED)
    return data


def pipelines(site: SharedParts, params: Params) -> Data:
    """Show the unended runs and the latest ended ones."""
    state = params.get("state", "")
    shown = PipelineRun.brief(site.app, _RUN_STATES.get(state, tuple(State)))
    return {"runs": shown, "states": _RUN_STATES, "state": state}


def pipeline(site: SharedParts, params: Params) -> Data:
    """Show one run of a pipeline, with its stages and steps."""
    status = PipelineRun(site.app, params.get("id", "")).status()
    steps: Sequence[StepStatus] = status.steps
    if len(steps) > _STEPS:
        # Show failed steps first, then running steps, then all others, because False sorts first.
        steps = sorted(
            steps,
            key=lambda step: (step.state is not State.FAILED, step.state is not State.RUNNING),
        )
    return {"run": status, "stages": _stages(status), "steps": steps[:_STEPS]}


def _stages(run: RunStatus) -> list[tuple[int, int, int]]:
    """Return a tuple for each stage around the present one.

    Its parts are the number of the stage, from 1, the count of its succeeded steps, and the count
    of all its steps.
    """
    stages = []
    # The steps are in the order of their stages, which count from 0.
    for index, group in groupby(run.steps, key=lambda step: step.stage):
        if abs(index - run.stage) <= _AROUND:
            steps = [*group]
            done = sum(step.state is State.SUCCEEDED for step in steps)
            stages.append((index + 1, done, len(steps)))
    return stages
