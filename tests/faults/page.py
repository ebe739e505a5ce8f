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
    "killed": ("the leader is killed (`SIGKILL`)", "A stand-by leads when the lease of 4 s has run out."),
    "stopped": (
        "the leader is told to stop (`SIGTERM`)",
        "It gives the lease back, exits with 0, and a stand-by leads.",
    ),
    "frozen": (
        "the leader is frozen past its lease and thawed (`SIGSTOP`, `SIGCONT`)",
        "A stand-by leads; the old leader sends nothing more and stands by.",
    ),
    "frozen elsewhere": (
        'the same with 30 entries and a broker elsewhere, to which messages go one by one (`dispatch="plain"`)',
        "What it had sent and not committed is sent again, under the same ids. Thawed, it ends the message at which it "
        "stood, and sends nothing more.",
    ),
    "two configurations": (
        "two beats have different configurations",
        "That of the leader counts; what both have goes on.",
    ),
    "two versions": (
        "a beat of the previous commit and one of this run side by side, the leader killed again and again",
        "They take turns.",
    ),
    "clock": (
        "the machine's clock is set two hours ahead, and back again",
        "Ahead: one catch-up. Back: all entries are planned anew. The figure is the longest wait of an entry of 1 s.",
    ),
    "clocks": (
        "a beat takes over whose clock is two hours ahead or behind, and then one whose clock is right",
        "Ahead: one catch-up. Back: all entries are planned anew.",
    ),
    "restart stopped": (
        "the server is stopped for 60 s and keeps its data",
        "Beats stay alive; nothing due is left out.",
    ),
    "restart killed": ("the server is killed, is away for 60 s and keeps its data (AOF)", "The same."),
    "restart empty": (
        "the server restarts without its data after 20 s",
        "Config entries are back and begin anew. Runtime entries are gone.",
    ),
    "hangs": ("the server hangs for 20 s", "The same as a restart with its data."),
    "flushed": ("somebody runs `FLUSHALL`", "Config entries are back when the leader renews its lease."),
    "evicted": (
        "the due times, the lease or the bookkeeping is evicted",
        "The leader notices when it renews, and rebuilds it from the others.",
    ),
    "evicted definitions": (
        "the definitions or the states are evicted",
        "Config entries are back when the leader renews its lease, and begin anew.",
    ),
    "disk full": (
        "the server's disk is full (`MISCONF`)",
        "It refuses to write, so nothing is sent; what is due stays due.",
    ),
    "poisoned": (
        "200 of 1,000 definitions turn into rubbish",
        "These are quarantined. The figure is the worst lateness of the others.",
    ),
    "swallow": ("the network between leader and server swallows everything", "A stand-by that is not cut off leads."),
    "swallow_requests": ("it swallows what the leader sends", "The same."),
    "swallow_replies": ("it swallows what the server answers", "The same; what the server has done stays done once."),
    "cut": ("it refuses connections", "The same."),
    "slow": (
        "the network takes 20 ms each way",
        "Each round trip takes so much longer. The figure is the worst lateness.",
    ),
    "resets": ("connections are cut every few hundred milliseconds", "They are made anew."),
    "broker swallowed": (
        "a broker elsewhere is black-holed for 20 s",
        "What is due stays due. At least once, stable ids.",
    ),
    "broker refusing": ("it refuses connections for 20 s", "The same."),
    "broker full": ("it is out of memory for 20 s", "The same."),
    "sentinel switched": (
        "Sentinel promotes a replica",
        "Beats follow. What the old master took until then is sent again; each occurrence is in the new one's queue "
        "once.",
    ),
    "sentinel killed": ("the master dies, and Sentinel promotes a replica", "The same."),
    "sentinel hangs": (
        "the master hangs for seconds, and there is no replica",
        "What is due goes out when it goes on. Its late replies are given to nobody.",
    ),
    "cluster": (
        "the node of a Cluster that holds the schedule dies, and its replica takes over; the broker is elsewhere",
        "Beats follow. At least once, stable ids.",
    ),
    "workers": (
        "workers of entries with `once=True` are killed, frozen and stopped, alone and with their children; so are the "
        "leader and the server",
        "One run of a key at a time. The lock of a run that died runs out with its lease, here of 3 s. The last figure "
        "is the longest time for which one outlived its run.",
    ),
}

#: The result of faults drawn by lot.
SOAK = "random"

#: Of these, the figure is something else than the time until things went on.
_LATE, _WAIT = ("poisoned", "slow"), ("clock",)


def keep(name: str, result: dict[str, Any]) -> None:
    """Keep the result of a scenario, where results are asked for with ``PUBLISH=1``."""
    if os.environ.get("PUBLISH"):
        with RESULTS.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # several workers may do so at once
            file.seek(0)
            results = {**json.loads(file.read() or "{}"), name: result}
            file.truncate(0)
            file.write(json.dumps(results, indent=1, sort_keys=True) + "\n")


def figure(name: str, result: dict[str, Any]) -> str:
    """The figures of one scenario."""
    found, lost, faults = result["occurrences"], result["lost"], result["faults"]
    if work := result.get("work"):
        out = work["left_out"] + work["refused"]
        gone = work["vanished"] + work["taken"] + work["unfinished"]
        return (
            f"{work['runs']:,} runs, {out:,} left out, {gone} lost, {work['overlaps']} side by side; "
            f"{work['stuck']:.1f} s, at most, of {faults} times"
        )
    sent = f"{found:,} sent" if lost is None else f"{lost:,} of {found:,} lost"
    if name in _LATE:
        return f"{sent}, {result['doubled']:,} doubled; {result['late']:.2f} s late"
    if name in _WAIT:
        return f"{sent}, {result['doubled']:,} doubled; {result['wait']:.2f} s between two"
    times = f", at most, of {faults} times" if faults > 1 else ""
    silent = f"; no entry silent for longer than {result['wait']:.1f} s"
    return f"{sent}, {result['doubled']:,} doubled; on again after {result['back']:.1f} s{times}{silent}"


def table(results: dict[str, dict[str, Any]]) -> str:
    """The whole table in Markdown."""
    rows = [f"| {when} | {then} | {figure(name, results[name])} |" for name, (when, then) in LINES.items()]
    return "\n".join(["| what happens | what then | seen in 60 s |", "|---|---|---|", *rows])


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
