"""What is expected of an entry's runs, and whether that can hold, by its rule and by what the result backend keeps."""

from __future__ import annotations

from datetime import timedelta, tzinfo

from celery import Celery

from ..errors import InvalidEntry
from ..expect import Expect
from ..instants import from_ms
from ..schedules import gap_over
from ..setting_checks import RESULTS, has_results
from .entry import Entry


def expected_of(entry: Entry, default: Expect | None) -> Expect | None:
    """What is expected of an entry's runs: the default of those that do not say, and are there when it is looked at."""
    return (default if entry.expect is None and not entry.remove_when_done else entry.expect) or None


def check_expectation(entry: Entry, now: int, zone: tzinfo) -> None:
    """Refuse to expect successes closer together than the runs are, in the year that follows ``now`` (epoch ms).

    Raises InvalidEntry, which names two runs between which no success can come in time.
    """
    longest = entry.expect.success_ms if entry.expect else None
    if not entry.expect or longest is None:
        return
    found = gap_over(entry.rule(zone), now, longest - entry.jitter_ms)
    if found is not None:
        before, after = (from_ms(each).isoformat() for each in found)
        seconds = (found[1] - found[0] + entry.jitter_ms) / 1000
        expected = f"more than the {seconds:g} s between the runs of {before} and {after}"
        raise InvalidEntry("expect.succeed_every", expected, entry.expect.succeed_every)


def leaves_no_result(entry: Entry, app: Celery) -> bool:
    """Whether no result is kept of the entry's runs, as far as this process knows."""
    task = app.tasks.get(entry.task) if app.finalized else None
    by_default = app.finalized and app.conf.task_ignore_result
    return bool(entry.options.get("ignore_result") or getattr(task, "ignore_result", by_default))


def check_trust(entry: Entry, app: Celery) -> None:
    """Refuse to trust a result backend that will not tell of the entry's runs, as far as this process knows.

    Raises InvalidEntry: there is none, it forgets a result before it is asked for, or the task leaves none.
    """
    if not entry.expect or entry.expect.trust == "workers":
        return
    expires = app.conf.result_expires
    kept = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if not has_results(app):
        why = f"the app has no {RESULTS}"
    elif leaves_no_result(entry, app):
        why = "results of the task are not kept (ignore_result)"
    elif kept and entry.expect.longest >= kept:
        why = f"results are kept for {kept:g} s (result_expires), not for longer than {entry.expect.longest:g} s"
    else:
        return
    raise InvalidEntry("expect.trust", f"'workers', as {why}", "backend", entry=entry.name)
