"""The time that a session adds to the providers' own run calls, for each partition.

    python benchmarks/partition.py [--rounds 4000] [--elements 8]

A chain of additions is cut between providers after every node; calls of the session alternate with the providers' own
calls of its partitions. The difference, divided by the number of partitions, is the session's share: checks, and the
transfer of inputs and results. The provider's own call is the cheapest call of its interface:

- ONNX Runtime: ``InferenceSession.run`` on a dict of arrays, without the checks of its Python class;
- OpenVINO: ``InferRequest.infer`` of a request whose inputs and outputs are bound to fixed arrays;
- native code and numpy: the runner's ``run``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from sardonyx.core.eval.run_context import RunContext
from sardonyx.runtime import Session
from sardonyx.runtime.partition.partition import Part
from sardonyx.runtime.providers import installed

PARTS = 6


def chain(first: str, second: str, elements: int) -> Session:
    """Return a session of additions that run on the two providers alternately."""
    lines = " ".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(PARTS))
    shape = f"float[{elements}]"
    text = f'<ir_version: 9, opset_import: ["": 18]> chain ({shape} v0) => ({shape} v{PARTS}) {{ {lines} }}'
    pins = [(f"v{i + 1}", (first, second)[i % 2]) for i in range(PARTS)]
    return Session(onnx.parser.parse_model(text), providers=[first, second], pins=pins, threads=1)


def own_call(part: Part, x: np.ndarray) -> Callable[[], object]:
    """Return the provider's own call of a partition with one input and one output, on an array."""
    runner: Any = part.runner
    if part.provider == "onnxruntime":
        (name,) = part.inputs
        return lambda: runner._run(part.outputs, {name: x}, None)
    if part.provider == "openvino":
        import openvino

        request = runner._compiled.create_infer_request()
        arrays = x, np.empty_like(x)  # The request holds addresses without references.
        request.set_input_tensor(0, openvino.Tensor(arrays[0], shared_memory=True))
        request.set_output_tensor(0, openvino.Tensor(arrays[1], shared_memory=True))
        return lambda: (arrays, request.infer(share_outputs=True))
    context = RunContext()
    return lambda: runner.run([x], context)


def share(session: Session, elements: int, rounds: int) -> tuple[float, float]:
    """Return the microseconds per partition of the providers' own calls, and the session's share."""
    partitioned = session._live.version.partitioned
    assert partitioned is not None and len(partitioned.parts) == PARTS
    x = np.ones(elements, np.float32)
    calls = [own_call(part, x) for part in partitioned.parts]

    def alone() -> None:
        for call in calls:
            call()

    def whole() -> None:
        session.run(None, {"v0": x})

    times: dict[str, list[float]] = {"alone": [], "whole": []}
    for i in range(rounds):
        for name, run in (("alone", alone), ("whole", whole)):
            begin = time.perf_counter()
            run()
            if i >= rounds // 10:
                times[name].append(time.perf_counter() - begin)
    own, all_of_it = (statistics.median(times[name]) * 1e6 / PARTS for name in ("alone", "whole"))
    return own, all_of_it - own


def main() -> None:
    """Measure every pair of installed providers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4000, help="number of calls")
    parser.add_argument("--elements", type=int, default=8, help="number of elements of each value")
    options = parser.parse_args()
    rounds, elements = options.rounds, options.elements
    names = installed()
    print(f"{'providers':28}{'provider (µs per part)':>24}{'session (µs per part)':>24}")
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            few = rounds // (10 if "reference" in (first, second) else 1)
            own, ours = share(chain(first, second, elements), elements, few)
            print(f"{first + ', ' + second:28}{own:24.1f}{ours:24.1f}")


if __name__ == "__main__":
    main()
