"""Random graphs a rule: how many were checked, in how many it fired, and the first whose outputs changed.

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
"""Graphs of each generator between two lines of progress."""


@dataclass
class Soundness:
    """What random graphs said of one rule or pass."""

    rule: str
    checked: int = 0
    fired: int = 0
    seconds: float = 0.0
    failure: str | None = None
    """The graph whose outputs changed, and how."""


def measure(rule: str, graphs: int, first_seed: int) -> Soundness:
    """Check so many graphs of each generator of a rule; progress is told, and it ends at a failure."""
    found = Soundness(rule)
    started = time.monotonic()
    target = generators.target_of(rule)
    for seed in range(0, graphs, SLICE):
        try:
            # Seeds that make no legal graph are passed over: slices lie far enough apart to share none.
            checked, fired = run_many(rule, min(SLICE, graphs - seed), first_seed + 10 * seed, target, together=1)
        except AssertionError as error:
            found.failure = str(error)
            print(f"{rule}: an output changed", file=sys.stderr, flush=True)
            break
        found.checked, found.fired = found.checked + checked, found.fired + fired
        print(f"{rule}: {found.checked} graphs, fired in {found.fired}", file=sys.stderr, flush=True)
    found.seconds = time.monotonic() - started
    return found


def main() -> int:
    """Check the rules asked for; 1 if any changed an output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20_000, help="graphs of each generator")
    parser.add_argument("--rule", action="append", help="pass or pass/rule; all that have generators when not given")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    options = parser.parse_args()
    generators.load()
    unknown = set(options.rule or ()) - set(GENERATORS) - set(generators.labels())
    if unknown:
        parser.error(f"no generator of {', '.join(sorted(unknown))}")
    found = [measure(rule, options.graphs, options.seed) for rule in options.rule or sorted(GENERATORS)]
    text = json.dumps([asdict(each) for each in found], indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        print(text)
    return int(any(each.failure for each in found))


if __name__ == "__main__":
    sys.exit(main())
