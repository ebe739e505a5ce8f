"""Does what a page of the documentation tells its reader to do, block by block, and holds it to what it shows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes import ROOT, Process
from tests.support.waiting import eventually
from tests.support.wheel import Installation

#: The documentation, in a folder for each kind of question.
DOCS = ROOT / "docs"

#: The server that pages speak of; a test has one of its own.
URL = "redis://localhost:6379/0"

#: A Python prompt: reads the source of a block as a line of JSON and answers with what doctest says about it.
_PROMPT = """
import doctest, json, sys
names, said = {"__name__": "__main__"}, []
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
for line in sys.stdin:
    test = doctest.DocTestParser().get_doctest(json.loads(line), {}, "page", None, 0)
    test.globs = names
    said.clear()
    runner.run(test, out=said.append, clear_globs=False)
    print(json.dumps("".join(said)), flush=True)
"""


class Block(NamedTuple):
    """One fenced block: the language after the fence, the text, and the line it begins in."""

    language: str
    text: str
    line: int


def documentation() -> list[Path]:
    """Every page of the documentation, the front page first."""
    return [DOCS / "index.md", *sorted(DOCS.glob("*/*.md"))]


def document(name: str) -> Path:
    """The page of this name, whichever folder holds it."""
    [page] = [page for page in documentation() if page.name == name]
    return page


def blocks(page: Path, heading: str | None = None) -> Iterator[Block]:
    """The fenced blocks of a page, or of the section under one of its second-level headings."""
    text = page.read_text()
    start, end = 0, len(text)
    if heading is not None:
        start = text.index(f"\n## {heading}\n") + 1
        end = (text + "\n## ").index("\n## ", start)
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if start <= found.start() < end:
            yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)


class Reader:
    """Somebody who follows a page in a project directory.

    Python whose first line is a comment with a file's name is written to that file. Shell commands are run to their
    end, but for workers and beats, which go on. What is shown at a Python prompt is typed there, and the answers must
    be those. Other text is output, which has to appear; ``...`` stands for anything.

    Parameters:
        installation: where.
        url: of the server, in place of the one that pages speak of.
    """

    def __init__(self, installation: Installation, url: str) -> None:
        self._installation = installation
        self._url = url
        self._prompt: subprocess.Popen[str] | None = None
        self.processes: list[Process] = []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._prompt is not None:
            self._prompt.communicate()  # closes its input, which ends it
        for process in self.processes:
            if process.alive:
                process.terminate()  # a worker that is killed leaves its children to themselves
        for process in self.processes:
            process.wait()
            process.destroy()

    def follow(self, page: Path, heading: str | None = None) -> None:
        """Do everything a page says."""
        for block in blocks(page, heading):
            self.do(page, block)

    def do(self, page: Path, block: Block) -> None:
        """Do what one block of a page says."""
        does = {"python": self._write, "sh": self._shell, "pycon": self._type, "text": self._await}
        try:
            does[block.language](block.text.replace(URL, self._url))
        except Exception as exc:
            raise AssertionError(f"{page.name}, line {block.line}: {exc}\n{self.output}") from exc

    @property
    def output(self) -> str:
        """What the workers and beats said so far."""
        return "".join(process.output for process in self.processes)

    def _write(self, text: str) -> None:
        name = re.match(r"# (\S+\.py)\n", text)
        assert name, "a block of Python begins with the name of its file"
        (self._installation.project / name[1]).write_text(text)

    def _shell(self, text: str) -> None:
        for line in text.replace("\\\n", "").splitlines():
            command = ["sh", "-ec", f"exec {line}"]
            if re.match(r"celery .*\b(worker|beat)\b", line):
                self.processes.append(Process(command, self._env, cwd=self._installation.project, inherit=False))
                continue
            if line.startswith("pip "):
                self._installation.pip(line)
                continue
            where = self._installation.project
            done = subprocess.run(command, cwd=where, env=self._env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    @property
    def _env(self) -> dict[str, str]:
        return self._installation.env

    def _type(self, text: str) -> None:
        if self._prompt is None:
            self._prompt = subprocess.Popen(
                ["python", "-c", _PROMPT],
                env=self._env,
                cwd=self._installation.project,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._prompt.stdin is not None
        assert self._prompt.stdout is not None
        self._prompt.stdin.write(json.dumps(text) + "\n")
        self._prompt.stdin.flush()
        report = json.loads(self._prompt.stdout.readline())
        assert not report, report

    def _await(self, text: str) -> None:
        for line in text.splitlines():
            pattern = ".*".join(map(re.escape, line.strip().split("...")))
            eventually(lambda pattern=pattern: re.search(pattern, self.output), what=f"output like {line!r}")
