"""Everything wrong is refused where it comes in, with the field, what was expected, and what came."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery, chain, signature

from redbeat_lite import Entry, InvalidEntry, Scheduler, Schedules, at, cron, every, manual
from redbeat_lite.entries.stored_entry import decode
from tests.support.cases import together
from tests.support.frozen import NOW, Clock

pytestmark = pytest.mark.usefixtures("clock")


class Unstorable:
    """Something that nobody can store."""

    def __repr__(self) -> str:
        return "Unstorable()"


NAME = "text of 1 to 200 characters without control characters, got "
STORABLE = "expected a value that JSON or kombu's JSON types can hold (see kombu.utils.json.register_type), got "

WRITTEN = 'seconds, a timedelta or a text such as "1h30m"'
TASK = f"expected a task, a signature, a Pipeline, or {NAME}"

LENGTH = f"expected {WRITTEN}, more than 0 and at most 365 days, or None, got "

NEVER = "beside manual(), which is never due, got "
SCHEDULE = f"schedule: expected {WRITTEN}, or a schedule, got "
INTERVAL = f"schedule: expected {WRITTEN}, at least 0.05 s and at most 100 years, got "
START_AT = "start_at: expected an instant such as 2026-12-01T09:00+01:00, or None, got "
EXPIRES = f'expires: expected "interval", or {WRITTEN}, more than 0 and at most 100 years, or None, got '
JITTER = f"jitter: expected {WRITTEN}, not negative and at most 365 days, got "

#: What is wrong -> how add() is called instead of add("a", "t", 60), and what its error says after "entry 'a': ".
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "task of a wrong type": ({"task": 5}, f"task: {TASK}5"),
    "empty task": ({"task": ""}, f"task: {TASK}''"),
    "no task": ({"task": None}, f"task: {TASK}None"),
    "over-long task": ({"task": "t" * 201}, f"task: {TASK}'{'t' * 118}…"),
    "control character in the task": ({"task": "a\x00b"}, f"task: {TASK}'a\\x00b'"),
    "no schedule": ({"schedule": None}, SCHEDULE + "None"),
    "schedule of a wrong type": (
        {"schedule": "*/5 * * * *"},
        SCHEDULE + "'*/5 * * * *' (write cron(\"*/5 * * * *\"))",
    ),
    "schedule that is a truth": ({"schedule": True}, SCHEDULE + "True"),
    "schedule that is an instant": (
        {"schedule": datetime(2030, 1, 1, tzinfo=UTC)},
        SCHEDULE + "2030-01-01 00:00:00+00:00 (to run once, write at(...))",
    ),
    "interval of nothing": ({"schedule": 0}, INTERVAL + "0"),
    "interval of ages": ({"schedule": 10**10}, INTERVAL),
    "interval without end": ({"schedule": float("inf")}, SCHEDULE + "inf"),
    "args of a wrong type": (
        {"args": "abc"},
        "args: expected a list or tuple, got 'abc' (one argument is written (value,))",
    ),
    "kwargs of a wrong type": ({"kwargs": [1]}, "kwargs: expected a dict with text keys, got [1]"),
    "kwargs with a number for a name": ({"kwargs": {1: 2}}, "kwargs: expected a dict with text keys, got {1: 2}"),
    "options of a wrong type": ({"options": "queue"}, "options: expected a dict with text keys, got 'queue'"),
    "misspelt option": (
        {"options": {"queu": "mail"}},
        "options.queu: expected a known option, got 'mail' (did you mean 'queue'?)",
    ),
    **{
        f"option written {name!r}": (
            {"options": {name: 5}},
            f"options.{name}: expected a known option, got 5 (did you mean {option!r}?)",
        )
        for name, option in {
            "Queue": "queue",
            "ETA": "eta",
            "que": "queue",
            "prio": "priority",
            "expiry": "expires",
            "retry_policies": "retry_policy",
            "head": "headers",
            "messageGroupID": "MessageGroupId",
        }.items()
    },
    "misspelt option among others": (
        {"options": {"team": "a", "queu": "mail"}},
        "options.queu: expected a known option, got 'mail' (did you mean 'queue'?)",
    ),
    "option that is written as a field": (
        {"queue": "mail"},
        "queue: expected a known field, got 'mail' (it belongs into options: {'queue': ...})",
    ),
    "field of a once-lock that is written as one of the entry": (
        {"once": True, "on_conflict": "wait"},
        "on_conflict: expected a known field, got 'wait' (it belongs into once: {'on_conflict': ...})",
    ),
    **{
        f"{field} beside manual()": (
            {"schedule": manual(), field: value},
            f"{field}: expected no {field} {NEVER}",
        )
        for field, value in {
            "start_at": NOW,
            "end_at": NOW,
            "misfire": "skip",
            "max_runs": 3,
            "jitter": 5,
            "remove_when_done": True,
        }.items()
    },
    **{
        f"{field} beside manual()": (
            {"schedule": manual(), "expect": {field: 5}},
            f"expect: expected failures alone {NEVER}Expect(",
        )
        for field in ("start_within", "finish_within", "succeed_every")
    },
    "arguments beside a signature": (
        {"task": signature("add", (1,)), "args": (2,)},
        "args: expected none beside a signature, which has its own, got (2,)",
    ),
    "keyword arguments beside a signature": (
        {"task": signature("add", (1,)), "kwargs": {"y": 2}},
        "kwargs: expected none beside a signature, which has its own, got {'y': 2}",
    ),
    "a canvas with an argument that cannot be stored": (
        {"task": chain(signature("add", (1,)), signature("add", (object(),)))},
        "task.kwargs.tasks[1].args[0]: expected a value that JSON or kombu's JSON types can hold",
    ),
    "arguments beside a canvas": (
        {"task": chain(signature("add", (1,)), signature("add", (2,))), "kwargs": {"y": 2}},
        "kwargs: expected none beside a signature, which has its own, got {'y': 2}",
    ),
    "option expires that is no instant": (
        {"options": {"expires": "tomorrow"}},
        "options.expires: expected seconds up to 100 years, or a datetime or its ISO form, got 'tomorrow'",
    ),
    "option expires after ages": ({"options": {"expires": 1e300}}, "options.expires: expected seconds up to 100 years"),
    "countdown that is text": (
        {"options": {"countdown": "1"}},
        "options.countdown: expected seconds up to 100 years, got '1'",
    ),
    "eta that is a number": ({"options": {"eta": 5}}, "options.eta: expected a datetime or its ISO form, got 5"),
    "queue that is a number": (
        {"options": {"queue": 5}},
        "options.queue: expected the name of a queue or a kombu Queue, got 5",
    ),
    "unknown serializer": ({"options": {"serializer": "nope"}}, "options.serializer: expected one of "),
    "serializer of a wrong type": ({"options": {"serializer": 5}}, "options.serializer: expected one of "),
    "unknown compression": (
        {"options": {"compression": "nope"}},
        "options.compression: expected a compression that kombu has, got 'nope'",
    ),
    "headers of a wrong type": (
        {"options": {"headers": "x"}},
        "options.headers: expected a dict with text keys, got 'x'",
    ),
    "argument that cannot be stored": ({"args": [1, Unstorable()]}, f"args[1]: {STORABLE}Unstorable()"),
    "argument deep inside": (
        {"kwargs": {"a": [{"b": Unstorable()}]}},
        f"kwargs.a[0].b: {STORABLE}Unstorable()",
    ),
    "option that cannot be stored": (
        {"options": {"headers": {"h": Unstorable()}}},
        f"options.headers.h: {STORABLE}Unstorable()",
    ),
    "argument that cannot be sent": (
        {"args": [{1, 2}]},
        "args[0]: expected a value that the serializer 'json' can write, got {1, 2}",
    ),
    "argument too long": ({"args": [10**4000]}, "args[0]: expected a whole number of at most 4,000 digits, got 1000"),
    "argument that is no number": ({"args": [float("nan")]}, "args[0]: expected a finite number, got nan"),
    "text that is no text": ({"kwargs": {"x": "\ud800"}}, "kwargs.x: expected text that can be written as UTF-8, got "),
    "expires of a wrong type": (
        {"expires": "soon"},
        EXPIRES + "'soon'",
    ),
    "expires in the past": (
        {"expires": -1},
        EXPIRES + "-1",
    ),
    "expires that is a truth": (
        {"expires": True},
        EXPIRES + "True",
    ),
    "once of a wrong type": (
        {"once": "yes"},
        "once: expected True, False, a Once or a mapping of its fields, got 'yes'",
    ),
    "misfire of an unknown policy": (
        {"misfire": "colaesce"},
        'misfire.policy: expected one of "coalesce", "skip", "all", got \'colaesce\' (did you mean \'coalesce\'?)',
    ),
    "misfire of a wrong type": (
        {"misfire": 5},
        "misfire: expected a policy's name, a Misfire or a mapping of its fields, got 5",
    ),
    "jitter of a wrong type": ({"jitter": "1x"}, JITTER + "'1x'"),
    "negative jitter": ({"jitter": -0.1}, JITTER + "-0.1"),
    "jitter as long as the interval": (
        {"jitter": 60},
        "jitter: expected less than the shortest gap between occurrences (60 s), got 60.0",
    ),
    "jitter as long as a cron's gap": (
        {"schedule": cron("0,10 * * * *"), "jitter": timedelta(minutes=10)},
        "jitter: expected less than the shortest gap between occurrences (600 s), got 600.0",
    ),
    "jitter of ages": (
        {"schedule": at(NOW + timedelta(hours=1)), "jitter": 1e15},
        f"{JITTER}1000000000000000.0",
    ),
    "jitter beyond all numbers": (
        {"jitter": 10**400},
        JITTER + "1000",
    ),
    "expires after ages": ({"expires": 1e300}, EXPIRES + "1e+300"),
    "start_at of a wrong type": ({"start_at": "today"}, START_AT + "'today'"),
    "start_at without an offset": (
        {"start_at": "2026-12-01T09:00"},
        START_AT + "'2026-12-01T09:00' (add the offset, as in 2026-12-01T09:00+01:00)",
    ),
    "naive start_at": (
        {"start_at": datetime(2026, 1, 1)},
        START_AT + "2026-01-01 00:00:00 (add tzinfo, for example ",
    ),
    "naive end_at": (
        {"end_at": datetime(2026, 1, 1)},
        START_AT.replace("start", "end") + "2026-01-01 00:00:00 (add tzinfo, for example ",
    ),
    "end_at before start_at": (
        {"start_at": datetime(2027, 1, 2, tzinfo=UTC), "end_at": datetime(2027, 1, 1, tzinfo=UTC)},
        "end_at: expected an instant not before start_at (2027-01-02T00:00:00+00:00), got 2027-01-01",
    ),
    "end_at in the past": (
        {"end_at": datetime(2020, 1, 1, tzinfo=UTC)},
        "schedule: expected a schedule with an occurrence still to come, got ",
    ),
    "one-off before start_at": (
        {"schedule": at(NOW + timedelta(hours=1)), "start_at": NOW + timedelta(hours=2)},
        "schedule: expected a schedule with an occurrence still to come, got at(",
    ),
    "max_runs of a wrong type": ({"max_runs": 1.5}, "max_runs: expected a whole number from 1, or None, got 1.5"),
    "history of a wrong type": (
        {"history": "20"},
        "history: expected a whole number from 0 to 1000, or None, got '20'",
    ),
    "history below none": ({"history": -1}, "history: expected a whole number from 0 to 1000, or None, got -1"),
    "too much history": ({"history": 1001}, "history: expected a whole number from 0 to 1000, or None, got 1001"),
    "history that is a truth": (
        {"history": True},
        "history: expected a whole number from 0 to 1000, or None, got True",
    ),
    "no expectation": ({"expect": 5}, "expect: expected None, False, an Expect or a mapping of its fields, got 5"),
    "misspelt expectation": (
        {"expect": {"start_witin": 5}},
        "expect.start_witin: expected one of the fields start_within, finish_within, succeed_every, failures, "
        "got 'start_witin' (did you mean 'start_within'?)",
    ),
    "start at once": ({"expect": {"start_within": 0}}, f"expect.start_within: {LENGTH}0"),
    "finish at a truth": ({"expect": {"finish_within": True}}, f"expect.finish_within: {LENGTH}True"),
    "success in centuries": ({"expect": {"succeed_every": 1e10}}, f"expect.succeed_every: {LENGTH}10000000000.0"),
    "finish before start": (
        {"expect": {"start_within": 30, "finish_within": timedelta(seconds=20)}},
        "expect.finish_within: expected not less than start_within (30 s), got 20.0",
    ),
    "no failures": ({"expect": {"failures": 0}}, "expect.failures: expected a whole number from 1 to 1000, got 0"),
    "success more often than a run": (
        {"expect": {"succeed_every": 60}},
        "expect.succeed_every: expected more than the 60 s between the runs of 2026-03-02T12:07:19+00:00 and "
        "2026-03-02T12:08:19+00:00, got 60",
    ),
    "success over a weekend": (
        {"schedule": cron("0 9 * * 1-5", tz="UTC"), "expect": {"succeed_every": 86_400 * 2}, "jitter": 60},
        "expect.succeed_every: expected more than the 259260 s between the runs of 2026-03-06T09:00:00+00:00 and "
        "2026-03-09T09:00:00+00:00, got 172800",
    ),
    "trust in a result backend": (
        {"expect": {"finish_within": 5, "trust": "backend"}},
        "expect.trust: expected one of the fields start_within, finish_within, succeed_every, failures, got 'trust'",
    ),
    "expectation without a record": (
        {"expect": {"start_within": 5}, "history": 0},
        "history: expected at least 1 beside expect, which goes by what is recorded, got 0",
    ),
    "an expectation of what goes at its end": (
        {"expect": {"failures": 2}, "remove_when_done": True},
        "expect: expected none beside remove_when_done: it is looked at later, got Expect(",
    ),
    "a policy on failures of what goes at its end": (
        {"on_failure": "pause:3", "remove_when_done": True},
        "on_failure: expected none beside remove_when_done: it is looked at later, got Pause(after=3)",
    ),
    "a policy on failures without a record": (
        {"on_failure": "pause:3", "history": 0},
        "history: expected at least 1 beside on_failure, which goes by what is recorded, got 0",
    ),
    "an unknown policy on failures": (
        {"on_failure": "remove:3"},
        """on_failure: expected None, Pause(after=3) or "pause:3", got 'remove:3'""",
    ),
    "a policy on failures that is a number": ({"on_failure": 3}, "on_failure: expected None, Pause(after=3) or"),
    "a pause after nothing": (
        {"on_failure": "pause:0"},
        "on_failure.after: expected a whole number from 1 to 1000, got 0",
    ),
    "a pause after ages": ({"on_failure": "pause:1001"}, "on_failure.after: expected a whole number from 1 to 1000"),
    "a tag with a comma": ({"tags": ["a,b"]}, "tags: expected up to 20 different texts of 1 to 100 characters"),
    "a tag twice": ({"tags": ["a", "a"]}, "tags: expected up to 20 different texts"),
    "a tag that is a number": ({"tags": 7}, "tags: expected up to 20 different texts"),
    "too many tags": ({"tags": [str(n) for n in range(21)]}, "tags: expected up to 20 different texts"),
    "runs beyond all numbers": (
        {"max_runs": -(10**5000)},
        "max_runs: expected a whole number from 1, or None, got a int that cannot be shown",
    ),
    "a number beyond all in the place of a word": (
        {"once": {"scope": 10**5000}},
        'once.scope: expected one of "run", "queue", got a int that cannot be shown',
    ),
    "no runs": ({"max_runs": 0}, "max_runs: expected a whole number from 1, or None, got 0"),
    "runs that are a truth": ({"max_runs": True}, "max_runs: expected a whole number from 1, or None, got True"),
    "enabled of a wrong type": ({"enabled": 1}, "enabled: expected True or False, got 1"),
    "remove_when_done of a wrong type": (
        {"remove_when_done": "no"},
        "remove_when_done: expected True or False, got 'no'",
    ),
    "description of a wrong type": ({"description": None}, "description: expected text, got None"),
    "description that is no text": (
        {"description": "\ud800"},
        "description: expected text that can be written as UTF-8, got ",
    ),
    "too large": (
        {"args": ["x" * 70_000]},
        "entry: expected a definition of at most 65536 bytes, got 700",
    ),
    "unknown field with a near one": (
        {"expire": 5},
        "expire: expected a known field, got 5 (did you mean 'expires'?)",
    ),
    "unknown field": ({"zzz": 5}, "zzz: expected a known field, got 5"),
    "a field that is the opposite of one": (
        {"disabled": True},
        "disabled: expected a known field, got True (write enabled instead, which is the opposite)",
    ),
    "a field that is no one's to write": (
        {"owner": "proj"},
        "owner: expected a known field, got 'proj' (Redis keeps it; leave it out)",
    ),
    "a field of once with a near one": (
        {"once": {"max_wait": 3}},
        "once.max_wait: expected one of the fields key, scope, on_conflict, lease, hold_on_retry, max_hold, "
        "max_waiters, got 'max_wait' (did you mean 'max_waiters'?)",
    ),
}


@together("case", CASES)
@together("final", [False, True], ids=["early", "final"])
def test_add_refuses_and_stores_nothing(
    app: Celery, schedules: Schedules, client: redis.Redis, case: str, final: bool
) -> None:
    if final:
        app.finalize()
    changes, message = CASES[case]
    with pytest.raises(InvalidEntry, match=re.escape(f"entry 'a': {message}")):
        schedules.add("a", **{"task": "t", "schedule": 60, **changes})
    assert client.keys("*") == []


@pytest.fixture
def stored(schedules: Schedules) -> Schedules:
    """With an entry in its first version."""
    schedules.add("a", "t", 60)
    return schedules


@together("case", [case for case in CASES if case != "end_at in the past"])
def test_update_refuses_and_changes_nothing(stored: Schedules, case: str) -> None:
    changes, message = CASES[case]
    with pytest.raises(InvalidEntry, match=re.escape(f"entry 'a': {message}")):
        stored.update("a", **changes)
    assert stored["a"].version == 1


@together("field", ["task", "schedule"])
def test_a_field_that_is_missing_is_told_from_one_that_is_none(field: str) -> None:
    written = {"task": "t", "schedule": 60}
    with pytest.raises(InvalidEntry, match=rf"^entry 'a': {field}: expected .*, got None$"):
        Entry.from_mapping("a", {**written, field: None})
    del written[field]
    with pytest.raises(InvalidEntry, match=rf"^entry 'a': {field}: expected .* \(the field is missing\)$"):
        Entry.from_mapping("a", written)


@together("name", ["", "n" * 201, "a\nb", "\x7f", "\ud800", 5, None, b"a"])
def test_a_name_is_text_of_a_length_without_control_characters(schedules: Schedules, name: Any) -> None:
    with pytest.raises(InvalidEntry) as caught:
        schedules.add(name, "t", 60)
    assert (caught.value.field, caught.value.value) == ("name", name)
    assert str(caught.value).startswith(f"name: expected {NAME}")


@together("name", ["a", "n" * 200, "with spaces, äöü and 日本語", "a|b\\", "{braces}", "%s%d"], emptied=True)
def test_any_other_name_works_through_and_through(schedules: Schedules, name: str) -> None:
    schedules.add(name, "t", every(10))
    schedules.pause(name, "n")
    schedules.resume(name)
    assert [entry.name for entry in schedules.list()] == [name]
    assert schedules.run_now(name)
    del schedules[name]


@together(
    "expression", ["0 0 30 2 *", "0 0 31 4,6 *", "61 * * * *", "* * *", "", "nonsense", "0 0 * * mon#6", "R * * * *"]
)
def test_an_expression_that_is_wrong_or_never_matches_is_refused_where_it_is_written(expression: str) -> None:
    with pytest.raises(InvalidEntry, match="schedule: expected") as caught:
        cron(expression)
    assert caught.value.field == "schedule"


def test_an_unknown_zone_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidEntry, match="Mars/Olympus"):
        cron("0 0 * * *", tz="Mars/Olympus")


def test_a_naive_one_off_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidEntry, match=r"schedule: expected an instant such as .*add tzinfo"):
        at(datetime(2027, 1, 1))


def test_a_due_time_beyond_all_time_hides_no_other_entry(schedules: Schedules, client: redis.Redis) -> None:
    schedules.add("fine", "t", 60)
    schedules.add("odd", "t", 60)
    client.zadd("{redbeat-lite}:due", {"odd": 1e18})
    assert [(entry.name, entry.next_run_at) for entry in schedules.list()] == [
        ("fine", NOW + timedelta(seconds=60)),
        ("odd", datetime(9999, 12, 30, 23, 59, 59, 999_000, UTC)),
    ]
    assert schedules["odd"].next_run_at == schedules.list()[1].next_run_at
    assert [each.name for each in schedules.upcoming(NOW + timedelta(minutes=2))] == ["fine", "fine"]


def test_a_jitter_out_of_range_in_redis_is_set_aside_at_its_tick(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
) -> None:
    schedules.add("odd", "t", at(NOW + timedelta(seconds=5)), jitter=1)
    stored = client.hget("{redbeat-lite}:entries", "odd")
    assert isinstance(stored, bytes)
    client.hset("{redbeat-lite}:entries", "odd", stored.replace(b'"jitter":1.0', b'"jitter":1e15'))
    clock.forward(10)
    inner_beat.run_due()
    assert "not negative and at most 365 days" in schedules.quarantined()["odd"]["error"]


def test_the_latest_instant_with_a_jitter_is_one_that_can_be_told(schedules: Schedules) -> None:
    last = datetime(9999, 12, 30, 23, 59, 59, 990_000, UTC)
    entry = schedules.add("last", "t", at(last), jitter=31_536_000)
    assert entry.next_run_at is not None
    assert entry.next_run_at >= last


def test_options_that_are_right_are_kept(schedules: Schedules) -> None:
    options = {
        "expires": NOW + timedelta(days=1),
        "eta": "2026-03-03T00:00:00+00:00",
        "queue": "mail",
        "serializer": "json",
        "compression": "gzip",
        "priority": None,
    }
    assert schedules.add("a", "t", 60, options=options).options == options
    assert schedules["a"].options == options
    assert schedules.add("b", "t", 60, options={"countdown": 1.5, "expires": 5}).options["countdown"] == 1.5
    of_a_broker = {"group": "g", "tenant": 1, "delay_seconds": 2, "MessageGroupId": "m", "ahead": 3}
    assert schedules.add("c", "t", 60, options=of_a_broker).options == of_a_broker


def test_thousands_of_options_that_are_none_cost_no_more_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(
        "redbeat_lite.entries.apply_options.get_close_matches", lambda name, *args, **kwargs: looks.append(name) or []
    )
    many = {f"sredaeh_noitacilppa{number}": 0 for number in range(2_000)}
    Entry("a", "t", every(60), options=many)
    decode("a", json.dumps({"v": 3, "task": "t", "schedule": {"every": "1m"}, "options": many}).encode())
    assert len(looks) <= 40
