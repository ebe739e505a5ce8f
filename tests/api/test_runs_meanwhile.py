"""What becomes of runs while somebody asks."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from redbeat_lite import Schedules, every
from redbeat_lite.api import run_history
from redbeat_lite.runs.run_store import rows_in
from tests.support.frozen import NOW
from tests.support.run_rows import KEYS, RunRows

pytestmark = pytest.mark.usefixtures("clock")


def test_a_run_that_ends_between_two_round_trips_has_ended(
    schedules: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("poll", "add", every(60))
    rows = RunRows(client, schedules)
    rows.row("poll", NOW, "running", "id", 0)

    def ends(reply: Any) -> Any:
        """Comes after the rows have been read, and before the guards are."""
        client.delete(KEYS.rows("poll"))
        line = rows.line("poll", NOW, "failed", "id", error="as asked")
        rows.row("poll", NOW, "failed", "id", 0, 9, 0, line)
        rows.guard("id", "done", 60)
        monkeypatch.undo()
        return rows_in(reply)

    monkeypatch.setattr(run_history, "rows_in", ends)
    [run] = schedules.runs("poll")
    assert (run.outcome, run.error) == ("failed", "as asked")
