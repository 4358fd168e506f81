"""Fuzz every parser of bytes from strangers in one process: millions of inputs, without sockets.

Run from the root of the repository: ``python tools/fuzz_parsers.py --inputs 10000000 --seed 0``. The targets
(`tests/fuzz/parser_targets.py`) are the parsers of requests (JSON, binary tensors, HTTP/1, HTTP/2, header blocks,
messages of gRPC, lists of numbers, safetensors), of the files of a server (``config.pbtxt``, settings, tokens,
policies), of hubs (manifests, lock files, file names), of trust (encrypted files, keys, licences, signatures,
messages of attestation), and of conversions (TensorFlow Lite, GGUF, configurations and weights of language models).
Each gets an equal share of the processor time. `tools/fuzz_requests.py` computes the requests that are accepted, and
draws edits.

A finding is an exception that is no refusal, a failed check of what was accepted, an answer of 500, or an input without
an end. Prints each finding with its input, counts and the resident memory once a minute, and at the end; the exit
status is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.parser_targets import Draws, Target, Targets, damaged

from sardonyx.serve.operations.free_memory import resident_bytes

SLICE = 0.05
"""Seconds of processor time of a target at a time."""
EACH = 20
"""Inputs between two looks at the clock."""


class Fuzzer:
    """Runs of the targets with counts.

    Args:
        seed: The seed of all draws.
        shown: Most findings that are printed.
    """

    def __init__(self, seed: int, shown: int) -> None:
        self._draws = Draws(seed)
        self._shown = shown
        self.counts: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.findings = 0

    async def slice(self, name: str, target: Target, most: int) -> None:
        """Feed a target for a slice of processor time, or at most a number of inputs."""
        draws, seeds = self._draws, target.seeds
        end = time.process_time() + SLICE
        done = 0
        while done < most and time.process_time() < end:
            for _ in range(min(EACH, most - done)):
                data = damaged(draws, seeds[draws.below(len(seeds))])
                done += 1
                try:
                    self.accepted[name] += target.accepts(data)
                except Exception:
                    self.findings += 1
                    if self.findings <= self._shown:
                        print(f"{name}: {data!r}\n{traceback.format_exc(limit=-4)}", flush=True)
        self.counts[name] += done

    def summary(self, started: float) -> str:
        """Return the counts as text."""
        kinds = ", ".join(f"{name} {count:,} ({self.accepted[name]:,})" for name, count in self.counts.items())
        times = f"{time.monotonic() - started:.0f} s ({time.process_time():.0f} s of processor time)"
        memory = f"{resident_bytes() / 1e6:.0f} MB"
        return (f"{self.counts.total():,} inputs in {times}, {self.findings} findings, {memory}; "
                f"inputs (accepted): {kinds}")  # fmt: skip


def main() -> int:
    """Run the fuzzer; return 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="number of inputs")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws")
    parser.add_argument("--target", action="append", help="only these targets")
    parser.add_argument("--shown", type=int, default=20, help="most findings that are printed")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds of an input without an end")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # Damaged numbers overflow.
    os.environ["SARDONYX_STATE"] = "off"
    fuzzer = Fuzzer(arguments.seed, arguments.shown)
    started = reported = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sardonyx-fuzz-", dir="/dev/shm") as text:
        targets = Targets(Path(text))
        machine = targets.machine
        names = arguments.target or list(targets.all)
        while (left := arguments.inputs - fuzzer.counts.total()) > 0:
            for name in names:
                faulthandler.dump_traceback_later(arguments.patience, exit=True)
                machine.loop.run_until_complete(fuzzer.slice(name, targets.all[name], left))
                machine.loop.run_until_complete(machine.settle())
            if time.monotonic() - reported > 60:
                reported = time.monotonic()
                print(fuzzer.summary(started), flush=True)
        faulthandler.cancel_dump_traceback_later()
        machine.close()
    print(fuzzer.summary(started))
    return int(fuzzer.findings > 0)


if __name__ == "__main__":
    sys.exit(main())
