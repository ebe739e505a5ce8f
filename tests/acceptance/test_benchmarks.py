"""The table and the plots of the docs are those of the published measurement."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import plots, publish, report
from benchmarks.beats import ROOT
from benchmarks.report import Row, number
from benchmarks.stats import Figure, pooled, quantile, ratios
from benchmarks.svg import Axis
from tests.support.cases import together


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    published: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    return published


def test_the_pages_show_the_published_tables(results: dict[str, Any]) -> None:
    table = report.rows(results["samples"], results["sizes"])
    page, record = publish.PAGE.read_text(), publish.RECORD.read_text()
    assert report.markdown(table) in record
    assert report.markdown(report.headlines(table)) in page
    assert report.about(results) in page
    assert report.about(results) in record


def test_the_page_hides_no_goal_that_was_not_met(results: dict[str, Any]) -> None:
    table = report.rows(results["samples"], results["sizes"])
    missed = [row for row in table if row.verdict == "**not met**"]
    assert [row for row in missed if row not in report.headlines(table)] == []


def test_the_docs_show_the_published_plots(results: dict[str, Any], tmp_path: Any) -> None:
    plots.write(results, tmp_path)
    for made in tmp_path.glob("*.svg"):
        ElementTree.fromstring(made.read_text())
        assert (publish.PICTURES / made.name).read_text() == made.read_text()


def test_results_are_read_as_they_were_written(results: dict[str, Any]) -> None:
    assert json.loads(publish.as_json(results)) == results


@pytest.mark.parametrize(
    ("value", "least", "most", "verdict"),
    [(25, 25, None, "met"), (24.9, 25, None, "**not met**"), (2, None, 2, "met"), (2.1, None, 2, "**not met**")],
)
def test_a_goal_is_met_or_not(value: float, least: float | None, most: float | None, verdict: str) -> None:
    assert Row("x", Figure(value, value, value), "×", least, most).verdict == verdict


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([10, 30, 20], [1, 2, 4]) == (10, 5, 15)


def test_quantiles() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(100), 0.99) == 99
    assert pooled([[1, 2], [3, 10]], 0.99) == (10, 2, 10)


@together(
    ("value", "shown"), [(0, "0"), (1, "1"), (28532.1, "28,532"), (33.33, "33.3"), (0.484, "0.48"), (0.0041, "0.0041")]
)
def test_figures_are_shown_with_the_digits_that_mean_something(value: float, shown: str) -> None:
    assert number(value) == shown


def test_axes_are_marked_at_round_values() -> None:
    assert Axis("x", 0, 12).ticks() == [0, 2, 4, 6, 8, 10, 12]
    assert Axis("x", 10, 10_000, log=True).ticks() == [10, 100, 1000, 10_000]
    assert Axis("x", 1, 100, log=True).place(10) == pytest.approx(0.5)
