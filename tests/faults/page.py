"""The table of faults.md, from the results of the suite.

``PUBLISH=1 make soak ARGS=tests/faults`` keeps the results, ``python -m tests.faults.page`` writes the table anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

from tests.support.pages import document

RESULTS = Path(__file__).with_name("results.json")
PAGE = document("faults.md")

#: Scenario -> what happens, and what then. In the order of the page.
LINES = {
    "killed": ("the leader is killed (`SIGKILL`)", "A stand-by leads when the lease of 4 s has expired."),
    "stopped": ("the leader is told to stop (`SIGTERM`)", "It releases the lease, exits with 0, and a stand-by leads."),
    "frozen": (
        "the leader is frozen past its lease and thawed (`SIGSTOP`, `SIGCONT`)",
        "A stand-by leads; the old leader sends nothing more and stands by.",
    ),
    "frozen elsewhere": (
        "the same with a broker elsewhere, to which messages go one by one",
        "What it had sent and not committed is sent again, under the same ids.",
    ),
    "two configurations": ("two beats have different configurations", "The leader's configuration counts."),
    "two versions": ("beats of two versions run, and the leader is killed again and again", "They take turns."),
    "clock": (
        "the clock of the beats' machine is set two hours ahead, behind, and right",
        "Nothing: beats go by the clock of the server.",
    ),
    "clocks": ("the clock of the next leader is two hours ahead or behind", "The same."),
    "restart stopped": (
        "the server is stopped for 60 s and keeps its data",
        "Beats stay alive; nothing due is left out.",
    ),
    "restart killed": ("the server is killed, is away for 60 s and keeps its data (AOF)", "The same."),
    "restart empty": (
        "the server restarts without its data after 20 s",
        "Config entries are back and start again. Runtime entries are gone.",
    ),
    "hangs": ("the server hangs for 20 s", "The same as a restart with its data."),
    "flushed": (
        "somebody runs `FLUSHALL`",
        "The leader notices at its next commit or renewal, at most a second later, and stores config entries again.",
    ),
    "evicted": (
        "the due times, the lease or the bookkeeping is evicted",
        "The leader notices at its next renewal, and rebuilds it.",
    ),
    "evicted definitions": (
        "the definitions or the states are evicted",
        "Config entries are back at the next renewal, and start again.",
    ),
    "disk full": ("the server's disk is full (`MISCONF`)", "It refuses to write; what is due stays due."),
    "poisoned": ("200 of 1,000 definitions turn into rubbish", "These are quarantined; the others run."),
    "swallow": ("the network between leader and server swallows everything", "A stand-by that is not cut off leads."),
    "swallow_requests": ("it swallows what the leader sends", "The same."),
    "swallow_replies": ("it swallows what the server answers", "The same; what the server has done stays done once."),
    "cut": ("it refuses connections", "The same."),
    "slow": ("the network takes 20 ms each way", "Each round trip takes 40 ms longer."),
    "resets": ("connections are cut every few hundred milliseconds", "They are opened again."),
    "broker swallowed": ("a broker elsewhere is black-holed for 20 s", "What is due stays due."),
    "broker refusing": ("it refuses connections for 20 s", "The same."),
    "broker full": ("it is out of memory for 20 s", "The same."),
    "sentinel switched": (
        "Sentinel promotes a replica",
        "Beats follow. What the replica had not received is sent again.",
    ),
    "sentinel killed": ("the master dies, and Sentinel promotes a replica", "The same."),
    "sentinel hangs": ("the master hangs for seconds, and there is no replica", "What is due is sent afterwards."),
    "cluster": ("the Cluster node of the schedule dies, and its replica takes over", "Beats follow."),
    "workers": (
        "workers of entries with `once=True`, their leader and their server are killed, frozen and stopped",
        "One run of a key at a time. The lock of a run that died expires with its lease, here of 3 s.",
    ),
}

#: The result of random faults.
SOAK = "random"

#: In these scenarios, the last figure is the worst lateness of a message.
_LATE = ("poisoned", "slow")


def keep(name: str, result: dict[str, Any]) -> None:
    """Keep the result of a scenario, where results are asked for with ``PUBLISH=1``."""
    if os.environ.get("PUBLISH"):
        with RESULTS.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # several workers may do so at once
            file.seek(0)
            results = {**json.loads(file.read() or "{}"), name: result}
            file.truncate(0)
            file.write(json.dumps(results, indent=1, sort_keys=True) + "\n")


def figures(name: str, result: dict[str, Any]) -> list[str]:
    """The figures of one scenario: lost, seconds until the next message, longest silence."""
    if work := result.get("work"):
        lost = work["vanished"] + work["taken"] + work["unfinished"]
        outlived = f"a lock outlived its run by {work['stuck']:.1f} s"
        return [f"{lost} of {work['runs']:,} runs, {work['overlaps']} side by side", "–", outlived]
    lost = "–" if result["lost"] is None else f"{result['lost']:,} of {result['occurrences']:,}"
    lost += f", {result['doubled']:,} doubled" if result["doubled"] else ""
    times = f" ({result['faults']} times)" if result["faults"] > 1 else ""
    last = f"{result['late']:.2f} s late" if name in _LATE else f"{result['wait']:.1f} s"
    return [lost, f"{result['back']:.1f} s{times}", last]


def table(results: dict[str, dict[str, Any]]) -> str:
    """The whole table in Markdown."""
    rows = [[when, then, *figures(name, results[name])] for name, (when, then) in LINES.items()]
    head = ["what happens", "what then", "lost", "on again after", "longest silence"]
    lines = [f"| {' | '.join(row)} |" for row in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def summary(result: dict[str, Any]) -> str:
    """The words of the soak about faults drawn by lot."""
    return (
        f"soak of {result['minutes']:g} minutes, SEED={result['seed']}: {result['occurrences']:,} occurrences, "
        f"{result['faults']} faults, {result['lost']} lost, {result['doubled']} doubled;\n"
        f"at worst {result['late']:.2f} s late outside of outages, {result['back']:.2f} s until the first message "
        f"after one"
    )


def main() -> None:
    results, text = json.loads(RESULTS.read_text()), PAGE.read_text()
    text = re.sub(r"\| what happens \|.*?\n(?!\|)", lambda _: f"{table(results)}\n", text, flags=re.DOTALL)
    text = re.sub(r"```text\nsoak of.*?```", lambda _: f"```text\n{summary(results[SOAK])}\n```", text, flags=re.DOTALL)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
