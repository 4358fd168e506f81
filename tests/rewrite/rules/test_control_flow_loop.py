"""Random Loops and Scans: trip counts known and open, state unused, unchanged or carried twice, nested bodies."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import Session, optimize
from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.rules.body_maker import BodyMaker, choose, condition

BOOL, FLOAT, INT64 = onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def trip_count(g: GraphMaker, shape: tuple[int, ...] = ()) -> str | None:
    count = np.full(shape, g.pick([0, 1, 1, 2, 3]), np.int64)
    return g.const(count) if g.chance(0.7) else g.input(shape, "int64", values=count, dynamic=False)


def flat(g: GraphMaker, name: str) -> str:
    """The value as a vector: the rank of what a body puts out may not be known, and outputs must tell theirs."""
    reshaped: str = g.node("Reshape", name, g.ints(-1))
    return reshaped


@generator(
    "eliminate_short_loop",
    "eliminate_unused_loop_state",
    "eliminate_unchanged_loop_state",
    "eliminate_duplicate_loop_state",
    "hoist_loop_invariant",
    "unroll_loop",
)
def loops(g: GraphMaker) -> None:
    shape = g.shape(g.int(0, 2), zero=0)
    x = g.input(shape, dynamic=False)
    pool = [x, g.node("Relu", x)]
    begins = (
        None if g.chance(0.4) else g.const(True) if g.chance() else condition(g) if g.chance() else g.const(g.chance())
    )
    if begins is not None and g.shape_of(begins):
        begins = g.node("Squeeze", begins)
    body = BodyMaker(g, pool)
    iteration, on = body.parameter(INT64, ()), body.parameter(BOOL, ())
    states = g.int(1, 3)
    parameters = [body.parameter(FLOAT, shape) for _ in range(states)]
    body.pool.extend(parameters)
    if g.chance(0.3):
        body.pool.append(body.node("Mul", parameters[0], body.node("Cast", iteration, to=1)))
    body.some(1, 4)
    if g.chance(0.2):
        goes_on = body.node("Less", iteration, body.const(np.int64(g.int(0, 2))))
    else:
        goes_on = body.const(g.chance(0.7)) if g.chance(0.3) else body.node("Identity", on)
    body.output(goes_on, BOOL)
    twice, messages = body.pool[-1], g.maybe(shape)
    for parameter in parameters:
        body.output(parameter if g.chance(0.3) else twice if g.chance(0.4) else g.pick(body.pool), FLOAT, messages)
    stacked = g.int(0, 2)
    for _ in range(stacked):
        body.output(g.pick(body.pool), FLOAT, messages)
    initial = [g.pick(pool) for _ in range(states)]
    actual = g.node("Loop", trip_count(g), begins, *initial, n_outputs=states + stacked, body=body.graph())
    actual = (actual,) if isinstance(actual, str) else actual
    for name in actual:
        if g.chance(0.6):
            g.output(flat(g, name) if messages is None or g.chance() else name)
    g.output(flat(g, actual[0]))


@generator("rewrite_growing_loop_state")
def growing_loops(g: GraphMaker) -> None:
    rank = g.int(1, 3)
    shape = g.shape(rank, zero=0)
    x = g.input(shape, dynamic=False)
    axis = g.int(0, rank)
    body = BodyMaker(g, [x])
    body.parameter(INT64, ())
    on, row, grown = body.parameter(BOOL, ()), body.parameter(FLOAT, shape), body.parameter(FLOAT)
    body.pool.append(row)
    body.some(1, 3)
    rows = 1 if g.chance(0.8) else 2
    added = body.node("Unsqueeze", body.pool[-1], body.const(np.array([axis]), "int64"))
    if rows > 1:
        added = body.node("Concat", added, added, axis=axis)
    ends = [grown, added] if g.chance(0.9) else [added, grown]
    joined = body.node("Concat", *ends, axis=g.pick([axis, axis - rank - 1]))
    if g.chance(0.1):
        joined = body.node("Relu", joined)
    body.output(body.node("Identity", on), BOOL)
    body.output(body.pool[-1], FLOAT, shape)
    body.output(joined)
    begin = g.const(np.zeros((*shape[:axis], g.int(0, 2), *shape[axis:]), np.float32))
    count = g.const(np.int64(g.int(2, 4))) if g.chance() else g.input((), "int64", values=np.int64(3), dynamic=False)
    actual = g.node("Loop", count, g.const(True), x, begin, n_outputs=2, body=body.graph())
    g.output(flat(g, actual[1]))
    if g.chance():
        g.output(flat(g, actual[0]))


@generator("eliminate_short_loop", "hoist_loop_invariant")
def loop_in_branch(g: GraphMaker) -> None:
    shape = g.shape(g.int(1, 2), zero=0)
    x = g.input(shape, dynamic=False)
    branches = [BodyMaker(g, [x]) for _ in range(2)]
    for branch in branches:
        branch.some(1, 2)
        body = BodyMaker(g, branch.pool, depth=2)
        body.parameter(INT64, ())
        on = body.parameter(BOOL, ())
        body.pool.append(body.parameter(FLOAT, shape))
        body.some(1, 3)
        body.output(body.node("Identity", on), BOOL)
        body.output(body.pool[-1])
        count = branch.const(np.int64(g.int(0, 2)))
        begin = branch.const(True)
        branch.output(branch.node("Loop", count, begin, branch.pool[-1], body=body.graph()))
    g.output(flat(g, choose(g, condition(g), branches)[0]))


@generator(
    "eliminate_unused_loop_state",
    "eliminate_unchanged_loop_state",
    "eliminate_duplicate_loop_state",
    "hoist_loop_invariant",
)
def scans(g: GraphMaker) -> None:
    length = g.int(1, 3)
    shape = g.shape(g.int(0, 2), zero=0)
    x = g.input(shape, dynamic=False)
    rows = g.input((length, *shape), dynamic=False)
    other = g.node("Relu", rows)
    body = BodyMaker(g, [x])
    states, sliced, stacked = g.int(0, 2), g.int(1, 3), g.int(1, 2)
    parameters = [body.parameter(FLOAT, shape) for _ in range(states + sliced)]
    body.pool.extend(parameters)
    body.some(1, 3)
    for parameter in parameters[:states]:
        body.output(parameter if g.chance(0.3) else g.pick(body.pool))
    for _ in range(stacked):
        body.output(g.pick(body.pool))
    directions = [g.int(0, 1) for _ in range(sliced)]
    actual = g.node(
        "Scan",
        *(x for _ in range(states)),
        *(g.pick([rows, other]) for _ in range(sliced)),
        n_outputs=states + stacked,
        num_scan_inputs=sliced,
        scan_input_directions=g.maybe(directions, 0.5),
        scan_output_directions=g.maybe([g.int(0, 1) for _ in range(stacked)], 0.3),
        body=body.graph(),
    )
    actual = (actual,) if isinstance(actual, str) else actual
    for name in actual:
        if g.chance(0.6):
            g.output(name if g.chance(0.3) else flat(g, name))
    g.output(flat(g, actual[-1]))


@generator("rewrite_scan_to_batch")
def elementwise_scans(g: GraphMaker) -> None:
    length = g.int(1, 4)
    shape = g.shape(g.int(0, 2), zero=0)
    rows = g.input((length, *shape), dynamic=g.chance(0.3))
    other = g.node("Neg", rows)
    captured = [g.input(shape[g.int(0, len(shape)) :], dynamic=False), g.const(2.0, "float32")]
    body = BodyMaker(g, [])
    sliced = [body.parameter(FLOAT) for _ in range(g.int(1, 2))]
    values = list(sliced)
    for _ in range(g.int(1, 3)):
        if g.chance():
            values.append(
                body.node(
                    g.pick(["Relu", "Neg", "Floor", "Tanh", "Softmax"] if shape else ["Relu", "Exp"]), g.pick(values)
                )
            )
        else:
            values.append(body.node(g.pick(["Add", "Mul", "Sub"]), g.pick(values), g.pick([*values, *captured])))
    stacked = g.int(1, 2)
    for _ in range(stacked):
        body.output(values[-1] if g.chance() else g.pick(values))
    ways = g.int(0, 1) if g.chance() else None
    actual = g.node(
        "Scan",
        *[rows, other][: len(sliced)],
        n_outputs=stacked,
        num_scan_inputs=len(sliced),
        scan_input_directions=None if ways is None else [ways] * len(sliced),
        scan_output_directions=None if ways is None else [ways] * stacked,
        body=body.graph(),
    )
    for name in (actual,) if isinstance(actual, str) else actual:
        g.output(flat(g, name))


@generator("hoist_body_initializers", "push_initializers_into_bodies")
def weights_in_bodies(g: GraphMaker) -> None:
    x = g.input((2, 3), dynamic=False)
    common = g.array((2, 3), special=False)
    outer = g.const(common + 1)
    branches = [BodyMaker(g, [x]) for _ in range(2)]
    for which, branch in enumerate(branches):
        held = branch.const(common if g.chance(0.7) else common + which)
        value = branch.node("Add", x, held)
        if which == 0 or g.chance():
            value = branch.node("Mul", value, outer)
        if g.chance(0.2):
            branch.output(held)
        else:
            branch.output(branch.node("Relu", value))
    g.output(flat(g, choose(g, condition(g), branches)[0]))


LABELS = [
    "eliminate_duplicate_loop_state",
    "eliminate_short_loop",
    "eliminate_unchanged_loop_state",
    "eliminate_unused_loop_state",
    "hoist_body_initializers",
    "hoist_loop_invariant",
    "push_initializers_into_bodies",
    "rewrite_growing_loop_state",
    "rewrite_scan_to_batch",
    "unroll_loop",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)


def test_unrolling_is_not_done_unless_asked() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x) => (float[2] y) <int64 three = {3}, bool on = {1}> {
            y = Loop (three, on, x) <body = b (int64 i, bool c, float[2] s) => (bool c2, float[2] s2) {
                c2 = Identity (c)
                s2 = Sin (s)
            }>
        }"""
    counts = {}
    for passes in (None, ["unroll_loop", "eliminate_deadend"]):
        model = model_io.from_proto(onnx.parser.parse_model(text))
        pipeline.transform(model, pipeline.select(passes=passes), Settings())
        counts[passes is None] = [node.op_type for node in model.graph.all_nodes()]
    assert counts[True] == ["Loop", "Identity", "Sin"]
    assert counts[False].count("Sin") == 3


