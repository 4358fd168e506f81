"""Random Loops and Scans: trip counts known and open, state unused, unchanged or carried twice, nested bodies."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.workspace import Settings
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
    if begins is not None and g._shapes[begins]:
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
    twice, told = body.pool[-1], g.maybe(shape)
    for parameter in parameters:
        body.output(parameter if g.chance(0.3) else twice if g.chance(0.4) else g.pick(body.pool), FLOAT, told)
    stacked = g.int(0, 2)
    for _ in range(stacked):
        body.output(g.pick(body.pool), FLOAT, told)
    initial = [g.pick(pool) for _ in range(states)]
    found = g.node("Loop", trip_count(g), begins, *initial, n_outputs=states + stacked, body=body.graph())
    found = (found,) if isinstance(found, str) else found
    for name in found:
        if g.chance(0.6):
            g.output(flat(g, name) if told is None or g.chance() else name)
    g.output(flat(g, found[0]))


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
    found = g.node(
        "Scan",
        *(x for _ in range(states)),
        *(g.pick([rows, other]) for _ in range(sliced)),
        n_outputs=states + stacked,
        num_scan_inputs=sliced,
        scan_input_directions=g.maybe(directions, 0.5),
        scan_output_directions=g.maybe([g.int(0, 1) for _ in range(stacked)], 0.3),
        body=body.graph(),
    )
    found = (found,) if isinstance(found, str) else found
    for name in found:
        if g.chance(0.6):
            g.output(name if g.chance(0.3) else flat(g, name))
    g.output(flat(g, found[-1]))


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
    found = g.node(
        "Scan",
        *[rows, other][: len(sliced)],
        n_outputs=stacked,
        num_scan_inputs=len(sliced),
        scan_input_directions=None if ways is None else [ways] * len(sliced),
        scan_output_directions=None if ways is None else [ways] * stacked,
        body=body.graph(),
    )
    for name in (found,) if isinstance(found, str) else found:
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
