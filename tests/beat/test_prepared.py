"""A prepared message is the one the full way would have made, but for ids and times."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest import mock
from uuid import UUID

import celery.app.amqp
import celery.app.task
import celery.beat
import kombu.messaging
import kombu.transport.redis
import kombu.transport.virtual.base
import pytest
from celery import Celery, signals
from celery.app.task import Task
from celery.utils import deprecated
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from kombu import serialization

import redbeat_lite
from redbeat_lite import Entry, Scheduler, every
from redbeat_lite._base.clock import wall_ms
from redbeat_lite.beat.dispatch.message_templates import obstacle
from redbeat_lite.beat.dispatch.publisher import Publisher
from redbeat_lite.beat.server_clock import ServerClock
from redbeat_lite.entries.message import Occurrence
from redbeat_lite.store.records import Command
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.in_process import MakeApp
from tests.support.kombus import needs_batches
from tests.support.server import Server

# Messages are prepared for batches alone.
pytestmark = needs_batches

HOUR = 3_600_000
NOMINAL = 4_000_000_000_000

options = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from(["celery", "other", "100% full"]),
        "priority": st.integers(0, 9),
        "serializer": st.sampled_from(["json", "pickle"]),
        "compression": st.sampled_from(["zlib", "bzip2"]),
        "time_limit": st.integers(10, 100),
        "soft_time_limit": st.integers(1, 9),
        "ignore_result": st.booleans(),
        "headers": st.dictionaries(
            st.sampled_from(["x", "y", "%s", "argsrepr", "compression", "traceparent"]), st.text(max_size=5), max_size=2
        ),
        "argsrepr": st.just("(hidden)"),
        "kwargsrepr": st.just('{"100%": 1}'),
        "eta": st.just("2096-01-01T00:00:00+00:00"),
        "root_id": st.just("a root"),
        "shadow": st.text(min_size=1, max_size=5),
        "expires": st.integers(1, 10_000),
        "chain": st.just([{"task": "plain", "args": [1], "kwargs": {}, "options": {}, "subtask_type": None}]),
    },
)
texts = st.text(max_size=5) | st.sampled_from(["100% %s", 'a "quoted" one', "it's", "\\ and \n", "é"])
own = st.sampled_from([datetime(2026, 3, 29, 2, 30, tzinfo=UTC), Decimal("1.50"), UUID(int=7), b"\xff"])
values = st.recursive(
    texts | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | own,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
arguments = st.tuples(st.lists(values, max_size=3), st.dictionaries(texts, values, max_size=3))


def app_of(name: str, broker: str) -> Celery:
    app = Celery(name, broker=broker, set_as_current=False)
    app.conf.task_routes = {"routed": {"queue": "routes"}, "pattern.*": "patterns"}

    @app.task(shared=False, name="plain", typing=False)
    def plain(*args: Any, **kwargs: Any) -> None: ...

    @app.task(
        shared=False, name="limited", typing=False, time_limit=5, priority=3, serializer="pickle", ignore_result=True
    )
    def limited(*args: Any, **kwargs: Any) -> None: ...

    return app


@pytest.fixture(scope="module")
def app(shared_server: Server) -> Iterator[Celery]:
    app = app_of("prepared", shared_server.url)
    yield app
    app.close()


def connected(scheduler: Scheduler) -> Publisher:
    scheduler.run_due()
    publisher: Publisher = scheduler._parts.publisher
    publisher.connect()
    return publisher


@pytest.fixture(scope="module")
def publishers(app: Celery) -> Iterator[tuple[Publisher, Publisher]]:
    """A publisher that prepares, and one that takes the full way."""
    # Celery goes by this clock, so that of the server must show the same to the millisecond.
    with mock.patch.object(ServerClock, "now_ms", side_effect=wall_ms):
        yield from make_publishers(app)


def make_publishers(app: Celery) -> Iterator[tuple[Publisher, Publisher]]:
    schedulers = []
    for number, dispatch in enumerate(("auto", "batch")):
        app.conf.update(redbeat_lite_dispatch=dispatch, redbeat_lite_key_prefix=f"{app.main}-{number}")
        schedulers.append(Scheduler(app))
    yield connected(schedulers[0]), connected(schedulers[1])
    for scheduler in schedulers:
        scheduler.close()


def publish(publisher: Publisher, occurrence: Occurrence) -> list[Command]:
    publisher.begin_batch()
    return publisher.make(occurrence)


def occurrence(entry: Entry, number: int) -> Occurrence:
    nominal = NOMINAL + number * HOUR
    return Occurrence(entry, f"00000000-0000-5000-8000-{number:012d}", nominal, HOUR + 5_000)


def comparable(commands: list[Command]) -> Any:
    """The commands, without what differs between any two messages."""
    [(name, target, payload), *rest] = commands
    message = json.loads(payload)
    assert message["properties"].pop("delivery_tag")
    # A lifetime in seconds ends at another instant a moment later; which instant, its own test says.
    lifetime = message["properties"].pop("expiration", None)
    expires = message["headers"].pop("expires")
    return name, target, message, rest, lifetime is None, expires is None


any_task = st.sampled_from(["plain", "limited", "routed", "pattern.x", "unknown"])
any_history = st.sampled_from([None, 0, 7])


def is_copied(entry: Entry) -> bool:
    """Whether messages of an entry are plain JSON, under options that are the same for all messages of a kind."""
    serializer = entry.options.get("serializer", "pickle" if entry.task == "limited" else "json")
    unknown = {"compression", "argsrepr", "kwargsrepr", "eta", "root_id", "chain"} & entry.options.keys()
    if serializer != "json" or unknown or "argsrepr" in entry.options.get("headers", {}):
        return False
    try:
        json.dumps((list(entry.args), entry.kwargs))
    except TypeError:
        return False
    return True


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options, arguments, any_task, any_history)
def test_prepared_and_full_messages_are_equal_but_for_ids_and_times(
    publishers: tuple[Publisher, Publisher], options: dict[str, Any], arguments: Any, task: str, history: int | None
) -> None:
    preparing, full = publishers
    made, other = (Entry("e", task, every(3600), *arguments, options, history=history) for _ in range(2))
    publish(preparing, occurrence(made, 1))
    assert (made.own_part is not None) == is_copied(made), "whether the first message was kept as a template"
    assert comparable(publish(preparing, occurrence(made, 2))) == comparable(publish(full, occurrence(other, 2)))


@pytest.mark.parametrize("expires", [None, 90.0, "interval"])
def test_expiry_of_a_prepared_message_is_that_of_the_full_one(
    publishers: tuple[Publisher, Publisher], expires: Any
) -> None:
    preparing, full = publishers
    entry = Entry("e", "plain", every(3600), expires=expires)
    begun = datetime.now(UTC) - timedelta(milliseconds=1)  # as whole milliseconds are cut
    publish(preparing, occurrence(entry, 1))
    messages = [json.loads(publish(publisher, occurrence(entry, 2))[0][2]) for publisher in (preparing, full)]
    prepared, expected = ((each["headers"]["expires"], each["properties"].get("expiration")) for each in messages)
    if expires == "interval":
        # Each ends its life an hour and five seconds after it was made, at the second of the two instants or before.
        made = [datetime.fromisoformat(each[0]) - timedelta(milliseconds=HOUR + 5_000) for each in (prepared, expected)]
        assert begun <= made[0] <= made[1] <= datetime.now(UTC)
        assert prepared[1] == str(HOUR + 5_000)
        assert 0 <= HOUR + 5_000 - int(expected[1]) <= 1 + (datetime.now(UTC) - made[1]) / timedelta(milliseconds=1)
    elif expires:
        assert prepared[1] == expected[1] == "90000"
        assert prepared[0][:15] == expected[0][:15] or prepared[0] < expected[0]
    else:
        assert prepared == expected == (None, None)


def test_the_last_occurrence_has_nothing_to_expire_with(publishers: tuple[Publisher, Publisher]) -> None:
    preparing, _ = publishers
    entry = Entry("e", "plain", every(3600))
    publish(preparing, occurrence(entry, 1))
    message = json.loads(publish(preparing, occurrence(entry, 2)._replace(life=None))[0][2])
    assert message["headers"]["expires"] is None
    assert "expiration" not in message["properties"]


@together("argument", ["100% %s %(id)s", 'a "quoted" one', "\\ and \n", "é", "x" * 5000, [[[[["deep"]]]]]])
def test_the_first_message_of_an_entry_like_another_is_the_full_one(
    publishers: tuple[Publisher, Publisher], argument: Any
) -> None:
    preparing, full = publishers
    publish(preparing, occurrence(Entry("like", "plain", every(3600), [1]), 1))
    name = str(argument)[:20].replace("\n", "")
    [made, expected] = [Entry(name, "plain", every(3600), [argument], {"k": argument}) for _ in range(2)]
    with mock.patch.object(preparing, "_make_in_full", side_effect=AssertionError("not prepared")):
        prepared = publish(preparing, occurrence(made, 2))
    assert comparable(prepared) == comparable(publish(full, occurrence(expected, 2)))


def test_ids_and_delivery_tags_are_each_messages_own(publishers: tuple[Publisher, Publisher]) -> None:
    preparing, _ = publishers
    entry = Entry("e", "plain", every(3600))
    messages = [json.loads(publish(preparing, occurrence(entry, number))[0][2]) for number in range(4)]
    for number, message in enumerate(messages):
        own = occurrence(entry, number).id
        assert (message["headers"]["id"], message["headers"]["root_id"], message["properties"]["correlation_id"]) == (
            own,
            own,
            own,
        )
    assert len({message["properties"]["delivery_tag"] for message in messages}) == 4


def test_a_message_that_no_template_can_be_made_of_is_sent_all_the_same(
    publishers: tuple[Publisher, Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> bool:
        raise KeyError("id")

    monkeypatch.setattr("redbeat_lite.beat.dispatch.message_templates.Templates._fill", broken)
    entry = Entry("e", "plain", every(3600), options={"headers": {"unlike": "any other"}})
    assert publish(publishers[0], occurrence(entry, 1))[0][0] == "lpush"
    assert entry.own_part is None


def test_messages_of_our_own_task_class_are_made_in_full(app: Celery, publishers: tuple[Publisher, Publisher]) -> None:
    """The class adds a once-lock of its own to each message."""

    @app.task(shared=False, name="guarded", base=redbeat_lite.Task, once=True)
    def guarded() -> None: ...

    entry = Entry("e", "guarded", every(3600))
    publish(publishers[0], occurrence(entry, 1))
    assert entry.own_part is None


def test_a_task_that_takes_models_dumps_each_entrys_arguments(
    app: Celery, publishers: tuple[Publisher, Publisher]
) -> None:
    """Celery dumps models to JSON for a task with ``pydantic=True``, by a function that it puts there."""

    def dump(args: Any, kwargs: Any) -> Any:
        return [min(each, 9) for each in args], kwargs

    @app.task(shared=False, name="models", typing=False, _dump_pydantic_arguments=staticmethod(dump))
    def models(*args: Any) -> None: ...

    preparing, full = publishers
    publish(preparing, occurrence(Entry("like", "models", every(3600), [1]), 1))  # which dumps to itself
    [made, expected] = [Entry("e", "models", every(3600), [20]) for _ in range(2)]
    assert comparable(publish(preparing, occurrence(made, 2))) == comparable(publish(full, occurrence(expected, 2)))


@pytest.fixture
def own_json() -> Iterator[str]:
    """A serializer that says of its texts that they are JSON, as they are, but writes them in a way of its own."""

    def encode(value: Any) -> str:
        _, _, text = serialization.dumps(value, serializer="json")
        return str(text).replace("20", "2e1")

    serialization.register("own-json", encode, json.loads, content_type="application/json", content_encoding="utf-8")
    yield "own-json"
    serialization.unregister("own-json")
    serialization.register_json()


def test_another_serializer_of_json_writes_each_entrys_arguments(
    publishers: tuple[Publisher, Publisher], own_json: str
) -> None:
    preparing, full = publishers
    options = {"serializer": own_json}
    publish(preparing, occurrence(Entry("like", "plain", every(3600), [1], options=options), 1))
    [made, expected] = [Entry("e", "plain", every(3600), [20], options=options) for _ in range(2)]
    assert comparable(publish(preparing, occurrence(made, 2))) == comparable(publish(full, occurrence(expected, 2)))


def test_arguments_that_do_not_fit_the_task_fail_as_in_full(
    app: Celery, publishers: tuple[Publisher, Publisher]
) -> None:
    @app.task(shared=False, name="one argument")
    def one_argument(number: int) -> None: ...

    preparing, full = publishers
    publish(preparing, occurrence(Entry("like", "one argument", every(3600), [1]), 1))
    failures = []
    for publisher in (preparing, full):
        with pytest.raises(Exception, match="takes 1 positional argument but 2 were given") as failure:
            publish(publisher, occurrence(Entry("e", "one argument", every(3600), [1, 2]), 2))
        failures.append((failure.type, str(failure.value)))
    assert failures[0] == failures[1]


class FunctionProxy:
    """Wraps a function as tracing libraries do, with wrapt: it has whatever attributes the function has."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionProxy:
        return self if instance is None else FunctionProxy(self._wrapped.__get__(instance, owner))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(*args, **kwargs)


