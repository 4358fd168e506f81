"""Host functions with kernels agree with their numpy definitions to the bit, and nothing is left to the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.compiler.analysis.bounded_output import has_kernel
from sardonyx.compiler.plan.segments import Segment
from sardonyx.core.eval.host_function import HostFunction, host
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ExecutionError
from sardonyx.ops.definitions.detection import non_max_suppression

Array = np.ndarray
BOXES = "float[B, N, 4] boxes, float[B, C, N] scores, int64 most, float[1] overlap, float[1] above"


def compiled(inputs: str, outputs: str, nodes: str) -> sardonyx.Session:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    session = sardonyx.Session(onnx.parser.parse_model(text), compile="wait", threads=2)
    assert session.program is not None and not session.program.host
    return session


@pytest.fixture(scope="module", params=[0, 1], ids=["corners", "centred"])
def suppression(request: pytest.FixtureRequest) -> tuple[sardonyx.Session, int]:
    node = f"y = NonMaxSuppression <center_point_box = {request.param}> (boxes, scores, most, overlap, above)"
    return compiled(BOXES, "int64[K, 3] y", node), request.param


def drawn(rng: np.random.Generator, special: bool) -> list[Array]:
    """Coarse numbers: many scores are equal, and many boxes touch, lie in each other or have no area."""
    batch, classes, count = (int(rng.integers(0, most)) for most in (4, 4, 70))
    boxes = (rng.integers(-6, 12, (batch, count, 4)) / 4).astype(np.float32)
    scores = (rng.integers(-3, 6, (batch, classes, count)) / 5).astype(np.float32)
    if special:
        for array in (boxes, scores):
            flat = array.reshape(-1)
            chosen = rng.random(flat.size) < 0.1
            flat[chosen] = rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0, 3e38], np.float32), chosen.sum())
    overlap, above = rng.choice([0, 0.25, 0.5, 1]), rng.choice([-np.inf, -1, 0, 0.4, np.nan])
    most = rng.choice([-1, 0, 1, 3, 100])
    return [boxes, scores, np.array(most), np.array([overlap], np.float32), np.array([above], np.float32)]


def fed(arrays: list[Array]) -> dict[str, Any]:
    return dict(zip(("boxes", "scores", "most", "overlap", "above"), arrays, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_suppression_is_as_defined(suppression: tuple[sardonyx.Session, int], seed: int) -> None:
    session, centered = suppression
    arrays = drawn(np.random.default_rng(seed), special=bool(seed % 2))
    with np.errstate(all="ignore"):
        (expected,) = non_max_suppression(*arrays, center_point_box=centered)
    (actual,) = session.run(None, fed(arrays))
    assert actual.dtype == np.int64
    np.testing.assert_array_equal(actual, expected)


def test_many_boxes_of_which_few_are_wanted(suppression: tuple[sardonyx.Session, int]) -> None:
    session, centered = suppression
    rng = np.random.default_rng(0)
    boxes, scores = (rng.random(shape, np.float32) for shape in ((1, 3000, 4), (1, 5, 3000)))
    for most in (7, 3000):
        numbers = [np.array(most), np.array([0.3], np.float32), np.array([0.1], np.float32)]
        (expected,) = non_max_suppression(boxes, scores, *numbers, center_point_box=centered)
        (actual,) = session.run(None, fed([boxes, scores, *numbers]))
        np.testing.assert_array_equal(actual, expected)


def test_a_share_that_is_none_is_refused(suppression: tuple[sardonyx.Session, int]) -> None:
    session, _ = suppression
    arrays = drawn(np.random.default_rng(1), special=False)
    with pytest.raises(ExecutionError, match=r"1\.5"):
        session.run(None, fed([*arrays[:3], np.array([1.5], np.float32), arrays[4]]))


@pytest.mark.parametrize("operands", ["boxes, scores", "boxes, scores, two", 'boxes, scores, two, "", third'])
def test_limits_are_constants_or_left_out(operands: str) -> None:
    nodes = f"""two = Constant <value = int64[1] {{2}}> ()
        third = Constant <value = float[1] {{0.33}}> ()
        y = NonMaxSuppression ({operands.replace('""', "")})"""
    session = compiled("float[B, N, 4] boxes, float[B, C, N] scores", "int64[K, 3] y", nodes)
    boxes, scores, *_ = drawn(np.random.default_rng(2), special=False)
    known = {"boxes": boxes, "scores": scores, "two": np.array([2]), "third": np.array([0.33], np.float32)}
    arguments = [known.get(name.strip()) for name in operands.split(",")]
    (expected,) = non_max_suppression(*arguments)  # type: ignore[arg-type]
    np.testing.assert_array_equal(session.run(None, {"boxes": boxes, "scores": scores})[0], expected)


@pytest.mark.parametrize("dtype", ["float", "int32", "bool", "float16"])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5), (2, 0, 3), (4, 3, 2, 5)])
def test_places_are_as_defined(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    axes = ", ".join("ABCD"[: len(shape)])
    session = compiled(f"{dtype}[{axes}] x", "int64[R, K] y", "y = NonZero (x)")
    kind = {"float": np.float32, "bool": np.bool_}.get(dtype) or np.dtype(dtype)
    for density in (0.0, 0.3, 1.0):
        x = np.where(rng.random(shape) < density, rng.integers(-3, 4, shape), 0).astype(kind)
        if dtype == "float" and x.size:
            x.flat[0] = np.nan
        (actual,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(actual, np.stack(np.nonzero(x)))


def test_sizes_that_are_counted_go_on_in_native_code() -> None:
    session = compiled(
        "float[N, 3] x, bool[N] selected", "float[K, 3] y", "z = Compress <axis = 0> (x, selected) y = Softmax (z)"
    )
    rng = np.random.default_rng(0)
    for count in (0, 1, 9, 40):
        x, selected = rng.random((count, 3), np.float32), rng.random(count) < 0.5
        (actual,) = session.run(None, {"x": x, "selected": selected})
        exponentials = np.exp(x[selected])
        np.testing.assert_allclose(actual, exponentials / exponentials.sum(-1, keepdims=True), rtol=1e-5)
    assert session.program is not None and all(isinstance(step, Segment) for step in session.program.steps)


def test_what_it_takes_is_told(suppression: tuple[sardonyx.Session, int]) -> None:
    session, _ = suppression
    profile = session.profile(fed(drawn(np.random.default_rng(3), special=False)), runs=1)
    assert [kernel.note.title for kernel in profile.kernels] == ["suppression", "boxes"] and not profile.interpreted


@pytest.mark.parametrize("name", ["NonMaxSuppression", "NonZero"])
def test_a_function_of_an_operators_name_is_none(name: str) -> None:
    mine = HostFunction(name, lambda x: (x,), lambda x: (x + 1,))
    function = trace("f", lambda x: list(host(mine, x)), [TensorType(types.FLOAT, (3,))])
    (host_value,) = [value for value in function.values if value.op == "host"]
    assert not has_kernel(host_value)


def test_sizes_are_counted_before_they_are_read() -> None:
    """The shipped detector: what it suppresses decides the sizes of what is chosen from other branches."""
    session = sardonyx.Session(demo.path("digits_detector"), compile="wait")
    assert session.native is not None
    expected = demo.outputs("digits_detector")
    actual = session.run(list(expected), demo.inputs("digits_detector"))
    for name, array in zip(expected, actual, strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-2)
