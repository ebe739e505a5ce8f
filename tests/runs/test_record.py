"""What is written of runs, against a model: whatever is told, in whatever order, however often."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite.entries.run import HISTORY_HEADER, LETTERS, LIFE_MS, NESTING, Attempt, Fate, Outcome, Reported, Row
from redbeat_lite.runs.run_store import RunStore
from redbeat_lite.settings import MAX_HISTORY, MAX_NAME
from redbeat_lite.store.redis_values import text_of_hash
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.run_rows import text_of
from tests.support.server import Server

#: A minute ago: nobody is told that a run began before its nominal time.
THEN = int(time.time() * 1000) - 60_000

ENDED = ("succeeded", "failed", "retrying")

#: Each outcome that a worker tells, with and without a body that began.
TOLD: list[tuple[Any, bool]] = [
    *((each, True) for each in ("running", *ENDED, "lost", "revoked", "rejected", "unknown")),
    *((each, False) for each in ("expired", "revoked", "rejected", "left out")),
]


def fate(run: int, number: int, outcome: Reported, began: bool = True, history: int = 20, **more: Any) -> Fate:
    attempt = Attempt("entry", THEN + run, f"run|{run}", number, history)
    return Fate(attempt, outcome, time.monotonic() if began else None, **more)


def has_ended(fate: Fate) -> bool:
    """Whether a body has ended. A retry that expired has failed without one."""
    return fate.outcome in ENDED and fate.began is not None


class Model:
    """What must be in Redis: of each run one fate, and a line for each that was news."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.rows: dict[int, Fate] = {}
        self.feed: list[tuple[str, str, str]] = []

    def tell(self, fate: Fate) -> None:
        run = fate.attempt.nominal
        old = self.rows.get(run)
        retry_expired = fate.outcome == "expired" and fate.attempt.number % NESTING > 0
        if retry_expired:
            fate = fate._replace(outcome="failed")
        if not self.is_news(old, fate) or (retry_expired and old is not None and old.outcome == "failed"):
            self.refuse(old, fate)
            return
        if retry_expired and old is not None:
            fate = fate._replace(began=old.began)
        self.settle_deadlines(fate)
        if fate.began is not None and retry_expired and old is not None:
            fate = fate._replace(attempt=old.attempt)
        if fate.outcome != "running":
            self.feed.append((fate.attempt.task_id, LETTERS[fate.outcome], str(fate.attempt.number)))
        self.rows[run] = fate
        self.rows = {each: self.rows[each] for each in sorted(self.rows)[-self.history :]}

    def refuse(self, old: Fate | None, fate: Fate) -> None:
        """What is refused changes no row."""

    def settle_deadlines(self, fate: Fate) -> None:
        """There are none here."""

    def is_news(self, old: Fate | None, new: Fate) -> bool:
        if old is None:
            full = len(self.rows) >= self.history and min(self.rows) > new.attempt.nominal
            return has_ended(new) or not full
        if new.attempt.number != old.attempt.number:
            return new.attempt.number > old.attempt.number
        if has_ended(old):
            return False
        if has_ended(new) or new.outcome == "running":
            return True
        if old.began is None and old.outcome != "lost":
            return new.began is not None
        if new.outcome == "lost":
            return old.outcome == "running"
        return new.began is not None and old.outcome in ("running", "lost")


def seen(store: RunStore) -> tuple[list[Any], list[tuple[str, str, str]]]:
    rows = [(row.nominal, row.outcome, row.attempt, row.begin is not None) for row in store.rows(["entry"], 100)[0]]
    return rows[::-1], [(each["id"], each["outcome"], each["attempt"]) for each in feed(store)]


def feed(store: RunStore) -> list[dict[str, str]]:
    return [text_of_hash(fields) for _, fields in store.client.xrange(store.keys.feed)]


@pytest.fixture
def store(client: redis.Redis) -> RunStore:
    return RunStore(client, "runs")


@pytest.fixture(scope="module")
def any_store(shared_server: Server) -> Iterator[RunStore]:
    with shared_server.client() as client:
        yield RunStore(client, "model")


tellings = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(TOLD), st.booleans()), min_size=1, max_size=30
)


@examples(35)
@given(tellings, st.integers(1, 4))
def test_what_is_stored_is_what_the_model_says(any_store: RunStore, tellings: Any, history: int) -> None:
    any_store.client.flushall()
    model = Model(history)
    for run, number, (outcome, began), again in tellings:
        told = fate(run, number, outcome, began, history)
        model.tell(told)  # what is not kept is not known to be there twice
        if again:
            model.tell(told)
        for _ in range(1 + again):
            assert any_store.record([told]) == (0, "")
        rows = [(run, each.outcome, each.attempt.number, each.began is not None) for run, each in model.rows.items()]
        assert seen(any_store) == (rows, model.feed)


