"""Random graphs of convolutions that are one: behind each other, side by side, and of parts of the channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


def _convolution(g: GraphMaker, x: str, shape: tuple[int, ...], dtype: str, **attrs: Any) -> str:
    weight = g.weight(shape, dtype) if g.chance(0.95) else g.input(shape, dtype, dynamic=False)
    bias = g.weight((shape[0],), dtype) if g.chance() else None
    return str(g.node("Conv", x, weight, bias, **attrs))


def _sliding(g: GraphMaker, kernel: list[int]) -> dict[str, Any]:
    """Steps, holes and padding."""
    axes = len(kernel)
    attrs: dict[str, Any] = {
        "strides": g.maybe([g.int(1, 2) for _ in kernel], 0.4),
        "dilations": g.maybe([g.int(1, 2) for _ in kernel], 0.2),
        "kernel_shape": g.maybe(kernel, 0.5),
    }
    padding = g.int(0, 3)
    if padding == 0:
        attrs["pads"] = [g.int(0, 1) for _ in range(2 * axes)]
    elif padding == 1:
        attrs["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return attrs


@generator("fuse_consecutive_convs")
def consecutive(g: GraphMaker) -> None:
    # An infinity times weights of both signs is NaN in between, and not of the one convolution.
    g.special = False
    axes, group, dtype = g.int(1, 3), g.pick([1, 1, 2]), g.pick(["float32"] * 5 + ["float64"])
    c, m, o = (group * g.int(1, 4) for _ in range(3))
    x = g.input((g.int(1, 2), c, *[g.int(5, 7)] * axes), dtype)
    kernels = [[1] * axes, [g.int(1, 3) for _ in range(axes)]]
    if g.chance():
        kernels.reverse()
    for created, read, kernel in ((m, c, kernels[0]), (o, m, kernels[1])):
        pointwise = kernel == [1] * axes
        attrs = {} if pointwise and g.chance(0.6) else _sliding(g, kernel)
        x = _convolution(
            g, x, (created, read // group, *kernel), dtype, group=group if group > 1 else g.maybe(1, 0.3), **attrs
        )
        if created is m:
            g.read_again(x, 0.08)
    g.output(x)


@generator("fuse_parallel_convs")
def side_by_side(g: GraphMaker) -> None:
    g.special = False
    axes, c = g.int(1, 2), g.int(1, 4)
    x = g.input((g.int(1, 2), c, *[g.int(4, 6)] * axes))
    kernel = [g.int(1, 3) for _ in range(axes)]
    attrs = _sliding(g, kernel)
    for _ in range(g.int(2, 4)):
        own = attrs if g.chance(0.9) else _sliding(g, kernel)
        g.output(_convolution(g, x, (g.int(1, 3), c, *kernel), "float32", **own))


@generator("fuse_split_convs")
def of_parts(g: GraphMaker) -> None:
    axes, item, parts = g.int(1, 2), g.pick([1, 2, 2, 4]), g.int(2, 4)
    x = g.input((g.int(1, 2), item * parts, *[g.int(4, 6)] * axes))
    sliced = g.chance(0.3)
    if sliced:
        used = [g.node("Slice", x, g.ints(i * item), g.ints((i + 1) * item), g.ints(1)) for i in range(parts)]
    else:
        axis = g.pick([1, 1, -1 - axes])
        used = list(g.node("Split", x, g.ints(*[item] * parts), n_outputs=parts, axis=axis))
    if g.chance(0.1):
        used.reverse()
    kernel, group = [g.int(1, 3) for _ in range(axes)], g.pick([1, 1, 2]) if item % 2 == 0 else 1
    attrs, created = _sliding(g, kernel), group * g.int(1, 2)
    convs = []
    for part in used:
        own = attrs if g.chance(0.95) else _sliding(g, kernel)
        convs.append(_convolution(g, part, (created, item // group, *kernel), "float32", group=group, **own))
    g.read_again(convs[0], 0.08)
    try:
        g.output(g.node("Concat", *convs, axis=g.pick([1, 1, 1, -1 - axes, 0])))
    except ValueError:
        g.output(*convs)


@pytest.mark.parametrize("label", ["fuse_consecutive_convs", "fuse_parallel_convs", "fuse_split_convs"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


@pytest.mark.parametrize("label", ["fuse_consecutive_convs/pointwise_after", "fuse_consecutive_convs/pointwise_before"])
def test_each_order_is_found(label: str) -> None:
    run_many(label, 40)


_TWO = """g (float[1, {c}, 6, 6] x) => (float[1, {o}, 4, 4] y) {{
    a = Conv(x, v)
    y = Conv(a, w)
}}"""


@pytest.mark.parametrize(
    ("sizes", "merged"), [((4, 16, 4), True), ((4, 2, 16), False), ((16, 4, 16), False)], ids=["wide", "narrow", "neck"]
)
def test_bottlenecks_stay(sizes: tuple[int, int, int], merged: bool) -> None:
    c, m, o = sizes
    engine = transformed(
        _TWO.format(c=c, o=o), 18, v=np.ones((m, c, 1, 1), np.float32), w=np.ones((o, m, 3, 3), np.float32)
    )
    operators = [node.op_type for node in engine.model.graph]
    assert operators == (["Conv"] if merged else ["Conv", "Conv"])
    if not merged:
        refused = engine.refused["fuse_consecutive_convs/pointwise_before", "y"]
        assert refused == "one convolution would multiply more than both"
