"""What is done with entries that are ticked, or all that a filter selects: said how many they are, and then done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from ..api.selected import Selected
from ..entries.selection import is_pattern
from ..entries.words import counted, listed
from ..errors import EntryNotFound, InvalidEntry
from .access import Right
from .messages import Response
from .site import Call, Site

#: As many at most, of as many that are stored: an answer shall come before browsers and proxies give up.
_MOST, _STORED = 10_000, 100_000

#: What may be done: the right that it takes, the field that is asked for besides, and how it is done.
ACTIONS: dict[str, tuple[Right, str, Callable[[Selected, Mapping[str, str]], Any]]] = {
    "pause": ("pause", "note", lambda found, given: found.pause(given.get("note", ""))),
    "resume": ("pause", "catch_up", lambda found, given: found.resume("catch_up" in given)),
    "run": ("run", "note", lambda found, given: found.run_now(given.get("note", ""))),
    "remove": ("remove", "note", lambda found, given: found.remove(given.get("note", ""))),
}


def selected(site: Site, name: str, tag: str, task: str) -> Selected:
    """The entries that a filter means: the beginning of a name or a pattern, a tag, a task."""
    pattern = name if is_pattern(name) else f"{name}*"
    return site.schedules.select(pattern, tag=tag or None, task=task or None)


def in_words(site: Site, name: str, tag: str, task: str) -> list[str]:
    """The same filter as the command line has it; no name where nothing is asked for."""
    pattern = selected(site, name, tag, task).selection.name if name or tag or task else ""
    return [pattern, *(["--tag", tag] if tag else []), *(["--task", task] if task else [])]


def act(call: Call) -> Response:
    """Do with all of them what the path says."""
    does, given, picked = call.request.path[1:].removesuffix("-all"), call.given, call.picked
    name, tag, task, state = call.texts("q", "tag", "task", "state")
    if not picked and (state or not (name or tag or task)):
        expected = "the beginning of a name, a pattern, a tag or a task, and no state; or entries that are ticked"
        raise InvalidEntry("q", expected, name)
    found = call.site.schedules.select().among(picked) if picked else selected(call.site, name, tag, task)
    _, asks, do = ACTIONS[does]
    few = picked or len(call.site.schedules) <= _STORED
    names = [entry.name for entry in islice(found, _MOST + 1)] if few else []
    if few and not names:
        raise EntryNotFound(f"no entry is selected by {found.selection}" if not picked else "none of these is stored")
    note = ["--note", "NOTE"] if asks == "note" else []
    meant = [[each] for each in names] if picked else [in_words(call.site, name, tag, task)]
    lines = [[does, *each, *note] for each in meant]
    if not 0 < len(names) <= _MOST:
        told = f"A page takes {_MOST:,} entries at once, and where no more than {_STORED:,} are stored."
        return call.page("ask.html", what="Too many for a page", told=told, lines=lines, asks="", button="")
    agreed = hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()
    if given.get("save") == agreed:  # to these very ones
        do(found, given)
        return call.done("remove" if does == "remove" else "all", "entries", q=name, tag=tag, task=task, state=state)
    what = f"{does.capitalize()} {counted(len(names), 'entry', 'entries')}?"
    shown: dict[str, Any] = {"told": listed(names, 10), "lines": lines, "asks": asks, "picked": picked}
    return call.page("ask.html", what=what, button=does.capitalize(), agreed=agreed, **shown)
