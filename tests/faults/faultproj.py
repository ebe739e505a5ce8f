"""The app that the fault suite runs: that of the acceptance tests, with fewer log lines and a clock that can be set.

The wall clock of a process runs ahead by as many seconds as the file says that ``PROJ_CLOCK`` names.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from celery import signals

import redbeat_lite
from tests.acceptance.proj import app

__all__ = ["app"]

print(f"redbeat_lite of {Path(redbeat_lite.__file__).parents[1]}", flush=True)


@signals.after_setup_logger.connect(weak=False)
def quiet(**kwargs: Any) -> None:
    # One line for each of thirty thousand messages is nothing that anybody reads.
    logging.getLogger("celery.beat").setLevel(logging.WARNING)


if "PROJ_CLOCK" in os.environ:
    _path, _time = Path(os.environ["PROJ_CLOCK"]), time.time

    def _shifted() -> float:
        text = _path.read_text() if _path.exists() else ""
        return _time() + float(text or 0)

    time.time = _shifted
