"""Random graphs around MeanVarianceNormalization in primitives, and near misses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


@generator("fuse_mean_variance_normalization")
def written_out(g: GraphMaker) -> None:
    g.special = False
    rank, dtype = g.int(2, 4), g.pick(["float32"] * 8 + ["float64"])
    shape = tuple(g.int(2, 5) for _ in range(rank))
    axes = sorted(int(a) for a in g.rng.choice(rank, g.int(1, rank), replace=False))
    # All elements vary: where they do not, rounding alone is normalized. (At other sizes, elements are repeated.)
    values = np.clip(g.array(shape), -0.2, 0.2) + sum(np.indices(shape)[axis] for axis in axes)
    dims = ("N", *shape[1:]) if 0 not in axes and g.chance(0.2) else None
    x = g.input(shape, values=values.astype(dtype), dims=dims, dynamic=False)
    written = [axis - rank if g.chance(0.3) else axis for axis in axes]

    def mean(value: str) -> str:
        if g.opset >= 18:
            return str(g.node("ReduceMean", value, g.ints(*written), keepdims=g.maybe(1)))
        return str(g.node("ReduceMean", value, axes=written, keepdims=g.maybe(1)))

    def square(value: str) -> str:
        return str(g.node("Mul", value, value) if g.chance() else g.node("Pow", value, g.const(2.0, dtype)))

    center = mean(x)
    deviation = g.node("Sub", x, center)
    variance = g.node("Sub", mean(square(x)), square(center)) if g.chance(0.4) else mean(square(deviation))
    root = g.node("Sqrt", variance) if g.chance(0.7) else g.node("Pow", variance, g.const(0.5, dtype))
    g.read_again(root, 0.05)
    epsilon = g.const(g.pick([1e-9] * 5 + [1e-3]), dtype)
    g.output(g.node("Div", deviation, g.node("Add", *((root, epsilon) if g.chance() else (epsilon, root)))))


@pytest.mark.parametrize("target", ["portable", "openvino"])
def test_outputs_stay_equal(target: str) -> None:
    run_many("fuse_mean_variance_normalization", 200, target=target)


@pytest.mark.parametrize(("epsilon", "fires"), [(1e-9, True), (1e-5, False)])
def test_only_the_operators_epsilon_fires(epsilon: float, fires: bool) -> None:
    engine = transformed(
        """g (float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y) {
            m = ReduceMean<axes = [2, 3]>(x) d = Sub(x, m) q = Mul(d, d)
            v = ReduceMean<axes = [2, 3]>(q) r = Sqrt(v) e = Add(r, small) y = Div(d, e) }""",
        13,
        small=np.array(epsilon, np.float32),
    )
    operators = [node.op_type for node in engine.model.graph]
    assert (operators == ["MeanVarianceNormalization"]) == fires
