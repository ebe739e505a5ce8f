"""``celery redbeat doctor``: prints the findings."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

import click

from ..operate.doctor import examine
from ..operate.doctor.finding import Finding
from .command import Command, app_of, json_option
from .output import clean, echo_json, say, showing_life, terminal_width

#: The gravest severity -> exit code; 1 and 2 are those of a command that failed.
_CODES = {"note": 0, "warning": 3, "error": 4}

#: By the word with which a finding begins.
_COLOURS = {"ERROR": "red", "WARNING": "yellow"}


@click.command(cls=Command)
@json_option
def doctor(ctx: click.Context) -> None:
    """Look for what is or will be trouble: the server, the settings, the entries.

    Each finding says what was found, why it matters and what to do. Nothing is changed. Run it where a beat runs, so
    that it looks at that machine's clock.

    Exit codes: 0 nothing, or notes; 3 a warning; 4 an error; 1 the request is wrong; 2 the server cannot be reached.

    \b
    Examples:
      celery -A proj redbeat doctor
      celery -A proj redbeat doctor --json
    """
    with showing_life("looking at the schedule"):
        found = examine(app_of(ctx))
    echo_json(found)
    for line in _lines(found):
        say(line, colour=_COLOURS.get(line.split(" ", 1)[0]))
    ctx.exit(_CODES[found[0].severity] if found else 0)


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    for finding in found:
        yield from _wrapped(f"{finding.severity.upper()} {finding.check}: ", finding.what)
        yield from _wrapped("  why: ", finding.why)
        yield from _wrapped("  do:  ", finding.todo)
        yield ""
    counts = Counter(finding.severity for finding in found)
    yield ", ".join(f"{counts[each]} {each}{'' if counts[each] == 1 else 's'}" for each in ("error", "warning", "note"))


def _wrapped(label: str, text: str) -> list[str]:
    indent = " " * min(len(label), 7)
    return textwrap.wrap(label + clean(text), width=terminal_width(), subsequent_indent=indent, break_on_hyphens=False)
