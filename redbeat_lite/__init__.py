"""A Celery beat scheduler that keeps its schedule in Redis.

Names are imported at their first use, so that ``import redbeat_lite`` costs next to nothing and connects to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__ as __version__
from .public import handed_on

if TYPE_CHECKING:  # by these names users import them
    from .actors import acting_as as acting_as
    from .api.backfills import Backfills as Backfills
    from .api.calendars import Calendars as Calendars
    from .api.freezes import FreezeList as FreezeList
    from .api.one_entry import Record as Record
    from .api.schedules import Schedules as Schedules
    from .api.selected import Selected as Selected
    from .durations import Duration as Duration
    from .entries.entry import Entry as Entry
    from .entries.field_types import Changes as Changes
    from .entries.field_types import ExpectFields as ExpectFields
    from .entries.field_types import MisfireFields as MisfireFields
    from .entries.field_types import OnceFields as OnceFields
    from .entries.field_types import Policies as Policies
    from .entries.freezes import Freeze as Freeze
    from .entries.preview import Upcoming as Upcoming
    from .errors import ConfigOwned as ConfigOwned
    from .errors import ConfigurationError as ConfigurationError
    from .errors import CorruptEntry as CorruptEntry
    from .errors import EntryChanged as EntryChanged
    from .errors import EntryExists as EntryExists
    from .errors import EntryNotFound as EntryNotFound
    from .errors import InvalidEntry as InvalidEntry
    from .errors import RedbeatError as RedbeatError
    from .errors import UnsupportedFormat as UnsupportedFormat
    from .expect import Expect as Expect
    from .expect import Pause as Pause
    from .once.errors import LockLost as LockLost
    from .once.errors import LockUnavailable as LockUnavailable
    from .once.errors import OnceRejected as OnceRejected
    from .once.errors import OnceSkipped as OnceSkipped
    from .once.installation import install as install
    from .once.lock_context import LockHandle as LockHandle
    from .once.lock_context import lock as lock
    from .once.lock_listing import LockInfo as LockInfo
    from .once.lock_listing import Locks as Locks
    from .once.lock_listing import locks as locks
    from .once.policy import Once as Once
    from .once.task import Task as Task
    from .pipeline.errors import NotResumable as NotResumable
    from .pipeline.errors import PipelineNotFound as PipelineNotFound
    from .pipeline.pipeline import Pipeline as Pipeline
    from .pipeline.run import PipelineRun as PipelineRun
    from .pipeline.task import PipelineTask as PipelineTask
    from .pipeline.task_processes import start_task_process as start_task_process
    from .runs.incident import Incident as Incident
    from .runs.run import Run as Run
    from .scheduler import Scheduler as Scheduler
    from .schedules import at as at
    from .schedules import cron as cron
    from .schedules import every as every
    from .schedules import manual as manual
    from .schedules import register_schedule as register_schedule
    from .schedules import rrule as rrule
    from .schedules.calendars import Calendar as Calendar
    from .schedules.misfire import Misfire as Misfire
    from .storage.backfills import Backfill as Backfill
    from .storage.changes import Change as Change

_HOMES = {
    "actors": ("acting_as",),
    "api.backfills": ("Backfills",),
    "api.calendars": ("Calendars",),
    "api.freezes": ("FreezeList",),
    "api.one_entry": ("Record",),
    "api.schedules": ("Schedules",),
    "api.selected": ("Selected",),
    "durations": ("Duration",),
    "entries.entry": ("Entry",),
    "entries.field_types": ("Changes", "ExpectFields", "MisfireFields", "OnceFields", "Policies"),
    "entries.freezes": ("Freeze",),
    "errors": (
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
    "expect": ("Expect", "Pause"),
    "schedules.calendars": ("Calendar",),
    "schedules.misfire": ("Misfire",),
    "once.errors": ("LockLost", "LockUnavailable", "OnceRejected", "OnceSkipped"),
    "once.installation": ("install",),
    "once.lock_context": ("LockHandle", "lock"),
    "once.lock_listing": ("LockInfo", "Locks", "locks"),
    "once.policy": ("Once",),
    "once.task": ("Task",),
    "pipeline.errors": ("NotResumable", "PipelineNotFound"),
    "pipeline.pipeline": ("Pipeline",),
    "pipeline.run": ("PipelineRun",),
    "pipeline.task_processes": ("start_task_process",),
    "pipeline.task": ("PipelineTask",),
    "runs.run": ("Run",),
    "entries.preview": ("Upcoming",),
    "runs.incident": ("Incident",),
    "scheduler": ("Scheduler",),
    "storage.backfills": ("Backfill",),
    "storage.changes": ("Change",),
    "schedules": ("at", "cron", "every", "manual", "register_schedule", "rrule"),
}
_HOME_OF = {name: f".{home}" for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]

__getattr__ = handed_on(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
