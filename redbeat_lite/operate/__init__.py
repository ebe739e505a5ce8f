"""How the beats and the schedule fare, for those who operate them.

The names are handed on lazily, so that the health probe loads nothing of the doctor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..public import handed_on

if TYPE_CHECKING:
    from ..beat.status import Status, status
    from .doctor import examine
    from .doctor.finding import Finding

_HOME = {"Finding": ".doctor.finding", "Status": "..beat.status", "examine": ".doctor", "status": "..beat.status"}

__all__ = ["Finding", "Status", "examine", "status"]

__getattr__ = handed_on(__name__, _HOME)
