"""Control flow: branches of several shapes, loops without iterations, scans along any axis and of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.errors import InvalidModelError, ResourceError, ShapeError
from sardonyx.runtime import Session


def model(text: str, opset: int = 16) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')


def run(text: str, opset: int = 16, **feeds: Any) -> list[Any]:
    return Session(model(text, opset)).run(None, feeds)


@pytest.mark.parametrize("condition", [np.array(True), np.array([True])])
def test_branches_may_differ_in_shape_and_rank(condition: np.ndarray) -> None:
    text = f"""g (bool{"[1]" if condition.ndim else ""} c, float[3] x) => (y) {{
        y = If<then_branch = a () => (float[3] p) {{ p = Neg(x) }},
               else_branch = b () => (float q) {{ q = ReduceSum<keepdims = 0>(x) }}>(c) }}"""
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(run(text, c=condition, x=x)[0], -x)
    assert run(text, c=~condition, x=x)[0] == 3


@pytest.mark.parametrize("mode", ["off", "wait"])
@pytest.mark.parametrize("condition", ["fed", "fixed", "counted"])
def test_a_node_for_one_branch_fails_only_with_the_branch(mode: Any, condition: str) -> None:
    sources = {"fed": "", "fixed": "c = Constant<value = bool {0}>()", "counted": "k = Size(x)  c = Less(k, one)"}
    text = f"""g (float[N] x, float[M] w{", bool c" if condition == "fed" else ""}) => (y) <int64 one = {{1}}> {{
        shared = Abs(x)  copy = Neg(shared)  wrong = Add(shared, w)  picked = NonZero(wrong)  {sources[condition]}
        some = If<then_branch = a () => (float[K] p) {{ r = Gather(wrong, picked)  p = Reshape(r, minus) }},
                  else_branch = b () => (float[N] q) {{ q = Neg(copy) }}>(c)
        y = Sub(some, copy) }}"""
    text = text.replace("{1}>", "{1}, int64[1] minus = {-1}>")
    x, w = np.ones(2, np.float32), np.ones(3, np.float32)
    session = Session(model(text), compile=mode)
    feeds = {"x": x, "w": w} | ({"c": np.array(False)} if condition == "fed" else {})
    np.testing.assert_array_equal(session.run(None, feeds)[0], 2 * x)
    if condition != "fixed":
        first_branch = {"c": np.array(True)} if condition == "fed" else {"x": np.ones(0, np.float32)}
        with pytest.raises(ShapeError, match="wrong"):
            session.run(None, feeds | first_branch)
    if condition == "fed":
        np.testing.assert_array_equal(session.run(None, {"x": x, "w": x, "c": np.array(True)})[0], 3 * x)


@pytest.mark.parametrize("mode", ["off", "wait"])
def test_a_node_for_one_branch_is_still_an_output_by_name(mode: Any) -> None:
    text = """g (float[2] x, bool c) => (y) {
        z = Add(x, x)  y = If<then_branch = a () => (float[2] p) { p = Neg(z) },
                              else_branch = b () => (float[2] q) { q = Identity(x) }>(c) }"""
    x = np.ones(2, np.float32)
    session = Session(model(text), compile=mode)
    y, z = session.run(["y", "z"], {"x": x, "c": np.array(False)})
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, 2 * x)


@pytest.mark.parametrize("mode", ["off", "wait"])
@pytest.mark.parametrize("known", [True, False])
def test_a_node_for_branches_of_several_choices_fails_only_with_one(mode: Any, known: bool) -> None:
    first = "c = Constant<value = bool {0}>()" if known else "c = Identity(d)"
    text = f"""g (float[2] x, int64[1] s, bool d) => (y, z) {{
        {first}  half = Abs(x)  wrong = Reshape(half, s)  twice = Add(wrong, wrong)
        y = If<then_branch = a () => (float p) {{ p = ReduceSum<keepdims = 0>(wrong) }},
               else_branch = b () => (float q) {{ q = ReduceSum<keepdims = 0>(x) }}>(c)
        z = If<then_branch = e () => (float r) {{ r = ReduceMax<keepdims = 0>(twice) }},
               else_branch = f () => (float t) {{ t = ReduceMax<keepdims = 0>(x) }}>(d) }}"""
    x, fits, wrong = np.ones(2, np.float32), np.array([2]), np.array([3])
    session = Session(model(text), compile=mode)
    assert session.run(None, {"x": x, "s": wrong, "d": np.array(False)}) == [2, 1]
    assert session.run(None, {"x": x, "s": fits, "d": np.array(True)}) == [2, 2]
    with pytest.raises(ShapeError, match="wrong"):
        session.run(None, {"x": x, "s": wrong, "d": np.array(True)})


@pytest.mark.parametrize("other", ["x", "y"])
def test_a_long_chain_of_choices_does_not_nest(other: str) -> None:
    """Each choice is read by branches of the next one alone."""
    links = [
        f"y{k + 1} = If<then_branch = a{k} () => (float[2] p{k}) {{ p{k} = Neg(y{k}) }},"
        f" else_branch = b{k} () => (float[2] q{k}) {{ q{k} = Identity({'x' if other == 'x' else f'y{k}'}) }}>(c)"
        for k in range(300)
    ]
    text = f"g (float[2] x, bool c) => (float[2] y300) {{ y0 = Abs(x) {' '.join(links)} }}"
    session = Session(model(text), compile="off")
    np.testing.assert_array_equal(session.run(None, {"x": np.ones(2, np.float32), "c": np.array(True)})[0], [1, 1])


LOOP = """g (int64{one} n, bool{one} c, float[2] x) => (y, s) {{
    y, s = Loop<body = b (int64{one} i, bool{one} go, float[2] a) => (bool{one} more, float[2] d, float[2] e) {{
        limit = Constant<value_float = 10.0>()
        d = Add(a, a)  e = Neg(a)  top = ReduceMax<keepdims = {keep}>(d)  more = Less(top, limit) }}>({n}, {c}, x) }}"""


@pytest.mark.parametrize("one", ["", "[1]"])
@pytest.mark.parametrize(
    ("count", "condition", "trips"),
    [(2, True, 2), (9, True, 4), (0, True, 0), (3, False, 0), (6, None, 6), (None, True, 4)],
)
def test_loops_end_by_count_and_by_condition(one: str, count: int | None, condition: bool | None, trips: int) -> None:
    text = LOOP.format(
        one=one, keep=int(bool(one)), n='""' if count is None else "n", c='""' if condition is None else "c"
    )
    x = np.ones(2, np.float32)
    shape = (1,) if one else ()
    feeds: dict[str, Any] = {"n": np.full(shape, count or 0, np.int64), "c": np.full(shape, bool(condition)), "x": x}
    y, s = run(text, **feeds)
    np.testing.assert_array_equal(y, x * 2**trips)
    np.testing.assert_array_equal(s, -np.array([x * 2**i for i in range(trips)], np.float32).reshape(trips, 2))


def test_a_loop_may_carry_a_sequence_and_grow_a_tensor() -> None:
    text = """g (int64 n) => (y, s) {
        x = Constant<value_floats = [1.0]>()  e = SequenceEmpty()
        y, s = Loop<body = b (int64 i, bool go, float[M] a, seq(float[]) r) => (bool go2, float[K] d, seq(float[]) q) {
            go2 = Identity(go)  d = Concat<axis = 0>(a, a)  q = SequenceInsert(r, a) }>(n, , x, e) }"""
    y, s = run(text, n=np.array(3))
    assert y.shape == (8,) and [a.shape for a in s] == [(1,), (2,), (4,)]


def test_an_endless_loop_reaches_the_limit() -> None:
    text = LOOP.format(one="", keep=0, n='""', c='""')
    session = Session(model(text), max_loop_iterations=5)
    with pytest.raises(ResourceError, match="5 iterations"):
        session.run(None, {"n": np.array(0), "c": np.array(True), "x": np.ones(2, np.float32)})


def test_a_mismatched_body_is_refused() -> None:
    text = """g (int64 n, float x) => (y) {
        y = Loop<body = b (int64 i, bool go) => (bool more, float d) { more = Identity(go)  d = Neg(x) }>(n, , x) }"""
    with pytest.raises(InvalidModelError, match="node "):
        run(text, n=np.array(2), x=np.float32(1))


SCAN = """g (float[N,2] h, float[A,B,2] x, float[D,B,2] z) => (last, y) {{
    last, y = Scan<num_scan_inputs = 2, {attributes} body = b (float[N,2] s, float[C,2] p, float[C,2] q) =>
        (float[N,2] t, float[C,2] o) {{ t0 = Add(s, p)  t = Add(t0, q)  o = Sub(t, q) }}>(h, x, z) }}"""


@pytest.mark.parametrize("axes", [(0, 0), (1, 0)])
@pytest.mark.parametrize("backward", [(0, 0), (0, 1)])
@pytest.mark.parametrize(("out_axis", "out_backward"), [(0, 0), (1, 1), (-1, 0)])
def test_scans_run_along_any_axis_in_both_directions(
    axes: tuple[int, int], backward: tuple[int, int], out_axis: int, out_backward: int
) -> None:
    attributes = f"scan_input_axes = {list(axes)}, scan_input_directions = {list(backward)}, "
    attributes += f"scan_output_axes = [{out_axis}], scan_output_directions = [{out_backward}], "
    rng = np.random.default_rng(0)
    h, x, z = (rng.integers(0, 9, (3, 2) if i == 0 else (3, 3, 2)).astype(np.float32) for i in range(3))
    rows = [np.moveaxis(v, axis, 0)[:: -1 if back else 1] for v, axis, back in zip((x, z), axes, backward, strict=True)]
    state, collected = h, []
    for p, q in zip(*rows, strict=True):
        state = state + p + q
        collected.append(state - q)
    expected = np.moveaxis(np.array(collected)[:: -1 if out_backward else 1], 0, out_axis)
    last, y = run(SCAN.format(attributes=attributes), h=h, x=x, z=z)
    np.testing.assert_array_equal(last, state)
    np.testing.assert_array_equal(y, expected)


def test_scanned_sequences_must_have_one_length() -> None:
    with pytest.raises(ShapeError, match="expected scanned sequences of one length"):
        x = np.ones((2, 3, 2), np.float32)
        run(SCAN.format(attributes=""), h=np.ones((3, 2), np.float32), x=x, z=x[:1])


def test_the_first_scan_accepts_a_batch_and_lengths() -> None:
    text = """g (int64[B] n, float[B,2] h, float[B,S,2] x) => (last, y) {
        last, y = Scan<num_scan_inputs = 1, directions = [1], body = b (float[2] s, float[2] p) =>
            (float[2] t, float[2] o) { t = Add(s, p)  o = Neg(p) }>(n, h, x) }"""
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    last, y = run(text, opset=8, n=np.array([2, 3]), h=np.zeros((2, 2), np.float32), x=x)
    np.testing.assert_array_equal(last, [x[0, :2].sum(0), x[1].sum(0)])
    np.testing.assert_array_equal(y, [[*-x[0, 1::-1], [0, 0]], -x[1, ::-1]])


def test_a_loop_without_iterations_gives_no_rows() -> None:
    text = """g (int64 n, seq(float[]) s) => (y) {
        y = Loop<body = b (int64 i, bool go) => (bool more, float[3] d) {
            more = Identity(go)  x = SequenceAt(s, i)  d = Neg(x) }>(n, ) }"""
    (y,) = run(text, n=np.array(0), s=[])
    assert y.shape == (0, 3) and y.dtype == np.float32


def test_a_loop_unwraps_a_carried_optional() -> None:
    text = """g (int64 n, optional(seq(float[K])) o) => (seq(float[K]) y) {
        y = Loop<body = b (int64 i, bool go, optional(seq(float[K])) a) => (bool more, seq(float[K]) d) {
            more = Identity(go)  has = OptionalHasElement(a)
            s = If<then_branch = t () => (seq(float[K]) p) { p = OptionalGetElement(a) },
                   else_branch = e () => (seq(float[K]) p) { p = SequenceEmpty() }>(has)
            x = Constant<value_floats = [1.0]>()  d = SequenceInsert(s, x) }>(n, , o) }"""
    assert len(run(text, opset=18, n=np.array(2), o=None)[0]) == 2
    assert len(run(text, opset=18, n=np.array(2), o=[np.zeros(3, np.float32)])[0]) == 3
