"""The page of faults shows what the fault suite has published."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.page import LINES, PAGE, RESULTS, SOAK, summary, table


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    published: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    return published


def test_the_page_shows_the_published_results(results: dict[str, dict[str, Any]]) -> None:
    assert table(results) in PAGE.read_text()
    assert summary(results[SOAK]) in PAGE.read_text()


def test_each_scenario_has_a_line_and_each_line_a_scenario(results: dict[str, dict[str, Any]]) -> None:
    assert {*LINES, SOAK} == set(results)


def test_published_are_long_runs_without_a_loss(results: dict[str, dict[str, Any]]) -> None:
    for name, result in results.items():
        assert name == SOAK or result["seconds"] == 60, name
        assert not result["lost"], name
        # Elsewhere, a batch that nobody knows to have arrived goes out again.
        assert not result["doubled"] or name in ("cluster", "frozen elsewhere") or name.startswith("broker"), name
        assert result["back"] < 5.5, name
        work = result.get("work", {})
        assert not work.get("vanished"), name
        assert not work.get("overlaps"), name
