"""Plan for one entry that is imported, and the write of many plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..entries.changes import Edit, Stored
from ..entries.entry import Entry
from ..store.store import Store


@dataclass(frozen=True, slots=True)
class Step:
    """Plan for one entry of a file or of another scheduler.

    Parameters:
        action: what happens. ``"same"``: the stored entry equals the imported one, so nothing
            happens; ``"stored"``: the stored entry is kept although it may differ.
        entry: the entry with the state that it gets; ``None`` if it cannot be imported.
        notes: remarks for people, such as why the entry is left out.
        edit: edit that stores the entry; ``None``: nothing has to be stored.
    """

    name: str
    action: Literal["add", "replace", "same", "stored", "left out"]
    entry: Entry | None = None
    notes: tuple[str, ...] = ()
    edit: Edit | None = None


def store_steps(
    store: Store, steps: Sequence[Step], decide: Callable[[Stored], Step]
) -> list[Step]:
    """Write plans, 250 entries in two round trips. Return what was done with each entry.

    For each owner, Redis has a list of the names of its config entries. The names are added to
    these lists before the entries are stored. So if the call ends in between, no config entry is
    stored without its name in a list.

    Parameters:
        decide: returns the plan for an entry. It gets the entry as it is stored now, because other
            processes may have changed it since ``steps`` were made.
    """
    # A step without an edit stores nothing.
    planned = [step for step in steps if step.edit is not None]
    names_of = defaultdict(set)
    for step in planned:
        if step.entry is not None and step.entry.owner is not None:
            names_of[step.entry.owner].add(step.name)
    for owner, names in names_of.items():
        store.add_config_names(owner, names)
    done = {step.name: step for step in steps}

    def edits(stored: Stored) -> list[Edit]:
        """Return a list with the edit of one entry, and note its plan; called once per attempt."""
        step = decide(stored)
        done[step.name] = step
        return [] if step.edit is None else [step.edit]

    # rewrite() calls edits() again for an entry that another process has changed meanwhile. It
    # returns the names of the entries that it wrote.
    written = set(store.rewrite((step.name for step in planned), edits))
    for name, step in done.items():
        if step.edit is not None and name not in written:
            done[name] = Step(name, "left out", notes=("it is being changed too often",))
    return [*done.values()]
