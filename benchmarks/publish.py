"""Bringing a measurement into the docs: the table between two markers, and the plots."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from benchmarks import plots, report
from benchmarks.beats import ROOT

PAGE = ROOT / "docs" / "understand" / "performance.md"
PICTURES = ROOT / "docs" / "img"
BEGIN, END = "<!-- begin: make bench PUBLISH=1 -->", "<!-- end: make bench PUBLISH=1 -->"


def write(results: dict[str, Any], table: Sequence[report.Row]) -> None:
    """Renew the page on performance and its pictures."""
    text = PAGE.read_text()
    section = (
        f"{BEGIN}\n{report.about(results)}\n\n{report.markdown(table)}\n\n{report.profile(results['samples'])}\n{END}"
    )
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: section, text, flags=re.DOTALL))
    PICTURES.mkdir(parents=True, exist_ok=True)
    plots.write(results, PICTURES)


def as_json(results: dict[str, Any]) -> str:
    """The results as text: one line for each figure."""
    samples = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps([_short(value) for value in values])}"
        for name, values in sorted(results["samples"].items())
    )
    rest = {name: value for name, value in results.items() if name != "samples"}
    return f'{json.dumps(rest, indent=2)[:-2]},\n  "samples": {{\n{samples}\n  }}\n}}\n'


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
