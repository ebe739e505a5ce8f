"""A feed that was cut further than the leader had read."""

from __future__ import annotations

import pytest

from redbeat_lite import Expect, every
from redbeat_lite._base.times import from_ms
from redbeat_lite.runs import incident_store
from redbeat_lite.runs.run_store import RunKeys
from tests.beat.incidents import Stage

FEED = RunKeys("redbeat-lite").feed

#: Appends lines as the record of runs does.
LINES = "for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'name', 'x') end"


@pytest.fixture(params=[1000, pytest.param(100_000, marks=pytest.mark.soak)])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many lines the record keeps."""
    monkeypatch.setattr(incident_store, "_FEED_LINES", request.param)
    return int(request.param)


@pytest.fixture
def read(stage: Stage, kept: int) -> Stage:
    """A feed of two lines that the leader has read."""
    stage.schedules.add("e", "add", every(60), expect=Expect(failures=100))
    stage.turn(60)
    for _ in range(2):
        stage.worker.tells("e", "failed")
        stage.turn()
    return stage


def test_lines_that_were_cut_before_they_were_read_are_an_incident_of_one_look(read: Stage, kept: int) -> None:
    before = read.client.xrevrange(FEED, count=1)[0][0]
    read.client.eval(LINES, 1, FEED, kept + 300, kept)
    after = read.client.xrange(FEED, count=1)[0][0]
    read.turn(*[0] * 12)
    read.listener.hears("unread", "-unread")
    [found] = read.schedules.incidents(closed=True)
    for line in (before, after):
        assert from_ms(int(line.partition(b"-")[0])).isoformat(timespec="seconds") in found.text
    assert read.client.hget("{redbeat-lite}:meta", "feed") == read.client.xrevrange(FEED, count=1)[0][0]


def test_a_full_feed_that_is_cut_behind_the_leader_is_none(read: Stage, kept: int) -> None:
    read.client.eval(LINES, 1, FEED, kept - 1, kept)
    assert read.client.xlen(FEED) == kept + 1
    read.turn(*[0] * 12)
    read.client.eval(LINES, 1, FEED, 300, kept)
    assert read.client.xlen(FEED) < kept + 300
    read.turn(0, 0)
    assert read.listener.lines() == []


def test_of_a_feed_that_begins_anew_nobody_knows(read: Stage, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read.client.delete(FEED)
    read.client.eval(LINES, 1, FEED, 600, kept)
    read.turn(0, 0)
    assert read.listener.lines() == []
    monkeypatch.setattr(incident_store, "_FEED_LINES", 600)
    read.client.delete(FEED)
    read.client.eval(LINES, 1, FEED, 600, kept)
    read.turn(0, 0)
    read.listener.hears("unread", "-unread")
