"""Which task somebody means who wrote its name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from ..errors import InvalidEntry


def finder(known: Iterable[str], usable: Callable[[str], bool]) -> Callable[[str, str], str]:
    """The ``find`` of :func:`.definition.define` over registered tasks: by full name, or by the last part of one alone.

    Parameters:
        usable: whether the task of such a name can be a step.
    """
    names = set(known)

    def find(name: str, where: str) -> str:
        found = [name] if name in names else [each for each in names if each.rpartition(".")[2] == name]
        if len(found) > 1:
            raise InvalidEntry(where, "the full name of a task", name, hint=f"there are {', '.join(sorted(found))}")
        if not found:
            near = difflib.get_close_matches(name, names | {each.rpartition(".")[2] for each in names}, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "no task of that name is registered in this app"
            raise InvalidEntry(where, "the name of a registered task", name, hint=hint)
        if not usable(found[0]):
            raise InvalidEntry(where, "a task whose base is redbeat_lite.PipelineTask", found[0])
        return found[0]

    return find
