"""What docs/time.md and docs/howto.md show at a Python prompt is what the code does."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize(("page", "least"), [("time.md", 50), ("howto.md", 5)])
def test_every_example_on_the_page_is_true(page: str, least: int) -> None:
    # A fence right after an output would count as part of it.
    text = re.sub(r"^```\w*$", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {"__name__": "docs"}, page, page, 0)
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert results.attempted > least
    assert not results.failed, "".join(report)
