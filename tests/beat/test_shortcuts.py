"""Whatever is done in a cheaper way gives what the plain way gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest
from celery import Celery
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from redbeat_lite import Entry, Misfire, cron, every
from redbeat_lite._base.times import iso
from redbeat_lite.beat.dispatch.publisher import Publisher
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.state import _PREFIX, EntryState, task_id
from redbeat_lite.rules.misfire import plan_misfires
from tests.beat.test_prepared import arguments, comparable, connected, occurrence, options, publish
from tests.support.examples import examples
from tests.support.kombus import needs_batches
from tests.support.rules import UTC_APP
from tests.support.server import Server

NOW = 1_800_000_000_000
instants = st.integers(0, 4_000_000_000_000)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@examples(40)
@given(texts, texts, instants)
def test_the_id_of_an_occurrence_is_the_named_uuid_of_the_standard_library(name: str, drawn: str, nominal: int) -> None:
    assert task_id(name, drawn, nominal) == str(uuid5(UUID(bytes=_PREFIX), f"{name}\0{drawn}\0{nominal}"))


def test_the_id_of_an_occurrence_is_the_same_in_every_version() -> None:
    """A beat that is updated between two tries of a publish sends the same task again."""
    assert task_id("a", "g", 0) == "4a8bfa7e-8184-58b5-9c7f-7b4a4da5b685"


@examples(40)
@given(instants)
@example(0)
@example(NOW)
def test_an_instant_is_written_as_isoformat_writes_it(instant: int) -> None:
    assert datetime.fromisoformat(iso(instant)).timestamp() == instant / 1000
    assert iso(instant) == datetime.fromisoformat(iso(instant)).astimezone(UTC).isoformat()


@examples(40)
@given(
    st.sampled_from([every(60), every(0.05), every(10, align=True), cron("*/5 * * * *"), cron("0 9 * * mon")]),
    st.sampled_from(["coalesce", "all", "skip", Misfire("coalesce", grace=3), Misfire("all", limit=2)]),
    st.integers(-100_000, 1_000_000),
    st.none() | st.integers(1, 3),
)
def test_a_single_occurrence_is_planned_as_any_other(schedule: Any, misfire: Any, late: int, runs: int | None) -> None:
    entry = Entry("e", "t", schedule, misfire=misfire, max_runs=runs, app=UTC_APP)
    state = EntryState(1, "g", NOW - late)
    expected = plan_misfires(entry.rule, NOW - late, NOW, entry.misfire, runs_left=runs)
    assert lifecycle.plan(entry, state, NOW) == expected


@pytest.fixture(scope="module")
def publishers(shared_server: Server) -> Iterator[tuple[Publisher, Publisher]]:
    """One that prepares, and one that takes the full way."""
    from redbeat_lite import Scheduler

    app = Celery("shapes", broker=shared_server.url, set_as_current=False)
    app.conf.task_routes = {"routed": {"queue": "routes"}, "pattern.*": "patterns"}

    @app.task(name="plain", typing=False, shared=False)
    def plain(*args: Any, **kwargs: Any) -> None: ...

    @app.task(name="strict", shared=False)
    def strict(x: int) -> None: ...

    schedulers = []
    for number, dispatch in enumerate(("auto", "batch")):
        app.conf.update(redbeat_lite_dispatch=dispatch, redbeat_lite_key_prefix=f"shapes-{number}")
        schedulers.append(Scheduler(app))
    yield connected(schedulers[0]), connected(schedulers[1])
    for scheduler in schedulers:
        scheduler.close()
    app.close()


@needs_batches
@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options, arguments, arguments, st.sampled_from(["plain", "routed", "pattern.x", "unknown"]), texts)
def test_an_entry_is_prepared_from_the_message_of_another(
    publishers: tuple[Publisher, Publisher],
    options: dict[str, Any],
    known: tuple[list[Any], dict[str, Any]],
    new: tuple[list[Any], dict[str, Any]],
    task: str,
    name: str,
) -> None:
    preparing, full = publishers
    publish(preparing, occurrence(Entry("known", task, every(3600), *known, options), 1))
    name = "new" + "".join(char for char in name if char.isprintable())
    entry = Entry(name, task, every(3600), *new, options)
    prepared = publish(preparing, occurrence(entry, 2))
    expected = publish(full, occurrence(Entry(name, task, every(3600), *new, options), 2))
    assert comparable(prepared) == comparable(expected)


def in_full(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the entries that go the full way from now on."""
    names: list[str] = []
    emit = publisher.scheduler.emit

    def noted(entry: Entry, producer: Any) -> None:
        names.append(entry.name)
        emit(entry, producer)

    monkeypatch.setattr(publisher.scheduler, "emit", noted)
    return names


