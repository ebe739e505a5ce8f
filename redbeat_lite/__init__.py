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
    from .api.reader import Record
    from .api.schedules import Schedules
    from .api.selected import Selected
    from .entries.backfill import Backfill
    from .entries.changes import Change
    from .entries.entry import Entry
    from .entries.freeze import Freeze
    from .entries.model import Changes, Policies
    from .entries.preview import Upcoming
    from .entries.run import Run
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
    from .scheduler import Scheduler

#: Public name -> the module that has it.
_HOMES = {
    "Backfill": ".entries.backfill",
    "Backfills": ".api.backfills",
    "Calendar": ".rules.calendars",
    "Calendars": ".api.calendars",
    "Change": ".entries.changes",
    "Changes": ".entries.model",
    "ConfigOwned": "._base.errors",
    "ConfigurationError": "._base.errors",
    "CorruptEntry": "._base.errors",
    "Duration": "._base.times",
    "Entry": ".entries.entry",
    "EntryChanged": "._base.errors",
    "EntryExists": "._base.errors",
    "EntryNotFound": "._base.errors",
    "Expect": ".policies",
    "ExpectFields": ".policies",
    "Freeze": ".entries.freeze",
    "Incident": ".runs.incident",
    "InvalidEntry": "._base.errors",
    "LockHandle": ".once.locks",
    "LockInfo": ".once.locks",
    "LockLost": ".once.errors",
    "LockUnavailable": ".once.errors",
    "Locks": ".once.locks",
    "Misfire": ".policies",
    "MisfireFields": ".policies",
    "NotResumable": ".pipeline.pipeline_run",
    "Once": ".policies",
    "OnceFields": ".policies",
    "OnceRejected": ".once.errors",
    "OnceSkipped": ".once.errors",
    "Pause": ".policies",
    "Pipeline": ".pipeline.pipeline",
    "PipelineNotFound": ".pipeline.pipeline_run",
    "PipelineRun": ".pipeline.pipeline_run",
    "PipelineTask": ".pipeline.pipeline_task",
    "Policies": ".entries.model",
    "Record": ".api.reader",
    "RedbeatError": "._base.errors",
    "Run": ".entries.run",
    "Scheduler": ".scheduler",
    "Schedules": ".api.schedules",
    "Selected": ".api.selected",
    "Task": ".once.task",
    "UnsupportedFormat": "._base.errors",
    "Upcoming": ".entries.preview",
    "acting_as": "._base.actors",
    "at": ".rules",
    "cron": ".rules",
    "every": ".rules",
    "install": ".once.install",
    "lock": ".once.locks",
    "locks": ".once.locks",
    "manual": ".rules",
    "register_schedule": ".rules",
    "rrule": ".rules",
    "start_task_process": ".pipeline.pipeline",
}

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

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
