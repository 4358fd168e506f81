"""What a session holds of memory: reported, limited, let go of, shared."""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.errors import ResourceError

N, C = 64, 32
X = np.random.default_rng(0).random((N, C), np.float32)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


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
    actual = session.memory()
    value = X.nbytes
    assert actual.weights >= 4 * C * C * 4
    assert actual.arenas == 1
    # Two values in the arena at a time, and the result outside of it.
    assert 3 * value <= actual.peak < 5 * value
    assert actual.arena >= 2 * value
    by_name = {item.name: item for item in actual.plan}
    assert {"h1", "h2", "h3"} <= by_name.keys()
    assert by_name["h1"].shares_with == ("h3",)
    assert by_name["h1"].offset == by_name["h3"].offset
    assert by_name["h1"].last < by_name["h3"].first
    assert "h3" in str(actual)


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


def test_what_parts_hand_to_each_other_counts() -> None:
    """Each part alone needs two arrays at most; the last finds one there already."""
    model, large = layers(4, "N"), np.concatenate([X] * 8)
    model.graph.node[1].name = "second"

    def created(most: int | None) -> Session:
        return Session(model, compile="wait", pins=[("second", "reference")], max_memory=most)

    free = created(None)
    free.run(None, {"x": large})
    need = free.memory().peak
    assert need == 3 * large.nbytes
    created(need).run(None, {"x": large})
    limited = created(need - 1)
    for _ in range(2):
        with pytest.raises(ResourceError, match=f"{need - 1:,}"):
            limited.run(None, {"x": large})
        limited.run(None, {"x": X})


def test_what_another_provider_gives_counts() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: test)")
    session = Session(layers(1, "N"), providers=["onnxruntime"], max_memory=X.nbytes)
    session.run(None, {"x": X})
    with pytest.raises(ResourceError, match=f"onnxruntime: .*{2 * X.nbytes:,} bytes are in use"):
        session.run(None, {"x": np.concatenate([X] * 2)})


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_what_is_free_goes_back_to_the_system() -> None:
    session = Session(layers(1), compile="off")
    # Blocks of an arena of the C library, the last of which keeps the others there when they are free.
    blocks = [bytearray(10_000) for _ in range(3000)]
    del blocks[:-1]
    before = resident()
    session.shrink()
    assert before - resident() > 20_000_000


def test_what_no_call_uses_is_let_go_of() -> None:
    session = Session(layers(4, "N"), compile="wait")
    for _ in range(4):
        (expected,) = session.run(None, {"x": X})
    assert session.memory().arena
    session.shrink()
    gc.collect()
    assert session.memory().arena == 0
    for _ in range(4):
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
    assert session.memory().arena


def test_sessions_share_weights() -> None:
    first, second = (Session(layers(3), compile="wait") for _ in range(2))
    assert first.program is not None
    assert second.program is not None
    held = [{id(array) for array in item.program.weights if array.ndim} for item in (first, second)]  # type: ignore[union-attr]
    assert held[0] == held[1]


def test_weights_of_edited_models_are_once_in_memory() -> None:
    session = Session(layers(3), compile="wait")
    assert session.program is not None
    before = {id(array) for array in session.program.weights}
    session.insert_after("h1", "Relu")
    assert session.program is not None
    assert {id(array) for array in session.program.weights} == before


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from its text, with weights."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


W = np.random.default_rng(2).standard_normal((C, C)).astype(np.float32)


def test_values_between_native_calls_and_the_interpreter_s_count() -> None:
    """``Unique`` is numpy's; what it reads and what it gives lie outside of arenas."""
    text = """net (float[N, 32] x) => (float[N, 32] y, float[K] z) {
        a = MatMul(x, w)
        u = Unique(a)
        b = MatMul(a, w)
        c = MatMul(b, w)
        y = MatMul(c, w)
        z = Exp(u)
    }"""
    session = Session(parsed(text, w=W), compile="wait")
    session.run(None, {"x": X})
    actual = session.memory()
    assert len(actual.plans) == 2
    assert [plan.where for plan in actual.plans] == ["kernels 0-3", "kernels 4-4"]
    assert {"b", "c"} <= {item.name for item in actual.plan}
    # Two products that stay, what is unique of one, its exponential.
    assert 4 * X.nbytes <= actual.peak < 8 * X.nbytes
    limited = Session(parsed(text, w=W), compile="wait", max_memory=actual.peak)
    limited.run(None, {"x": X})
    with pytest.raises(ResourceError):
        Session(parsed(text, w=W), compile="wait", max_memory=actual.peak * 6 // 10).run(None, {"x": X})


def test_what_the_body_of_a_loop_computes_is_told_apart() -> None:
    text = """net (float[64, 32] x) => (float[64, 32] y) {
        n = Constant<value_int: int = 3>()
        go = Constant<value = bool {1}>()
        y = Loop(n, go, x) <body = step (int64 i, bool c, float[64, 32] s) => (bool d, float[64, 32] t) {
            d = Identity(c)
            p = MatMul(s, w)
            q = MatMul(p, w)
            t = Tanh(q)
        }>
    }"""
    session = Session(parsed(text, w=W), compile="wait")
    session.run(None, {"x": X})
    (plan,) = session.memory().plans
    outer = {item.name: item for item in plan.buffers if not item.inside}
    inner = [item for item in plan.buffers if item.inside]
    assert {item.inside for item in inner} <= outer.keys()
    assert "p" in {item.name for item in inner}
    for item in inner:
        around = outer[item.inside]
        assert around.offset <= item.offset
        assert item.offset + item.bytes <= around.offset + around.bytes
    assert sum(name.startswith("state 0 of kernel 0") for name in outer) == 2
    assert plan.alive[plan.busiest] == max(plan.alive) <= plan.bytes


def test_parts_that_are_compiled_are_told_of_and_the_others_named() -> None:
    session = Session(layers(5), providers=["native", "reference"], pins=[("h3", "reference")], compile="wait")
    for _ in range(3):
        session.run(None, {"x": X})
    assert len({item.provider for item in session.placement}) == 2
    actual = session.memory()
    assert actual.unknown == ("reference",)
    assert len(actual.plans) == 2
    assert all(plan.where.startswith("part ") for plan in actual.plans)
    assert actual.weights >= 4 * C * C * 4
    assert actual.peak >= 3 * X.nbytes
    assert actual.arena
    session.shrink()
    gc.collect()
    assert session.memory().arena == 0
    session.run(None, {"x": X})


def test_programs_for_other_outputs_count() -> None:
    session = Session(layers(4), compile="wait")
    session.run(None, {"x": X})
    session.run(["h2"], {"x": X})
    assert [plan.where for plan in session.memory().plans] == ["", "with h2 as outputs"]


def test_a_report_is_plain_data() -> None:
    session = Session(layers(4), compile="wait")
    session.run(None, {"x": X})
    actual = json.loads(json.dumps(session.memory().as_dict()))
    (plan,) = actual["plans"]
    assert plan["alive"][plan["busiest"]] == max(plan["alive"])
    assert plan["buffers"][0]["bytes"] == X.nbytes


def test_what_a_session_held_goes_with_it() -> None:
    """At once: it does not wait for the collector of cycles, which may be long in coming."""
    session = Session(layers(4, "N"), compile="wait")
    for _ in range(3):
        session.run(["h2"], {"x": X})
        session.run(None, {"x": X})
    session.insert_after("h2", "Relu")
    session.run(None, {"x": X})
    program = weakref.ref(session.program)
    assert program() is not None
    gc.disable()
    try:
        del session
        assert program() is None
    finally:
        gc.enable()
