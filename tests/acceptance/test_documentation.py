"""The documentation builds, and Sphinx has nothing to say against it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import redbeat_lite

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "cache"]
    built = subprocess.run([*command, ROOT / "docs", tmp_path / "html"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "html" / "api.html").read_text()
    assert "Schedules.add" in page
    named = {*redbeat_lite.__all__} - {"__version__"}
    assert [name for name in named if f'id="redbeat_lite.{name}"' not in page] == []
