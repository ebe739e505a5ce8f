"""From samples to the table: each figure with its goal, and whether it is met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.bench import SHARES, Samples
from benchmarks.stats import Figure, pooled, ratios, spread
from benchmarks.subjects.common import IN_SCRIPTS

#: Seconds that the default lease lasts.
_LEASE = 4

#: How much faster a beat that has sent nothing yet is to be than celery-redbeat, by the number that is due.
_FEW = {1000: 9, 200: 8}


#: Beginnings of the lines that the page for users shows, besides those of goals that were not met.
_HEADLINES = (
    "dispatch of 10,000 due at once: ",
    "dispatch of 10,000 due at once, against ",
    "dispatch of 10,000 due at once, batch mode",
    "tick with 100 due",
    "commands per due entry",
    "start to first dispatch",
    "bytes in Redis",
    "adding in bulk",
    "an entry added due now",
    "500 entries a second",
    "take-over",
    "an entry of 1 s while 100,000",
    "once-lock",
)


class Row(NamedTuple):
    """One line of the table.

    Parameters:
        what: what was measured.
        figure: what came out.
        unit: how to write it: ``"×"``, ``"ms"``, ``"s"``, ``"µs"``, ``"MB"``, ``"/s"`` or nothing.
        least, most: the goal; neither, where there is none.
    """

    what: str
    figure: Figure
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def goal(self) -> str:
        """The goal in words."""
        if self.least is not None:
            return f"≥ {_with_unit(self.least, self.unit)}"
        return f"≤ {_with_unit(self.most, self.unit)}" if self.most is not None else "—"

    @property
    def verdict(self) -> str:
        if self.least is None and self.most is None:
            return "—"
        low = self.least is None or self.figure.value >= self.least
        high = self.most is None or self.figure.value <= self.most
        return "met" if low and high else "**not met**"

    @property
    def measured(self) -> str:
        """The figure with its range."""
        value, low, high = self.figure
        shown = _with_unit(value, self.unit)
        return shown if low == high else f"{shown} ({number(low)} – {number(high)})"


def rows(samples: Samples, sizes: dict[str, Any]) -> list[Row]:
    """The table of goals."""
    return [
        *_dispatch(samples, sizes["due"]),
        *_ticks(samples, sizes["stored"]),
        *_storing(samples),
        *_reading(samples, sizes["stored"]),
        *_live(samples, sizes),
        *_herds(samples, sizes),
        *_locks(samples),
        *_operating(samples),
    ]


def headlines(table: Sequence[Row]) -> list[Row]:
    """The lines that matter to most users, and every goal that was not met."""
    return [row for row in table if row.what.startswith(_HEADLINES) or row.verdict == "**not met**"]


def _dispatch(samples: Samples, due: int) -> Iterator[Row]:
    ours, redbeat = samples["ours.rate.interval"], samples["redbeat.rate.interval"]
    what = f"dispatch of {due:,} due at once"
    yield Row(f"{what}: entries a second, sent before", spread(ours), "/s")
    yield Row(f"{what}: entries a second, never sent before", spread(samples["ours.rate.cold"]), "/s")
    yield Row(f"{what}, against celery-redbeat: interval", ratios(ours, redbeat), "×", least=22)
    cron = ratios(samples["ours.rate.cron"], samples["redbeat.rate.cron"])
    yield Row(f"{what}, against celery-redbeat: cron", cron, "×", least=22)
    cold = ratios(samples["ours.rate.cold"], redbeat)
    yield Row(f"{what}, never sent before, against celery-redbeat: interval", cold, "×", least=9)
    for few, least in _FEW.items():
        if f"ours.rate.cold.{few}" in samples:
            cold = ratios(samples[f"ours.rate.cold.{few}"], samples[f"redbeat.rate.interval.{few}"])
            yield Row(f"the same with {few:,} due at once", cold, "×", least=least)
    batch = ratios(samples["ours.rate.batch"], redbeat)
    yield Row(f"{what}, batch mode, against celery-redbeat: interval", batch, "×", least=4)
    persistent = ratios(ours, samples[f"persistent.rate.interval.{due}"])
    # It slows down with every entry it holds, so this goal is one for this number alone.
    least = 250 if due >= 10_000 else None
    yield Row(f"{what}, against PersistentScheduler with {due:,} entries", persistent, "×", least=least)
    django = ratios(ours, samples[f"djangobeat.rate.interval.{due}"])
    yield Row(f"{what}, against django-celery-beat with {due:,} entries", django, "×")


def _ticks(samples: Samples, stored: Sequence[int]) -> Iterator[Row]:
    few, many = stored[0], stored[-1]
    ticks = ratios(samples[f"stored.{many}.tick"], samples[f"stored.{few}.tick"])
    yield Row(f"tick with 100 due, {many:,} stored against {few:,}", ticks, "×", most=1.2)
    yield Row("commands of a tick with nothing due", spread(samples["ours.commands.idle"]), "", most=1)
    yield Row("commands per due entry", spread(samples["ours.commands.due"]), "", most=0.02)
    yield Row("commands per due entry of celery-redbeat", spread(samples["redbeat.commands.due"]), "")
    start = spread(samples[f"stored.{many}.start"])
    yield Row(f"start to first dispatch with {many:,} stored, in a process that has loaded Celery", start, "s", most=1)
    for count in (few, many):
        process = spread(samples[f"stored.{count}.process"])
        yield Row(f"the same with {count:,} stored, from the start of the process", process, "s")


def _locks(samples: Samples) -> Iterator[Row]:
    yield Row("once-lock, acquire + release: round trips", spread(samples["ours.lock.trips"]), "", most=2)
    awake = spread(samples["ours.lock.us"])
    yield Row("once-lock, acquire + release: time, on cores kept awake", awake, "µs", most=250)
    if "ours.lock.ratio" in samples:
        yield Row(
            "the same, against redis-py's own Lock in turn with it", spread(samples["ours.lock.ratio"]), "×", most=1.27
        )
    yield Row("a bare PING by the same client, for comparison", spread(samples["ours.ping.us"]), "µs")
    yield Row("the same on an idle machine: acquire + release", spread(samples["ours.lock.idle.us"]), "µs")
    yield Row("the same on an idle machine: a bare PING", spread(samples["ours.ping.idle.us"]), "µs")


def _storing(samples: Samples) -> Iterator[Row]:
    used = ratios(samples["ours.bytes"], samples["redbeat.bytes.interval"])
    yield Row("bytes in Redis per entry, against celery-redbeat", used, "×", most=0.6)
    if "ours.bytes.full" in samples:
        used = ratios(samples["ours.bytes.full"], samples["redbeat.bytes.full"])
        yield Row("the same with arguments, options and policies as real entries have them", used, "×", most=0.65)
    save = samples["redbeat.added"]
    yield Row("adding one by one, against celery-redbeat's save()", ratios(samples["ours.added"], save), "×", least=1)
    bulk = ratios(samples["ours.added.bulk"], save)
    yield Row("adding in bulk, against celery-redbeat's save()", bulk, "×", least=8)
    if "ours.added.made" in samples:
        made = ratios(samples["ours.added.made"], save)
        yield Row("the same from an iterator that makes the entries, as they are made for save()", made, "×")


def _reading(samples: Samples, stored: Sequence[int]) -> Iterator[Row]:
    if "all.export" not in samples:  # measured before they were
        return
    for count in stored[-2:]:
        yield Row(f"upcoming() of 3 runs, {count:,} stored", spread(samples[f"stored.{count}.upcoming"]), "ms", most=20)
    many = stored[-1]
    for what, name in {"next --limit 10": "next", "plan of one line": "plan"}.items():
        figure = spread(samples[f"stored.{many}.{name}"])
        yield Row(f"the command {what}, {many:,} stored, from the start of its process", figure, "s", most=1)
    yield Row(f"the command export, {many:,} stored", spread(samples["all.export"]), "s")
    yield Row(f"memory of the command export, {many:,} stored", spread(samples["all.export.mb"]), "MB", most=200)


def _live(samples: Samples, sizes: dict[str, Any]) -> Iterator[Row]:
    added = pooled(samples["added.ms"], 0.99)
    yield Row("an entry added due now, max_interval 300 s: message in the queue, p99", added, "ms", most=20)
    what = f"500 entries a second for {sizes['seconds']} s: lateness"
    for share, most in ((0.5, 5), (0.99, 30)):
        late = spread([quantiles[SHARES.index(share)] for quantiles in samples["steady.ms"]])
        yield Row(f"{what} p{share * 100:.0f}", late, "ms", most=most)
    yield Row("take-over after SIGTERM, to the first message", spread(samples["SIGTERM"]), "s", most=0.2)
    yield Row("take-over after SIGKILL, to the first message", spread(samples["SIGKILL"]), "s", most=_LEASE + 0.5)


def _herds(samples: Samples, sizes: dict[str, Any]) -> Iterator[Row]:
    if "herd.late" not in samples:  # measured before there were any
        return
    what = f"an entry of 1 s while {sizes['herd']:,} others, due at once, drain: longest lateness"
    yield Row(what, spread(samples["herd.late"]), "s", most=0.5)
    yield Row("the same, due in the very millisecond of the others", spread(samples["herd.late.same"]), "s")
    yield Row("until all of the others are in the queue", spread(samples["herd.drain"]), "s")
    what = f"an entry of 1 s while {sizes['behind']:,} missed runs of 12 others are sent: longest lateness"
    yield Row(what, spread(samples["behind.late"]), "s", most=0.5)
    yield Row("until all of those are in the queue", spread(samples["behind.drain"]), "s")


def _operating(samples: Samples) -> Iterator[Row]:
    if "pause.held" not in samples:  # measured before they were
        return
    for kind, what in (("plain", "a task without lock and guard"), ("locked", "one with both")):
        us = spread(samples[f"recording.{kind}"])
        yield Row(f"recording what became of {what}: processor of the process that runs it", us, "µs", most=50)
    expect, history = spread(samples["dispatch.expect"]), spread(samples["dispatch.history"])
    yield Row("dispatch of entries that expect something, against the same without", expect, "×", least=0.93)
    yield Row("dispatch with 20 remembered runs, against history=0", history, "×", least=0.97)
    held = spread(samples["pause.held"])
    yield Row("10,000 entries paused by tag: longest command in the server", held, "ms", most=5)
    beside, alone = samples["backfill.beside"], samples["backfill.alone"]
    what = "100 entries a second beside a backfill: lateness p99"
    yield Row(f"{what}, against without", ratios(beside, alone), "×", most=1.1)
    yield Row(what, spread(beside), "ms")


def number(value: float) -> str:
    """Three digits that mean something."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if float(value).is_integer():
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _with_unit(value: float | None, unit: str) -> str:
    shown = number(value or 0)
    return f"{shown}{unit}" if unit == "/s" else f"{shown} {unit}".rstrip()