@examples(25)
@given(st.data())
def test_the_order_in_which_it_is_told_does_not_matter(any_store: RunStore, data: Any) -> None:
    """Each attempt has one end; copies of it, and what becomes of them, come at any time."""
    any_store.client.flushall()
    ends = data.draw(st.lists(st.sampled_from(ENDED), min_size=1, max_size=3))
    told = [fate(0, number, outcome) for number, outcome in enumerate(ends)]
    copies = st.tuples(st.integers(0, len(ends) - 1), st.sampled_from([each for each in TOLD if each[0] not in ENDED]))
    told += [fate(0, number, *copy) for number, copy in data.draw(st.lists(copies, max_size=6))]
    any_store.record(data.draw(st.permutations(told)))
    assert seen(any_store)[0] == [(THEN, ends[-1], len(ends) - 1, True)]


def test_an_expired_copy_of_a_retry_that_runs_does_not_end_it(store: RunStore) -> None:
    store.record([fate(0, 0, "retrying"), fate(0, 1, "running"), fate(0, 1, "expired", began=False)])
    assert [row.outcome for row in store.rows(["entry"], 1)[0]] == ["running"]


@together(
    ("told", "outcome"),
    [
        (["running", "lost", "running", "succeeded"], "succeeded"),
        (["running", "succeeded", "lost"], "succeeded"),
        (["failed", "running", "succeeded"], "failed"),
        (["running", "lost"], "lost"),
        (["lost", "running"], "running"),
        (["rejected", "running"], "running"),
        (["running", "lost", "revoked"], "revoked"),
        (["running", "revoked", "lost"], "revoked"),
        (["lost", "unknown"], "unknown"),
        (["running", "timed out"], "failed"),
        (["timed out", "running"], "running"),
        (["timed out", "running", "succeeded"], "succeeded"),
        (["timed out", "retrying"], "retrying"),
        (["succeeded", "timed out"], "succeeded"),
        (["timed out", "lost"], "failed"),
    ],
    emptied=True,
)
def test_of_one_attempt_the_body_has_the_last_word(store: RunStore, told: list[Reported], outcome: str) -> None:
    store.record([fate(0, 0, each) for each in told])
    [[row]] = store.rows(["entry"], 10)
    assert row.outcome == outcome


def test_who_was_taken_for_dead_says_what_it_came_to_alone(store: RunStore) -> None:
    """A copy runs by then: that the first one came to nothing is no news."""
    lost = fate(0, 0, "lost")
    store.record([fate(0, 0, "running"), lost._replace(began=time.monotonic() - 2)])
    assert [row.outcome for row in store.rows(["entry"], 10)[0]] == ["running"]
    assert not feed(store)
    store.record([fate(0, 0, "succeeded")])
    assert [row.outcome for row in store.rows(["entry"], 10)[0]] == ["succeeded"]


@together("copy", ["expired", "revoked", "rejected", "left out"], emptied=True)
@together("body", ["running", "succeeded", "failed", "retrying"], emptied=True)
def test_what_becomes_of_a_copy_is_not_what_became_of_the_run(store: RunStore, copy: Outcome, body: Outcome) -> None:
    store.record([fate(0, 0, copy, began=False), fate(0, 0, body), fate(0, 0, copy, began=False)])
    [[row]] = store.rows(["entry"], 10)
    assert row.outcome == body


def test_a_retry_stays_one_row_and_an_early_one_does_not_come_back(store: RunStore) -> None:
    store.record([fate(0, 0, "retrying"), fate(0, 1, "running"), fate(0, 0, "succeeded"), fate(0, 1, "failed")])
    [[row]] = store.rows(["entry"], 10)
    assert (row.outcome, row.attempt, row.attempts) == ("failed", 1, 2)
    store.record([fate(0, NESTING, "succeeded")])
    [[row]] = store.rows(["entry"], 10)
    assert (row.outcome, row.attempts) == ("succeeded", 1)


def test_a_retry_that_expires_has_failed_as_the_attempt_before(store: RunStore) -> None:
    store.record([fate(0, 0, "retrying", seconds=2.0, error="ValueError: no", retry_ms=60_000)])
    store.record([fate(0, 1, "expired", began=False)] * 2)
    [[row]] = store.rows(["entry"], 10)
    retried, expired = feed(store)
    assert (row.outcome, row.attempts, row.duration) == ("failed", 1, 2_000)
    assert row.begin == int(retried["begin"]) == int(expired["begin"])
    assert row.feed == store.client.xrange(store.keys.feed)[0][0].decode(), "the line with the error"
    assert (expired["outcome"], expired["error"]) == ("f", "its retry has expired")
    assert int(retried["retry"]) > time.time() * 1000 + 50_000


def test_a_row_says_when_by_the_servers_clock_and_the_feed_says_the_rest(store: RunStore) -> None:
    nominal = int(time.time() * 1000) - 5_000
    attempt = Attempt("entry", nominal, "id", 2, 20)
    store.record([Fate(attempt, "failed", time.monotonic() - 3, 2.5, "w@host", "é" * 300)])
    [[row]] = store.rows(["entry"], 10)
    assert row.begin is not None
    assert 1_900 <= row.begin <= 3_000
    [(line, _)] = store.client.xrange(store.keys.feed)
    assert row == Row(nominal, "failed", "id", row.begin, 2_500, 2, line.decode())
    assert feed(store) == [{
        "name": "entry", "nominal": str(nominal), "id": "id", "outcome": "f", "begin": str(row.begin),
        "duration": "2500", "attempt": "2", "worker": "w@host", "error": "é" * 250,
        "retry": "",
    }]  # fmt: skip
    assert len(store.client.zrange(store.keys.rows("entry"), 0, 0)[0]) < 64
    assert LIFE_MS - 60_000 < store.client.pttl(store.keys.rows("entry")) <= LIFE_MS


