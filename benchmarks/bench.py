"""The run: all subjects in turn on one server, round after round, and a server for each number of stored entries."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from benchmarks import herds, live
from benchmarks.beats import ROOT
from benchmarks.progress import Progress
from benchmarks.sizes import Sizes
from benchmarks.stats import quantile
from benchmarks.subjects.common import Figures, Task, client
from benchmarks.subjects.reading import export
from benchmarks.subjects.stored import fill
from redbeat_lite.demo.run import embedded_server

#: What each subject brings with it, and whose version is quoted.
PACKAGES = ("redbeat-lite", "celery", "kombu", "redis", "hiredis", "celery-redbeat", "django-celery-beat", "Django")

#: The shares that a long list of figures is kept as.
SHARES = (0.0, *(percent / 100 for percent in range(1, 100)), 0.995, 0.999, 1.0)

Samples = dict[str, list[Any]]


class Step(NamedTuple):
    """One thing to do, and what to call it in the progress bar."""

    label: str
    run: Callable[[], None]


class Bench:
    """One run.

    Parameters:
        sizes: how much is measured.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._samples: Samples = {}
        self._url = ""
        self._stored: dict[int, str] = {}

    def run(self) -> dict[str, Any]:
        """Measure everything; returns what goes into ``results.json``."""
        with ExitStack() as servers:
            # Each number of entries has a server of its own: what is stored elsewhere in a server slows down the rest.
            self._stored = {count: _server(servers) for count in self._sizes.stored}
            self._url = _server(servers)
            rounds = (step for _ in range(self._sizes.rounds) for step in self._round())
            more = (step for _ in range(self._sizes.operated) for step in self._operating())
            steps = [*self._filling(), *rounds, *more]
            progress = Progress(len(steps))
            for step in steps:
                progress.begin(step.label)
                step.run()
            progress.finish()
            return {"about": self._about(), "sizes": asdict(self._sizes), "samples": self._samples}

    # -- steps --------------------------------------------------------------------------------------------------------

    def _filling(self) -> Iterator[Step]:
        for count, url in self._stored.items():
            yield Step(f"storing {count:,} entries", partial(fill, url, count))
        yield Step(f"export of {count:,} entries", lambda: self._figures("all", export(url)))  # once: it takes minutes

    def _round(self) -> Iterator[Step]:
        for name in ("ours", "redbeat", "persistent", "djangobeat"):
            yield Step(f"dispatch: {name}", partial(self._subject, name, name, self._task()))
        yield Step("where the time goes", lambda: self._subject("profile", "profile", self._task()))
        yield Step("once-locks", lambda: self._subject("locks", "ours", self._task(ticks=self._sizes.locks)))
        for count, url in self._stored.items():
            task = self._task(url, ticks=self._sizes.peeked)
            yield Step(f"{count:,} stored", partial(self._subject, "stored", f"stored.{count}", task))
            yield Step(f"asked of {count:,}", partial(self._subject, "reading", f"stored.{count}", task))
        yield from self._live()

    def _live(self) -> Iterator[Step]:
        sizes, url = self._sizes, self._url
        yield Step("entries added due now", lambda: self._keep("added.ms", live.added(url, sizes.added)))
        yield Step(f"{live.PER_SECOND} entries a second for {sizes.seconds} s", lambda: self._steady(url))
        yield Step(f"{sizes.herd:,} due at once", lambda: self._figures("herd", herds.at_once(url, sizes.herd)))
        yield Step(f"{sizes.behind:,} runs behind", lambda: self._figures("behind", herds.behind(url, sizes.behind)))
        for how in (signal.SIGTERM, signal.SIGKILL):
            yield Step(f"take-over after {how.name}", partial(self._take_over, url, how))
        for count in (sizes.stored[0], sizes.stored[-1]):
            yield Step(f"start with {count:,} stored", partial(self._start, self._stored[count], count))

    def _operating(self) -> Iterator[Step]:
        sizes, url = self._sizes, self._url
        recording = self._task(ticks=sizes.recorded)
        yield Step("recording what became of runs", partial(self._subject, "recording", "recording", recording))
        yield Step("expectations and history", partial(self._subject, "expecting", "dispatch", self._task()))
        yield Step("a pause by tag", partial(self._subject, "bulk", "pause", self._task()))
        spell = max(sizes.seconds / 12, 0.5)
        yield Step("beside a backfill", lambda: self._figures("backfill", live.beside_backfill(url, spell)))

    def _take_over(self, url: str, how: signal.Signals) -> None:
        self._keep(how.name, live.take_over(url, how))

    def _start(self, url: str, count: int) -> None:
        self._keep(f"stored.{count}.process", live.start(url))

    def _steady(self, url: str) -> None:
        late = live.steady(url, self._sizes.seconds)
        self._keep("steady.ms", [round(quantile(late, share), 3) for share in SHARES])

    # -- within -------------------------------------------------------------------------------------------------------

    def _task(self, url: str | None = None, ticks: int | None = None) -> Task:
        sizes = self._sizes
        return Task(url or self._url, sizes.due, sizes.due_steps, ticks or sizes.ticks, sizes.singles)

    def _subject(self, module: str, name: str, task: Task) -> None:
        command = [sys.executable, "-m", "benchmarks.subjects", module]
        done = subprocess.run(
            command, input=json.dumps(asdict(task)), capture_output=True, text=True, cwd=ROOT, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{module} failed:\n{done.stderr}")
        self._figures(name, json.loads(done.stdout))

    def _figures(self, name: str, figures: Figures) -> None:
        for figure, value in figures.items():
            self._keep(f"{name}.{figure}", value)

    def _keep(self, name: str, value: Any) -> None:
        self._samples.setdefault(name, []).append(value)

    def _about(self) -> dict[str, Any]:
        with client(self._url) as server:
            info = server.info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "server": f"{name} {info.get('valkey_version') or info['redis_version']}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "versions": {package: version(package) for package in PACKAGES},
        }


def _server(servers: ExitStack) -> str:
    """The URL of a new server, which writes nothing to disk and ends with ``servers``."""
    return servers.enter_context(embedded_server())
