"""The table of docs/faults.md, from the results of the suite: ``python -m tests.faults.page`` writes it anew."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import ROOT

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "faults.md"
