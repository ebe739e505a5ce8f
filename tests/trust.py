"""How far ``make test`` can be trusted: run again and again from fresh clones, on an idle machine and on busy ones.

``python -m tests.trust`` goes on where it was stopped, until there are five runs of the current commit under each
condition, and writes what it saw to ``trust.md`` after each run. It takes hours; nothing else should run beside it.
Told to stop, it ends the run it is at, too. One that was killed by SIGKILL cannot: its ``make test`` has to be ended by
hand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Condition(NamedTuple):
    """What the tests run on.

    Parameters:
        prefix: of the command.
        loops: processes beside it that never wait.
    """

    name: str
    prefix: tuple[str, ...] = ()
    loops: int = 0


CONDITIONS = (
    Condition("idle"),
    Condition("one core", ("taskset", "-c", "0")),
    Condition("four busy loops", (), 4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="of each condition (5)")
    parser.add_argument("--only", choices=[each.name for each in CONDITIONS], help="this condition alone")
    parser.add_argument("--kept", type=Path, default=ROOT / "trust.jsonl", help="where runs are kept")
    parser.add_argument("--args", default="", help="ARGS of make test")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    commit = _said("git", "rev-parse", "--short", "HEAD")
    for number in range(asked.runs):
        for condition in CONDITIONS:
            what = (commit, condition.name, asked.args)
            done = [run for run in _kept(asked.kept) if (run["commit"], run["on"], run["args"]) == what]
            if asked.only not in (None, condition.name) or len(done) > number:
                continue
            run = {"commit": commit, "on": condition.name, "args": asked.args, **_run(condition, asked)}
            with asked.kept.open("a") as file:
                file.write(json.dumps(run) + "\n")
            asked.kept.with_suffix(".md").write_text(_table(_kept(asked.kept), commit))
            print(run, flush=True)


def _run(condition: Condition, asked: argparse.Namespace) -> dict[str, Any]:
    """One run from a fresh clone; setting up its environment does not count. What a red one said is kept."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trust-")))
        _said("git", "clone", "--quiet", str(ROOT), str(directory / "clone"))
        (directory / "tmp").mkdir()
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        env = {**inherited, "TMPDIR": str(directory / "tmp")}
        make = ["make", "-C", str(directory / "clone")]
        subprocess.run([*make, ".venv/.ready"], check=True, env=env, stdout=subprocess.DEVNULL)
        speed = _speed()
        stack.enter_context(_busy(condition.loops))
        began = time.monotonic()
        command = [*condition.prefix, *make, "test", f"ARGS={asked.args}"]
        with (directory / "said").open("w+") as said:
            code = _alone(command, env=env, stdout=said, stderr=subprocess.STDOUT)
            seconds = time.monotonic() - began
            said.seek(0)
            text = said.read()
        left = [path for path in Path("/proc").glob("[0-9]*/cwd") if _leads_into(path, directory)]
        left += (directory / "tmp").glob("rbl-*")
    if code:
        asked.kept.with_name(f"{asked.kept.stem}-{time.strftime('%H%M%S')}.log").write_text(text)
    return {
        "code": code,
        "seconds": round(seconds),
        "speed": [speed, _speed()],
        "passed": int((re.findall(r"(\d+) passed", text) or [0])[-1]),
        "failed": sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE))),
        "left": len(left),
    }


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _alone(command: list[str], **options: Any) -> int:
    """Run a command in a session of its own, all of which ends if this process has to stop."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            # No SIGKILL: a nursery has to end what it started, once its pytest is gone.
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(0.1)
        raise


def _speed() -> float:
    """Millions of additions in a second of a core, which tells how fast a machine is that others share."""
    began, total = time.process_time(), 0
    for each in range(5_000_000):
        total += each
    return round(5 / (time.process_time() - began), 1)


def _leads_into(link: Path, directory: Path) -> bool:
    try:
        return link.readlink().is_relative_to(directory)
    except OSError:  # it has ended, or is somebody else's
        return False


@contextmanager
def _busy(loops: int) -> Iterator[None]:
    # Each ends by itself if this process is killed.
    forever = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    processes = [subprocess.Popen([sys.executable, "-c", forever]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.wait()


def _kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _table(runs: list[dict[str, Any]], commit: str) -> str:
    lines = [
        f"`make test` at {commit}",
        "",
        "| on | passed | failed | seconds | left behind | million additions/s before, after |",
        "|---|---|---|---|---|---|",
    ]
    for run in sorted((run for run in runs if run["commit"] == commit), key=lambda run: run["on"]):
        failed = ", ".join(run["failed"]) or ("-" if run["code"] == 0 else f"exit code {run['code']}")
        cells = (run["on"], run["passed"], failed, run["seconds"], run["left"], run["speed"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
