"""Ten thousand publications: every answer is that of one whole version, and undo restores the exact bits."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx

LAYERS, WIDTH, VERSIONS, PUBLICATIONS = 6, 64, 16, 10_000

pytestmark = pytest.mark.long


def deep_model() -> onnx.ModelProto:
    """Return six products [N, 64], whose answer depends on all of their weights."""
    names = ["x", *(f"h{i}" for i in range(1, LAYERS)), "y"]
    nodes = " ".join(f"{after} = MatMul({before}, w{i})" for i, (before, after) in enumerate(pairwise(names)))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> net (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{ {nodes} }}"""
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights_of(0).items())
    return model


def weights_of(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {f"w{i}": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8 for i in range(LAYERS)}


def test_no_answer_mixes_two_versions() -> None:
    session = sardonyx.Session(deep_model(), compile="wait", threads=1)
    weights = [weights_of(version) for version in range(VERSIONS)]
    x = np.random.default_rng(99).standard_normal((3, WIDTH)).astype(np.float32)
    known: dict[bytes, int] = {}
    for version, arrays in enumerate(weights):
        session.update_weights(arrays)
        known[session.run(None, {"x": x})[0].tobytes()] = version
    assert len(known) == VERSIONS
    stop, wrong, seen, calls = threading.Event(), [], set[int](), [0]

    def call() -> None:
        while not stop.is_set():
            answer = session.run(None, {"x": x})[0].tobytes()
            calls[0] += 1
            stop.wait(0.0005)  # Threads of low priority publish: calls without a pause would delay them.
            if answer in known:
                seen.add(known[answer])
            else:
                wrong.append(answer)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        for number in range(PUBLICATIONS):
            session.update_weights(weights[number % VERSIONS])
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert not wrong and seen == set(range(VERSIONS))
    assert calls[0] > PUBLICATIONS // 10
    last = (PUBLICATIONS - 1) % VERSIONS
    for back in range(3):
        assert known[session.run(None, {"x": x})[0].tobytes()] == (last - back) % VERSIONS
        session.undo()
