"""Plan for one entry that is imported, and the write of many plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..entries.entry import Entry
from ..store.records import Edit
from ..store.store import Store


@dataclass(slots=True)
class Step:
    """Plan for one entry of a file or of another scheduler.

    Parameters:
        action: ``"same"`` if the stored entry equals the imported one; ``"stored"`` if the stored
            entry is kept although it may differ.
        entry: the entry with the state that it gets; ``None`` if it cannot be imported.
        notes: remarks for people, such as why it is left out.
        edit: edit that stores it; ``None``: nothing has to be stored.
    """

    name: str
    action: Literal["add", "replace", "same", "stored", "left out"]
    entry: Entry | None
    notes: tuple[str, ...] = ()
    edit: Edit | None = None


def store_steps(store: Store, steps: Iterable[Step]) -> list[Step]:
    """Write plans, 250 entries per round trip. Return those whose entries were changed meanwhile.

    A plan without an edit needs no write. The names of config entries are added to the lists of
    their owners before the entries are stored. So if the call ends in between, no config entry is
    without its name in a list.
    """
    planned = [step for step in steps if step.edit is not None]
    names_of = defaultdict(set)
    for step in planned:
        if step.entry is not None and step.entry.owner is not None:
            names_of[step.entry.owner].add(step.name)
    for owner, names in names_of.items():
        store.add_config_names(owner, names)
    stored = store.put(step.edit for step in planned if step.edit is not None)
    return [step for step, ok in zip(planned, stored, strict=True) if not ok]
