"""Calendars that are stored, and entries that are edited, by many at once beside a beat."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from celery import Celery

from redbeat_lite import Calendar, Entry, EntryChanged, EntryNotFound, Scheduler, Schedules, cron

TODAY = datetime.now(UTC).date()
MINUTES = float(os.environ.get("SOAK_MINUTES", "1"))


def free(random: Random) -> Calendar:
    """Ten of the next forty days."""
    return Calendar(
        {TODAY + timedelta(days=each) for each in random.sample(range(1, 40), 10)}, TODAY + timedelta(days=300)
    )


@pytest.mark.soak
@pytest.mark.timeout(120 + 60 * MINUTES)
def test_every_entry_is_by_what_is_stored_in_the_end(app: Celery, schedules: Schedules, inner_beat: Scheduler) -> None:
    stop = time.monotonic() + 60 * min(MINUTES, 2)

    def store(own: Schedules, random: Random) -> None:
        own.calendars[random.choice("cd")] = free(random)

    def edit(own: Schedules, random: Random) -> None:
        name, calendar = f"e{random.randrange(20)}", random.choice(["c", "d", None])
        schedule = cron(f"{random.randrange(60)} 9 * * *", tz="UTC")
        with suppress(EntryNotFound, EntryChanged):
            random.choice(
                [
                    lambda: own.add(name, "add", schedule, calendar=calendar, replace=True),
                    lambda: own.add_many([Entry(name, "add", schedule, calendar=calendar)], replace=True),
                    lambda: own.update(name, calendar=calendar),
                    lambda: own.remove(name),
                    lambda: own.pause(name),
                    lambda: own.resume(name),
                ]
            )()

    def again(do: Callable[[Schedules, Random], None], seed: int) -> None:
        own, random = Schedules(app), Random(seed)
        while time.monotonic() < stop:
            do(own, random)

    for name in "cd":
        schedules.calendars[name] = free(Random(name))
    with ThreadPoolExecutor() as pool:
        doing = [pool.submit(again, do, seed) for seed in (1, 2) for do in (store, edit)]
        while time.monotonic() < stop:
            inner_beat.run_due()
            time.sleep(0.05)
        for each in doing:
            each.result()
    known, now = schedules.calendars.all(), datetime.now(UTC)
    for entry in schedules.values():
        assert entry.calendar is None or entry.calendar == known[entry.calendar.name]  # type: ignore[union-attr]
        assert entry.next_run_at in (None, entry.rule.next_after(now))
