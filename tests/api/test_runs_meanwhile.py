"""What becomes of runs while somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from redbeat_lite import Schedules, every
from redbeat_lite.api.run_history import RunHistory
from redbeat_lite.entries.run import Row, sign_of
from tests.support.frozen import NOW
from tests.support.run_rows import KEYS, RunRows

pytestmark = pytest.mark.usefixtures("clock")


def test_a_run_that_ends_between_two_round_trips_is_told_as_it_was_or_as_it_is(
    schedules: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("poll", "add", every(60))
    rows = RunRows(client, schedules)
    rows.row("poll", NOW, "running", "id", 0)
    client.zadd(KEYS.alive, {sign_of("id", 0): 10**14})
    read_details = RunHistory._read_details

    def ends(self: RunHistory, read: Sequence[Row]) -> Any:
        """Comes after the rows have been read, and before the guards are."""
        client.delete(KEYS.rows("poll"))
        line = rows.line("poll", NOW, "failed", "id", error="as asked")
        rows.row("poll", NOW, "failed", "id", 0, 9, 0, line)
        rows.guard("id", "done", 60)
        return read_details(self, read)

    with monkeypatch.context() as patched:
        patched.setattr(RunHistory, "_read_details", ends)
        [run] = schedules.runs("poll")
        assert run.outcome == "running"
    client.delete(KEYS.alive)
    [run] = schedules.runs("poll")
    assert (run.outcome, run.error) == ("failed", "as asked")
