"""What an exception says, whatever that is, gets through every place that stores or sends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from redbeat_lite import Pipeline, PipelineTask, Scheduler, Schedules, every, register_schedule
from redbeat_lite._base.text import describe, text_of
from redbeat_lite.beat.dispatch.publisher import BrokerDown
from redbeat_lite.events import Event, Failed, Hooks, Quarantined, subscribe
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.pipeline.sweeper import conclude
from tests.support.examples import examples
from tests.support.frozen import Clock
from tests.support.server import Server
from tests.support.waiting import eventually


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


#: ``\udcff`` is how Python has the byte FF of a file's name, which is no UTF-8.
texts = st.lists(st.text(max_size=200) | st.sampled_from(["\udcff", "\0", "\n", "|", '"\\'])).map("".join)
exceptions = st.one_of(
    st.builds(lambda kind, text: kind(text), st.sampled_from([ValueError, OSError, KeyError]), texts),
    st.just(Mute()),
    st.just(FileNotFoundError(2, "no such file", "/data/\udcff.csv")),
)
checked = examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Odd(schedule):
    """A schedule of a user's that raises when it is told to."""

    fault: Exception | None = None

    def is_due(self, last_run_at: Any) -> Any:
        if Odd.fault is not None:
            raise Odd.fault
        return super().is_due(last_run_at)


register_schedule(Odd, lambda rule: 60, lambda stored: Odd(stored), name="odd-for-texts")


class Heard(Hooks):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def failed(self, event: Failed) -> None:
        self.events.append(event)

    def quarantined(self, event: Quarantined) -> None:
        self.events.append(event)


class Stage:
    """A beat of an app with a task and a schedule that raise what they are given."""

    def __init__(self, url: str) -> None:
        self.app = Celery("texts", broker=url, set_as_current=False)
        self.app.conf.update(redbeat_lite_key_prefix="texts", redbeat_lite_lease=600)
        self.fault: Exception | None = None

        class Raising(celery_task := self.app.Task):  # type: ignore[misc, valid-type]
            def apply_async(task, *args: Any, **options: Any) -> Any:
                raise self.fault or AssertionError("nothing to raise")

        @self.app.task(name="odd", base=Raising, shared=False)
        def odd() -> None: ...

        @self.app.task(name="step", base=PipelineTask, shared=False)
        def step(params: Any) -> None: ...

        self.heard = Heard()
        subscribe(self.app, self.heard)
        self.schedules = Schedules(self.app)
        self.beat = Scheduler(self.app)

    def hears(self, kind: type[Failed | Quarantined], error: str) -> bool:
        """Whether the hooks hear of this error; from a thread, so those of earlier turns may still come."""

        def heard() -> bool:
            return any(isinstance(each, kind) and each.error == error for each in [*self.heard.events])

        eventually(heard, what=f"an event with {error!r}")
        self.heard.events.clear()
        return True


@pytest.fixture(scope="module")
def stage(shared_server: Server) -> Iterator[Stage]:
    stage = Stage(shared_server.url)
    yield stage
    stage.schedules.clear()
    stage.beat.close()
    stage.app.close()


def is_text(text: str) -> bool:
    return text.encode().decode() == text


@checked
@given(exc=exceptions)
@example(exc=ValueError("\udcff"))
def test_it_can_be_described(exc: Exception) -> None:
    for text in (describe(exc), text_of(exc)):
        assert text
        assert is_text(text)
    assert describe(exc).startswith(type(exc).__name__)


def test_no_password_of_a_server_is_told_or_kept(stage: Stage, clock: Clock) -> None:
    stage.fault = ConnectionError("cannot reach amqp://me:secret@broker//")
    stage.schedules.add("bad", "odd", every(60), replace=True)
    clock.forward(60)
    stage.beat.run_due()
    assert stage.schedules["bad"].last_error == "ConnectionError: cannot reach amqp://me:**@broker//"


def test_a_long_one_is_cut_and_no_half_of_a_password_stands_at_its_end() -> None:
    for length in range(3950, 4001):
        text = text_of(ValueError("x" * length + " redis://:first-half-second-half@host " + "y" * 5000))
        assert len(text) <= 4002
        assert "first" not in text


def test_what_a_terminal_obeys_is_spelled_out() -> None:
    assert text_of(ValueError("\x1b]0;owned\x07 a\nb\x9b")) == "\\x1b]0;owned\\x07 a\\nb\\x9b"


@checked
@given(exc=exceptions)
@example(exc=ValueError("\udcff"))
@example(exc=ValueError("x" * 1000))
def test_of_a_failed_publish(stage: Stage, clock: Clock, exc: Exception) -> None:
    stage.fault = exc
    for name, task in (("bad", "odd"), ("good", "add")):
        stage.schedules.add(name, task, every(60), replace=True)
    before = stage.schedules["good"].total_run_count
    clock.forward(60)
    stage.beat.run_due()
    assert stage.schedules["good"].total_run_count == before + 1
    error = stage.schedules["bad"].last_error
    assert error
    assert is_text(error)
    assert len(error) <= 500
    assert stage.hears(Failed, error)


@checked
@given(exc=exceptions)
@example(exc=ValueError("\udcff"))
def test_of_an_entry_that_cannot_be_used(stage: Stage, clock: Clock, exc: Exception) -> None:
    Odd.fault = None
    stage.schedules.add("bad", "add", Odd(60), replace=True)
    clock.forward(60)
    Odd.fault = exc
    try:
        stage.beat.run_due()
    finally:
        Odd.fault = None
    error = stage.schedules.quarantined()["bad"]["error"]
    assert is_text(error)
    assert stage.hears(Quarantined, error)
    stage.schedules.release("bad")


@checked
@given(exc=exceptions)
@example(exc=ValueError("\udcff"))
def test_of_an_outage(stage: Stage, exc: Exception, caplog: pytest.LogCaptureFixture) -> None:
    stage.beat._parts.outage.handle(BrokerDown(exc))
    assert is_text(caplog.records[-1].getMessage())
    why = json.loads(stage.beat._parts.state.report().encode())["why"]
    assert why.startswith("cannot reach the broker: ")
    stage.beat._parts.outage.handle_success()


@checked
@given(exc=exceptions, described=st.booleans())
def test_of_a_step_of_a_pipeline(stage: Stage, exc: Exception, described: bool) -> None:
    run = Pipeline(stage.app, [("step", 1)]).start()
    reason = describe(exc) if described or isinstance(exc, Mute) else f"was not run: {exc}"
    conclude(store_of(stage.app), Ref(run.id, 0), "FAILED", reason)
    status = run.status()
    assert status.state == "FAILED"
    assert is_text(status.steps[0].error or "")
