"""What the leader refuses of its configuration is left in Redis, with what is wrong, until it is mended."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from redbeat_lite import Schedules, every
from redbeat_lite.beat import leadership
from redbeat_lite.beat.status import status
from redbeat_lite.operate.doctor import examine
from redbeat_lite.store.records import Refused
from tests.beat.poison import CannotBeRead, CannotTell, NeitherTrueNorFalse
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clock")

GOOD: dict[str, Any] = {"task": "t", "schedule": every(60)}
WRONG: dict[str, Any] = {"task": "t", "schedule": "whenever"}


def test_each_refused_entry_is_told_with_its_error_and_with_whose_it_is(make_app: MakeApp, make_beat: MakeBeat) -> None:
    app = make_app(beat_schedule={"a": GOOD, "b": WRONG, "c": {**GOOD, "retries": 3}, "d": GOOD, "e\n": GOOD})
    Schedules(app).add("d", "other", every(60))
    one_turn(app, make_beat)
    told = status(app).refused
    assert (told.owner, told.count) == ("proj", 4)
    assert {*told.errors} == {"b", "c", "d", "e\\n"}
    assert told.errors["b"].startswith("schedule: expected ")
    assert "it belongs into options" in told.errors["c"]
    assert told.errors["d"] == "the name is taken by a runtime entry"
    assert Schedules(make_app("another process")).refused() == told.errors


def test_what_is_mended_or_taken_out_is_told_no_more(make_app: MakeApp, make_beat: MakeBeat) -> None:
    app = make_app(beat_schedule={"a": WRONG, "b": WRONG, "c": WRONG})
    assert {*one_turn(app, make_beat).refused()} == {"a", "b", "c"}
    app.conf.beat_schedule = {"a": GOOD, "c": WRONG}
    assert {*one_turn(app, make_beat).refused()} == {"c"}
    app.conf.beat_schedule = {"a": GOOD}
    assert one_turn(app, make_beat).refused() == {}
    assert status(app).refused == Refused("proj", 0, {})


def test_one_that_goes_on_as_stored_before_is_told_too(make_app: MakeApp, make_beat: MakeBeat) -> None:
    app = make_app(beat_schedule={"a": GOOD})
    one_turn(app, make_beat)
    app.conf.beat_schedule = {"a": {**GOOD, "jitter": "oops"}}
    for _ in range(2):
        schedules = one_turn(app, make_beat)
        assert {*schedules} == {*schedules.refused()} == {"a"}


def test_one_that_raises_when_it_is_looked_at_is_refused_alone(make_app: MakeApp, make_beat: MakeBeat) -> None:
    raising = {"a": CannotBeRead(), "b": {**GOOD, "options": CannotBeRead()}}
    app = make_app(beat_schedule={**raising, "odd": {**GOOD, "options": NeitherTrueNorFalse(queue="q")}})
    leader, beat = make_beat(make_app("other")), make_beat(app)
    leader.run_due()
    beat.run_due()
    told = {(each.check, each.entries) for each in examine(app)}
    assert {("refused", ("a", "b")), ("not-stored", ("odd",))} < told, "one of another app leads"
    leader.close()
    beat.run_due()
    schedules = Schedules(app)
    assert schedules["odd"].options == {"queue": "q"}
    assert {*schedules} == {"odd"}
    assert schedules.refused() == dict.fromkeys("ab", "ZeroDivisionError: mapping is broken")


def test_one_that_raises_since_it_was_stored_can_be_read(make_app: MakeApp, make_beat: MakeBeat) -> None:
    app = make_app(beat_schedule={"a": {"task": "t", "schedule": CannotTell(float("inf"))}})
    assert one_turn(app, make_beat)["a"].unstored == {}
    app.conf.beat_schedule = {"a": CannotBeRead()}
    assert one_turn(app, make_beat)["a"].unstored == {"schedule": "<tests.beat.poison.CannotTell object>"}


def test_a_name_that_becomes_free_is_refused_no_more(make_app: MakeApp, make_beat: MakeBeat) -> None:
    app = make_app(beat_schedule={"a": GOOD})
    schedules = Schedules(app)
    schedules.add("a", "other", every(60))
    beat = make_beat(app)
    beat.run_due()
    assert {*schedules.refused()} == {"a"}
    schedules.remove("a")
    beat._parts.leadership._next_check = 0.0  # some leases later
    beat.run_due()
    assert schedules.refused() == {}


def test_a_sync_that_takes_longer_than_the_interval_is_not_made_in_each_turn(
    make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr(leadership, "elapsed", lambda: seconds)
    app = make_app(beat_schedule={"a": GOOD})
    Schedules(app).add("a", "other", every(60))
    beat = make_beat(app)
    beat.run_due()
    config = beat._parts.leadership.config
    sync, syncs = config.sync, []

    def slow_sync(*args: Any) -> None:
        nonlocal seconds
        seconds += 10 * beat.settings.lease
        syncs.append(seconds)
        sync(*args)

    monkeypatch.setattr(config, "sync", slow_sync)
    seconds += 10 * beat.settings.lease
    for _ in range(4):
        beat.run_due()
    assert len(syncs) == 1


def test_its_error_is_logged_once_until_it_changes(
    make_app: MakeApp, make_beat: MakeBeat, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(beat_schedule={"a": WRONG, "b": GOOD})
    Schedules(app).add("b", "other", every(60))
    beat = make_beat(app)

    def read_again() -> list[str]:
        caplog.clear()
        beat._parts.leadership._next_check = 0.0  # some leases later
        beat.run_due()
        return [message.split("refused: ")[1][:17] for message in caplog.messages if "is refused" in message]

    assert read_again() == ["schedule: expecte", "the name is taken"]
    assert read_again() == []
    app.conf.beat_schedule = {"a": {**GOOD, "jitter": "oops"}, "b": GOOD}
    assert read_again() == ["jitter: expected "]


def test_it_is_told_again_after_a_flush(make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis) -> None:
    app = make_app(beat_schedule={"a": WRONG}, redbeat_lite_lease=3)
    beat, schedules = make_beat(app), Schedules(app)
    beat.run_due()
    client.delete(KEYS.meta)
    assert schedules.refused() == {}
    eventually(lambda: beat.leader.needs_repair, what="the next renewal to see it")
    beat.run_due()
    assert {*schedules.refused()} == {"a"}


def test_however_many_and_long_they_are_little_is_stored(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    many: dict[str, Any] = {f"{number}-{'é' * 300}": {**WRONG, "x" * 5000: 1} for number in range(300)}
    app = make_app(beat_schedule={**many, "good": GOOD})
    assert [*one_turn(app, make_beat)] == ["good"]
    told = status(app).refused
    assert (told.count, len(told.errors)) == (300, 100)
    assert len(client.hget(KEYS.meta, "refused") or b"") < 100_000


@together(
    ("garbage", "count"),
    [
        (b"", 0),
        (b"{", 0),
        (b"[1]", 0),
        (b'{"errors": 3}', 0),
        (b'{"errors": {"a": 1}, "count": "x"}', 0),
        (b"\xff", 0),
    ],
    emptied=True,
)
def test_anything_may_lie_there(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, garbage: bytes, count: int
) -> None:
    app = make_app(beat_schedule={"a": WRONG})
    client.hset(KEYS.meta, "refused", garbage)
    assert status(app).refused.count == count
    one_turn(app, make_beat)
    assert {*Schedules(app).refused()} == {"a"}
