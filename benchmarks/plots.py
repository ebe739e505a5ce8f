"""The plots of a measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench import SHARES, Samples
from benchmarks.svg import COLOURS, Axis, Chart, Point

_OURS, _REDBEAT, _PERSISTENT, _DJANGO, _OTHER = COLOURS


def write(results: dict[str, Any], directory: Path) -> None:
    """Write all plots into a directory."""
    samples, sizes = results["samples"], results["sizes"]
    charts = {
        "dispatch-rate": _rates(samples, [*sizes["due_steps"], sizes["due"]]),
        "tick-cost": _ticks(samples, sizes["stored"]),
        "lateness": _lateness(samples),
        "take-over": _take_over(samples),
    }
    for name, chart in charts.items():
        (directory / f"{name}.svg").write_text(chart.svg())


def _rates(samples: Samples, due: Sequence[int]) -> Chart:
    most = due[-1]
    chart = Chart(
        "Dispatch rate by number of entries due at once",
        Axis("entries due at once (PersistentScheduler, django-celery-beat: entries stored)", due[0], most, log=True),
        Axis("entries a second", 10, 100_000, log=True),
    )
    ours = {
        **{count: samples[f"ours.rate.interval.{count}"] for count in due[:-1]},
        most: samples["ours.rate.interval"],
    }
    theirs = {count: samples[f"redbeat.rate.interval.{count}"] for count in due[:-1]}
    theirs[most] = samples["redbeat.rate.interval"]
    persistent = {count: samples[f"persistent.rate.interval.{count}"] for count in due}
    chart.line("redbeat_lite", _medians(ours), _OURS)
    chart.dots([(most, median(samples["ours.rate.cold"]))], _OTHER, "redbeat_lite, never sent before")
    chart.line("celery-redbeat", _medians(theirs), _REDBEAT)
    chart.line("PersistentScheduler", _medians(persistent), _PERSISTENT)
    chart.dots([(most, median(samples[f"djangobeat.rate.interval.{most}"]))], _DJANGO, "django-celery-beat")
    return chart


def _ticks(samples: Samples, stored: Sequence[int]) -> Chart:
    costs = {count: samples[f"stored.{count}.tick"] for count in stored}
    highest = max(value for values in costs.values() for value in values)
    chart = Chart(
        "Cost of a tick with 100 entries due, by number of entries stored",
        Axis("entries stored", stored[0], stored[-1], log=True),
        Axis("milliseconds", 0, 2 * math.ceil(highest)),
    )
    chart.line("redbeat_lite, median", _medians(costs), _OURS)
    for count, values in costs.items():
        chart.dots([(count, value) for value in values], _OTHER, "each round" if count == stored[0] else "")
    return chart


def _lateness(samples: Samples) -> Chart:
    rounds = samples["steady.ms"]
    steady = [(median(values), 100 * share) for share, values in zip(SHARES, zip(*rounds, strict=True), strict=True)]
    added = sorted(value for values in samples["added.ms"] for value in values)
    ranked = [(value, 100 * (rank + 1) / len(added)) for rank, value in enumerate(added)]
    shown = max(steady[SHARES.index(0.99)][0], added[int(0.99 * len(added))])
    chart = Chart(
        "How late messages are in the queue",
        Axis("milliseconds, at most", 0, math.ceil(1.2 * shown)),
        Axis("per cent of the messages", 0, 100),
    )
    chart.line("500 entries a second, after the nominal time", steady[:-2], _OURS, dots=False)
    chart.line("entries added due now, after the call", ranked, _REDBEAT, dots=False)
    return chart


def _take_over(samples: Samples) -> Chart:
    names = ("SIGTERM", "SIGKILL")
    rounds = len(samples[names[0]])
    chart = Chart(
        "Take-over: from the end of the leader to the first message of the stand-by",
        Axis("round", 0, rounds + 1),
        Axis("seconds", 0.01, 10, log=True),
    )
    for name, colour, goal in zip(names, (_OURS, _REDBEAT), (0.2, 4.5), strict=True):
        points: list[Point] = [(number, value) for number, value in enumerate(samples[name], 1)]
        chart.dots(points, colour, f"after {name}")
        chart.line(f"goal, {goal} s", [(0, goal), (rounds + 1, goal)], colour, dots=False, dashed=True)
        for number, value in points:
            chart.text(number, value, f"{value:.2f}", colour)
    return chart


def _medians(rounds: dict[int, list[float]]) -> list[Point]:
    return [(count, median(values)) for count, values in rounds.items()]
