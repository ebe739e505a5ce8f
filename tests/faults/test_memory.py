"""A beat that runs for long uses no more memory than one that has just settled."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import ROOT
from tests.support.server import Server

#: Kilobytes that the allocator may make of the same work.
SLACK = 2048


def growth(server: Server, ticks: int, cuts: int) -> int:
    """Kilobytes by which the process grew after the first tenth of its way."""
    command = [sys.executable, "-m", "tests.faults.ticks", server.url, str(ticks), str(cuts)]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [[int(word) for word in line.split()] for line in lines]
    print(*lines, sep="\n")
    assert rows[-1][0] == ticks
    assert rows[-1][1] > rows[0][1] > 0, "nothing was sent on the way"
    return rows[-1][2] - rows[0][2]


def test_memory_is_flat_over_many_ticks_and_lost_connections(server: Server) -> None:
    assert growth(server, 10_000, cuts=100) < SLACK


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_memory_is_flat_over_100_000_ticks_and_1_000_lost_connections(server: Server) -> None:
    assert growth(server, 100_000, cuts=1000) < SLACK