def test_a_run_of_a_clock_that_is_ahead_began_at_its_nominal_time(store: RunStore) -> None:
    store.record([fate(int(time.time() * 1000) + 60_000 - THEN, 0, "succeeded")])
    assert [row.begin for row in store.rows(["entry"], 10)[0]] == [0]


def test_the_newest_rows_are_kept_and_an_old_end_is_told_all_the_same(store: RunStore) -> None:
    store.record([fate(run, 0, "succeeded", history=2) for run in (1, 3, 2)])
    store.record([fate(0, 0, "failed", history=2), fate(0, 0, "expired", began=False, history=2)])
    store.record([fate(-1, 0, "timed out", history=2)])
    assert seen(store) == (
        [(THEN + 2, "succeeded", 0, True), (THEN + 3, "succeeded", 0, True)],
        [("run|1", "s", "0"), ("run|3", "s", "0"), ("run|2", "s", "0"), ("run|0", "f", "0"), ("run|-1", "t", "0")],
    )


def test_what_the_beat_has_written_stays(store: RunStore) -> None:
    rows = store.keys.rows("entry")
    store.client.zadd(rows, {text_of(Row(THEN, "skipped", "", None, 60_000, 5, "")): THEN, "rubbish": THEN})
    store.record([fate(0, 0, "succeeded")])
    assert sorted(row.outcome for row in store.rows(["entry"], 10)[0]) == ["skipped", "succeeded"]


def test_a_key_of_a_foreign_type_stops_no_other_entry(store: RunStore) -> None:
    store.client.set(store.keys.rows("foreign"), "x")
    foreign = Fate(Attempt("foreign", THEN, "id", 0, 20), "succeeded", time.monotonic())
    failed, why = store.record([foreign, fate(0, 0, "succeeded")])
    assert failed == 1
    assert "WRONGTYPE" in why
    assert len(store.rows(["entry"], 10)[0]) == store.client.xlen(store.keys.feed) == 1


def test_a_feed_that_cannot_be_written_keeps_no_row_from_being_written(store: RunStore) -> None:
    store.client.set(store.keys.feed, "x")
    failed, why = store.record([fate(0, 0, "running"), fate(0, 0, "failed")])
    assert (failed, why.split()[0]) == (1, "WRONGTYPE")
    [[row]] = store.rows(["entry"], 10)
    assert (row.outcome, row.feed) == ("failed", "")


def test_a_worker_may_have_any_name(store: RunStore) -> None:
    assert store.record([fate(0, 0, "failed", worker="\ud800" * 200)]) == (0, "")
    assert feed(store)[0]["worker"] == ("\\ud800" * 100)[:500]


OURS = {"periodic_task_name": "e", "scheduled_at": "2026-01-01T00:00:00+00:00", "id": "i"}


@together(
    ("fields", "history"),
    [
        (OURS, 20),
        ({**OURS, HISTORY_HEADER: 3}, 3),
        ({**OURS, HISTORY_HEADER: "many"}, 20),
        ({**OURS, HISTORY_HEADER: 10**9}, MAX_HISTORY),
        ({**OURS, "retries": 2}, 20),
    ],
)
def test_a_message_of_an_entry_is_for_an_attempt(fields: dict[str, Any], history: int) -> None:
    assert Attempt.of(fields, 20) == Attempt("e", 1_767_225_600_000, "i", fields.get("retries", 0), history)


@together(
    "fields",
    [
        {},
        {"periodic_task_name": "of django-celery-beat", "id": "i"},
        {**OURS, HISTORY_HEADER: 0},
        {**OURS, "scheduled_at": "tomorrow"},
        {**OURS, "periodic_task_name": "\ud800"},
        {**OURS, "periodic_task_name": "e" * (MAX_NAME + 1)},
        {**OURS, "periodic_task_name": ["e"]},
        {**OURS, "id": "\ud800"},
        {**OURS, "retries": "many"},
    ],
)
def test_a_message_of_nobody_or_without_a_history_is_for_none(fields: dict[str, Any]) -> None:
    assert Attempt.of(fields, 20) is None
    assert Attempt.of(OURS, 0) is None


def test_the_feed_is_read_on_in_bounded_steps(store: RunStore) -> None:
    for run in range(3):
        store.record([fate(run, 0, "succeeded")])
        time.sleep(0.002)  # so that each line has a millisecond of its own
    first, since = store.next_lines(0, 2)
    assert len(first) == 2
    second, newest = store.next_lines(since + 1, 2)
    assert len(second) == 1
    assert store.next_lines(newest + 1, 2) == ([], newest + 1)
