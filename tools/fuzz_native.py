"""Fuzz compiled code with hostile values and shapes, in guarded memory, against the interpreter.

Run from the root of the repository: ``python tools/fuzz_native.py --runs 1000000 --seed 0``. Prints each finding, then
counts once a minute and at the end; the exit status is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.native_fuzzer import Tally

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


REPORT_SECONDS = 60
"""Seconds between two lines with the counts so far."""


def summary(tally: Tally, seconds: float) -> str:
    """Return the counts in words."""
    outcomes = ", ".join(f"{count} {name}" for name, count in tally.outcomes.most_common())
    runs = f"{tally.runs} runs of {tally.variants} models in {seconds:.0f} s, {len(tally.findings)} findings"
    return f"{runs}: {outcomes}"


def main() -> int:
    """Run the fuzzer; return 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="calls of compiled code")
    parser.add_argument("--seed", type=int, default=0, help="first seed of each operator")
    parser.add_argument("--each", type=int, default=200, help="calls of one compiled model")
    parser.add_argument(
        "--attributes", action="store_true", help="hostile attributes through the whole toolkit, not hostile values"
    )
    parser.add_argument("--gradients", action="store_true", help="gradients of operators, compiled as in training")
    parser.add_argument("--chains", action="store_true", help="drawn models of several nodes through the whole toolkit")
    parser.add_argument("--operator", action="append", help="only these generators")
    parser.add_argument("--shown", type=int, default=5, help="most findings of a generator that are printed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sardonyx-fuzz-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("SARDONYX_CACHE", folder)
        from tests.fuzz.drawn_chains import CHAINS, run_chain
        from tests.fuzz.gradient_fuzzer import NAMES, run_gradient
        from tests.fuzz.hostile_nodes import sources
        from tests.fuzz.native_fuzzer import CASES, Tally, fuzz
        from tests.fuzz.toolkit_fuzzer import run_label

        started, shown, reported = time.monotonic(), 0, time.monotonic()
        printed: Counter[str] = Counter()

        class _OutOfTime(Exception):
            pass

        last = Tally()

        def progress(tally: Tally) -> None:
            nonlocal shown, last, reported
            last = tally
            for finding in tally.findings[shown:]:
                name = str(finding).partition(" ")[0]
                printed[name] += 1
                if printed[name] <= arguments.shown:
                    print(finding, flush=True)
            shown = len(tally.findings)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                print(summary(tally, reported - started), flush=True)
            if time.monotonic() - started > arguments.seconds:
                raise _OutOfTime

        with contextlib.suppress(_OutOfTime):
            kinds = {
                "attributes": (sources(), run_label), "gradients": (NAMES, run_gradient), "chains": (CHAINS, run_chain)
            }  # fmt: skip
            chosen = next((kind for kind in kinds if getattr(arguments, kind)), None)
            names, run_variant = kinds[chosen] if chosen else (sorted(CASES), None)
            unknown = sorted(set(arguments.operator or ()) - set(names))
            if unknown:
                parser.error(f"unknown generators {', '.join(unknown)}; expected some of {', '.join(sorted(names))}")
            names = arguments.operator or list(names)
            fuzz(names, arguments.runs, arguments.seed, arguments.each, progress, run_variant)
        print(summary(last, time.monotonic() - started))
    return int(bool(last.findings))


if __name__ == "__main__":
    sys.exit(main())
