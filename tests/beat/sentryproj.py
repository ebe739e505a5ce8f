"""A beat under Sentry, in a process of its own, because Sentry patches Celery for good.

``python sentryproj.py URL DISPATCH`` prints, as JSON, the check-ins that Sentry was sent and how the beat
sent its messages.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import sentry_sdk
from celery import Celery
from celery.schedules import crontab
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from redbeat_lite import Scheduler, Schedules, cron, every
from tests.support.frozen import frozen_clock


class Fake(Transport):
    """Keeps what would go to Sentry."""

    def __init__(self) -> None:
        super().__init__()
        self.check_ins: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.check_ins += [item.payload.json for item in envelope.items if item.type == "check_in"]


def main(url: str, dispatch: str) -> None:
    transport = Fake()
    app = Celery("proj", broker=url)
    app.conf.update(
        redbeat_lite_dispatch=dispatch, redbeat_lite_lease=600, result_expires=None, timezone="Europe/Berlin"
    )
    app.conf.beat_schedule = {"config": {"task": "add", "schedule": crontab(minute="*/2")}}

    @app.task(name="add")
    def add() -> None: ...

    schedules, beat = Schedules(app), Scheduler(app)
    with frozen_clock() as clock:
        schedules.add("interval", "add", every(60), misfire="all")
        schedules.add("cron", "add", cron("*/2 * * * *", tz="Asia/Tokyo"), options={"headers": {"own": 1}})
        schedules.add("weekday", "add", cron("0 14 * * mon-fri"), start_at=clock.now + timedelta(minutes=30))
        schedules.add("unregistered", "nobody.knows", every(60), misfire="all")
        schedules.add("seconds", "add", every(10))
        schedules.add("excluded", "add", every(60))
        beat.run_due()
        modes = []
        for step in range(4):
            if step == 1:  # a beat that runs already, as where Sentry is set up in a signal handler
                sentry_sdk.init(
                    dsn="https://key@sentry.invalid/1",
                    transport=transport,
                    integrations=[CeleryIntegration(monitor_beat_tasks=True, exclude_beat_tasks=["excluded"])],
                )
            clock.forward(60 if step < 3 else 3600)
            while not beat.run_due():
                pass  # so many messages, in full, are more than a turn on a slow machine
            modes.append(beat._parts.publisher.mode)
    sentry_sdk.flush()
    beat.close()
    print(json.dumps({"check_ins": transport.check_ins, "modes": modes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
