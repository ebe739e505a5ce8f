"""The examples of docs/time.md are what the code does."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "time.md"


def test_every_example_on_the_page_is_true() -> None:
    # A fence right after an output would count as part of it.
    text = re.sub(r"^```\w*$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {"__name__": "docs"}, "time.md", str(PAGE), 0)
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert results.attempted > 50
    assert not results.failed, "".join(report)
