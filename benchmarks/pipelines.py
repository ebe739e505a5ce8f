"""``python -m benchmarks.pipelines``: pipelines of three stages of two steps beside the same as chains of groups.

All go through one worker of two processes, in turn, round after round, now the one first and now the other. Chains need
the Redis result backend. Pipelines do not, so their steps say ``ignore_result=True``; once more they keep results too.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from celery import Celery, chain, group, states
from celery.result import denied_join_result

from benchmarks.beats import ROOT
from redbeat_lite import Pipeline, PipelineTask, install
from redbeat_lite.demo.run import embedded_server

#: Seconds between two looks at what is still open.
_LOOK = 0.05

_SIDES = {"step": "pipelines", "kept": "pipelines that keep results too", "chain": "chains of groups"}


class Round(NamedTuple):
    """How many times as many pipelines as chains end in a second, without results and with them."""

    plain: float
    kept: float


def make_app(url: str) -> Celery:
    """The app of all sides: steps that do nothing, and a task that does nothing."""
    app = Celery("pipelines", broker=url, backend=url, set_as_current=False)
    app.conf.update(worker_prefetch_multiplier=16, broker_connection_retry_on_startup=True)
    install(app)

    @app.task(name="step", base=PipelineTask, ignore_result=True, shared=False)  # type: ignore[untyped-decorator] # Celery has no types
    def step(params: dict[str, Any]) -> None: ...

    @app.task(name="kept", base=PipelineTask, shared=False)  # type: ignore[untyped-decorator] # as above
    def kept(params: dict[str, Any]) -> None: ...

    @app.task(name="plain", shared=False)  # type: ignore[untyped-decorator] # as above
    def plain() -> None: ...

    return app


if "BENCH_URL" in os.environ:
    app = make_app(os.environ["BENCH_URL"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelines", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 of each in a round instead of 1,000")
    count, rounds = (50, 3) if parser.parse_args().quick else (1000, 5)
    with embedded_server() as url:
        found = _rounds(url, count, rounds)
        # Celery's results unsubscribe when they are collected, and the server has to be there for that.
        gc.collect()
    for what, ratios in zip(("", " that keep results too"), zip(*found, strict=True), strict=True):
        print(f"pipelines{what} / chains of groups, throughput: {median(ratios):.2f} (rounds: {_shown(ratios)})")
    return 0


def _rounds(url: str, count: int, rounds: int) -> list[Round]:
    app = make_app(url)
    worker = _worker(url)
    try:
        while not app.control.ping(timeout=1.0):
            time.sleep(_LOOK)
        return [_round(app, count, backwards=number % 2 == 1) for number in range(rounds)]
    finally:
        worker.terminate()
        worker.wait(60)
        app.close()


def _worker(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.pipelines", "worker", "-c", "2", "-l", "ERROR"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return subprocess.Popen(
        command, env={**os.environ, "BENCH_URL": url}, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _round(app: Celery, count: int, *, backwards: bool) -> Round:
    """One round of all."""
    sides = {
        "step": lambda: _seconds(count, _pipeline(app, "step").start, lambda run: run.status().ended),
        "kept": lambda: _seconds(count, _pipeline(app, "kept").start, lambda run: run.status().ended),
        "chain": lambda: _seconds(count, lambda: _start_chain(app), lambda ids: _ready(app, ids)),
    }
    took = {name: sides[name]() for name in (reversed(sides) if backwards else sides)}
    rates = ", ".join(f"{words} {count / took[name]:.0f}/s" for name, words in _SIDES.items())
    print(f"{count} of 3 stages of 2: {rates}", flush=True)
    return Round(took["chain"] / took["step"], took["chain"] / took["kept"])


def _pipeline(app: Celery, task: str) -> Pipeline:
    return Pipeline(app, [(f"step{number}", app.tasks[task], -(number // 2)) for number in range(6)])


def _start_chain(app: Celery) -> list[str]:
    """Start a chain of groups; the ids of the last members."""
    plain = app.tasks["plain"]
    with denied_join_result():
        result = chain(*(group(plain.si(), plain.si()) for _ in range(3))).apply_async()
    return [child.id for child in result.children]


def _ready(app: Celery, ids: list[str]) -> bool:
    return all(app.backend.get_state(each) in states.READY_STATES for each in ids)


def _seconds(count: int, start: Callable[[], Any], ended: Callable[[Any], bool]) -> float:
    """From the first start to the end of the last one. They end about in turn, so the first open one is looked at."""
    started = time.perf_counter()
    waiting = [start() for _ in range(count)]
    while waiting:
        while waiting and ended(waiting[0]):
            waiting.pop(0)
        time.sleep(_LOOK if waiting else 0)
    return time.perf_counter() - started


def _shown(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


if __name__ == "__main__":
    sys.exit(main())
