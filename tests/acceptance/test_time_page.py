"""The examples of time.md and time-rules.md are what the code does."""

from __future__ import annotations

import doctest
import re

from tests.support.pages import document


def test_every_example_on_the_pages_is_true() -> None:
    written = "\n".join(document(page).read_text(encoding="utf-8") for page in ("time.md", "time-rules.md"))
    # A fence right after an output would count as part of it.
    text = re.sub(r"^```\w*$", "", written, flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {"__name__": "docs"}, "time.md", None, 0)
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert results.attempted > 50
    assert not results.failed, "".join(report)
