"""Edits that are not made often enough to need their own script: checks and commands.

A *statement* is a kind of edit: a text of rows, with ``$1``, ``$2`` … for values. A :class:`Step`
is one edit: a statement and its values. ``schedule/transact.lua`` makes many steps in one call.
A step does nothing if one of its checks does not hold. The other steps are made all the same::

    IF HGET state $1 IS $2      a check: the reply to this command is the second value
    HSET state $1 $3            a command
    CHANGED $1                  this edit is the last change of the entry $1

- The second word of a check or command names a key: an attribute of :class:`.keys.Keys`, or of
  other keys that the caller passes.
- ``NONE`` is the empty text, and the reply about something that is not there.
- ``CHANGED $1`` and ``NAMED $1`` name something in the line that the step leaves in the record of
  changes. The name is the first value.

A *guard* is a step that is made before the other steps. If one of its checks does not hold, no
later step is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from .._base.ids import random_hex
from ..entries.changes import Line, fields_by_change
from .keys import Keys
from .records import Lost, Term
from .redis_values import text
from .scripts import Scripts, packed_text

# Guard that holds while a term lasts. Values $1 and $2: token and number of the term.
_IN_OFFICE = """
    IF HGET leader token IS $1
    IF HGET leader term IS $2
"""

# Statement that only names $1 in the line that its step leaves in the record of changes.
_NAMED = "NAMED $1"


class Step(NamedTuple):
    """One edit, with its ``line`` in the record of changes; ``None``: it leaves no line."""

    statement: str
    values: Sequence[Any] = ()
    line: Line | None = None


class GuardFailed(Exception):
    """A guard does not hold, so no later step was made. The argument is that guard."""


def _parse(statement: str, places: dict[str, int]) -> tuple[list[Any], list[Any], str | None]:
    """Return the checks of a statement, its commands, and ``CHANGED`` or ``NAMED`` if it has that.

    ``NAMED`` adds the first value of a step, a name, to the step's line in the record of changes.
    ``CHANGED`` also makes that line the last change of the entry of this name.

    Parameters:
        places: name of a key -> its place among the keys of the call, from 1. This function adds
            the keys that it does not have yet.
    """
    checks: list[Any] = []
    commands: list[Any] = []
    naming = None

    def command(name: str, key: str, *words: str) -> list[str | int]:
        """Return a command as the script takes it, with the place of its key instead of the key."""
        place = places.setdefault(key, len(places) + 1)
        return [name, place, *map(_parse_word, words)]

    for row in statement.splitlines():
        match row.split():
            case ["CHANGED" | "NAMED" as word, _]:
                naming = word
            case ["IF", *words, "IS", expected]:
                checks.append((command(*words), _parse_word(expected)))
            case [_, *_] as words:
                commands.append(command(*words))
    return checks, commands, naming


def _parse_word(word: str) -> str | int:
    """Return a word as the script takes it.

    For ``$1``, ``$2`` … this is the place of the value in the step, for ``NONE`` the empty text.
    """
    if word.startswith("$"):
        # A step is the list [number of its statement, number of its line, value 1, value 2, …], and
        # Lua counts from 1. So value 1 is item 3.
        return int(word[1:]) + 2
    return "" if word == "NONE" else word


def transact(
    scripts: Scripts,
    keys: Keys,
    steps: Sequence[Step],
    guards: Sequence[Step] = (),
    *,
    others: object = None,
    term: Term | None = None,
    wakes: bool = False,
) -> list[bool]:
    """Make steps in one call; return for each of them whether it was made.

    A client that loses the reply sends the call again, and gets the same reply.

    Parameters:
        steps: at most :data:`.records.AT_ONCE`, or four times as many if each is one command.
        others: object whose attributes are the keys that ``keys`` does not have.
        term: term of the leader; ``None`` for other writers.
        wakes: whether the beat is woken if the first entry becomes due earlier.

    Raises:
        Lost: the term is over, and nothing was done.
        GuardFailed: a guard does not hold, and no step after it was made.
    """
    if not steps:
        return []
    if term is not None:
        guards = [Step(_IN_OFFICE, term), *guards]
    every_step = [*guards, *steps]
    # Many steps have the same statement or line. So the call has each statement and line once, and
    # a step has their numbers, from 1; 0 stands for no line.
    # ``places``: name of a key -> its place among the keys of the call. _parse() adds the keys.
    places: dict[str, int] = {}
    statements = list(dict.fromkeys(step.statement for step in every_step))
    parsed = [_parse(statement, places) for statement in statements]
    statement_numbers = {statement: number for number, statement in enumerate(statements, 1)}
    lines = fields_by_change(step.line for step in every_step)
    line_numbers = {change: number for number, change in enumerate(lines, 1)}
    packed_steps = []
    for step in every_step:
        line = line_numbers[step.line.change] if step.line else 0
        values = map(packed_text, step.values)
        packed_steps.append((statement_numbers[step.statement], line, *values))
    is_done, reply = scripts.run(
        "schedule/transact",
        keys,
        reply=keys.reply(random_hex()),
        changes=keys.changes if lines else None,
        state=keys.state if lines else None,
        due=keys.due if wakes else None,
        targets=[getattr(others, name, None) or getattr(keys, name) for name in places],
        guards=len(guards),
        packed=msgspec.msgpack.encode((parsed, list(lines.items()), packed_steps)),
    )
    if not is_done:
        # The reply is the number of the guard that failed. If there is a term, the first guard
        # checks it.
        if term is not None and reply == 1:
            raise Lost
        raise GuardFailed(guards[reply - 1])
    # The reply has a letter for each step, and the guards come first.
    return [letter == "1" for letter in text(reply)[len(guards) :]]


def record_change(scripts: Scripts, keys: Keys, line: Line, names: Sequence[str] = ()) -> None:
    """Write a line of the record of changes about a change that another call has made.

    Parameters:
        names: names of what was changed, at most :data:`.records.AT_ONCE`; empty: none.
    """
    # Steps with the same line make one line in the record, with the names of all of them.
    steps = [Step(_NAMED, (name,), line) for name in names]
    # Without a name, an empty statement carries the line.
    transact(scripts, keys, steps or [Step("", (), line)])
