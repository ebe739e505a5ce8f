"""Real stores of other schedulers, written by their own packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, _state

from tests.support.in_process import clock, make_beat

__all__ = ["clock", "django_database", "make_app", "make_beat", "models"]


@pytest.fixture
def make_app(make_app: Callable[..., Celery]) -> Iterator[Callable[..., Celery]]:
    """Makes apps in Berlin, without the daily entry that Celery adds by itself; the last one made is the current one.

    Schedules that know no app, as those of the other packages, ask the current one for its zone.
    """
    before = _state._tls.current_app

    def make(name: str = "proj", **conf: Any) -> Celery:
        app = make_app(name, **{"timezone": "Europe/Berlin", "result_expires": None, "redbeat_lite_lease": 600, **conf})
        app.set_current()
        return app

    yield make
    _state._tls.current_app = before


@pytest.fixture(scope="session")
def django_database(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """django-celery-beat's models over a database of their own, in this process."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(
        INSTALLED_APPS=["django_celery_beat"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(_database(tmp_path_factory))}},
        # The tables at once, instead of through the years of their history.
        MIGRATION_MODULES={"django_celery_beat": None},
        USE_TZ=True,
        TIME_ZONE="Europe/Berlin",
        LOGGING_CONFIG=None,
    )
    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    from django_celery_beat import models

    return models


def _database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("django") / "db.sqlite3"


@pytest.fixture
def models(django_database: Any) -> Iterator[Any]:
    """django-celery-beat's models, without any rows."""
    yield django_database
    for model in ("PeriodicTask", "IntervalSchedule", "CrontabSchedule", "SolarSchedule", "ClockedSchedule"):
        getattr(django_database, model).objects.all().delete()
