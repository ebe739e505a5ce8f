"""django-celery-beat on SQLite."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.subjects.common import TASK, Figures, Task, arguments, client, empty, long_ago, make_app, names
from benchmarks.subjects.ticking import rate


def measure(task: Task) -> Figures:
    server = client(task.url)
    empty(server)
    with tempfile.TemporaryDirectory() as directory:
        _set_up(Path(directory) / "db.sqlite3")
        from django_celery_beat.schedulers import DatabaseScheduler

        _fill(task.due)
        scheduler: Any = DatabaseScheduler(make_app(task.url), max_interval=300)
        try:
            return {f"rate.interval.{task.due}": rate(scheduler, server, task.ticks)}
        finally:
            scheduler.close()


def _set_up(database: Path) -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(database)}},
        INSTALLED_APPS=["django_celery_beat"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    django.setup()
    call_command("migrate", verbosity=0)


def _fill(count: int) -> None:
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    hourly = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.HOURS)
    last, rows = long_ago(), []
    for number, name in enumerate(names(count)):
        args, kwargs = arguments(number)
        texts = {"args": json.dumps(args), "kwargs": json.dumps(kwargs)}
        rows.append(PeriodicTask(name=name, task=TASK, interval=hourly, last_run_at=last, **texts))
    PeriodicTask.objects.bulk_create(rows, batch_size=500)
