"""Random graphs for each rule: the numbers of checked and rewritten graphs, and the first failure.

Run from the root of the repository: ``python benchmarks/soundness.py --graphs 20000 --rule LABEL --json FILE``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.rewrite import generators
from tests.rewrite.fuzz import GENERATORS, run_many

SLICE = 500
"""Number of graphs of each generator between two lines of progress."""


@dataclass
class Soundness:
    """The result of random graphs for one rule or pass."""

    rule: str
    checked: int = 0
    fired: int = 0
    seconds: float = 0.0
    failure: str | None = None
    """The graph whose outputs changed, and the change."""


def measure(rule: str, graphs: int, first_seed: int) -> Soundness:
    """Check a number of graphs of each generator of a rule, with progress, up to the first failure."""
    counts = Soundness(rule)
    started = time.monotonic()
    target = generators.target_of(rule)
    for seed in range(0, graphs, SLICE):
        try:
            # Seeds without a legal graph are skipped: the distance of slices is large enough that no seed repeats.
            checked, fired = run_many(rule, min(SLICE, graphs - seed), first_seed + 10 * seed, target, together=1)
        except AssertionError as error:
            counts.failure = str(error)
            print(f"{rule}: an output changed", file=sys.stderr, flush=True)
            break
        counts.checked, counts.fired = counts.checked + checked, counts.fired + fired
        print(f"{rule}: {counts.checked} graphs, fired in {counts.fired}", file=sys.stderr, flush=True)
    counts.seconds = time.monotonic() - started
    return counts


def main() -> int:
    """Check the selected rules; return 1 if any changed an output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20_000, help="number of graphs of each generator")
    parser.add_argument("--rule", action="append", help="pass or pass/rule (repeatable); by default all")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    generators.load()
    unknown = set(options.rule or ()) - set(GENERATORS) - set(generators.labels())
    if unknown:
        parser.error(f"no generator for {', '.join(sorted(unknown))}")
    results = [measure(rule, options.graphs, options.seed) for rule in options.rule or sorted(GENERATORS)]
    text = json.dumps([asdict(result) for result in results], indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        print(text)
    return int(any(result.failure for result in results))


if __name__ == "__main__":
    sys.exit(main())
