"""Random models of one operator: the number of comparisons by evaluator, and the first differences.

Run from the root of the repository: ``python benchmarks/differential.py --graphs 5000 --operator Conv --json FILE``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.ops.differential import GENERATORS, run_many

SHOWN = 5
"""Limit of printed differences of an operator."""


def main() -> int:
    """Compare the selected operators; return 1 if any differs without a recorded reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=5000, help="number of graphs for each operator")
    parser.add_argument(
        "--operator", action="append", choices=sorted(GENERATORS), help="an operator (repeatable); by default all"
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--json", type=Path, help="file for the counts")
    arguments = parser.parse_args()
    report = {}
    for operator in arguments.operator or GENERATORS:
        started = time.monotonic()
        tally = run_many(operator, arguments.graphs, arguments.seed)
        report[operator] = {**asdict(tally), "seconds": round(time.monotonic() - started, 2)}
        compared = ", ".join(f"{count} with {name}" for name, count in tally.compared.items())
        print(f"{operator}: {tally.cases} graphs, {compared}, {len(tally.failures)} differ", flush=True)
        for failure in tally.failures[:SHOWN]:
            print(f"  {failure}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return int(any(counts["failures"] for counts in report.values()))


if __name__ == "__main__":
    sys.exit(main())
