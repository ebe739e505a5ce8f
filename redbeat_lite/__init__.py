"""A Celery beat scheduler that keeps its schedule in Redis.

Names are imported at their first use, so that ``import redbeat_lite`` costs next to nothing and
connects to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base.public import lazy_names
from ._version import __version__

if TYPE_CHECKING:
    from ._base.actors import acting_as
    from ._base.errors import (
        ConfigOwned,
        ConfigurationError,
        CorruptEntry,
        EntryChanged,
        EntryExists,
        EntryNotFound,
        InvalidEntry,
        RedbeatError,
        UnsupportedFormat,
    )
    from ._base.times import Duration
    from .api.backfills import Backfills
    from .api.calendars import Calendars
    from .api.freezes import FreezeList
    from .api.reader import Record
    from .api.schedules import Schedules
    from .api.selected import Selected
    from .entries.backfill import Backfill
    from .entries.entry import Entry
    from .entries.freezes import Freeze
    from .entries.model import Changes, Policies
    from .entries.preview import Upcoming
    from .once.errors import LockLost, LockUnavailable, OnceRejected, OnceSkipped
    from .once.install import install
    from .once.locks import LockHandle, LockInfo, Locks, lock, locks
    from .once.task import Task
    from .pipeline.pipeline import Pipeline, start_task_process
    from .pipeline.pipeline_run import NotResumable, PipelineNotFound, PipelineRun
    from .pipeline.pipeline_task import PipelineTask
    from .policies import (
        Expect,
        ExpectFields,
        Misfire,
        MisfireFields,
        Once,
        OnceFields,
        Pause,
    )
    from .rules import at, cron, every, manual, register_schedule, rrule
    from .rules.calendars import Calendar
    from .runs.incident import Incident
    from .runs.run import Run
    from .scheduler import Scheduler
    from .store.changes import Change

_HOMES = {
    "_base.actors": ("acting_as",),
    "api.backfills": ("Backfills",),
    "api.calendars": ("Calendars",),
    "api.freezes": ("FreezeList",),
    "api.reader": ("Record",),
    "api.schedules": ("Schedules",),
    "api.selected": ("Selected",),
    "_base.times": ("Duration",),
    "entries.entry": ("Entry",),
    "entries.model": ("Changes", "Policies"),
    "entries.freezes": ("Freeze",),
    "_base.errors": (
        "ConfigOwned",
        "ConfigurationError",
        "CorruptEntry",
        "EntryChanged",
        "EntryExists",
        "EntryNotFound",
        "InvalidEntry",
        "RedbeatError",
        "UnsupportedFormat",
    ),
    "policies": (
        "Expect",
        "ExpectFields",
        "Misfire",
        "MisfireFields",
        "Once",
        "OnceFields",
        "Pause",
    ),
    "rules.calendars": ("Calendar",),
    "once.errors": ("LockLost", "LockUnavailable", "OnceRejected", "OnceSkipped"),
    "once.install": ("install",),
    "once.locks": ("LockHandle", "LockInfo", "Locks", "lock", "locks"),
    "once.task": ("Task",),
    "pipeline.pipeline": ("Pipeline", "start_task_process"),
    "pipeline.pipeline_run": ("NotResumable", "PipelineNotFound", "PipelineRun"),
    "pipeline.pipeline_task": ("PipelineTask",),
    "runs.run": ("Run",),
    "entries.preview": ("Upcoming",),
    "runs.incident": ("Incident",),
    "scheduler": ("Scheduler",),
    "entries.backfill": ("Backfill",),
    "store.changes": ("Change",),
    "rules": ("at", "cron", "every", "manual", "register_schedule", "rrule"),
}
_HOME_OF = {name: f".{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "Backfill",
    "Backfills",
    "Calendar",
    "Calendars",
    "Change",
    "Changes",
    "ConfigOwned",
    "ConfigurationError",
    "CorruptEntry",
    "Duration",
    "Entry",
    "EntryChanged",
    "EntryExists",
    "EntryNotFound",
    "Expect",
    "ExpectFields",
    "Freeze",
    "FreezeList",
    "Incident",
    "InvalidEntry",
    "LockHandle",
    "LockInfo",
    "LockLost",
    "LockUnavailable",
    "Locks",
    "Misfire",
    "MisfireFields",
    "NotResumable",
    "Once",
    "OnceFields",
    "OnceRejected",
    "OnceSkipped",
    "Pause",
    "Pipeline",
    "PipelineNotFound",
    "PipelineRun",
    "PipelineTask",
    "Policies",
    "Record",
    "RedbeatError",
    "Run",
    "Scheduler",
    "Schedules",
    "Selected",
    "Task",
    "UnsupportedFormat",
    "Upcoming",
    "__version__",
    "acting_as",
    "at",
    "cron",
    "every",
    "install",
    "lock",
    "locks",
    "manual",
    "register_schedule",
    "rrule",
    "start_task_process",
]

__getattr__ = lazy_names(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
