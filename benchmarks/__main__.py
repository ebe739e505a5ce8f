"""``python -m benchmarks``: measure, print the table, write JSON and plots."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import plots, publish, report
from benchmarks.beats import ROOT
from benchmarks.bench import Bench
from benchmarks.sizes import FULL, QUICK

_BUILD = ROOT / "build" / "bench"
_PUBLISHED = ROOT / "benchmarks" / "results.json"


def main() -> int:
    args = _arguments()
    if args.source is not None:
        results = json.loads(args.source.read_text())
    else:
        # Through its own text, so that the same comes out of the file later, to the last digit.
        results = json.loads(publish.as_json(Bench(QUICK if args.quick else FULL).run()))
        _BUILD.mkdir(parents=True, exist_ok=True)
        (_BUILD / "results.json").write_text(publish.as_json(results))
    plots.write(results, _BUILD)
    table = report.rows(results["samples"], results["sizes"])
    print(report.about(results), report.plain(table), sep="\n\n")
    if args.publish:
        _PUBLISHED.write_text(publish.as_json(results))
        publish.write(results, table)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and three rounds: under three minutes")
    parser.add_argument("--publish", action="store_true", help="renew benchmarks/results.json, performance.md")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="do not measure; use these results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
