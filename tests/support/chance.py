"""Chance that can be repeated."""

from __future__ import annotations

import os
import random


def draw_seed() -> int:
    """Return the seed of the environment variable ``SEED``, else a new one, and print it."""
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"SEED={seed}")
    return seed
