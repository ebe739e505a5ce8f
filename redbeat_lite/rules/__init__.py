"""Rules of time: pure functions from an instant to the next occurrence."""

from .celery_schedules import rule_of
from .cron import cron
from .forms import (
    coerce_schedule,
    decode_schedule,
    encode_schedule,
    register_schedule,
    schedule_identity,
    schedule_text,
)
from .intervals import at, counts_from_run, every, manual
from .occurrences import first_ms, gap_over, last_ms, shortest_gap_ms
from .rrules import rrule
from .rule import Question, Rule, SpreadSchedule, resolved_text

__all__ = [
    "Question",
    "Rule",
    "SpreadSchedule",
    "at",
    "coerce_schedule",
    "counts_from_run",
    "cron",
    "decode_schedule",
    "encode_schedule",
    "every",
    "first_ms",
    "gap_over",
    "last_ms",
    "manual",
    "register_schedule",
    "resolved_text",
    "rrule",
    "rule_of",
    "schedule_identity",
    "schedule_text",
    "shortest_gap_ms",
]
