"""Values of stored schedules, which somebody else may have written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from celery.schedules import BaseSchedule

from ..errors import InvalidEntry

#: Characters of one text.
_MAX_TEXT = 500


def whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidEntry("schedule", "a whole number", value)
    return value


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidEntry("schedule", "a number", value)
    return value


def seconds(value: object) -> float:
    # The bounds of an interval are the rule's business; timedelta has some of its own.
    found = number(value)
    if abs(found) > 86_400 * 999_999_999:
        raise InvalidEntry("schedule", "an interval of at most 100 years", value)
    return found


def text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InvalidEntry("schedule", f"a text of at most {_MAX_TEXT} characters", value)
    return value


def zone(obj: Mapping[str, Any]) -> str | None:
    return None if obj.get("tz") is None else text(obj["tz"])


def jsonable(data: object, found: BaseSchedule) -> object:
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidEntry("schedule", f"JSON-able data from the encoder of {type(found).__name__}", data) from None
    return data
