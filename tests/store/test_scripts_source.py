"""Where the text of the scripts comes from."""

from __future__ import annotations

import subprocess
import sys

_LOOK = """
import sys
from redbeat_lite.store.scripts import _FILES, source

events = []
sys.addaudithook(lambda event, args: events.append((event, args)) if event in ("import", "open") else None)
assert len([source(name) for name in _FILES]) > 20
assert not events, events
"""


def test_no_script_is_looked_for_at_its_first_use() -> None:
    """A thread may be at it while another one forks, and the child would inherit the locks of its imports."""
    subprocess.run([sys.executable, "-c", _LOOK], check=True, timeout=60)
