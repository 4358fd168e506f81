"""What a session adds to the provider's own run call, for each part of a cut.

    python benchmarks/partition.py [--rounds 4000]

A chain of additions is cut between providers after every node; calls of the session and of its runners alone, on the
arrays that they pass on, alternate. The difference, over the parts, is our share of a cut.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import onnx

from sardonyx.core.run_context import RunContext
from sardonyx.runtime import Session
from sardonyx.runtime.providers import installed

PARTS = 6


def chain(first: str, second: str) -> Session:
    """Additions that fall to one provider and the other in turn."""
    lines = " ".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(PARTS))
    text = f'<ir_version: 9, opset_import: ["": 18]> chain (float[8] v0) => (float[8] v{PARTS}) {{ {lines} }}'
    pins = [(f"v{i + 1}", (first, second)[i % 2]) for i in range(PARTS)]
    return Session(onnx.parser.parse_model(text), providers=[first, second], pins=pins, threads=1)


def share(session: Session, rounds: int) -> tuple[float, float]:
    """Microseconds a part that the runners take, and that the session takes above that."""
    partitioned = session._live.version.partitioned
    assert partitioned is not None and len(partitioned.parts) == PARTS
    x = np.ones(8, np.float32)
    context = RunContext()

    def alone() -> None:
        value = x
        for part in partitioned.parts:
            (value,) = part.runner.run([value], context)

    def whole() -> None:
        session.run(None, {"v0": x})

    times: dict[str, list[float]] = {"alone": [], "whole": []}
    for i in range(rounds):
        for name, run in (("alone", alone), ("whole", whole)):
            begin = time.perf_counter()
            run()
            if i >= rounds // 10:
                times[name].append(time.perf_counter() - begin)
    runners, all_of_it = (statistics.median(times[name]) * 1e6 / PARTS for name in ("alone", "whole"))
    return runners, all_of_it - runners


def main() -> None:
    """Measure every pair of providers that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4000)
    rounds = parser.parse_args().rounds
    names = installed()
    print(f"{'providers':28}{'their own (µs a part)':>24}{'ours (µs a part)':>20}")
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            runners, ours = share(chain(first, second), rounds // (10 if "reference" in (first, second) else 1))
            print(f"{first + ', ' + second:28}{runners:24.1f}{ours:20.1f}")


if __name__ == "__main__":
    main()
