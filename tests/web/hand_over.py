"""Takes the picture of a hand-over: the output of two real beats, of which the leading one is killed."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import redis

from tests.support.processes import Process, celery_command
from tests.support.waiting import eventually

#: The project of the picture. The format leaves out what is the same in every line.
PROJECT = """
from celery import Celery

app = Celery("tasks", broker={url!r})
app.conf.worker_log_format = "%(asctime)s %(message)s"
app.conf.result_expires = None
app.conf.beat_schedule = {{"greet": {{"task": "tasks.say", "schedule": 2}}}}


@app.task
def say() -> None: ...
"""

#: Messages that a beat sends before and after the hand-over.
_BEFORE, _AFTER = 3, 3

_LINE = re.compile(r"\S+ (\d\d:\d\d:\d\d,\d+) (.*(?:beat: [a-z]|Scheduler:).*)")

STYLE = """
body { margin: 0; padding: 20px; background: #fff; color: #1f2328; font: 14px/1.5 "DejaVu Sans Mono", monospace; }
table { border-collapse: separate; border-spacing: 14px 0; width: 100%; table-layout: fixed; }
th { background: #d0d7de; border-radius: 8px 8px 0 0; padding: 6px 12px; text-align: left; font-weight: 600; }
td { background: #0d1117; color: #e6edf3; padding: 1px 12px; height: 21px; vertical-align: top; }
tr:last-child td { border-radius: 0 0 8px 8px; padding-bottom: 8px; }
time { color: #8b949e; } .leads { color: #7ee787; } .stands { color: #79c0ff; } .killed { color: #ff7b72; }
.missed { color: #e3b341; }
"""


class Line(NamedTuple):
    """A line of a beat: when it was logged, the column of its beat, and its text."""

    at: str
    column: int
    text: str


def run(url: str) -> tuple[list[Line], tuple[int, int]]:
    """Run two beats on a server, kill the leading one, and return their lines in order and their process ids."""
    with redis.Redis.from_url(url) as client:
        client.config_set("appendonly", "yes")  # the beats would warn of a server that keeps nothing
    with TemporaryDirectory() as folder:
        Path(folder, "tasks.py").write_text(PROJECT.format(url=url))
        words = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO")
        command, env = celery_command("tasks", *words)
        with Process(command, env, cwd=Path(folder)) as leader:
            leader.says("beat: leading")
            with Process(command, env, cwd=Path(folder)) as other:
                other.says("beat: standing by")
                _wait_for_messages(leader, _BEFORE)
                leader.kill()
                other.says("beat: leading")
                _wait_for_messages(other, _AFTER)
                killed = Line(_lines(leader, 0)[-1].at + "~", 0, "Killed")
                lines = [*_lines(leader, 0), killed, *_lines(other, 1)]
                return sorted(lines, key=lambda line: line.at), (leader.pid, other.pid)


def _wait_for_messages(beat: Process, number: int) -> None:
    eventually(lambda: len(beat.lines("Sending due task")) >= number, within=60, what="messages of the beat")


def _lines(beat: Process, column: int) -> list[Line]:
    found = map(_LINE.match, beat.output.splitlines())
    return [Line(match[1], column, match[2]) for match in found if match is not None]


def page(lines: list[Line], pids: tuple[int, int]) -> str:
    """Return the HTML of the picture: two terminals side by side, in which lines of one time stand side by side."""
    heads = "".join(f"<th>beat {name}, pid {pid}</th>" for name, pid in zip("AB", pids, strict=True))
    rows = []
    for line in lines:
        cells = ["<td></td>", "<td></td>"]
        cells[line.column] = f"<td><time>{line.at[:8]}</time> {_coloured(line.text)}</td>"
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<style>{STYLE}</style><table><tr>{heads}</tr>{''.join(rows)}</table>"


def _coloured(text: str) -> str:
    for word, name in (("leading", "leads"), ("standing by", "stands"), ("Killed", "killed"), ("missed", "missed")):
        if word in text:
            return f'<span class="{name}">{escape(text)}</span>'
    return escape(text)
