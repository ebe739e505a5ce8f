"""The beat with configurations that public projects have."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab

from redbeat_lite import Schedules, every
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn

LEFT_OUT = "beat: config entry 'job' does not run today by its new schedule; by the old one it would have run at "


@pytest.mark.parametrize(
    ("later", "is_told"),
    [
        ({"hour": 11, "minute": 50}, True),  # has passed at noon
        ({"hour": 13, "minute": 50}, False),
        ({"hour": 13, "minute": 30, "day_of_month": 1}, True),
    ],
)
def test_a_new_schedule_that_leaves_out_a_run_of_today_is_told(
    make_app: MakeApp,
    make_beat: MakeBeat,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    later: dict[str, Any],
    is_told: bool,
) -> None:
    caplog.set_level("INFO")
    for fields in ({"hour": 13, "minute": 30}, later, later):
        one_turn(make_app(beat_schedule={"job": {"task": "t", "schedule": crontab(**fields)}}), make_beat)
    lines = [message for message in caplog.messages if message.startswith(LEFT_OUT)]
    assert lines == ([f"{LEFT_OUT}{NOW:%Y-%m-%d} 13:30:00+00:00"] if is_told else [])


def test_a_task_that_fails_in_the_beat_was_sent_all_the_same(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(task_always_eager=True, task_eager_propagates=True)

    @app.task(name="fails", shared=False)
    def fails() -> None:
        raise ValueError("wrong")

    Schedules(app).add("a", "fails", every(1))
    beat = make_beat(app)
    for _ in range(3):
        clock.forward(1)
        beat.run_due()
    entry = Schedules(app)["a"]
    assert (entry.total_run_count, entry.last_error) == (3, None)
    line = "beat: task fails ran in the beat (task_always_eager) and failed: ValueError('wrong')"
    assert caplog.messages.count(line) == 3
