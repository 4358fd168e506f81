"""What a session holds of memory: reported, limited, let go of, shared."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.errors import ResourceError

N, C = 64, 32
X = np.random.default_rng(0).random((N, C), np.float32)


def layers(count: int, size: int | str = N) -> onnx.ModelProto:
    """A chain of products, each of which reads what the one before wrote."""
    rng = np.random.default_rng(1)
    names = ["x", *(f"h{i}" for i in range(1, count)), "y"]
    nodes = [onnx.helper.make_node("MatMul", [a, f"w_{b}"], [b]) for a, b in pairwise(names)]
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((C, C)).astype(np.float32) / 8, f"w_{b}") for b in names[1:]
    ]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size, C]) for name in ("x", "y"))
    graph = onnx.helper.make_graph(nodes, "chain", [x], [y], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def test_a_report_says_what_is_held_and_who_shares_with_whom() -> None:
    session = Session(layers(4), compile="wait")
    assert session.memory().arena == 0
    session.run(None, {"x": X})
    found = session.memory()
    value = X.nbytes
    assert found.weights >= 4 * C * C * 4
    assert found.arenas == 1
    # Two values in the arena at a time, and the result outside of it.
    assert 3 * value <= found.peak < 5 * value
    assert found.arena >= 2 * value
    by_name = {each.name: each for each in found.plan}
    assert {"h1", "h2", "h3"} <= by_name.keys()
    assert by_name["h1"].shares_with == ("h3",)
    assert by_name["h1"].offset == by_name["h3"].offset
    assert by_name["h1"].last < by_name["h3"].first
    assert "h3" in str(found)


def test_values_that_live_at_the_same_time_share_nothing() -> None:
    session = Session(layers(12), compile="wait")
    session.run(None, {"x": X})
    plan = session.memory().plan
    for a in plan:
        for b in plan:
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset, (a, b)


@pytest.mark.parametrize("compile", ["wait", "off"])
def test_a_call_that_needs_more_than_is_allowed_fails_before_it_takes_it(compile: str) -> None:
    free = Session(layers(4, "N"), compile=compile)  # type: ignore[arg-type]
    free.run(None, {"x": np.concatenate([X] * 8)})
    peak = free.memory().peak
    assert peak >= 2 * 8 * X.nbytes
    held = Session(layers(4, "N"), compile=compile, max_memory=peak * 6 // 10)  # type: ignore[arg-type]
    small = held.run(None, {"x": X})[0]
    for _ in range(3):
        held.run(None, {"x": X})
    before = held.memory().arena
    for _ in range(3):
        with pytest.raises(ResourceError, match=f"{peak * 6 // 10:,}"):
            held.run(None, {"x": np.concatenate([X] * 8)})
        np.testing.assert_array_equal(held.run(None, {"x": X})[0], small)
    assert held.memory().arena == before
    enough = Session(layers(4, "N"), compile=compile, max_memory=peak)  # type: ignore[arg-type]
    enough.run(None, {"x": np.concatenate([X] * 8)})


def test_what_no_call_uses_is_let_go_of() -> None:
    session = Session(layers(4, "N"), compile="wait")
    for _ in range(4):
        (wanted,) = session.run(None, {"x": X})
    assert session.memory().arena
    session.shrink()
    gc.collect()
    assert session.memory().arena == 0
    for _ in range(4):
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], wanted)
    assert session.memory().arena


def test_sessions_share_weights() -> None:
    first, second = (Session(layers(3), compile="wait") for _ in range(2))
    assert first.program is not None
    assert second.program is not None
    held = [{id(array) for array in each.program.weights if array.ndim} for each in (first, second)]  # type: ignore[union-attr]
    assert held[0] == held[1]


def test_weights_of_edited_models_are_once_in_memory() -> None:
    session = Session(layers(3), compile="wait")
    assert session.program is not None
    before = {id(array) for array in session.program.weights}
    session.insert_after("h1", "Relu")
    assert session.program is not None
    assert {id(array) for array in session.program.weights} == before
