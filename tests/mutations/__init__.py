"""Mutations: single faults that are put into a copy of the package, to see which suite notices.

A fault that only inner tests notice means that ``tests/promises`` lacks a promise. Run them by
``python -m tests.mutations``.
"""

from __future__ import annotations

from tests.mutations.dispatch import DISPATCH
from tests.mutations.entries import ENTRIES
from tests.mutations.leadership import LEADERSHIP
from tests.mutations.mutation import Mutation
from tests.mutations.page import PAGE
from tests.mutations.schedule import SCHEDULE
from tests.mutations.workers import WORKERS

MUTATIONS: tuple[Mutation, ...] = (*DISPATCH, *LEADERSHIP, *SCHEDULE, *ENTRIES, *WORKERS, *PAGE)
