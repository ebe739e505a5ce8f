"""What a look has found of what became of runs, and what follows from it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..expect import Expect, Pause
from .incident import Case, Key
from .row import Row
from .run import Outcome


class End(NamedTuple):
    """A line of the feed: the end of a run. Instants are epoch milliseconds, ``at`` by the clock of who looks;
    ``begin`` is told after ``nominal``."""

    at: int
    name: str
    nominal: int
    outcome: Outcome
    begin: int | None = None
    duration: int | None = None
    error: str = ""


class Deadline(NamedTuple):
    """One whose time has come.

    Parameters:
        what: ``"start"``, ``"finish"`` or ``"success"``; where an incident is open that this ends, a worker tells by
            ``"begun"`` and ``"ended"`` that a run has in time; ``"pause "`` and the generation of an entry whose runs
            have failed too often, with this one.
        nominal: of the run; ``None`` for a success, which may be of any, and for what has found no room so far.
        at: epoch milliseconds.
        since: from when on its time counts, by the entry as it is now; ``None``: as it was then.
    """

    what: str
    nominal: int | None
    name: str
    at: int = 0
    since: int | None = None
    row: Row | None = None

    @property
    def member(self) -> str:
        return f"{self.what}|{'' if self.nominal is None else self.nominal}|{self.name}"


class Watched(NamedTuple):
    """What an entry expects, whether nobody is to be told, as it is paused, frozen or disabled, and its generation; its
    policy on failures, and up to which nominal time they do not count for that."""

    expect: Expect | None
    muted: bool = False
    generation: str = ""
    on_failure: Pause | None = None
    forgiven: int = 0

    def counts(self, nominal: int | None) -> bool:
        """Whether the failure of this run may pause the entry, or has paused it: it was not resumed since."""
        return self.on_failure is not None and (nominal or 0) > self.forgiven


class Failures(NamedTuple):
    """How many failures there were in a row in a generation of the entry, and the nominal time of the last one: a run
    fails once; and how many of them count for ``on_failure``, for which a run that has expired is none."""

    times: int = 0
    nominal: int | None = None
    generation: str = ""
    strikes: int = 0


class Seen(NamedTuple):
    """What one look has found.

    Parameters:
        now: epoch milliseconds.
        ends: lines of the feed that are new, oldest first.
        overdue: deadlines whose time has come.
        watched: the entries that are named anywhere in this; one that is not stored is missing.
        failures: of these entries.
        untaken: queues that no worker takes from of those that were heard of, by the entries whose messages go there.
        states: incidents that hold at the moment, whatever became of runs, with what is said of each.
        cases: the incidents that are open.
    """

    now: int
    ends: Sequence[End] = ()
    overdue: Sequence[Deadline] = ()
    watched: Mapping[str, Watched] = {}
    failures: Mapping[str, Failures] = {}
    untaken: Mapping[str, str] = {}
    states: Mapping[Key, str] = {}
    cases: Sequence[Case] = ()


class Decision(NamedTuple):
    """Incidents to open, to close and to count, failures in a row, and deadlines to set."""

    opened: list[Case]
    closed: list[Case]
    counted: list[Case]
    failures: dict[str, Failures]
    deadlines: dict[str, int]
