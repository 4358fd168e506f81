"""Random graphs for operators that only change the shape."""

from __future__ import annotations

import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many

FAMILY = ["Reshape", "Flatten", "Squeeze", "Unsqueeze"]


def regrouped(g: GraphMaker, shape: tuple[int, ...]) -> list[int]:
    """Return another shape with as many elements: sizes merged, split by ones, or reordered."""
    sizes = list(shape)
    while len(sizes) > 1 and g.chance(0.4):
        at = g.int(0, len(sizes) - 2)
        sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
    for _ in range(g.int(0, 2)):
        sizes.insert(g.int(0, len(sizes)), 1)
    return [sizes[i] for i in g.permutation(len(sizes))]


def reshaped(g: GraphMaker, x: str, shape: tuple[int, ...], op: str | None = None) -> tuple[str, tuple[int, ...]]:
    """Apply one operator of the family to ``x``; return the result and its shape."""
    op = op or g.pick(FAMILY)
    units = [i for i, size in enumerate(shape) if size == 1]
    if op == "Unsqueeze" or (op == "Squeeze" and not units):
        rank = len(shape) + g.int(1, 2)
        inserted = sorted(int(i) for i in g.rng.choice(rank, rank - len(shape), replace=False))
        left = iter(shape)
        out = tuple(1 if i in inserted else next(left) for i in range(rank))
        return g.node("Unsqueeze", x, g.ints(*(i - rank if g.chance(0.3) else i for i in inserted))), out
    if op == "Squeeze":
        gone = units[: g.int(1, len(units))]
        axes = None if gone == units and g.chance(0.3) else g.ints(*gone)
        return g.node("Squeeze", x, axes), tuple(size for i, size in enumerate(shape) if i not in gone)
    if op == "Flatten":
        axis = g.int(0, len(shape))
        before = after = 1
        for i, size in enumerate(shape):
            before, after = (before * size, after) if i < axis else (before, after * size)
        return g.node("Flatten", x, axis=axis), (before, after)
    target = regrouped(g, shape)
    written = list(target)
    if g.chance() and 0 not in target and target:
        written[g.int(0, len(target) - 1)] = -1
    elif 0 in target:
        return g.node("Reshape", x, g.ints(*target), allowzero=1 if g.opset >= 14 else None), tuple(target)
    return g.node("Reshape", x, g.ints(*written)), tuple(target)


@generator(
    "fuse_consecutive_reshapes",
    "fuse_consecutive_squeezes",
    "fuse_consecutive_unsqueezes",
    "fuse_consecutive_squeeze_unsqueeze/squeeze_of_unsqueeze",
    "fuse_consecutive_squeeze_unsqueeze/unsqueeze_of_squeeze",
)
def pairs(g: GraphMaker) -> None:
    shape = g.shape(zero=0.01)
    y, between = reshaped(g, g.input(shape), shape)
    g.read_again(y)
    if g.chance(0.2):
        g.output(reshaped(g, y, between)[0])
    if g.chance(0.3):
        g.output(g.node("Reshape", y, g.ints(*shape), allowzero=1 if g.opset >= 14 else None) if 0 not in shape else y)
    else:
        g.output(reshaped(g, y, between)[0])


@generator("fuse_consecutive_squeezes", "fuse_consecutive_squeeze_unsqueeze/squeeze_of_unsqueeze")
def squeezes(g: GraphMaker) -> None:
    shape = (1, *g.shape(rank=g.int(1, 3), zero=0), 1)
    y, between = reshaped(g, g.input(shape), shape, g.pick(["Squeeze", "Unsqueeze"]))
    g.read_again(y)
    g.output(reshaped(g, y, between, "Squeeze")[0])


@generator("fuse_consecutive_squeeze_unsqueeze/unsqueeze_of_squeeze")
def squeezed_and_back(g: GraphMaker) -> None:
    shape = g.shape(rank=3, zero=0)
    axis = g.int(0, 2)
    x = g.input((*shape[:axis], 1, *shape[axis + 1 :]))
    y = g.node("Squeeze", x, g.ints(axis if g.chance() else axis - 3))
    g.read_again(y)
    g.output(g.node("Unsqueeze", y, g.ints(g.pick([axis, axis, axis - 3, 0]))))


