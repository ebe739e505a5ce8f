"""Many cases of one statement as one test.

What a table of inputs says about a function without a state needs no test for each line: every worker of a run collects
every test, and sets the stage for each that it runs, which takes longer than the lines do.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def together(
    names: str | Sequence[str], cases: Iterable[Any], *, emptied: bool = False, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, but all cases are one test, and share what its fixtures give.

    It goes on after a case that fails, and tells of each. Each case finds an empty ``caplog``.

    Parameters:
        emptied: empty the shared server before each case. What fixtures have written is gone then.
        options: as there; they say nothing here.
    """
    given = names.replace(" ", "").split(",") if isinstance(names, str) else names
    rows = [_values(case, len(given)) for case in cases]

    def over(test: Callable[..., None]) -> Callable[..., None]:
        found = inspect.signature(test)
        left = [parameter for name, parameter in found.parameters.items() if name not in given]
        asks_for_server = emptied and "server" not in found.parameters
        if asks_for_server:
            left.append(inspect.Parameter("server", inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(test)
        def all_of_them(*args: Any, **fixtures: Any) -> None:
            failed: list[Exception] = []
            server = fixtures.pop("server") if asks_for_server else fixtures.get("server")
            for row in rows:
                if emptied:
                    server.own_client.flushall()
                if "caplog" in fixtures:
                    fixtures["caplog"].clear()
                try:
                    test(*args, **fixtures, **dict(zip(given, row, strict=True)))
                except (Exception, pytest.fail.Exception) as exc:
                    failed.append(exc if isinstance(exc, Exception) else AssertionError(str(exc)))
                    failed[-1].add_note(f"with {', '.join(f'{n}={v!r}' for n, v in zip(given, row, strict=True))}")
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(rows)} cases", failed)

        all_of_them.__signature__ = found.replace(parameters=left)  # type: ignore[attr-defined]  # which pytest reads
        return all_of_them

    return over


def for_the_soak(values: Iterable[Any]) -> list[Any]:
    """Return parameters that are marked ``soak``; none in the ordinary run, where each worker would collect them."""
    return [pytest.param(value, marks=pytest.mark.soak) for value in values if "SOAK_MINUTES" in os.environ]


def _values(case: Any, number: int) -> Sequence[Any]:
    if hasattr(case, "marks"):  # of `pytest.param`
        assert not case.marks, "a case among others cannot be marked"
        return tuple(case.values)
    return (case,) if number == 1 else tuple(case)
