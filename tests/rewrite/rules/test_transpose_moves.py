"""Random graphs of Transposes among operators that they can move through, and the Transposes that remain."""

from __future__ import annotations

import contextlib
import itertools
import random

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.analysis.minimum_cut import Network
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.rules import axis_permutations
from tests.rewrite.fuzz import Generator, GraphMaker, Unsuitable, check, generator, run_many
from tests.rewrite.models import transformed

UNARY = ["Relu", "Sigmoid", "Neg", "Abs", "Exp", "Tanh", "LeakyRelu", "Identity", "Floor", "Softsign"]
BINARY = ["Add", "Mul", "Sub", "Div", "Max", "Min", "Add", "Mul", "PRelu", "Mean"]


def _other(g: GraphMaker, shape: tuple[int, ...], order: list[int]) -> str:
    """Return a second operand: transposed like the first, not transposed, or a constant that broadcasts."""
    kind = g.int(0, 4)
    if kind == 0:
        return g.node("Transpose", g.input(tuple(shape[order.index(a)] for a in range(len(shape)))), perm=order)
    if kind == 1:
        return g.input(shape if g.chance(0.7) else tuple(1 if g.chance() else size for size in shape))
    if kind == 2:
        return g.weight(tuple(shape[g.int(0, len(shape)) :]))
    if kind == 3:
        return g.weight(tuple(1 if g.chance() else size for size in shape))
    return g.input(shape[g.int(1, len(shape)) :]) if g.chance() else g.weight(())