def plain(table: Sequence[Row]) -> str:
    """The table for a terminal."""
    cells = [("", "measured (range)", "goal", ""), *((row.what, row.measured, row.goal, row.verdict) for row in table)]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = (
        f"{what:<{widths[0]}}  {measured:>{widths[1]}}  {goal:>{widths[2]}}  {verdict.strip('*')}"
        for what, measured, goal, verdict in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def markdown(table: Sequence[Row]) -> str:
    """The table for the docs."""
    lines = ["| what | measured (range) | goal | |", "|---|---|---|---|"]
    for row in table:
        goal = row.goal.replace(" ", "\u00a0")  # stays on one line of a narrow cell
        lines.append(f"| {row.what} | {row.measured} | {goal} | {row.verdict} |")
    return "\n".join(lines)


def profile(samples: Samples) -> str:
    """Where the time of a dispatch goes, as a table for the docs."""
    parts = {name.split(".", 1)[1]: spread(values) for name, values in samples.items() if name.startswith("profile.")}
    aside = parts.pop(IN_SCRIPTS)
    whole = sum(figure.value for figure in parts.values())
    lines = ["| where the time of one entry goes | µs | share |", "|---|---|---|"]
    for name, figure in sorted(parts.items(), key=lambda part: -part[1].value):
        lines.append(f"| {name} | {figure.value:.1f} | {figure.value / whole:.0%} |")
    return "\n".join([*lines, f"| {IN_SCRIPTS} | {aside.value:.1f} | |"])


def about(results: dict[str, Any]) -> str:
    """Where and with what this was measured, in one paragraph."""
    facts, rounds = results["about"], results["sizes"]["rounds"]
    versions = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    small = "**Small sizes (`QUICK=1`), not the full measurement.** " if rounds < 5 else ""
    return (
        f"{small}Measured on {facts['date']}: {facts['server']} on loopback, {facts['cores']} cores, Python "
        f"{facts['python']}, {versions}; the median of {rounds} interleaved rounds, and their range."
    )
