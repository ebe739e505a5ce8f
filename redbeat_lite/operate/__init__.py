"""Status and health of the beats, the doctor, and ``why``, for people who operate a schedule.

The names are imported at first use, so that the health probe does not load the doctor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.public import lazy_names

if TYPE_CHECKING:
    from ..beat.status import Status, status
    from .doctor import examine
    from .examination import Finding

_HOME = {
    "Finding": ".examination",
    "Status": "..beat.status",
    "examine": ".doctor",
    "status": "..beat.status",
}

__all__ = ["Finding", "Status", "examine", "status"]

__getattr__ = lazy_names(__name__, _HOME)