GROWING = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[b, 4] x, int64 n) => (float[m, b, 4] out, float[b, k, 4] stacked, float[j, 4] joined) {
    zero = Constant<value_ints = [0]> ()
    shape = Shape (x)
    empty_shape = Concat<axis = 0> (zero, shape)
    empty = ConstantOfShape (empty_shape)
    none = SequenceEmpty<dtype = 1> ()
    out, sequence, rest, last = Loop (n, , empty, none, none, x) <body = body
        (int64 i, bool on, float[p, q, r] o, seq(float) s, seq(float) t, float[b, 4] y)
        => (bool on2, float[p2, q2, r2] o2, seq(float) s2, seq(float) t2, float[b, 4] y2) {
            on2 = Identity (on)
            y2 = Tanh (y)
            row = Unsqueeze (y2, zero)
            o2 = Concat<axis = 0> (o, row)
            s2 = SequenceInsert (s, y2)
            first = ReduceMax<axes = [0]> (y2)
            t2 = SequenceInsert (t, first)
        }>
    stacked = ConcatFromSequence<axis = 1, new_axis = 1> (sequence)
    joined = ConcatFromSequence<axis = 0> (rest)
}"""
"""A loop as exporters write one that appends to a tensor, or to lists that are stacked or joined."""


def test_what_grows_by_a_row_in_every_run_is_rows_put_out_as_slices() -> None:
    model = onnx.parser.parse_model(GROWING)
    actual = optimize(model, target="native")
    assert actual.report.verdict.status == "proved"
    assert not any("Sequence" in node.op_type for node in actual.model.graph.all_nodes())
    (loop,) = [node for node in actual.model.graph if node.op_type == "Loop"]
    assert len(loop.inputs) == 3
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    for runs in (1, 5):
        feeds = {"x": x, "n": np.int64(runs)}
        before, after = (Session(m, providers=["reference"]).run(None, feeds) for m in (model, actual.proto))
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a, b)


def test_rows_of_open_sizes_stay_where_the_body_may_never_run() -> None:
    """What an engine then makes of slices is its own affair."""
    actual = optimize(onnx.parser.parse_model(GROWING), verify=False)
    assert ("rewrite_growing_loop_state/joined_row_by_row", "out") in [refused[:2] for refused in actual.report.refused]


@pytest.mark.parametrize(
    ("joined", "reason"),
    [
        ("s2 = Concat<axis = 0> (s, two)", "not known to be one row"),
        ("a = Abs (s)\n s2 = Concat<axis = 0> (s, row)\n y2 = ReduceSum<keepdims = 0> (a)", None),
    ],
)
def test_a_state_that_is_read_or_grows_otherwise_is_carried(joined: str, reason: str | None) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float x, float[1, 3] row, float[2, 3] two, int64 n) => (float[m, 3] out, float y) {{
            out, y = Loop (n, , row, x) <body = body (int64 i, bool on, float[p, q] s, float z)
                => (bool on2, float[p2, q2] s2, float y2) {{
                on2 = Identity (on)
                {joined if "y2" in joined else joined + chr(10) + "y2 = Identity (z)"}
            }}>
        }}"""
    actual = optimize(onnx.parser.parse_model(text), verify=False)
    assert "rewrite_growing_loop_state" not in actual.report.by_pass()
    refused = [why for rule, _, why in actual.report.refused if rule.startswith("rewrite_growing_loop_state")]
    assert [reason in why for why in refused] == ([True] if reason else [])