def _step(g: GraphMaker, x: str, shape: tuple[int, ...], order: list[int]) -> tuple[str, tuple[int, ...]]:
    """Apply one operator to ``x`` of this shape, transposed by ``order``; return the result and its shape."""
    kind = g.int(0, 8)
    axis = g.int(0, len(shape) - 1)
    written = axis - len(shape) if g.chance() else axis
    if kind <= 1:
        return g.node(g.pick(UNARY), x), shape
    if kind <= 3:
        sides = [x, _other(g, shape, order)]
        op = g.pick(BINARY)
        if op != "PRelu" and g.chance(0.3):
            sides.reverse()
        return g.node(op, *sides), shape
    if kind == 4:
        many = [x] + [_other_part(g, shape, order) for _ in range(g.int(1, 2))]
        return g.node("Concat", *many, axis=written), _with(shape, axis, shape[axis] * len(many))
    if kind == 5:
        begin, end = g.pick([0, 0, -1]), g.int(1, 5) if g.chance() else 9
        if begin < 0:
            end = 9
        operands = [g.ints(begin), g.ints(end)] + ([g.ints(written)] if axis or g.chance() else [])
        return g.node("Slice", x, *operands), _with(shape, axis, len(range(shape[axis])[begin:end]))
    if kind == 6:
        pads = [g.int(0, 2) if g.chance(0.4) else 0 for _ in range(2 * len(shape))]
        grown = tuple(size + pads[i] + pads[i + len(shape)] for i, size in enumerate(shape))
        mode = g.pick(["constant", "constant", None])
        return g.node("Pad", x, g.ints(*pads), g.const(np.float32(0.5)) if g.chance() else None, mode=mode), grown
    if kind == 7 and g.opset >= 13:
        return g.node(g.pick(["Softmax", "LogSoftmax"]), x, axis=written), shape
    parts = g.int(1, 2)
    if shape[axis] % parts or parts == 1:
        if not shape[axis]:
            raise Unsuitable("nothing to gather")
        index = g.pick([[0], [0, -1]])
        return g.node("Gather", x, g.ints(*index), axis=written), _with(shape, axis, len(index))
    halves = g.node("Split", x, n_outputs=2, axis=written, num_outputs=2 if g.opset >= 18 else None)
    if g.chance(0.3):
        g.output(halves[1])
    return halves[0], _with(shape, axis, shape[axis] // 2)


def _other_part(g: GraphMaker, shape: tuple[int, ...], order: list[int]) -> str:
    if g.chance(0.6):
        return g.node("Transpose", g.input(tuple(shape[order.index(a)] for a in range(len(shape)))), perm=order)
    return g.input(shape) if g.chance() else g.weight(shape)


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _ended(g: GraphMaker, x: str, shape: tuple[int, ...], back: list[int]) -> str:
    """Transpose back, reduce, squeeze, or leave."""
    kind = g.int(0, 6)
    rank = len(shape)
    if kind <= 2:
        return g.node("Transpose", x, perm=back if g.chance(0.8) else g.permutation(rank))
    along = sorted({g.int(0, rank - 1) for _ in range(g.int(1, 2))})
    written = [axis - rank if g.chance() else axis for axis in along]
    if kind == 3:
        keeps = g.maybe(g.int(0, 1))
        op = g.pick(["ReduceMax", "ReduceMean", "ReduceSum", "ReduceL2", "ReduceMin"])
        if op in ("ReduceMax", "ReduceMin") and g.chance(0.7) and not g.special:
            x = g.node("Cast", x, to=onnx.TensorProto.INT32)
        if g.opset >= 18 or (op == "ReduceSum" and g.opset >= 13):
            return g.node(op, x, g.ints(*written), keepdims=keeps)
        return g.node(op, x, axes=written, keepdims=keeps)
    if kind == 4:
        x = g.node("Cast", x, to=onnx.TensorProto.INT64) if g.chance(0.8) and not g.special else x
        return g.node(g.pick(["ArgMax", "ArgMin"]), x, axis=written[0], keepdims=g.maybe(g.int(0, 1)))
    if kind == 5:
        if not shape[along[0]]:
            raise Unsuitable("nothing to gather")
        return g.node("Gather", x, g.const(np.int64(g.pick([0, -1]))), axis=written[0])
    if all(shape[axis] == 1 for axis in along) and g.chance():
        x = g.node("Squeeze", x, g.ints(*written))
        return g.node("Relu", x)
    grown = g.node("Unsqueeze", x, g.ints(*sorted({axis % (rank + 1) for axis in along})))
    return g.node("Transpose", grown) if g.chance() else g.node("Neg", grown)


@generator("move_transposes")
def among_operators(g: GraphMaker) -> None:
    g.opset = g.pick([13, 17, 18, 21])
    rank = g.int(2, 4)
    inner = g.shape(rank, zero=0.01)
    order = [int(i) for i in g.rng.permutation(rank)]
    back = [order.index(axis) for axis in range(rank)]
    x = g.node("Transpose", g.input(inner), perm=order if order != list(range(rank))[::-1] or g.chance() else None)
    shape = tuple(inner[axis] for axis in order)
    for _ in range(g.int(0, 4)):
        g.read_again(x, 0.1)
        if g.chance(0.1):
            g.output(g.node("Transpose", x, perm=back))
        x, shape = _step(g, x, shape, order)
    g.output(_ended(g, x, shape, back))


@generator("move_transposes")
def joined_branches(g: GraphMaker) -> None:
    """Residual networks in the other layout: branches fork, join, and are transposed back at several points."""
    rank = g.int(3, 4)
    outer = g.shape(rank, low=2, zero=0)
    order = g.pick([[0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]])
    back = [order.index(axis) for axis in range(rank)]

    inner = tuple(outer[back[axis]] for axis in range(rank))
    names = ["N", None, None, None][:rank] if g.chance(0.3) else None
    dims = None if names is None else [name or size for name, size in zip(names, inner, strict=True)]
    alive = [g.node("Transpose", g.input(inner, dims=dims, dynamic=False), perm=order) for _ in range(g.int(1, 3))]
    if g.chance(0.2):
        alive.append(g.input(outer, dims=None if dims is None else [dims[axis] for axis in order], dynamic=False))
    for _ in range(g.int(1, 5)):
        left, right = g.pick(alive), g.pick(alive)
        joined = g.node(g.pick(["Add", "Mul", "Sub", "Max"]), left, right) if g.chance(0.6) else g.node("Relu", left)
        alive.append(joined)
        if g.chance(0.3):
            g.output(g.node("Transpose", joined, perm=back))
        g.read_again(joined, 0.05)
    g.output(g.node("Transpose", alive[-1], perm=back) if g.chance(0.8) else alive[-1])


@generator("move_transposes")
def beside_casts(g: GraphMaker) -> None:
    """The bytes are fewer on the narrower side of a Cast."""
    rank = g.int(2, 4)
    shape = g.shape(rank, low=2, zero=0)
    order = [int(i) for i in g.rng.permutation(rank)]
    small, large = g.pick(
        [(onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT), (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)]
    )
    names = {onnx.TensorProto.UINT8: "uint8", onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.FLOAT: "float32"}
    g.special = False
    if g.chance():
        wide = g.node("Cast", g.input(shape, names[small]), to=large)
        wide = g.node("Mul", wide, g.weight((1,) * g.int(0, rank))) if g.chance() else wide
        g.read_again(wide, 0.1)
        g.output(g.node("Transpose", wide, perm=order))
    elif g.chance():
        axis = g.int(0, rank - 1)
        scale = g.const(np.float32(0.5) if g.chance() else np.full(shape[axis], 0.25, np.float32))
        x = g.input(shape, "uint8")
        wide = g.node("DequantizeLinear", x, scale, axis=axis if g.chance() else axis - rank)
        g.output(g.node("Transpose", wide, perm=order))
    else:
        x = g.node("Transpose", g.input(shape, dynamic=False), perm=order)
        scale, zero = g.const(np.float32(0.1)), g.const(np.uint8(100))
        g.output(g.node("QuantizeLinear", x, scale, zero) if g.chance() else g.node("Cast", x, to=small))
        g.special = False


@generator("move_transposes")
def beside_repeats(g: GraphMaker) -> None:
    """A Transpose after repetition moves before the repetition."""
    rank = g.int(2, 4)
    shape = g.shape(rank, zero=0)
    order = [int(i) for i in g.rng.permutation(rank)]
    x = g.input(shape)
    if g.chance():
        x = g.node("Tile", x, g.ints(*[g.int(1, 3) for _ in shape]))
    else:
        grown = [size if size != 1 else g.int(1, 4) for size in shape]
        x = g.node("Expand", x, g.ints(*grown[g.int(0, 1) if shape[0] == grown[0] else 0 :]))
    g.output(g.node("Transpose", x, perm=order))


@generator("move_transposes")
def around_products(g: GraphMaker) -> None:
    """Permuted batches, or both operands transposed, and the product transposed back."""
    rank = g.int(2, 4)
    batch = g.shape(rank - 2, zero=0)
    m, k, n = (g.int(1, 4) for _ in range(3))
    order = list(range(rank))
    lead, last = order[:-2], order[-2:]
    kind = g.int(0, 3)
    if kind == 0:
        last.reverse()
    elif kind == 1:
        lead = [int(i) for i in g.rng.permutation(lead)]
    elif kind == 2:
        lead = [int(i) for i in g.rng.permutation(rank - 1)]
        lead, last = lead[:-1], [lead[-1], rank - 1]
    else:
        lead, last = lead[::-1], last[::-1]
    order = [*lead, *last]
    back = [order.index(axis) for axis in range(rank)]

    def held(shape: tuple[int, ...]) -> str:
        if g.chance(0.2):
            return g.weight(shape)
        return g.node("Transpose", g.input(tuple(shape[axis] for axis in back), dynamic=g.chance(0.2)), perm=order)

    left, right = (*batch, m, k), (*batch, k, n)
    other = g.chance(0.3)
    if other and rank > 2:
        right = (k, n)
    a = held(left)
    b = g.weight(right) if len(right) < rank else held(right)
    if other and g.chance(0.3) and rank > 2:
        a, b = g.weight((m, k)), held((*batch, k, n))
    y = g.node("MatMul", a, b)
    if g.chance(0.4):
        y = g.node("Relu", y)
    g.read_again(y, 0.1)
    g.output(g.node("Transpose", y, perm=back) if g.chance(0.9) else y)


@generator("move_transposes")
def around_pools(g: GraphMaker) -> None:
    """Images transposed, pooled and transposed back; whether a maximum keeps a NaN depends on its position."""
    g.nan = g.empty = False
    axes = g.int(1, 3)
    outer = (g.int(1, 2), g.int(1, 3), *[g.int(4, 6) for _ in range(axes)])
    lead = g.pick([[0, 1], [1, 0]])
    order = [*lead, *[2 + int(i) for i in g.rng.permutation(axes)]]
    back = [order.index(axis) for axis in range(axes + 2)]
    x = g.node("Transpose", g.input(outer, dynamic=g.chance(0.2)), perm=order)
    op = g.pick(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"])
    attrs: dict[str, object] = {}
    if not op.startswith("Global"):
        kernel = [g.int(2, 3) for _ in range(axes)]
        attrs = {"kernel_shape": kernel, "strides": g.maybe([g.int(1, 2) for _ in kernel])}
        if g.chance():
            attrs["pads"] = [g.int(0, 1) for _ in range(2 * axes)]
        elif g.chance(0.3):
            attrs["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
        if op == "MaxPool":
            attrs |= {"dilations": g.maybe([g.int(1, 2) for _ in kernel], 0.2), "ceil_mode": g.maybe(1, 0.2)}
        if op == "AveragePool":
            attrs["count_include_pad"] = g.maybe(1, 0.3)
    y = g.node(op, x, **attrs)
    g.output(g.node("Transpose", y, perm=back) if g.chance(0.9) else y)


@generator("move_transposes")
def around_resized(g: GraphMaker) -> None:
    """Images resized between two Transposes, or with two axes swapped."""
    g.opset = g.pick([13, 18, 19, 21])
    outer = (g.int(1, 2), g.int(1, 3), g.int(2, 4), g.int(2, 4))
    order = g.pick([[0, 2, 3, 1], [0, 1, 3, 2], [0, 3, 1, 2], [1, 0, 2, 3]])
    back = [order.index(axis) for axis in range(4)]
    x = g.node("Transpose", g.input(outer, dynamic=g.chance(0.2)), perm=order)
    shape = [outer[axis] for axis in order]
    scaled = g.pick([{order.index(2), order.index(3)}, {order.index(2), order.index(3)}, {2, 3}])
    mode = g.pick(["nearest", "nearest", "linear", "cubic"])
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": g.pick(["half_pixel", "asymmetric", "align_corners"]),
        "nearest_mode": g.maybe("floor"),
    }
    scales = [g.pick([2.0, 1.5, 0.5]) if axis in scaled else 1.0 for axis in range(4)]
    sizes = [max(1, int(size * scale)) for size, scale in zip(shape, scales, strict=True)]
    on = sorted(scaled) if g.opset >= 18 and g.chance(0.4) else None
    if on is not None:
        scales, sizes = [scales[axis] for axis in on], [sizes[axis] for axis in on]
    if g.chance():
        y = g.node("Resize", x, None, g.const(np.array(scales, np.float32)), axes=on, **attrs)
    else:
        y = g.node("Resize", x, None, None, g.ints(*sizes), axes=on, **attrs)
    g.output(g.node("Transpose", y, perm=back) if g.chance(0.9) else y)


def test_moved_transposes_keep_every_output() -> None:
    run_many("move_transposes", 80)


@pytest.mark.parametrize("make", [around_products, around_pools, around_resized], ids=lambda make: make.__name__)
def test_products_pools_and_resized_images_keep_every_output(make: Generator) -> None:
    fired = checked = seed = 0
    while checked < 200:
        seed += 1
        with contextlib.suppress(Unsuitable):
            fired += check("move_transposes", make, seed)
            checked += 1
    assert fired > 60


def settled(body: str, opset: int = 13) -> Engine:
    return transformed(f"g {body}", opset)


def transposes(engine: Engine) -> int:
    return sum(node.op_type == "Transpose" for node in engine.model.graph)


IN, OUT = "Transpose <perm = [0, 2, 3, 1]>", "Transpose <perm = [0, 3, 1, 2]>"

NONE_LEFT = {
    "a chain": f"(float[2,3,4,5] x) => (float[2,3,4,5] y) {{ a = {IN}(x) b = Relu(a) c = Sigmoid(b) y = {OUT}(c) }}",
    "a bias": (
        "(float[2,3,4,5] x) => (float[2,3,4,5] y) <float[3] k = {1, 2, 3}>"
        f" {{ a = {IN}(x) b = Add(a, k) c = Exp(b) y = {OUT}(c) }}"
    ),
    "a residual": (
        "(float[N,3,4,5] x, float[N,3,4,5] z) => (float[N,3,4,5] y, float[N,3,4,5] w)"
        f" {{ a = {IN}(x) b = {IN}(z) c = Add(a, b) d = Relu(c) y = {OUT}(d) e = Mul(d, a) w = {OUT}(e) }}"
    ),
    "a mean over the image": (
        "(float[2,3,4,5] x) => (float[2,3] y)"
        f" {{ a = {IN}(x) b = Abs(a) y = ReduceMean <axes = [1, 2], keepdims = 0>(b) }}"
    ),
    "a product of heads in the other order": (
        "(float[2,3,4,5] x, float[2,3,5,6] z) => (float[2,3,4,6] y)"
        " { a = Transpose <perm = [1, 0, 2, 3]>(x) b = Transpose <perm = [1, 0, 2, 3]>(z) c = MatMul(a, b)"
        " y = Transpose <perm = [1, 0, 2, 3]>(c) }"
    ),
    "a pool of a turned image": (
        "(float[2,3,4,6] x) => (float[2,3,2,3] y) { a = Transpose <perm = [0, 1, 3, 2]>(x)"
        " b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]>(a) y = Transpose <perm = [0, 1, 3, 2]>(b) }"
    ),
    "an image resized in the other layout": (
        "(float[2,3,4,5] x) => (float[2,3,8,10] y) <float[4] s = {1, 2, 2, 1}>"
        f' {{ a = {IN}(x) b = Resize <mode = "nearest">(a, , s) y = {OUT}(b) }}'
    ),
    "a padded concat of slices": (
        "(float[2,3,6,5] x) => (float[2,6,8,5] y)"
        " <int64[8] pads = {0, 1, 0, 0, 0, 1, 0, 0}>"
        f" {{ a = {IN}(x) p = Pad(a, pads) b = Neg(p) c = Concat <axis = -1>(p, b) y = {OUT}(c) }}"
    ),
}


@pytest.mark.parametrize("body", NONE_LEFT.values(), ids=NONE_LEFT)
def test_transposes_that_undo_each_other_meet(body: str) -> None:
    engine = settled(body)
    assert transposes(engine) == 0
    assert any(applied.rule == "move_transposes" for applied in engine.applied)


def test_one_transpose_follows_two() -> None:
    engine = settled(
        f"(float[2,3,4,5] x, float[2,3,4,5] z) => (float[2,4,5,3] y) {{ a = {IN}(x) b = {IN}(z) y = Add(a, b) }}"
    )
    assert [node.op_type for node in engine.model.graph] == ["Add", "Transpose"]


def test_only_the_part_that_pays_is_permuted() -> None:
    """Other operands that are computed in the layout without Transposes stay in it."""
    engine = settled(
        "(float[2,3,4,5] x, float[2,4,5,3] z, float[2,4,5,3] u) => (float[2,3,4,5] y, float[2,4,5,3] w)"
        f" {{ a = {IN}(x) b = Relu(a) y = {OUT}(b) c = Mul(b, z) w = Sub(c, u) }}"
    )
    assert transposes(engine) == 1
    assert next(node for node in engine.model.graph if node.op_type == "Relu").inputs[0] is engine.model.graph.inputs[0]


def test_bytes_are_moved_where_they_are_few() -> None:
    engine = settled(f"(uint8[2,4,5,3] x) => (float[2,3,4,5] y) {{ a = Cast <to = 1>(x) y = {OUT}(a) }}")
    assert [node.op_type for node in engine.model.graph] == ["Transpose", "Cast"]


REFUSED = {
    "nothing is saved": f"(float[2,3,4,5] x) => (float[2,4,5,3] y) {{ a = {IN}(x) y = Relu(a) }}",
    "the other side needs as many": (
        "(float[2,3,4,5] x, float[2,4,5,3] z, float[2,4,5,3] u) => (float[2,3,4,5] y)"
        f" {{ a = {IN}(x) b = Add(a, z) c = Mul(b, u) y = {OUT}(c) }}"
    ),
    "one Transpose stands between the operands": (
        "(float[3,4,8] x) => (float[4,4,3] y)"
        " { a = Transpose <perm = [0, 2, 1]>(x) b = MatMul(x, a) y = Transpose <perm = [1, 2, 0]>(b) }"
    ),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_nothing_moves_without_a_saving(body: str) -> None:
    engine = settled(body)
    assert not engine.applied
    reasons = [why for (rule, _), why in engine.refused.items() if rule == "move_transposes"]
    assert reasons and all("would save no bytes" in why for why in reasons)


@pytest.mark.parametrize(("opset", "moves"), [(19, False), (21, True)])
def test_transposes_move_only_to_types_that_transpose_accepts(opset: int, moves: bool) -> None:
    """8-bit floats, which take fewer bytes to transpose, are types of Transpose from operator set 21 on."""
    body = """f (float[N, 64, 96] x) => (float[N, 96, 64] y) {
        t = Transpose <perm = [0, 2, 1]> (x)
        q = QuantizeLinear (t, scale, zero)
        y = DequantizeLinear (q, scale, zero)
    }"""
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    engine = transformed(body, opset, scale=np.float32(0.25), zero=zero)
    order = [node.op_type for node in engine.model.graph]
    assert (order.index("Transpose") > order.index("QuantizeLinear")) == moves
    onnx.checker.check_model(ir.to_proto(engine.model), full_check=True)


def test_softmax_stays_along_the_last_axis() -> None:
    body = f"(float[2,3,4,5] x) => (float[2,3,4,5] y) {{ a = {IN}(x) b = Softmax <axis = -1>(a) y = {OUT}(b) }}"
    assert transposes(settled(body)) == 2


def test_a_second_run_moves_nothing() -> None:
    for seed, make in itertools.product(range(40), (among_operators, joined_branches, beside_casts)):
        maker = GraphMaker(seed)
        try:
            make(maker)
            proto = maker.model()
        except Unsuitable:
            continue
        engine = pipeline.transform(model_io.from_proto(proto), pipeline.select(), Settings())
        again = pipeline.transform(engine.model, pipeline.select(), Settings())
        moved = [applied for applied in again.applied if applied.rule == "move_transposes"]
        assert not moved, f"seed {seed}, {make.__name__}"


def test_a_minimum_cut_costs_no_more_than_any_other() -> None:
    draw = random.Random(0)
    for _ in range(60):
        network = Network()
        vertices = [0, 1, *(network.add_vertex() for _ in range(draw.randint(0, 5)))]
        edges = [(draw.choice(vertices), draw.choice(vertices), draw.randint(0, 9)) for _ in range(draw.randint(0, 14))]
        for edge in edges:
            network.connect(*edge)

        def cost(side: set[int], edges: list[tuple[int, int, int]] = edges) -> int:
            return sum(c for tail, head, c in edges if tail in side and head not in side)

        cut = network.cut()
        others = (set(some) | {0} for n in range(len(vertices)) for some in itertools.combinations(vertices[2:], n))
        assert 0 in cut and 1 not in cut
        assert cost(cut) == min(cost(side) for side in others)


def test_orders_compose_and_invert() -> None:
    for inner, outer in itertools.product(itertools.permutations(range(4)), repeat=2):
        x = np.empty((2, 3, 4, 5))
        composed = axis_permutations.compose_orders(inner, outer)
        assert x.transpose(inner).transpose(outer).shape == x.transpose(composed).shape
        assert axis_permutations.compose_orders(inner, axis_permutations.invert_order(inner)) == (0, 1, 2, 3)