@generator("eliminate_nop_flatten", "eliminate_nop_reshape/shape_kept")
def kept_shapes(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3))
    x = g.input(shape)
    y = g.node("Flatten", x, axis=g.maybe(g.int(0, len(shape)))) if g.chance() else g.node("Squeeze", x)
    g.read_again(y)
    g.output(g.node("Identity", y))


@generator("eliminate_reshape_around_elementwise")
def shapes_around_elementwise(g: GraphMaker) -> None:
    shape = g.shape(zero=0.01)
    y, between = reshaped(g, g.input(shape), shape)
    g.read_again(y, 0.1)
    for _ in range(g.int(1, 3)):
        op = g.pick(["Relu", "Sigmoid", "Neg", "Cast", "LeakyRelu", "Mul", "Sub", "weight"])
        match op:
            case "Cast":
                y = g.node("Cast", y, to=1)
            case "Mul" | "Sub":
                number = g.weight(g.pick([(), (1,), (1, 1)]))
                if len(between) < 2 and g.rank(number) == 2:
                    number = g.weight(())
                y = g.node(op, *((y, number) if g.chance() else (number, y)))
            case "weight":
                y = g.node("Add", y, g.weight(between[-1:]))
            case _:
                y = g.node(op, y)
        g.read_again(y, 0.05)
    if g.chance() and 0 not in shape:
        g.output(g.node("Reshape", y, g.ints(*shape)))
    else:
        g.output(reshaped(g, y, between)[0])


@generator("eliminate_reshape_around_elementwise/both_operands_reshaped")
def both_reshaped(g: GraphMaker) -> None:
    shape, dtype = g.shape(zero=0.01), g.pick(["float32", "float32", "int64"])
    a, b = g.input(shape, dtype), g.input(shape, dtype)
    seed = g.rng.bit_generator.state
    y, _ = reshaped(g, a, shape)
    if g.chance(0.8):
        g.rng.bit_generator.state = seed  # the same change of shape again
    z, _ = reshaped(g, b, shape)
    if g.chance(0.1):
        z = g.node("Unsqueeze", g.node("Relu", z), g.ints(0))
    g.read_again(y, 0.1)
    g.read_again(z, 0.1)
    y = g.node(g.pick(["Add", "Sub", "Mul", "Max", "Less"]), y, z)
    g.output(g.node("Reshape", y, g.ints(*shape)) if g.chance() and 0 not in shape else y)


@generator("fuse_reshapes_around_matmul")
def rows_of_products(g: GraphMaker) -> None:
    lead = tuple(g.int(1, 4) for _ in range(g.int(1, 3)))
    k, n = g.int(1, 4), g.int(1, 4)
    x = g.input((*lead, k))
    target = g.pick([(-1, k), (-1, k), (lead[0], -1, k), (-1, lead[-1], k), (-1, 1, k)])
    rows = g.node("Reshape", x, g.ints(*target))
    g.read_again(rows, 0.1)
    weight = g.weight((k, n)) if g.chance(0.8) else g.input((k, n))
    y = g.node("MatMul", rows, weight)
    g.read_again(y, 0.1)
    after = g.pick([(*lead, n), (-1, *lead[1:], n), (*lead[::-1], n), (-1, n), (*lead, 1, n)])
    g.output(g.node("Reshape", y, g.ints(*after)))


@generator("rewrite_transpose_to_reshape")
def transposes_of_units(g: GraphMaker) -> None:
    shape = tuple(1 if g.chance() else size for size in g.shape(rank=g.int(2, 4), zero=0))
    y = g.node("Transpose", g.input(shape), perm=(perm := g.permutation(len(shape))))
    g.read_again(y)
    out = tuple(shape[i] for i in perm)
    g.output(reshaped(g, y, out)[0] if g.chance(0.8) else g.node("Relu", y))


LABELS = [
    "fuse_consecutive_reshapes",
    "fuse_consecutive_squeezes",
    "fuse_consecutive_unsqueezes",
    "fuse_consecutive_squeeze_unsqueeze/squeeze_of_unsqueeze",
    "fuse_consecutive_squeeze_unsqueeze/unsqueeze_of_squeeze",
    "eliminate_nop_flatten",
    "eliminate_nop_reshape/shape_kept",
    "eliminate_reshape_around_elementwise",
    "eliminate_reshape_around_elementwise/both_operands_reshaped",
    "fuse_reshapes_around_matmul",
    "rewrite_transpose_to_reshape",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
