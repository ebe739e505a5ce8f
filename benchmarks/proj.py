"""The app that the beat processes of the benchmark run."""

from __future__ import annotations

import os

from benchmarks.subjects.common import make_app

app = make_app(os.environ["BENCH_URL"], beat_max_loop_interval=300, redbeat_lite_owner="bench")
