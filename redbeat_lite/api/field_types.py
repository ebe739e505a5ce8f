"""The optional fields of an entry, as :meth:`redbeat_lite.Schedules.add` takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from ..expect import Expect, Pause
from ..once.policy import Once
from ..schedules.misfire import Misfire


class Policies(TypedDict, total=False):
    """See :class:`redbeat_lite.Entry`."""

    expires: float | timedelta | Literal["interval"] | None
    once: bool | Once | Mapping[str, Any]
    misfire: str | Misfire | Mapping[str, Any]
    jitter: float | timedelta
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    enabled: bool
    description: str
    remove_when_done: bool
    history: int | None
    expect: Expect | Mapping[str, Any] | Literal[False] | None
    on_failure: Pause | str | None
    calendar: str | None
    tags: Collection[str]
