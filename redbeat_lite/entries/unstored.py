"""Parts of a config entry that cannot be stored, such as a ``BeatLazyFunc`` among its arguments.

Redis holds a text in place of such a part, and only for people to read. The leader takes the part
itself from its own configuration.
"""

from __future__ import annotations

import re
from datetime import datetime

from celery.schedules import BaseSchedule, schedstate

from .._base.text import shorten, storable

# Longest text in place of a part, in characters.
_MAX_TEXT = 500

# Memory address in a default ``repr``.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class UnstoredSchedule(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Stand-in for a schedule that only the configuration of its app holds.

    It only says that it wants to be asked again in a second. So a process without the configuration
    stores this question as the next run, and the leader asks the schedule itself.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Return that nothing is due, and that the next question comes in a second."""
        return schedstate(is_due=False, next=1)

    def __repr__(self) -> str:
        return self.text


def readable_text(value: object) -> str:
    """Return the ``repr`` of a value without memory addresses, which differ between processes."""
    return storable(_ADDRESS.sub("", shorten(value, _MAX_TEXT)))
