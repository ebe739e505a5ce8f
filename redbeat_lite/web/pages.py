"""The pages that are looked at: what each reads, once for all who look."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from ..api.record import Record
from ..api.run_history import OUTCOMES, RunQuery
from ..beat.status import read
from ..cli.backfills import status
from ..cli.entry_options import span_of
from ..cli.entry_output import as_fields, shown
from ..cli.next import runs_between
from ..cli.status import lines
from ..clock import wall_ms
from ..entries.as_json import entry_fields
from ..entries.as_read import STATUSES
from ..entries.entry import Entry
from ..entries.freezes import Freezes
from ..entries.last_runs import with_sent
from ..entries.selection import Selection, is_pattern, matches
from ..errors import EntryNotFound
from ..instants import MAX_MS, from_ms, to_ms
from ..operate.why.explain import explain
from ..operate.why.gather import gather
from ..runs.run import NOT_DONE, Run
from ..storage.changes import OF_OTHERS, Change
from .actions import OPTIONS
from .bulk import ACTIONS, in_words, selected
from .editing import ARGUMENTS, arguments
from .messages import Response
from .rendering import link
from .site import Call, Site

#: How far to look ahead on the first page, how many entries at most, and incidents that are counted.
_AHEAD, _COMING, _INCIDENTS = timedelta(minutes=15), 30, 1000

#: Entries on a page.
_ENTRIES = 50

#: Runs on a page.
_RUNS = 100

#: Last runs of each entry in a list.
_LAST = 15

#: On the page of an entry: runs and changes, runs to come, and how far to look for these.
_PAST, _NEXT, _AGE = 20, 10, timedelta(days=3653)

#: What is shown of an entry in places of its own.
_APART = ("name", "task", "status", "next run", "last run", "last error", "description", "params", *ARGUMENTS)

_STATES = (*STATUSES, "failing", "failed")

#: States of entries that will not fire by themselves.
_PARKED = ("paused", "finished", "disabled", "manual")

#: The last ends of runs that are looked through for one outcome, and for those of some entries.
_ENDS, _OF_SOME = 1500, 1000

#: What may be asked for of all runs, in place of everything.
_OUTCOMES = {"failed": NOT_DONE, "expired": ("expired",), "lost": ("lost",)}

#: Changes on a page, and how many a filter looks through for them, of which 1,000 are a round trip.
_LINES, _LOOKED_AT = 100, 2000

#: Of these changes, the names are of no entry, or of one that is gone.
_GONE = ("removed", "discarded", "quarantined", *OF_OTHERS)


def now(call: Call) -> Response:
    """Show the leader, the open incidents and the next runs."""
    found = call.site.shared.read("now", lambda: _now(call.site))
    told = [(label, call.wrong(str(value)) if label == "refused" else value) for label, value in found["lines"]]
    return call.page("now.html", **{**found, "lines": told})


def _now(site: Site) -> dict[str, Any]:
    found = read(site.store)
    coming = site.schedules.soonest(datetime.now(UTC) + _AHEAD, _COMING, freezes=Freezes(found.freezes))
    told = [each for each in lines(found, site.zone) if each[0] != "frozen"]
    incidents = site.schedules.incidents(limit=_INCIDENTS)
    return {"beats": found, "lines": told, "incidents": incidents, "coming": coming, "most": _COMING}


def entries(call: Call) -> Response:
    """The entries that a filter leaves, a page of them."""
    wanted = call.texts("q", "tag", "task", "state")
    text = call.given.get("offset", "")
    offset = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    found = call.site.shared.read(("entries", wanted, offset), lambda: _entries(call.site, *wanted, offset=offset))
    bulk = [does for does, (right, *_) in ACTIONS.items() if call.may(right)]
    selects = any(wanted[:3]) and not wanted[3]  # by a state nothing is, on the command line either
    words = in_words(call.site, *wanted[:3])
    if wanted[3] in _STATES:
        words += ["--failed"] if wanted[3] == "failed" else ["--status", wanted[3]]
    place = {"offset": offset, "size": _ENTRIES}
    shown: dict[str, Any] = {"states": _STATES, "place": place, "bulk": bulk, "selects": selects, "words": words}
    shown["parked"] = _PARKED
    return call.page("entries.html", **shown, **found)


def _entries(site: Site, name: str, tag: str, task: str, state: str, *, offset: int) -> dict[str, Any]:
    schedules = site.schedules
    looked_at = None
    if not (name or tag or task or state):
        total, freezes, _ = site.store.count_and_freezes()
        marked = schedules.freezes.marked(schedules.list(offset, _ENTRIES + 1), Freezes.of(freezes))
        page = [*marked]
    else:
        filtered = selected(site, name, tag, task)
        sample = filtered.sample(parked=state in _PARKED, failed=state == "failed")
        marked = schedules.freezes.marked(sample, sample.freezes)
        left = (entry for entry in marked if _is(entry, state))
        page = [*islice(left, offset, offset + _ENTRIES + 1)]
        total = sample.total
        looked_at = None if sample.complete else sample.looked_at
    schedules.load_runs(page[:_ENTRIES])
    now, history = wall_ms(), site.settings.history
    listed = [(each, with_sent(each, each.rows, history, now, _LAST)[::-1]) for each in page[:_ENTRIES]]
    return {"listed": listed, "more": len(page) > _ENTRIES, "total": total, "looked_at": looked_at}


def _is(entry: Entry, state: str) -> bool:
    if state == "failing":
        return entry.last_error is not None
    return state in ("", "failed", entry.status)  # a sample for "failed" has no other entries


def entry(call: Call) -> Response:
    """One entry: what it is, what became of it, what comes, and what may be done."""
    name, more = call.name, call.given.get("more", "")
    try:
        found = call.site.shared.read(("entry", name, more), lambda: _entry(call.site, name, more))
    except EntryNotFound:
        if more == "why":  # which knows of those that are gone, too
            raise
        return Response.leading_to(link("entry", name=name, more="why"))
    if found["entry"] is None:
        return call.page("gone.html", 404, **found)
    given = {field: shown(value) for field, value in arguments(call, entry_fields(found["entry"])).items()}
    return call.page("entry.html", arguments=given, more=more, **found)


def _entry(site: Site, name: str, more: str) -> dict[str, Any]:
    at, zone, why = datetime.now(UTC), site.zone, None
    if more == "why":
        case = gather(site.app, name, at, zone, site.store)
        runs, changes, why = [*case.runs[:_PAST]], [*case.changes[:_PAST]], explain(case, None)
        if case.entry is None:
            return {"entry": None, "runs": runs, "changes": changes, "why": why, "aside": case.quarantine is not None}
        told = Record(case.entry, runs, changes, Freezes(case.freezes))
    else:
        told = site.schedules.record_of(name, runs=_PAST, changes=_PAST if more == "changes" else 0)
    found = told.entry
    return {
        "entry": found,
        "fields": [each for each in as_fields(found, zone) if each[0] not in _APART],
        "runs": told.runs,
        "coming": [*islice(runs_between([found], at, at + _AGE, zone, None, told.freezes), _NEXT)],
        "changes": told.changes,
        "why": why,
    }


def runs(call: Call) -> Response:
    """What has become of runs lately, or between two instants; of all entries, of some, or of one."""
    wanted, fields = call.given.get("outcome", ""), ("q", "task", "since", "until")
    texts = {field: text for field, text in zip(fields, call.texts(*fields), strict=True) if text}
    found = call.site.shared.read(("runs", wanted, *texts.items()), lambda: _runs(call.site, wanted, texts))
    words = ["--failed"] if wanted == "failed" else ["--outcome", wanted] if wanted in _OUTCOMES else []
    words += ["--limit", str(_RUNS)]
    words += [word for field in fields[1:] if field in texts for word in (f"--{field}", texts[field])]
    shown: dict[str, Any] = {"outcomes": _OUTCOMES, "wanted": wanted, "most": _RUNS, "words": words, "texts": texts}
    return call.page("runs.html", **shown, **found)


def _runs(site: Site, wanted: str, texts: Mapping[str, str]) -> dict[str, Any]:
    name, task, outcomes = texts.get("q"), texts.get("task"), _OUTCOMES.get(wanted, OUTCOMES)
    since, until = span_of(("since", "until"), texts.get("since"), texts.get("until"), site.zone)
    one = None if name is None or task or is_pattern(name) else name
    most = _OF_SOME if name or task else _ENDS if wanted in _OUTCOMES else _RUNS
    found = list[Run]()
    with suppress(EntryNotFound):
        if one is None:
            asked = RunQuery.of(None, since, until, most)
            found = site.schedules.run_history.of_all(asked, None, looked_at=_ENDS)
        else:
            found = site.schedules.runs(one, since=since, until=until, limit=_RUNS)
    if one is None and (name or task):
        names = {run.name for run in found}
        pattern = Selection.one(name).name if name in names else name or "*"  # the very name goes before a pattern
        some = {*site.schedules.select(pattern, task=task).among(names).names()}
        found = [run for run in found if run.name in some]
    shown = [run for run in found if run.outcome in outcomes][:_RUNS]
    return {"one": one, "ends": most, "looked_at": _ENDS, "runs": shown}


def changes(call: Call) -> Response:
    """The changes that a filter leaves, the newest first."""
    name, actor, text = call.texts("q", "by", "until")
    until = min(int(text), MAX_MS) if text.isascii() and text.isdigit() and len(text) < 16 else None
    found = call.site.shared.read(("changes", name, actor, until), lambda: _changes(call.site, name, actor, until))
    return call.page("changes.html", gone=_GONE, until=until, looked_at=_LOOKED_AT, **found)


def _changes(site: Site, name: str, actor: str, until: int | None) -> dict[str, Any]:
    # Of a longer one, to make an expression for it would take minutes.
    pattern = Selection.of(name if is_pattern(name) else f"{name}*").name
    most = (_LOOKED_AT if name or actor else _LINES) + 1
    lines = site.schedules.changes(until=None if until is None else from_ms(until), limit=most)
    left = [each for each in lines if actor in each.actor and (not name or _is_of(each, name, pattern))]
    # The next page begins with a line that this one leaves out, and with what else was changed in that millisecond.
    beyond = [*left[_LINES : _LINES + 1], *lines[most - 1 :]]
    return {"listed": left[:_LINES], "older": to_ms(beyond[0].at) if beyond else None}


def _is_of(change: Change, name: str, pattern: str) -> bool:
    return name in change.names or any(matches(each, pattern) for each in change.names)


def freezes(call: Call) -> Response:
    """Those that hold, and a form for one more."""
    found = call.site.shared.read("freezes", lambda: [*call.site.schedules.freezes])
    return call.page("freezes.html", freezes=found)


def backfills(call: Call) -> Response:
    """All of them, the newest first, and how far each has come; and a form for one more."""
    found = call.site.shared.read("backfills", lambda: [*call.site.schedules.backfills][::-1])
    return call.page("backfills.html", backfills=[(each, status(each)) for each in found], options=OPTIONS)
