"""Calls of the API whose reply is lost on the way: each is done once, and told so, whoever else writes meanwhile."""

from __future__ import annotations

import re
import threading
from collections import Counter

import pytest
from celery import Celery

from redbeat_lite import Entry, EntryChanged, Schedules, every
from tests.support.in_process import MakeApp
from tests.support.proxy import Proxy

#: In a request that writes entries: its id, by which its reply is kept.
CALL = re.compile(rb"\}:reply:[0-9a-f]{32}")


@pytest.fixture
def lossy(make_app: MakeApp, proxy: Proxy) -> Schedules:
    """Schedules behind a line that loses the first reply to each call that writes; they hold an entry "there"."""
    schedules = Schedules(make_app(redbeat_lite_url=proxy.url))
    schedules.add("there", "t", every(60))  # from now on the server knows the script
    proxy.lose_reply_to = CALL
    return schedules


def test_an_entry_is_added_once(lossy: Schedules, proxy: Proxy) -> None:
    assert lossy.add("new", "t", every(60)) == lossy["new"]
    assert (len(lossy), lossy["new"].version, proxy.lost) == (2, 1, 1)


def test_an_edit_is_one_version_and_no_conflict(lossy: Schedules, proxy: Proxy) -> None:
    assert lossy.update("there", kwargs={"n": 1}, if_version=1).version == 2
    assert (lossy["there"].version, lossy["there"].kwargs, proxy.lost) == (2, {"n": 1}, 1)


def test_an_entry_is_removed(lossy: Schedules, proxy: Proxy) -> None:
    lossy.remove("there")
    assert (len(lossy), proxy.lost) == (0, 1)


def test_an_entry_is_replaced_in_one_version(lossy: Schedules, proxy: Proxy) -> None:
    lossy.add("there", "other", every(60), replace=True)
    assert (lossy["there"].version, lossy["there"].task, proxy.lost) == (2, "other", 1)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("replace", [False, True])
def test_many_entries_are_added_once(lossy: Schedules, proxy: Proxy, replace: bool) -> None:
    lossy.add_many((Entry(f"e{number}", "t", every(60)) for number in range(250)), replace=replace)
    assert Counter(entry.version for entry in lossy.values()) == {1: 251}
    assert proxy.lost == 3


def test_a_pause_is_one_version(lossy: Schedules, proxy: Proxy) -> None:
    lossy.pause("there", "for now")
    assert (lossy["there"].version, lossy["there"].paused_note, proxy.lost) == (2, "for now", 1)


def test_who_takes_turns_by_version_loses_nothing(app: Celery, proxy: Proxy, make_app: MakeApp) -> None:
    """Four writers raise one number, each by the version it has read, two of them over a line that loses replies."""
    Schedules(app).add("contended", "t", every(60), kwargs={"n": 0})
    proxy.lose_reply_to = CALL
    behind = make_app(redbeat_lite_url=proxy.url)
    failures: list[BaseException] = []

    def raise_it(app: Celery) -> None:
        mine = Schedules(app)
        try:
            for _ in range(25):
                while not raised(mine):
                    pass
        except BaseException as exc:
            failures.append(exc)

    def raised(mine: Schedules) -> bool:
        entry = mine["contended"]
        try:
            mine.update("contended", kwargs={"n": entry.kwargs["n"] + 1}, if_version=entry.version)
        except EntryChanged:
            return False
        return True

    writers = [threading.Thread(target=raise_it, args=(each,)) for each in (app, app, behind, behind)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(50)
    entry = Schedules(app)["contended"]
    assert (failures, entry.kwargs["n"], entry.version) == ([], 100, 101)
    assert proxy.lost >= 50