@needs_batches
def test_only_the_first_entry_of_its_kind_goes_the_full_way(
    publishers: tuple[Publisher, Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = in_full(publishers[0], monkeypatch)
    for kind in ("a", "b"):
        for number in range(5):
            entry = Entry(f"{kind}{number}", "plain", every(3600), (number,), options={"shadow": kind})
            publish(publishers[0], occurrence(entry, number))
    assert names == ["a0", "b0"]


@needs_batches
def test_a_template_is_dropped_where_there_are_too_many(
    publishers: tuple[Publisher, Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat_lite.beat.dispatch.message_templates._MAX_TEMPLATES", 2)
    entries = [Entry(f"e{n}", "plain", every(3600), options={"shadow": f"own {n}"}) for n in range(5)]
    names = in_full(publishers[0], monkeypatch)
    for entry in entries:
        for number in range(3):
            publish(publishers[0], occurrence(entry, number))
    assert names == [entry.name for entry in entries]
    assert len(publishers[0]._templates._templates) <= 2


@needs_batches
def test_an_entry_of_another_expiry_is_of_another_kind(publishers: tuple[Publisher, Publisher]) -> None:
    preparing, full = publishers
    for expires in (None, 30, "interval", 40):
        made = [
            publish(publisher, occurrence(Entry("e", "plain", every(3600), expires=expires), 1))
            for publisher in (preparing, full)
        ]
        assert comparable(made[0]) == comparable(made[1])


def test_arguments_that_do_not_fit_the_task_still_fail(publishers: tuple[Publisher, Publisher]) -> None:
    publish(publishers[0], occurrence(Entry("good", "strict", every(3600), (1,)), 1))
    with pytest.raises(TypeError):
        publish(publishers[0], occurrence(Entry("bad", "strict", every(3600), (1, 2, 3)), 1))


@needs_batches
def test_an_expiry_at_an_instant_of_its_own_is_kept(publishers: tuple[Publisher, Publisher]) -> None:
    instant = "2097-01-01T00:00:00+00:00"
    for number in (1, 2):
        entry = Entry("e", "plain", every(3600), options={"expires": datetime.fromisoformat(instant)})
        [(_, _, payload), *_] = publish(publishers[0], occurrence(entry, number))
        assert f'"expires": "{instant}"' in payload


@needs_batches
def test_headers_of_a_once_lock_are_filled_in(
    publishers: tuple[Publisher, Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = in_full(publishers[0], monkeypatch)
    for number in range(4):
        further = {"redbeat_once": {"key": f'"k%s" {number}', "policy": {}}} if number else None
        made, expected = (
            publish(publisher, occurrence(Entry("locked", "locked", every(3600), (number,)), 2)._replace(extra=further))
            for publisher in publishers
        )
        assert comparable(made) == comparable(expected)
    assert names == ["locked", "locked"], "the first without a lock, and the first with one"


@needs_batches
def test_of_each_expiry_only_the_first_goes_the_full_way(
    publishers: tuple[Publisher, Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = in_full(publishers[0], monkeypatch)
    options = {"shadow": str(uuid4())}  # a kind that nobody has prepared
    for expires in (None, 30, "interval", 40):
        for number in range(3):
            name = f"{expires}{number}"
            entry = Entry(name, "plain", every(3600), expires=expires, options=options)
            publish(publishers[0], occurrence(entry, 1))
    assert names == ["None0", "300", "interval0", "400"]
