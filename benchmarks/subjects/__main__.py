"""Measure one subject; see the package."""

from __future__ import annotations

import json
import sys
from importlib import import_module

from benchmarks.subjects.common import Task


def main() -> None:
    task = Task(**json.load(sys.stdin))
    figures = import_module(f"benchmarks.subjects.{sys.argv[1]}").measure(task)
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
