"""Atomic edits, written as checks and commands. One Lua script makes all of them.

Edits that are made often have Lua scripts of their own. All others use ``schedule/transact.lua``.

A *statement* is a template for edits: rows of text, with ``$1``, ``$2`` … in place of values.
A :class:`Step` is one edit: a statement and its values. One call of the script makes many steps.
If a check of a step fails, the script skips the rest of this step and makes the others. So the
checks of a statement come before its commands::

    IF HGET state $1 IS $2      a check: this command must return the second value
    HSET state $1 $3            a command
    CHANGED $1                  the step is the last change of the entry $1

- The word after ``HGET``, ``HSET`` and so on names a key: an attribute of :class:`.keys.Keys`, or
  of the ``others`` that the caller passes.
- ``NONE`` is the empty text. In a check, it also matches a field that does not exist.
- ``NAMED $1`` writes the first value as a name into the step's line in the record of changes.
  ``CHANGED $1`` also stores this line in the entry's state, as its last change.

A *guard* is a step that is made before the other steps. If a check of a guard fails, no later step
is made.
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

# Guard of a leader's edits: its term is not over. Values $1 and $2: token and number of the term.
_IN_OFFICE = """
    IF HGET leader token IS $1
    IF HGET leader term IS $2
"""

# Statement that changes no entry. It adds the name of an entry to the line of its step, which goes
# into the record of changes.
_NAMED = "NAMED $1"


class Step(NamedTuple):
    """One edit.

    Parameters:
        line: its line in the record of changes; ``None`` if the edit is not recorded.
    """

    statement: str
    values: Sequence[Any] = ()
    line: Line | None = None


class GuardFailed(Exception):
    """A check of a guard has failed, so no later step was made. The argument is the guard."""


class _Numbers(dict[str, int]):
    """Number of each text, from 1, in the order in which the texts are first looked up."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self) + 1
        return self[text]


class _Parsed(NamedTuple):
    """A statement as ``schedule/transact.lua`` reads it.

    Parameters:
        rows: its checks and commands. A row has the reply that a check expects, or ``False``; the
            name of the command; the number of its key; and its other words.
        naming: first word of the row ``CHANGED $1`` or ``NAMED $1``, if the statement has one. The
            row gives the first value of the step as a name to its line in the record of changes.
    """

    rows: list[list[Any]]
    naming: str | None


def _parse(statement: str, key_numbers: _Numbers) -> _Parsed:
    """Return a statement in the form that the script reads.

    The head of this module describes the rows of a statement.

    Parameters:
        key_numbers: numbers of the keys of the call, by their names.
    """
    rows: list[list[Any]] = []
    naming = None
    for row in statement.splitlines():
        match row.split():
            case ["CHANGED" | "NAMED" as word, _]:  # The second word is always $1.
                naming = word
            case ["IF", command, key, *words, "IS", expected]:  # a check
                rows.append(
                    [_parse_word(expected), command, key_numbers[key], *map(_parse_word, words)]
                )
            case [command, key, *words]:  # a command, whose reply is not checked
                rows.append([False, command, key_numbers[key], *map(_parse_word, words)])
    return _Parsed(rows, naming)


def _parse_word(word: str) -> str | int:
    """Return a word for the script.

    ``$1``, ``$2`` … become the place of the value in the step, and ``NONE`` the empty text.
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
        steps: at most :data:`.records.AT_ONCE`, because the server is blocked meanwhile. If the
            statement of each is only one command, four times as many.
        guards: steps that are made first. If a check of one of them fails, no later step is made.
        others: object whose attributes are further keys that the steps use.
        term: term of the leader; ``None`` for other writers.
        wakes: whether to wake the beat if the earliest due time of all entries becomes earlier.

    Raises:
        Lost: the term is over, and nothing was done.
        GuardFailed: a check of a guard has failed, and no step after this guard was made.
    """
    if not steps:
        return []
    if term is not None:
        guards = [Step(_IN_OFFICE, term), *guards]
    every_step = [*guards, *steps]
    # Many steps have the same statement, or the same line in the record of changes. So the call has
    # each statement and each line once, and a step has their numbers. Number 0 means no line.
    statement_numbers = _Numbers()
    line_numbers = _Numbers()
    packed_steps = []
    for step in every_step:
        # Lines about the same change become one line in the record of changes.
        line = line_numbers[step.line.change] if step.line else 0
        values = map(packed_text, step.values)
        packed_steps.append((statement_numbers[step.statement], line, *values))
    fields = fields_by_change(step.line for step in every_step)
    lines = [(change, fields[change]) for change in line_numbers]
    key_numbers = _Numbers()
    parsed = [_parse(statement, key_numbers) for statement in statement_numbers]
    failed_guard, made = scripts.run(
        "schedule/transact",
        keys,
        reply=keys.reply(random_hex()),
        changes=keys.changes if lines else None,
        state=keys.state if lines else None,
        due=keys.due if wakes else None,
        targets=[getattr(others, name, None) or getattr(keys, name) for name in key_numbers],
        guards=len(guards),
        packed=msgspec.msgpack.encode((parsed, lines, packed_steps)),
    )
    if failed_guard:
        # Guards are counted from 1. If the caller has passed a term, guard 1 checks the term.
        if term is not None and failed_guard == 1:
            raise Lost
        raise GuardFailed(guards[failed_guard - 1])
    # ``made`` has a character for each guard and then for each step: "1" if it was made.
    return [letter == "1" for letter in text(made)[len(guards) :]]


def record_change(scripts: Scripts, keys: Keys, line: Line, names: Sequence[str] = ()) -> None:
    """Write a line of the record of changes about a change that another call has made.

    Parameters:
        names: names of what was changed, at most :data:`.records.AT_ONCE`; empty: none.
    """
    # _NAMED changes nothing, but gives the line a name. Steps with the same line make one line in
    # the record, with the names of all of them.
    steps = [Step(_NAMED, (name,), line) for name in names]
    # Without a name, an empty statement carries the line.
    transact(scripts, keys, steps or [Step("", (), line)])
