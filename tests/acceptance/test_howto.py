"""The examples of howto.md and many.md at a Python prompt are what the code does."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import pytest
from celery import Celery

from redbeat_lite import Schedules
from tests.support.in_process import clock
from tests.support.pages import blocks, document

__all__ = ["clock"]

PAGES = [document(name) for name in ("howto.md", "many.md")]


@pytest.mark.usefixtures("clock")  # they name days, which would be over one day
def test_every_example_on_the_pages_is_true(make_app: Callable[..., Celery]) -> None:
    app = make_app(result_expires=None)
    text = "\n".join(block.text for page in PAGES for block in blocks(page) if block.language == "pycon")
    known = {"app": app, "schedules": Schedules(app)}
    examples = doctest.DocTestParser().get_doctest(text, known, "howto.md and many.md", None, 0)
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert results.attempted
    assert not results.failed, "".join(report)
