"""Rules in words: exact for common ones, and their own text for the others."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule, solar

from redbeat_lite import at, cron, every, manual, rrule
from redbeat_lite.entries.rule_words import rule_words

BERLIN = ZoneInfo("Europe/Berlin")


def test_common_rules_are_words_and_the_others_their_own_text() -> None:
    walls = {
        "30 2 * * *": "every day at 02:30",
        "0 14,2 * * *": "every day at 02:00 and 14:00",
        "@weekly": "every Sunday at 00:00",
        "0 6 * * mon-fri": "every Monday to Friday at 06:00",
        "0 6 * * 1,Thursday,7": "every Monday, Thursday and Sunday at 06:00",
        "5 4 1,15 * *": "on day 1 and 15 of each month at 04:05",
        "5 4 L * *": "on the last day of each month at 04:05",
        "15 * * * *": "every hour at :15",
        "15 */4 * * *": "every 4 hours from 00:15 on",
        "*/20 * * * *": "every 20 minutes from the full hour on",
        "* * * * *": "every minute",
        "0,30 * * * *": "every 30 minutes from the full hour on",
        "0 */12 * * *": "every 12 hours from 00:00 on",
        "0 0,12 * * *": "every day at 00:00 and 12:00",
        "0 0 * * 1-5/2": "every Monday, Wednesday and Friday at 00:00",
        "0 0 * * sat-mon": "every Saturday to Monday at 00:00",
    }
    for text, words in walls.items():
        assert rule_words(cron(text), BERLIN) == f"{words}, Europe/Berlin", text
    for text in (
        *("30 2 31 * *", "0 0 1 * mon", "*/7 * * * *", "0 */5 * * *", "0 0 * jan *", "0 0 * * fri#2", "0 0 15W * *"),
        *("H H * * *", "0 9-17 * * *", "0 0 1,L * *", "0 0 1-31 * mon", "30 2 * * * 5", "*/20 3 * * *"),
        *("0 */4 * * mon", "1,2 3 * * *", "0 0 * * L5", "*/20 */2 * * *", "0,10 * * * *"),
    ):
        assert rule_words(cron(text), BERLIN) == f"cron {text}", text
    for rule, words in (
        (cron("30 2 * * *", tz="Asia/Tokyo"), "every day at 02:30, Asia/Tokyo"),
        (cron("0 30 2 * * *", seconds="first"), "every day at 02:30, UTC"),
        (crontab(minute=30, hour=2), "every day at 02:30, UTC"),
        (crontab(minute={5, 4}), "crontab 4,5 * * * *"),
        (crontab(minute=0, hour=6, day_of_week="mon-fri", day_of_month=1), "crontab 0 6 1 * mon-fri"),
        (every(60), "every minute"),
        (every(900, align=True), "every 15 minutes, aligned"),
        (every(5400, spread=True), "every 1h30m spread"),
        (every(0.5), "every 500ms"),
        (schedule(7200), "every 2 hours"),
        (at(datetime(2026, 12, 1, 9, tzinfo=UTC)), "at 2026-12-01 09:00:00+00:00"),
        (manual(), "by hand only"),
        (rrule("FREQ=DAILY"), "rrule FREQ=DAILY"),
        (solar("sunset", 52, 13), "sunset at 52, 13"),
    ):
        assert rule_words(rule, UTC) == words
