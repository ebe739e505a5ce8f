"""The documentation builds, and Sphinx has nothing to say against it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from docutils import nodes
from pygments.lexers import get_lexer_by_name

import redbeat_lite
from tests.support.cases import together
from tests.support.pages import DOCS, blocks, documentation

#: Runs Sphinx, which takes a fifth less time if Python does not look for garbage meanwhile.
SPHINX = "import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("builder", ["dummy", pytest.param("html", marks=pytest.mark.soak)])
def test_the_documentation_builds_without_a_warning(tmp_path: Path, builder: str) -> None:
    """Without pages it says the same, but for what the theme has to say."""
    command = [sys.executable, "-c", SPHINX, "-q", "-W", "--keep-going", "-b", builder, "-d", tmp_path / "cache"]
    command += ["-D", "smartquotes=0"]  # which takes a tenth of the time and finds nothing wrong
    built = subprocess.run([*command, DOCS, tmp_path / "built"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = pickle.loads((tmp_path / "cache" / "lookup" / "api.doctree").read_bytes())
    anchors = {anchor for element in page.findall(nodes.Element) for anchor in element["ids"]}
    assert "redbeat_lite.Schedules.add" in anchors
    named = {*redbeat_lite.__all__} - {"__version__"}
    assert [name for name in named if f"redbeat_lite.{name}" not in anchors] == []


@together("page", documentation(), ids=lambda page: page.stem)
def test_every_block_is_written_in_its_language(page: Path) -> None:
    for block in blocks(page):
        lexer = get_lexer_by_name(block.language or "text")
        lexer.add_filter("raiseonerror")
        assert list(lexer.get_tokens(block.text))
