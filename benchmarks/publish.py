"""Bringing a measurement into the pages: tables between two markers, and the plots."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots, report
from benchmarks.beats import ROOT

PAGE = ROOT / "docs" / "understand" / "performance.md"
PICTURES = ROOT / "docs" / "img"
RECORD = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- begin: make bench PUBLISH=1 -->", "<!-- end: make bench PUBLISH=1 -->"


def write(results: dict[str, Any], table: Sequence[report.Row]) -> None:
    """Renew all figures in ``benchmarks/README.md``, the main ones on the page, and the pictures."""
    about = report.about(results)
    _replace_section(RECORD, about, report.markdown(table), report.profile(results["samples"]))
    _replace_section(PAGE, about, report.markdown(report.headlines(table)))
    PICTURES.mkdir(parents=True, exist_ok=True)
    plots.write(results, PICTURES)


def _replace_section(page: Path, *parts: str) -> None:
    """Put the parts between the markers of a page."""
    text = "\n\n".join(parts)
    section = f"{BEGIN}\n{text}\n{END}"
    pattern = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    page.write_text(re.sub(pattern, lambda _: section, page.read_text(), flags=re.DOTALL))


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
