"""Where an entry goes on: the state that follows from its last run elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from redbeat_lite import Entry, at, cron, every
from redbeat_lite._base.times import from_ms, to_ms
from redbeat_lite.interchange.move_in import ForeignEntry, carried_state
from tests.support.cases import together
from tests.support.rules import UTC_APP

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@together(
    ("fields", "found", "following"),
    [
        ({"schedule": every(60)}, {"since": NOW - timedelta(seconds=20), "runs": 1}, NOW + timedelta(seconds=40)),
        ({"schedule": every(60)}, {"since": NOW - HOUR, "runs": 1}, NOW - HOUR + timedelta(seconds=60)),
        ({"schedule": every(60)}, {}, NOW + timedelta(seconds=60)),
        ({"schedule": every(60)}, {"at_once": True}, NOW),
        ({"schedule": cron("0 11 * * *")}, {"since": NOW - 2 * HOUR, "runs": 1}, NOW - HOUR),
        ({"schedule": every(60), "start_at": NOW + HOUR}, {"since": NOW - HOUR}, NOW + HOUR),
        ({"schedule": cron("0 * * * *"), "start_at": NOW + 1.5 * HOUR}, {"since": NOW - HOUR}, NOW + 2 * HOUR),
        ({"schedule": every(60), "max_runs": 3}, {"since": NOW, "runs": 3}, None),
        ({"schedule": every(7200), "end_at": NOW + HOUR}, {"since": NOW, "runs": 1}, None),
        ({"schedule": at(NOW - HOUR)}, {"since": NOW - 2 * HOUR}, NOW - HOUR),
        ({"schedule": at(NOW - HOUR)}, {"since": NOW - HOUR, "runs": 1}, None),
        ({"schedule": at(NOW + HOUR)}, {"since": NOW - HOUR, "at_once": True}, NOW + HOUR),
    ],
    ids=lambda value: None if isinstance(value, datetime) else str(value),
)
def test_an_entry_goes_on_from_its_last_run(
    fields: dict[str, Any], found: dict[str, Any], following: datetime | None
) -> None:
    entry = Entry("entry", "shop.sync", app=UTC_APP, **fields)
    state = carried_state(ForeignEntry("entry", fields, **found), entry, to_ms(NOW))
    assert (None if state.nominal is None else from_ms(state.nominal)) == following
    assert state.count == found.get("runs", 0)
    assert (None if state.last is None else from_ms(state.last)) == (found["since"] if found.get("runs") else None)


def test_a_last_run_is_kept_though_its_counter_was_set_back() -> None:
    entry = Entry("entry", "shop.sync", every(60), app=UTC_APP)
    found = ForeignEntry("entry", {}, since=NOW - HOUR, has_run=True)
    assert carried_state(found, entry, to_ms(NOW)).last == to_ms(NOW - HOUR)
