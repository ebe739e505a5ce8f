"""A progress bar of one line on stderr."""

from __future__ import annotations

import sys
import time

_WIDTH = 30


class Progress:
    """Shows how far the benchmark is.

    Parameters:
        total: how many steps there are.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._live = sys.stderr.isatty()

    def begin(self, what: str) -> None:
        """Say what the next step is."""
        filled = _WIDTH * self._done // self._total
        passed = int(time.monotonic() - self._started)
        line = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self._done}/{self._total} {passed // 60}:{passed % 60:02d}"
        print(
            f"\r\x1b[K{line}  {what}" if self._live else f"{line}  {what}", file=sys.stderr, flush=True, end=self._end
        )
        self._done += 1

    @property
    def _end(self) -> str:
        return "" if self._live else "\n"

    def finish(self) -> None:
        """Clear the line."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
