"""Checks for settings that nothing reads, and for options without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery import Celery

from ...entries.entry import Entry
from ...entries.words import counted, listed
from ...settings import PREFIX
from .finding import Finding


def left_over(app: Celery) -> Iterator[Finding]:
    """Settings of celery-redbeat, which this package does not read."""
    namespace = (app.conf.prefix or "CELERY_").lower()
    left = []
    for name in map(str, app.conf):
        setting = name.lower().removeprefix(namespace)
        if setting.startswith("redbeat_") and not setting.startswith(PREFIX):
            left.append(name)
    if left:
        yield Finding(
            "left-over",
            "note",
            f"settings of celery-redbeat without effect: {', '.join(sorted(left))}",
            f"Settings of redbeat_lite begin with {PREFIX}.",
            f"Remove them. If you need one of them, set its counterpart, such as {PREFIX}url.",
        )


def misspelt(app: Celery) -> Iterator[Finding]:
    """A schedule under a name that Celery does not read, where ``beat_schedule`` is empty."""
    if app.conf.beat_schedule:
        return
    for name in map(str, app.conf):
        if _is_schedule(app.conf.get(name)):
            yield Finding(
                "misspelt",
                "note",
                f"{name} holds entries of a schedule, and beat_schedule is empty",
                "Celery does not read a setting of this name, so none of these entries runs.",
                "Correct the name: beat_schedule; with a namespace such as CELERY it is CELERY_BEAT_SCHEDULE.",
            )


def _is_schedule(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(entry, Mapping) and {"task", "schedule"} <= entry.keys() for entry in value.values())


def fixed_ids(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Entries whose options have a ``task_id``."""
    names = tuple(entry.name for entry in entries if "task_id" in entry.options)
    if names:
        yield Finding(
            "task-id",
            "note",
            f"{counted(len(names), 'entry has', 'entries have')} a task_id among the options: {listed(names)}",
            "It has no effect: each run gets an id of its own, made of the entry and the time of the run.",
            "Remove it from the options.",
            names,
        )
