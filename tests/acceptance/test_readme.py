"""What README and the tutorial tell their readers to do, done as they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import redbeat_lite
from tests.support.pages import Reader, blocks, document
from tests.support.processes import ROOT
from tests.support.server import Server
from tests.support.waiting import eventually
from tests.support.wheel import Installation


@pytest.fixture
def reader(installation: Installation, own_server: Callable[..., Server]) -> Iterator[Reader]:
    """Follows pages with an installation of the wheel and a server that keeps its data; stops what it started."""
    with Reader(installation, own_server(appendonly="yes").url) as reader:
        yield reader


@pytest.mark.timeout(180)
def test_the_quickstart_of_the_readme_works(reader: Reader) -> None:
    page = ROOT / "README.md"
    # So that nothing is renamed out of sight of this test.
    assert Counter(block.language for block in blocks(page, "Quickstart")) == {"sh": 4, "python": 2, "text": 1}
    reader.follow(page, "Quickstart")
    worker, beat = reader.processes
    greeted, said_hello = (len(worker.lines(words)) for words in ("every five seconds", "hello from add.py"))
    eventually(lambda: len(worker.lines("every five seconds")) > greeted, what="the beat goes on")
    assert len(worker.lines("hello from add.py")) <= said_hello + 1, "one may have been on its way"
    assert beat.lines(r"beat: leading \(term 1\)")
    assert not beat.lines("ERROR|CRITICAL|Traceback")
    assert [*blocks(page)] == [*blocks(page, "Quickstart")], "no block of the page is left out"


def test_the_readme_names_the_version() -> None:
    assert f"Version {redbeat_lite.__version__}," in (ROOT / "README.md").read_text()


@pytest.mark.timeout(180)
def test_the_tutorial_works(reader: Reader) -> None:
    reader.follow(document("quickstart.md"))
    assert len(reader.processes) == 3
    assert not any(process.lines("ERROR|CRITICAL|Traceback") for process in reader.processes)
