"""Signals between tests and task bodies in other processes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import quote

from tests.harness.history import HistoryLog


class Marks:
    """Small files beside the log, by which tests and bodies in other processes signal each other.

    They need no server, so they work while one is away.
    """

    def __init__(self, log: HistoryLog) -> None:
        self._directory = Path(f"{log.path}.marks")

    def add(self, name: str, text: str = ".") -> int:
        """Add a mark of this name, and return how many characters all of its marks have by now."""
        self._directory.mkdir(exist_ok=True)
        file = os.open(self._path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, text.encode())
            return os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)

    def count(self, name: str) -> int:
        """Return how many marks of one character there are of this name."""
        return len(self.read(name))

    def read(self, name: str) -> str:
        """Return the text of all marks of this name."""
        try:
            return self._path(name).read_text()
        except FileNotFoundError:
            return ""

    def clear(self) -> None:
        """Remove all marks."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self._directory / quote(name, safe="")
