"""What those who took part in a test that failed have to say: processes their output, servers their state."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

#: Characters of each statement that are shown, from its end.
_SHOWN = 6000

_witnesses: dict[object, tuple[str, Callable[[], str]]] = {}


def hear(witness: object, name: str, statement: Callable[[], str]) -> None:
    """From now on, ask this one when a test fails."""
    _witnesses[witness] = (name, statement)


def dismiss(witness: object) -> None:
    """Ask it no more."""
    _witnesses.pop(witness, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the witnesses say to the report of a failure, while they are still there."""
    report = yield
    if report.failed:
        report.sections += [(name, _said(statement)) for name, statement in _witnesses.values()]
    return report


def _said(statement: Callable[[], str]) -> str:
    try:
        text = statement()
    except Exception as exc:
        text = f"nothing: {exc!r}"
    return text if len(text) <= _SHOWN else f"[...]{text[-_SHOWN:]}"
