"""The app of the acceptance tests on a machine whose clock is ahead by ``PROJ_AHEAD`` seconds."""

from __future__ import annotations

import datetime as datetimes
import os
import time

AHEAD = float(os.environ["PROJ_AHEAD"])

_right_time, _right_datetime = time.time, datetimes.datetime


class _Ahead(type):
    """Has every datetime count as one of those that are made here."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _right_datetime)


class Datetime(_right_datetime, metaclass=_Ahead):
    """One whose ``now()`` is ahead."""

    @classmethod
    def now(cls, tz: datetimes.tzinfo | None = None) -> datetimes.datetime:  # type: ignore[override] # any datetime
        return _right_datetime.now(tz) + datetimes.timedelta(seconds=AHEAD)


# Mocked, because a test cannot set the clock of its machine. Before anything of Celery's worker is imported.
time.time = lambda: _right_time() + AHEAD
datetimes.datetime = Datetime  # type: ignore[misc] # as above

from celery.worker import request  # noqa: E402

request.datetime = Datetime

from redbeat_lite import install  # noqa: E402
from tests.acceptance.proj import app  # noqa: E402

install(app)

__all__ = ["app"]
