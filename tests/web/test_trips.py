"""A page takes three round trips, however much is recorded; some take one, two or three more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from redbeat_lite import Entry, Schedules, every
from redbeat_lite.web.site import ROUTES
from tests.support.commands import round_trips
from tests.support.run_rows import RunRows
from tests.web.conftest import Visitor

#: A hundredth of what is looked through, so that a few hundred entries show how it goes on after that; of the record of
#: changes, a script looks through half of what there is.
SMALL = {
    "api.selected.NAMES": 100,
    "api.selected.READ": 20,
    "api.selected.PAGE": 10,
    "web.pages._ENTRIES": 5,
    "web.pages._ENDS": 15,
    "runs.run_store._PAGE": 5,
    "web.pages._LANES": 5,
    "api.reader._TOGETHER": 3,
    "api.change_log._LOOKED_AT": 40,
}

#: Where what is looked for is rare, everything is looked through; of entries it is in all that is shown, too.
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    *({"q": name} for name in ("e0", "*9*9*", "nothing", "*nothing*", "e*7")),
    *({"tag": tag} for tag in ("t3", "rare", "none")),
    *({"task": task} for task in ("shop.t*", "*3", "none")),
    {"q": "*9*", "tag": "t3", "task": "shop.*"},
)
STATES = ("waiting", "paused", "disabled", "manual", "finished", "failing", "failed")

#: What makes a filter of entries.
FILTERED = {"q", "tag", "task", "state"}

ASKED: dict[str, list[dict[str, Any]]] = {
    "/entries": [
        *FILTERS,
        *({"state": state} | more for state in STATES for more in ({}, {"tag": "t3"}, {"q": "e0"}, {"offset": 10})),
        *({"offset": offset} | more for offset in (20, 60) for more in ({}, {"tag": "t3"}, {"q": "e"})),
    ],
    "/timeline": [*FILTERS],
    "/entry": [{"name": name} for name in ("e001", "e093", "gone")],
    "/why": [{"name": name} for name in ("e001", "e093", "gone")],
    "/runs": [
        {"since": "2020-01-01", "until": "2020-01-02"},
        *({}, {"q": "e000"}, {"q": "gone"}, {"q": "e0*"}, {"task": "*3"}, {"q": "*9*", "task": "shop.*"}),
        *({"outcome": outcome} | more for outcome in ("failed", "expired", "lost") for more in ({}, {"task": "*2"})),
    ],
    "/changes": [{}, {"q": "e0"}],
    "/pipeline": [{"id": "gone"}],
}


@pytest.fixture
def full(schedules: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """More entries than are looked through, runs of some of them, some that run now, and changes of one."""
    entries = (
        Entry(
            f"e{n:03d}",
            f"shop.task{n % 10}",
            every(3600),
            start_at=datetime.now(UTC) + timedelta(seconds=n),
            tags=[f"t{n % 5}"] + ["rare"] * (n == 95),
            enabled=n % 50 != 1,
        )
        for n in range(150)
    )
    schedules.add_many(entries)
    rows, now = RunRows(client, schedules), datetime.now(UTC)
    for n in range(0, 150, 3):
        at, name, outcome = now - timedelta(seconds=200 - n), f"e{n:03d}", "failed" if n % 2 else "succeeded"
        rows.row(name, at, outcome, f"id-{n}", 0, 9, 0, rows.line(name, at, outcome, f"id-{n}"))
    rows.row("e001", now, "running", "id", 0)
    rows.guard("id", "running", 60)
    schedules.select("*9?", tag="t3").pause(seconds=600)
    for n in range(25):
        schedules.pause("e093", str(n))
        schedules.resume("e093")
    schedules.pause("e095")
    schedules.pause("e002")
    for name, number in SMALL.items():
        monkeypatch.setattr(f"redbeat_lite.{name}", number)


@pytest.mark.usefixtures("full")
def test_each_page_takes_few_round_trips(visitor: Visitor) -> None:
    over, pages = [], [path for method, path in ROUTES if method == "GET"]
    for page, query in [(path[1:], query) for path in pages for query in ASKED.get(path, [{}])]:
        visitor.get(page, **query)  # connects, and loads the scripts
        with round_trips() as trips:
            seen = visitor.get(page, **query)
        more = {"timeline": 1, "entry": 1, "why": 3}.get(page, 0)
        most = 3 + more + 2 * bool(FILTERED & query.keys())
        if len(trips) > most or seen.status not in (200, 303, 404):
            over.append((len(trips), page, query, seen.status))
    assert not over


@pytest.mark.usefixtures("full")
def test_the_first_page_does_so_while_all_is_frozen(visitor: Visitor, schedules: Schedules) -> None:
    schedules.freeze(3600)
    visitor.get()
    with round_trips() as trips:
        assert "stand-bys none" in visitor.get().text
    assert len(trips) <= 3
