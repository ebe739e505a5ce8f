"""What became of runs, merged from what was sent and what workers have recorded."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, EntryNotFound, InvalidEntry, Run, Schedules, at, every
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.run import LIFE_MS, NOT_DONE, Outcome, sign_of
from tests.support.cases import together
from tests.support.commands import commands, round_trips
from tests.support.frozen import NOW, Clock
from tests.support.run_rows import KEYS, ONCE, RunRows
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")

MINUTE = timedelta(minutes=1)
#: The last three occurrences of an entry that runs each minute.
THIRD, SECOND, FIRST = NOW - MINUTE, NOW - 2 * MINUTE, NOW - 3 * MINUTE


@pytest.fixture
def rows(client: redis.Redis, schedules: Schedules) -> RunRows:
    schedules.add("poll", "add", every(60))
    return RunRows(client, schedules)


def outcomes(runs: list[Run]) -> list[str]:
    return [run.outcome for run in runs]


class TestWhatIsRecorded:
    @together(
        ("row", "shown"),
        [
            (("running", "id", 40), {"attempts": 1, "began_at": THIRD + timedelta(milliseconds=40)}),
            (("succeeded", "id", 0, 1500), {"attempts": 1, "began_at": THIRD, "seconds": 1.5}),
            (("failed", "id", 0, 20, 3), {"attempts": 4, "began_at": THIRD, "seconds": 0.02}),
            (("failed", "id", 0, 20, 2_000_001), {"attempts": 2, "began_at": THIRD, "seconds": 0.02}),
            (("retrying", "id", 0, 20, 1), {"attempts": 2, "began_at": THIRD, "seconds": 0.02}),
            (("lost", "id", 0), {"attempts": 1, "began_at": THIRD}),
            (("revoked", "id", 0, 7), {"attempts": 1, "began_at": THIRD, "seconds": 0.007}),
            (("expired", "id"), {"attempts": 0}),
            (("rejected", "id", None, None, 1), {"attempts": 1}),
            (("left out", "id"), {"attempts": 0}),
            (("unknown", "id", 0), {"attempts": 1, "began_at": THIRD}),
            (("left out", "", None, 0, 1), {"task_id": None}),
            (("skipped", "", None, 3_600_000, 61), {"task_id": None, "until": THIRD + 60 * MINUTE, "count": 61}),
        ],
        emptied=True,
    )
    def test_is_told_as_it_was_written(
        self, schedules: Schedules, rows: RunRows, row: tuple[Any, ...], shown: dict[str, Any]
    ) -> None:
        schedules.add("poll", "add", every(60))
        outcome, *more = row
        rows.row("poll", THIRD, outcome, *more)
        rows.guard("id", "running", 60)
        assert schedules.runs("poll") == [Run("poll", THIRD, outcome, **{"task_id": "id", **shown})]

    def test_worker_and_error_come_from_the_line_that_the_row_names_as_long_as_it_is_there(
        self, schedules: Schedules, rows: RunRows, client: redis.Redis
    ) -> None:
        line = rows.line("poll", THIRD, "failed", "id", worker="celery@a", error="ValueError: no")
        rows.line("poll", THIRD, "failed", "other", worker="celery@b")
        rows.row("poll", THIRD, "failed", "id", 0, 0, 0, line)
        [run] = schedules.runs("poll")
        assert (run.worker, run.error) == ("celery@a", "ValueError: no")
        client.xdel(KEYS.feed, line)
        [run] = schedules.runs("poll")
        assert (run.outcome, run.worker, run.error) == ("failed", None, None)

    @together(
        ("guard", "shown"),
        [
            (("running", 60), "running"),
            (("running", -1), "lost"),
            (("dead", 60), "waiting"),
            (("done", 60), "unknown"),
            (None, "unknown"),
        ],
        emptied=True,
    )
    def test_one_that_runs_is_lost_once_nobody_renews_its_guard(
        self, schedules: Schedules, rows: RunRows, guard: tuple[str, float] | None, shown: Outcome
    ) -> None:
        schedules.add("poll", "add", every(60))
        rows.row("poll", THIRD, "running", "id", 0)
        if guard is not None:
            rows.guard("id", *guard)
        assert outcomes(schedules.runs("poll")) == [shown]
        assert len(schedules.runs("poll", outcome=shown)) == 1

    @pytest.mark.parametrize(("alive", "shown"), [(10**14, "running"), (1, "unknown")])
    def test_one_that_has_ended_is_not_lost_if_its_worker_dies_before_it_tells(
        self, schedules: Schedules, rows: RunRows, client: redis.Redis, alive: int, shown: Outcome
    ) -> None:
        rows.row("poll", THIRD, "running", "id", 0)
        rows.guard("id", "done", 60)
        client.zadd(KEYS.alive, {sign_of("id", 0): alive})
        assert outcomes(schedules.runs("poll")) == [shown]
        client.delete(KEYS.alive)

    @pytest.mark.parametrize(("late", "shown"), [(0, "retrying"), (59, "retrying"), (180, "unknown")])
    def test_a_retry_of_which_nobody_tells_is_unknown_once_it_is_long_overdue(
        self, schedules: Schedules, rows: RunRows, late: int, shown: Outcome
    ) -> None:
        due = NOW - timedelta(seconds=late)
        rows.sent("poll", due - 5 * MINUTE, due, due + MINUTE)
        line = rows.line("poll", due - 5 * MINUTE, "retrying", "id", error="OSError: no", retry=to_ms(due))
        rows.row("poll", due - 5 * MINUTE, "retrying", "id", 0, 20, 0, line)
        [run] = [run for run in schedules.runs("poll") if run.task_id == "id"]
        assert (run.outcome, run.error, run.retry_at) == (shown, "OSError: no", due)

    def test_a_key_that_another_program_uses_is_named(
        self, schedules: Schedules, rows: RunRows, client: redis.Redis
    ) -> None:
        schedules.add("poll", "add", every(60), replace=True)
        rows.row("poll", SECOND, "failed", "id", 0)
        client.set(KEYS.rows("poll"), "x", ex=60)
        client.set(KEYS.feed, "x", ex=60)
        with pytest.raises(redis.ResponseError, match=f"{KEYS.feed} is a string, not a stream"):
            schedules.runs()
        for ask in (lambda: schedules.runs("poll"), lambda: [*schedules.select().sample("failed")]):
            with pytest.raises(redis.ResponseError, match=f"{KEYS.rows('poll')} is a string, not a zset"):
                ask()

    def test_a_guard_that_is_none_tells_nothing(self, schedules: Schedules, rows: RunRows, client: redis.Redis) -> None:
        rows.row("poll", SECOND, "running", "id", 0)
        client.set(ONCE.guard("id"), "x", ex=60)
        assert outcomes(schedules.runs("poll")) == ["unknown"]

    def test_a_guard_that_makes_no_sense_tells_nothing(
        self, schedules: Schedules, rows: RunRows, client: redis.Redis
    ) -> None:
        rows.row("poll", THIRD, "running", "id", 0)
        rows.guard("id", "running", 60)
        client.hset(ONCE.guard("id"), "until", "soon")
        assert outcomes(schedules.runs("poll")) == ["running"]

    def test_what_cannot_be_read_is_left_out(self, schedules: Schedules, rows: RunRows, client: redis.Redis) -> None:
        rows.row("poll", THIRD, "succeeded", "id", 0, 0, 0, "no-id")
        garbage = {
            "garbage": 1,
            "a|s|||0|": float("inf"),
            "b|s|||0|": 1e17,
            "c|s|ffffffffffffffff||0|": 5,
            "d|z|||0|": 6,
        }
        client.zadd(KEYS.rows("poll"), garbage)
        assert [run.task_id for run in schedules.runs("poll")] == ["id"]
        assert schedules["poll"].last_run == schedules.runs("poll")[0]

    def test_a_removed_entry_leaves_its_runs_behind(self, schedules: Schedules, rows: RunRows) -> None:
        rows.row("poll", THIRD, "succeeded", "id", 0)
        schedules.remove("poll")
        assert outcomes(schedules.runs("poll")) == ["succeeded"]

    @pytest.mark.parametrize("name", ["pol", "", "a\nb", 5])
    def test_a_name_that_has_neither_entry_nor_runs_is_not_found(
        self, schedules: Schedules, rows: RunRows, name: str
    ) -> None:
        with pytest.raises(EntryNotFound):
            schedules.runs(name)


class TestWhatWasSent:
    def test_waits_until_somebody_tells_what_became_of_it(self, schedules: Schedules, rows: RunRows) -> None:
        ids = rows.sent("poll", FIRST, SECOND, THIRD)
        rows.row("poll", SECOND, "failed", ids[1], 0)
        found = schedules.runs("poll")
        assert [(run.scheduled_at, run.task_id) for run in found] == [
            *zip((THIRD, SECOND, FIRST), ids[::-1], strict=True)
        ]
        assert [(run.outcome, run.source) for run in found] == [
            ("waiting", "schedule"),
            ("failed", "record"),
            ("unknown", "schedule"),
        ]

    @pytest.mark.parametrize(
        ("fields", "seconds"),
        [
            ({}, 125),
            ({"jitter": 20}, 145),
            ({"expires": 7}, 72),
            ({"expires": 40, "options": {"countdown": 30}}, 105),
            ({"options": {"expires": 90}}, 155),
            ({"options": {"expires": (NOW + 10 * MINUTE).isoformat()}}, 605),
            ({"expires": None}, None),
            ({"misfire": "all"}, None),
        ],
    )
    def test_is_unknown_once_its_message_must_have_expired(
        self, schedules: Schedules, rows: RunRows, clock: Clock, fields: dict[str, Any], seconds: int | None
    ) -> None:
        """It may have been sent late, but not after the run that follows it."""
        schedules.add("x", "add", every(60), **fields)
        rows.sent("x", NOW)
        clock.forward(10**6 if seconds is None else seconds)
        assert outcomes(schedules.runs("x")) == ["waiting"]
        clock.forward(1)
        assert outcomes(schedules.runs("x")) == ["waiting" if seconds is None else "unknown"]

    def test_its_message_lived_no_longer_than_until_the_next_but_one(self, schedules: Schedules, rows: RunRows) -> None:
        rows.sent("poll", *(NOW - timedelta(seconds=ago) for ago in (130, 70, 10, 0)))
        assert outcomes(schedules.runs("poll")) == ["waiting", "waiting", "waiting", "unknown"]

    def test_waits_for_ever_where_no_run_comes_after_it(
        self, schedules: Schedules, rows: RunRows, clock: Clock
    ) -> None:
        schedules.add("x", "add", at(NOW + MINUTE))
        rows.sent("x", NOW + MINUTE, finished=True)
        clock.forward(10**6)
        assert outcomes(schedules.runs("x")) == ["waiting"]

    def test_is_not_missed_where_its_row_had_to_make_room_for_others(self, schedules: Schedules, rows: RunRows) -> None:
        schedules.update("poll", history=3)
        ids = rows.sent("poll", FIRST, SECOND, THIRD, history=3)
        rows.row("poll", THIRD, "succeeded", ids[2], 0)
        for number in range(2):
            rows.row("poll", NOW - timedelta(seconds=number), "succeeded", f"run-now-{number}", 0)
        assert [run.task_id for run in schedules.runs("poll")] == ["run-now-0", "run-now-1", ids[2]]

    def test_is_not_missed_where_others_were_left_out_after_it(self, schedules: Schedules, rows: RunRows) -> None:
        [task_id] = rows.sent("poll", FIRST)
        rows.row("poll", SECOND, "left out", "", None, 60_000, 2)
        assert [run.task_id for run in schedules.runs("poll")] == [None, task_id]

    def test_is_not_recorded_any_more_once_its_row_would_have_vanished(
        self, schedules: Schedules, rows: RunRows, clock: Clock
    ) -> None:
        rows.sent("poll", NOW, NOW + MINUTE)
        clock.forward(LIFE_MS / 1000)
        assert [run.scheduled_at for run in schedules.runs("poll")] == [NOW + MINUTE]

    def test_the_result_backend_is_not_asked(
        self, make_app: Callable[..., Celery], rows: RunRows, server: Server
    ) -> None:
        app = make_app(result_backend=server.url, result_expires=600)
        [task_id] = rows.sent("poll", THIRD)
        app.backend.store_result(task_id, 5, "SUCCESS")
        with commands(server) as seen:
            [run] = Schedules(app).runs("poll")
        assert (run.outcome, run.source) == ("waiting", "schedule")
        assert not [command for command in seen if "celery-task-meta" in command]


class TestWhatIsAskedFor:
    @pytest.fixture
    def five(self, rows: RunRows) -> None:
        """One of each, the newest last; and an hour before a range that lasts for half of it."""
        rows.row("poll", NOW - timedelta(hours=1), "skipped", "", None, 1_800_000, 31)
        told: tuple[Outcome, ...] = ("succeeded", "expired", "succeeded", "failed", "succeeded")
        for minutes, outcome in enumerate(told, 1):
            rows.row("poll", NOW - minutes * MINUTE, outcome, str(minutes), 0)

    @together(
        ("asked", "found"),
        [
            ({}, ["1", "2", "3", "4", "5", None]),
            ({"limit": 2}, ["1", "2"]),
            ({"limit": 0}, []),
            ({"outcome": "failed"}, ["4"]),
            ({"outcome": "succeeded", "limit": 2}, ["1", "3"]),
            ({"outcome": NOT_DONE}, ["2", "4"]),
            ({"outcome": ()}, []),
            ({"since": NOW - 3 * MINUTE}, ["1", "2", "3"]),
            ({"until": NOW - 4 * MINUTE}, ["4", "5", None]),
            ({"since": NOW - 50 * MINUTE, "until": NOW - 45 * MINUTE}, [None]),
            ({"since": NOW - 29 * MINUTE, "until": NOW - 10 * MINUTE}, []),
        ],
    )
    def test_is_what_is_told(self, schedules: Schedules, five: None, asked: dict[str, Any], found: list[Any]) -> None:
        assert [run.task_id for run in schedules.runs("poll", **asked)] == found

    @together("name", [None, "poll"])
    @together(
        ("asked", "error", "complaint"),
        [
            ({"outcome": "broken"}, ValueError, 'outcome: expected one of "waiting", "running", .*, got .broken'),
            ({"outcome": ["failed", 5]}, ValueError, 'outcome: expected one of "waiting", .*, got 5'),
            ({"outcome": 5}, ValueError, 'outcome: expected one of "waiting", .*, got 5'),
            ({"since": datetime(2026, 1, 1)}, InvalidEntry, "since: expected an aware datetime"),
            ({"until": "today"}, InvalidEntry, "until: expected an aware datetime, got 'today'"),
            ({"limit": -1}, ValueError, "limit: expected a whole number from 0, got -1"),
            ({"limit": None}, ValueError, "limit: expected a whole number from 0, got None"),
        ],
    )
    def test_has_to_make_sense(
        self, schedules: Schedules, name: str | None, asked: dict[str, Any], error: type[Exception], complaint: str
    ) -> None:
        with pytest.raises(error, match=complaint):
            schedules.runs(name, **asked)

    def test_costs_three_round_trips_at_most(self, schedules: Schedules, rows: RunRows, server: Server) -> None:
        ids = rows.sent("poll", *(NOW - minutes * MINUTE for minutes in range(20, 0, -1)))
        for number, task_id in enumerate(ids[:10]):
            line = rows.line("poll", NOW - (20 - number) * MINUTE, "failed", task_id)
            rows.row("poll", NOW - (20 - number) * MINUTE, "failed", task_id, 0, 0, 0, line)
        schedules.runs("poll")
        with round_trips() as trips:
            assert len(schedules.runs("poll")) == 20
        assert len(trips) <= 3  # the entry, its rows, the lines they name

    def test_costs_no_more_where_few_are_what_is_asked_for(self, schedules: Schedules, rows: RunRows) -> None:
        rows.sent("poll", *(NOW - minutes * MINUTE for minutes in range(10, 0, -1)))
        for number in range(10):
            rows.row("poll", NOW - number * MINUTE, "running", str(number), 0)
        schedules.runs("poll")
        with round_trips() as trips:
            assert schedules.runs("poll", outcome="failed", limit=1) == []
        assert len(trips) <= 4  # and the rows anew, as no guard knows of what runs


class TestOfAllEntries:
    def test_what_ended_last_comes_first_and_each_run_once(self, schedules: Schedules, rows: RunRows) -> None:
        rows.line("a", SECOND, "succeeded", "1", begin=50, duration=2000, worker="celery@a")
        rows.line("b", FIRST, "retrying", "2", begin=0, error="OSError: later")
        rows.line("b", FIRST, "failed", "2", begin=9000, duration=1, attempt=1, worker="celery@b", error="OSError: no")
        rows.line("c", THIRD, "expired", "3")
        assert schedules.runs() == [
            Run("c", THIRD, "expired", "3"),
            Run("b", FIRST, "failed", "2", FIRST + timedelta(seconds=9), 0.001, 2, "celery@b", "OSError: no"),
            Run("a", SECOND, "succeeded", "1", SECOND + timedelta(milliseconds=50), 2.0, 1, "celery@a"),
        ]
        assert [run.task_id for run in schedules.runs(outcome="retrying")] == []
        assert [run.task_id for run in schedules.runs(outcome=NOT_DONE, limit=1)] == ["3"]
        assert [run.task_id for run in schedules.runs(limit=0)] == []

    def test_is_found_however_many_ended_after_it(
        self, schedules: Schedules, rows: RunRows, client: redis.Redis, server: Server
    ) -> None:
        rows.line("a", NOW - MINUTE, "failed", "old")
        with client.pipeline() as pipe:
            fields = {"name": "b", "nominal": 5, "outcome": "s", "begin": "", "duration": "", "attempt": 0}
            for number in range(1200):
                pipe.xadd(KEYS.feed, {**fields, "id": number, "worker": "", "error": ""})
            pipe.execute()
        assert [run.task_id for run in schedules.runs(outcome="failed")] == ["old"]
        found = schedules.runs(limit=1100)
        assert [run.task_id for run in found] == [str(number) for number in range(1199, 99, -1)]
        with commands(server) as seen:
            schedules.runs(limit=100)
        assert len(seen) == 1

    def test_looks_no_further_back_than_it_is_asked_to(
        self, schedules: Schedules, rows: RunRows, server: Server
    ) -> None:
        rows.line("a", NOW, "failed", "1")
        now = datetime.now(UTC)
        assert len(schedules.runs(since=NOW, until=now)) == 1
        assert schedules.runs(since=NOW + timedelta(seconds=1)) == schedules.runs(until=NOW - MINUTE) == []
        assert schedules.runs(since=datetime(1, 1, 1, tzinfo=UTC)) != []
        assert schedules.runs(since=datetime(9999, 1, 1, tzinfo=UTC)) == []
        with commands(server) as seen:
            schedules.runs(since=NOW)
        # As far back as a clock may be ahead of the server's.
        assert seen[0] == f"XREVRANGE {KEYS.feed} + {1000 * int(NOW.timestamp()) - 5000} COUNT 500"

    def test_leaves_out_what_cannot_be_read(self, schedules: Schedules, rows: RunRows, client: redis.Redis) -> None:
        rows.line("a", THIRD, "failed", "1", begin="soon")
        rows.line("a", datetime(9999, 12, 31, tzinfo=UTC), "failed", "2", begin=10**15)
        client.xadd(KEYS.feed, {"name": "b"})
        rows.line("a", THIRD, "failed", "3")
        assert [run.task_id for run in schedules.runs()] == ["3"]


class TestEntry:
    def test_tells_its_last_run_its_last_success_and_how_often_it_failed_since(
        self, schedules: Schedules, rows: RunRows
    ) -> None:
        entry = schedules["poll"]
        assert (entry.last_run, entry.last_success_at, entry.failures_in_a_row) == (None, None, 0)
        for minutes, outcome in enumerate(
            ("running", "failed", "left out", "expired", "retrying", "succeeded", "lost")
        ):
            rows.row("poll", NOW - minutes * MINUTE, outcome, str(minutes), 0)  # type: ignore[arg-type]
        rows.row("poll", NOW + MINUTE, "skipped", "", None, 0, 1)
        for entry in (schedules["poll"], *schedules.list(), *schedules.values()):
            assert entry.last_run == Run("poll", NOW, "running", "0", NOW, attempts=1)
            assert (entry.last_success_at, entry.failures_in_a_row) == (NOW - 5 * MINUTE, 2)

    @together("outcome", NOT_DONE, emptied=True)
    def test_each_run_that_did_not_do_its_work_counts(
        self, schedules: Schedules, rows: RunRows, outcome: Outcome
    ) -> None:
        schedules.add("poll", "add", every(60))
        rows.sent("poll", THIRD)
        rows.row("poll", SECOND, outcome, "1", 0)
        rows.row("poll", FIRST, outcome, "2", 0)
        entry = schedules["poll"]
        assert (entry.failures_in_a_row, entry.last_success_at) == (2, None)
        assert entry.last_run is not None
        assert entry.last_run.outcome == outcome

    def test_is_read_with_the_rows_of_its_page_in_one_command_and_only_if_somebody_asks(
        self, schedules: Schedules, rows: RunRows, server: Server
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(60)) for number in range(99))
        rows.row("e5", THIRD, "failed", "1", 0)
        page = schedules.list()
        assert sum(entry.failures_in_a_row for entry in page) == 1
        with commands(server) as plain:
            page = schedules.list()
        with commands(server) as seen:
            page = schedules.list()
            assert {entry.name for entry in page if entry.failures_in_a_row} == {"e5"}
            assert sum(entry.last_run is not None for entry in page) == 1
        assert len(seen) == len(plain) + 1

    def test_of_which_nothing_was_read_tells_nothing(self, schedules: Schedules, rows: RunRows) -> None:
        rows.row("poll", THIRD, "failed", "1", 0)
        for entry in (Entry("poll", "add", 5), pickle.loads(pickle.dumps(schedules["poll"]))):
            assert (entry.last_run, entry.last_success_at, entry.failures_in_a_row) == (None, None, 0)