class Own(Task):
    """A task class that has a say in every message."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        return super().apply_async(*args, **options)


class Shadowed(Task):
    """A task class that names each message."""

    def shadow_name(self, *args: Any) -> str:
        return "shadowed"


class Urgent(Task):
    """A task class that says anew for each message with what options it goes out."""

    def _get_exec_options(self) -> dict[str, Any]:
        return {**super()._get_exec_options(), "priority": 9}


@pytest.mark.parametrize("options", [{"base": Own}, {"base": Shadowed}, {"base": Urgent}, {"expires": 30}])
def test_a_task_that_has_a_say_in_its_messages_is_asked_every_time(
    app: Celery, publishers: tuple[Publisher, Publisher], options: dict[str, Any]
) -> None:
    @app.task(shared=False, name=f"own {options}", typing=False, **options)
    def own() -> None: ...

    entry = Entry("e", own.name, every(3600), expires=None)
    publish(publishers[0], occurrence(entry, 1))
    assert entry.own_part is None


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 5},
        {"eta": "2096-01-01T00:00:00+00:00"},
        {"link": [{"task": "plain", "args": [], "kwargs": {}, "options": {}, "subtask_type": None}]},
        {"stamped_headers": ["by"], "by": "me"},
    ],
)
def test_a_message_with_what_no_template_knows_is_not_prepared(
    publishers: tuple[Publisher, Publisher], options: dict[str, Any]
) -> None:
    entry = Entry("e", "plain", every(3600)).replace(options=options)
    publish(publishers[0], occurrence(entry, 1))
    assert entry.own_part is None


def test_an_app_that_makes_each_message_otherwise_is_asked_every_time(
    publishers: tuple[Publisher, Publisher], app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = app.amqp.create_task_message, list[str]()

    def numbered(task_id: str, *args: Any, **options: Any) -> Any:
        made.append(task_id)
        return make(task_id, *args, **options)

    monkeypatch.setattr(app.amqp, "create_task_message", numbered)
    entry = Entry("e", "plain", every(3600))
    for number in range(3):
        publish(publishers[0], occurrence(entry, number))
    assert len(made) == 3


def test_a_lazy_argument_is_asked_every_time(publishers: tuple[Publisher, Publisher]) -> None:
    numbers = iter(range(2))
    entry = Entry("e", "plain", every(3600), (celery.beat.BeatLazyFunc(lambda: next(numbers)),))
    shown = [json.loads(publish(publishers[0], occurrence(entry, n))[0][2])["headers"]["argsrepr"] for n in range(2)]
    assert shown == ["(0,)", "(1,)"] or shown == ["[0]", "[1]"]


def test_further_headers_are_those_of_the_occurrence(publishers: tuple[Publisher, Publisher]) -> None:
    entry = Entry("e", "plain", every(3600))
    further: list[dict[str, Any] | None] = [None, {"lock": "a"}, {"lock": "b"}, None]
    messages = [
        json.loads(publish(publishers[0], occurrence(entry, number)._replace(extra=extra))[0][2])
        for number, extra in enumerate(further)
    ]
    assert [message["headers"].get("lock") for message in messages] == [None, "a", "b", None]


class TestObstacle:
    @pytest.fixture
    def scheduler(self, app: Celery) -> Scheduler:
        return Scheduler(app, lazy=True)

    @pytest.fixture
    def why(self, scheduler: Scheduler, app: Celery) -> Callable[[], str | None]:
        return lambda: obstacle(scheduler, app, kombu.transport.redis.Channel)

    def test_none_by_default(self, why: Callable[[], str | None]) -> None:
        assert why() is None

    def test_another_serializer_that_writes_json(self, why: Callable[[], str | None], own_json: str) -> None:
        assert why() == "JSON is not written by kombu's own serializer alone"

    @pytest.mark.parametrize("name", ["before_task_publish", "after_task_publish"])
    def test_a_signal_receiver(self, why: Callable[[], str | None], name: str) -> None:
        def receiver(**kwargs: Any) -> None: ...

        signal = getattr(signals, name)
        signal.connect(receiver)
        assert why() == f"something listens to {name}"
        signal.disconnect(receiver)
        assert why() is None

    def test_a_patched_apply_entry(self, why: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch) -> None:
        original = celery.beat.Scheduler.apply_entry

        def patched(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        monkeypatch.setattr(celery.beat.Scheduler, "apply_entry", patched)
        assert why() == "apply_entry is not the function of Celery or kombu"

    def test_a_patched_send_task(
        self, why: Callable[[], str | None], app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app, "send_task", lambda *args, **kwargs: None)
        assert why() == "send_task is not the function of Celery or kombu"

    def test_a_function_of_ones_own_behind_a_decorator_of_celery(
        self, why: Callable[[], str | None], app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app, "send_task", deprecated.Callable()(lambda *args, **kwargs: None))
        assert why() == "send_task is not the function of Celery or kombu"

    def test_a_patched_task_class(
        self, publishers: tuple[Publisher, Publisher], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = Task.apply_async
        monkeypatch.setattr(Task, "apply_async", lambda *args, **options: original(*args, **options))
        entry = Entry("e", "plain", every(3600))
        publish(publishers[0], occurrence(entry, 1))
        assert entry.own_part is None

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (celery.beat.Scheduler, "apply_async"),
            (celery.app.amqp.AMQP, "as_task_v2"),
            (celery.app.task.Task, "apply_async"),
            (kombu.messaging.Producer, "publish"),
            (kombu.messaging.Producer, "_publish"),
            (kombu.transport.virtual.base.Channel, "basic_publish"),
            (kombu.transport.virtual.base.Channel, "prepare_message"),
            (kombu.transport.redis.Channel, "basic_publish"),
            (kombu.transport.redis.Channel, "prepare_message"),
            (kombu.transport.redis.Channel, "_inplace_augment_message"),
            (kombu.transport.redis.Channel, "_put"),
        ],
    )
    def test_a_function_that_somebody_has_wrapped(
        self, why: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
    ) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped, raising=False)
        assert why() == f"{name} is not the function of Celery or kombu"

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (celery.beat.Scheduler, "apply_entry"),
            (celery.app.task.Task, "apply_async"),
            (kombu.messaging.Producer, "publish"),
        ],
    )
    def test_a_function_behind_a_proxy(
        self, why: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
    ) -> None:
        monkeypatch.setattr(owner, name, FunctionProxy(getattr(owner, name)))
        assert why() == f"{name} is not the function of Celery or kombu"

    def test_a_function_without_a_module(
        self, why: Callable[[], str | None], app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scope: dict[str, Any] = {}
        exec("def send_task(*args, **kwargs): ...", scope)
        monkeypatch.setattr(app, "send_task", scope["send_task"])
        assert why() == "send_task is not the function of Celery or kombu"

    def test_a_scheduler_that_publishes_in_a_way_of_its_own(self, app: Celery) -> None:
        class Careful(Scheduler):
            def apply_async(self, *args: Any, **kwargs: Any) -> Any:
                return super().apply_async(*args, **kwargs)

        assert (
            obstacle(Careful(app, lazy=True), app, kombu.transport.redis.Channel)
            == "apply_async is not the function of Celery or kombu"
        )

    def test_a_scheduler_that_was_patched_itself(
        self, why: Callable[[], str | None], scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = scheduler.apply_entry
        monkeypatch.setattr(scheduler, "apply_entry", lambda *args, **kwargs: original(*args, **kwargs))
        assert why() == "apply_entry is not the function of Celery or kombu"

    def test_a_task_that_was_patched_itself(
        self, app: Celery, publishers: tuple[Publisher, Publisher], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = app.tasks["plain"]
        original = task.apply_async
        monkeypatch.setattr(task, "apply_async", lambda *args, **options: original(*args, **options))
        entry = Entry("e", "plain", every(3600), options={"shadow": "patched"})
        publish(publishers[0], occurrence(entry, 1))
        assert entry.own_part is None

    def test_a_wrapped_maker_of_messages(
        self, why: Callable[[], str | None], app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = app.amqp.send_task_message
        monkeypatch.setattr(app.amqp, "send_task_message", lambda *args, **kwargs: original(*args, **kwargs))
        assert why() == "send_task_message is not the function of Celery or kombu"

    def test_a_producer_of_the_apps_own(self, why: Callable[[], str | None], app: Celery) -> None:
        class Own(kombu.Producer):
            def publish(self, *args: Any, **kwargs: Any) -> Any:
                return super().publish(*args, **kwargs)

        app.amqp.Producer = Own
        assert why() == "publish is not the function of Celery or kombu"

    def test_the_old_protocol(self, scheduler: Scheduler, make_app: MakeApp) -> None:
        assert obstacle(scheduler, make_app(task_protocol=1), kombu.transport.redis.Channel) == "task_protocol is not 2"

    def test_a_router_function(self, scheduler: Scheduler, make_app: MakeApp) -> None:
        other = make_app(task_routes=[lambda name, *args, **kwargs: None])
        assert obstacle(scheduler, other, kombu.transport.redis.Channel) == "task_routes holds a function"

    @pytest.mark.parametrize("setting", ["task_send_sent_event", "task_always_eager"])
    def test_what_does_more_or_less_than_sending(self, scheduler: Scheduler, make_app: MakeApp, setting: str) -> None:
        other = make_app(**{setting: True})
        assert (
            obstacle(scheduler, other, kombu.transport.redis.Channel)
            == "task_send_sent_event or task_always_eager is set"
        )
