"""Write the runtime entries of redbeat_lite into the store of celery-redbeat or django-celery-beat, to go back to it.

In the directory of your project, with all beats stopped::

    python back.py proj.celery:app celery-redbeat
    python back.py proj.celery:app celery-redbeat --apply

Without ``--apply`` nothing is written. It exits with 3 if something cannot be carried.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar

from redbeat_lite import Entry, Schedules

#: Fields that neither has and that change no time at which an entry runs of itself: it is carried without them.
WITHOUT = ("once", "jitter", "expect", "on_failure", "tags", "history", "remove_when_done")

Write = Callable[[], None]


class Lost(Exception):
    """An entry that cannot be carried, and why."""


def familiar(entry: Entry) -> tuple[BaseSchedule, str | None]:
    """The schedule in Celery's own classes, and the zone that it names, if it does.

    Raises:
        Lost: they have no words for it.
    """
    written, found = entry.as_dict()["schedule"], entry.schedule
    if type(found) in (crontab, solar):
        return found, None
    if isinstance(found, schedule) and not (written.get("align") or written.get("spread")):
        return schedule(found.run_every), None
    fields = written.get("cron", "").split()
    # Five fields that both read alike: of two restricted days here either is enough, there both must match.
    if len(fields) == 5 and "#" not in written["cron"] and "*" in (fields[2], fields[4]):
        minute, hour, day, month, weekday = fields
        try:
            return crontab(minute, hour, weekday, day, month), written.get("tz")
        except (ParseException, ValueError):
            pass  # H, L, W
    raise Lost(f"schedule: {entry.as_dict()['schedule_text']}")


def since(entry: Entry, rule: BaseSchedule) -> datetime:
    """Its last run; of one that never ran, which would run at once, an instant from which its next run is counted."""
    now = datetime.now(UTC)
    if entry.last_run_at or entry.next_run_at is None:
        return entry.last_run_at or now
    gap = rule.run_every if isinstance(rule, schedule) else timedelta(seconds=1)
    return min(now, entry.next_run_at - gap)


def to_redbeat(app: Celery, entry: Entry) -> Write:
    """What writes it there; celery-redbeat reads its own settings from the app."""
    from redbeat import RedBeatSchedulerEntry

    for field in ("start_at", "end_at", "max_runs"):
        if getattr(entry, field) is not None:
            raise Lost(f"{field}: it would run outside of it")
    rule, zone = familiar(entry)
    if isinstance(rule, solar):
        raise Lost("schedule: solar")
    if zone not in (None, str(app.timezone)):
        raise Lost(f"schedule: its zone is {zone}, and that of the app {app.timezone}")
    options = dict(entry.options)
    if isinstance(entry.expires, float | int):
        options.setdefault("expires", entry.expires)
    last = since(entry, rule)
    on = entry.enabled and entry.paused_note is None
    own = {"args": entry.args, "kwargs": dict(entry.kwargs), "options": options, "enabled": on, "app": app}
    theirs = RedBeatSchedulerEntry(entry.name, entry.task, rule, last_run_at=last, **own)

    def write() -> None:
        theirs.save()
        theirs.total_run_count = entry.total_run_count - 1  # which the next line counts up
        theirs._next_instance(last_run_at=last)

    return write


def to_django(app: Celery, entry: Entry) -> Write:
    """What writes it there. ``DJANGO_SETTINGS_MODULE`` says where that is."""
    import django

    django.setup()
    from django_celery_beat import models

    options, columns = dict(entry.options), {}
    for name in ("queue", "exchange", "routing_key", "priority"):
        columns[name] = options.pop(name, None)
    headers, expires = options.pop("headers", None), options.pop("expires", entry.expires)
    if options:
        raise Lost(f"options: {', '.join(sorted(options))}")
    if entry.max_runs not in (None, 1):
        raise Lost(f"max_runs: {entry.max_runs}, and it knows only once")
    model, fields = _kind(models, entry, str(app.timezone))
    starts = entry.start_at is not None or model is models.ClockedSchedule
    columns |= {
        "task": entry.task,
        "args": json.dumps(entry.args),
        "kwargs": json.dumps(dict(entry.kwargs)),
        "headers": json.dumps(headers or {}),
        "start_time": entry.start_at,
        # It runs nothing at its very end.
        "expires": entry.end_at and entry.end_at + timedelta(milliseconds=1),
        "expire_seconds": max(1, round(expires)) if isinstance(expires, float | int) and entry.end_at is None else None,
        "one_off": entry.max_runs == 1 or model is models.ClockedSchedule,
        "description": entry.description,
        "enabled": entry.enabled and entry.paused_note is None and not entry.finished,
        "last_run_at": entry.last_run_at if starts else since(entry, familiar(entry)[0]),
        "total_run_count": entry.total_run_count,
    }

    def write() -> None:
        row = models.PeriodicTask.objects.filter(name=entry.name).first() or models.PeriodicTask(name=entry.name)
        kinds = {"interval": None, "crontab": None, "solar": None, "clocked": None}
        kinds[model.__name__.removesuffix("Schedule").lower()] = model.objects.filter(
            **fields
        ).first() or model.objects.create(**fields)
        for name, value in {**columns, **kinds}.items():
            setattr(row, name, value)
        row.save()

    return write


def _kind(models: Any, entry: Entry, app_zone: str) -> tuple[Any, dict[str, Any]]:
    if at := entry.as_dict()["schedule"].get("at"):
        return models.ClockedSchedule, {"clocked_time": datetime.fromisoformat(at)}
    rule, zone = familiar(entry)
    if isinstance(rule, crontab):
        names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        fields = {name: _text(getattr(rule, f"_orig_{name}")) for name in names}
        return models.CrontabSchedule, fields | {"timezone": zone or app_zone}
    if isinstance(rule, solar):
        return models.SolarSchedule, {"event": rule.event, "latitude": rule.lat, "longitude": rule.lon}
    micro = rule.run_every // timedelta(microseconds=1)
    seconds, rest = divmod(micro, 1_000_000)
    return models.IntervalSchedule, {"every": micro, "period": "microseconds"} if rest else {
        "every": seconds,
        "period": "seconds",
    }


def _text(field: Any) -> str:
    return ",".join(map(str, sorted(field))) if isinstance(field, list | tuple | set | frozenset) else str(field)


WRITERS = {"celery-redbeat": to_redbeat, "django-celery-beat": to_django}


def carry(app: Celery, peer: str, entry: Entry, *, apply: bool) -> str:
    """Carry an entry; what to say about it.

    Raises:
        Lost: it cannot be carried.
    """
    if entry.calendar is not None:
        raise Lost("calendar: it would run on those days")
    write = WRITERS[peer](app, entry)
    if apply:
        write()
    left = [field for field in WITHOUT if getattr(entry, field) not in (None, False, 0, ())]
    left += ["misfire"] * (entry.misfire.policy != "coalesce")
    left += ["the note of its pause"] * bool(entry.paused_note)
    return ("carried" if apply else "can be carried") + (f", without {', '.join(left)}" if left else "")


def back(app: Celery, peer: str, *, apply: bool) -> int:
    """Carry what can be carried, and tell what cannot; the exit code."""
    schedules, lost = Schedules(app), 0
    for entry in schedules.values():
        if entry.source != "runtime":
            print(f"{entry.name}: comes from beat_schedule" + (", and is paused here" if entry.paused_note else ""))
            continue
        try:
            print(f"{entry.name}: {carry(app, peer, entry, apply=apply)}")
        except Lost as exc:
            lost += 1
            print(f"{entry.name}: cannot be carried: {exc}")
    for name in schedules.quarantined():
        lost += 1
        print(f"{name}: cannot be carried: it is in quarantine")
    print(f"{lost} cannot be carried. What was removed here since the move is still there.")
    return 3 if lost else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", help="such as proj.celery:app")
    parser.add_argument("peer", choices=WRITERS)
    parser.add_argument("--apply", action="store_true", help="write")
    args = parser.parse_args()
    sys.path.insert(0, "")
    module, _, name = args.app.partition(":")
    sys.exit(back(getattr(import_module(module), name or "app"), args.peer, apply=args.apply))


if __name__ == "__main__":
    main()
