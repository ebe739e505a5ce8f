"""What pauses and freezes upon each other must do.

A user knows what he has asked for of each entry, so he knows what the schedule has to say of its pause. And
runs that were held come at the end, if the misfire policy of their entry says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tests.support.audit.history import FOREVER, Broken, Definition, Entry, History, end_of_quiet, returned
from tests.support.audit.schedule import grace_of, is_used_up

#: Milliseconds before the end of a pause or freeze in which nobody looks whether it holds.
_NEAR_MS = 1_000

#: Milliseconds between the moment at which a beat reads what is due, and the latest one at which a run arrives.
_ON_THE_WAY_MS = 1_000


class End(NamedTuple):
    """When a pause or freeze ends, epoch ms: between two instants, because the call that has made it took a while."""

    earliest: int
    latest: int

    def or_later(self, other: End) -> End:
        """The end of both together: the one that ends later stays."""
        return End(max(self.earliest, other.earliest), max(self.latest, other.latest))


#: That of an entry that is not paused, or where nothing is frozen.
NEVER_BEGAN = End(0, 0)

#: That of a pause without an end.
NEVER_ENDS = End(FOREVER, FOREVER)


class Holds:
    """The pauses and freezes that a user has asked for: those of an entry by its name, freezes by ``*``.

    It is not known what holds after a call without an answer, which may arrive later.
    """

    def __init__(self) -> None:
        #: ``None`` where it is not known.
        self._ends: dict[str, End | None] = {}
        #: Epoch ms up to which calls without an answer may arrive.
        self._unsure: dict[str, int] = {}

    def put(self, name: str, end: End, began: int) -> None:
        """Note a call that decides alone when the hold ends, and began then."""
        if began > self._unsure.get(name, 0):
            self._ends[name] = end

    def add(self, name: str, end: End) -> None:
        """Note a call that makes a hold no shorter than it was."""
        present = self._ends.get(name, NEVER_BEGAN)
        if present is not None:
            self._ends[name] = present.or_later(end)

    def forget(self, name: str, until: int) -> None:
        """Note a call without an answer, which may arrive up to an instant."""
        self._ends[name] = None
        self._unsure[name] = max(until, self._unsure.get(name, 0))

    def complaint(self, name: str, until: int | None, now: int) -> str:
        """Return what is wrong with an answer of this moment; empty if nothing is, or nobody can tell.

        Parameters:
            until: when the hold ends, epoch ms; ``None`` if nothing is held.
        """
        end = self._ends.get(name, NEVER_BEGAN)
        if end is None or (end != NEVER_BEGAN and end.earliest < now + _NEAR_MS):
            return ""
        is_right = until is None if end == NEVER_BEGAN else until is not None and end.earliest <= until <= end.latest
        return "" if is_right else f"is held until {until}, and it should be until {end.earliest} to {end.latest}"


def held_runs(history: History, entry: Entry) -> Iterator[Broken]:
    """Runs that a freeze or a pause with an end has held come at its end, or the latest one stands for them."""
    nominals = {nominal for nominal, _ in entry.handled}
    for definition in map(partial(_known, entry), entry.definitions):
        call = definition.call
        policy = call.get("misfire", "coalesce")
        if policy == "skip" or call.get("limit") is not None:
            continue
        for nominal, line in _held(history, entry, definition):
            until = _latest(history, entry, nominal)
            grace = grace_of(definition)
            is_too_late = until > min(definition.window.until, history.end)
            is_too_late |= grace is not None and until > nominal + grace
            if nominal in nominals or is_too_late or _is_given_up(entry, nominal, until):
                continue
            if _is_used_up(history, entry, definition, nominal):
                continue
            # The run that is sent at the end was due by then. A beat that is deaf learns late of the end.
            latest = until - _ON_THE_WAY_MS
            has_substitute = any(nominal < handled <= latest and at <= until for handled, at in entry.handled)
            if policy == "all" or not has_substitute:
                yield entry.name, (definition.window.line, line), f"{nominal} was held, and never came"


def _known(entry: Entry, definition: Definition) -> Definition:
    """Return the definition of a config entry since its first run: nobody has said since when it is in the schedule."""
    if definition.call.get("owner") != "config":
        return definition
    window, every = definition.window, definition.rule.get("every")
    runs = [run for _, run in entry.runs if window.maybe_since <= run["at"] < window.until]
    if window.since < FOREVER or not runs or every is None:
        return definition
    first = runs[0]["nominal"]
    if any((run["nominal"] - first) % every for _, run in entry.runs):
        return definition  # It was stored again.
    return replace(definition, window=window._replace(since=runs[0]["at"]), phase=first, first=first)


def _held(history: History, entry: Entry, definition: Definition) -> Iterator[tuple[int, int]]:
    """Yield the nominal times of a definition that were surely held, and the line of the freeze or pause."""
    for window in history.frozen(entry):
        since = max(window.since, definition.window.since)
        until = min(window.until, definition.window.until)
        if since < until < FOREVER:
            for nominal in definition.nominal_times(since, until):
                yield nominal, window.line


def _latest(history: History, entry: Entry, nominal: int) -> int:
    """Return by when a run has to come that was held: nothing holds it, and nothing has been wrong for a while."""
    windows = history.held(entry)
    spans = [*history.spans, *((window.maybe_since, window.maybe_until) for window in windows)]
    return end_of_quiet(sorted(spans), nominal, history.setup.late)


def _is_used_up(history: History, entry: Entry, definition: Definition, nominal: int) -> bool:
    """Whether an entry may have had all of its runs before this one."""
    limit = definition.call.get("max_runs")
    if limit is None or not history.is_exact:
        return is_used_up(history, entry, definition)
    adds = [call["began"] for _, call in entry.calls if call["act"] == "add" and call["ok"] is not False]
    since = max((began for began in adds if began <= definition.window.maybe_since), default=0)
    before = {run["nominal"] for _, run in entry.runs if run["nominal"] < nominal and run["at"] >= since}
    return len(before) >= limit


def _is_given_up(entry: Entry, nominal: int, until: int) -> bool:
    """Whether somebody may have paused the entry without an end, removed it, or resumed it without its missed runs."""
    if any(window.perhaps(nominal, until) for window in (*entry.paused, *entry.removed)):
        return True
    return any(
        call["act"] == "resume"
        and not call.get("catch_up")
        and call["ok"] is not False
        and call["began"] <= until
        and returned(call) >= nominal
        for _, call in entry.calls
    )
