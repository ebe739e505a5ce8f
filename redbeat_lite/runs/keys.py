"""The keys of the record of runs, and what they hold; they begin with the scheduler's prefix in braces.

======================  ======  ======================================================================================
key                     type    holds
======================  ======  ======================================================================================
``{p}:runs:of:<name>``  zset    rows of an entry's last runs (:mod:`redbeat_lite.runs.row`) -> nominal time, epoch ms;
                                as many as its ``history`` says, until 35 days after the last of them was written
``{p}:runs:feed``       stream  every end of a run, in order of time: ``name``, ``nominal`` (ms), ``id``, ``outcome``
                                (its letter), ``begin`` (ms after ``nominal``), ``duration`` (ms), ``attempt``,
                                ``worker``, ``error``; empty where not known; the last 100,000 or a few more
======================  ======  ======================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The names under one prefix, for example ``"redbeat-lite"``."""

    prefix: str

    @property
    def feed(self) -> str:
        return f"{{{self.prefix}}}:runs:feed"

    def rows(self, name: str) -> str:
        """Of the entry of this name."""
        return f"{{{self.prefix}}}:runs:of:{name}"
