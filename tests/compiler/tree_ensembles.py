"""Tree ensembles with random shapes, and rows with special values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify
from sardonyx.ops.definitions.ml.tree_tables import LEAF, MEMBER, MODES, Trees, Weights
from sardonyx.ops.definitions.ml.trees import scores

CATEGORIES = [-np.inf, np.inf, np.nan, 0.0, -0.0, 1.0, 2.0, float(np.nextafter(np.float32(1), np.float32(2)))]
ORDERED = ["BRANCH_LEQ", "BRANCH_LT"]


@dataclass
class Grown:
    """Trees to which nodes are still added; see :class:`Trees`."""

    roots: list[int] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    weights: list[tuple[int, int, float]] = field(default_factory=list)
    members: dict[int, list[float]] = field(default_factory=dict)

    def add(self, feature: int, split: float, mode: int, yes: int, no: int, missing: bool = False) -> int:
        node = len(self.modes)
        columns: tuple[list, ...] = (self.features, self.splits, self.modes, self.yes, self.no, self.missing)  # type: ignore[type-arg]
        for column, entry in zip(columns, (feature, split, mode, yes, no, missing), strict=True):
            column.append(entry)
        return node

    def trees(self) -> Trees:
        ids = (self.roots, self.features, self.modes, self.yes, self.no)
        roots, features, modes, yes, no = (np.array(column, np.int64) for column in ids)
        splits, missing = np.array(self.splits, np.float64), np.array(self.missing, bool)
        node, target, value = zip(*self.weights, strict=True) if self.weights else ((), (), ())
        weights = Weights(np.array(node, np.int64), np.array(target, np.int64), np.array(value, np.float64))
        return Trees(roots, features, splits, modes, yes, no, missing, weights, self.members)


def random_trees(
    rng: np.random.Generator, count: int, features: int, targets: int, depth: int, modes: list[str], missing: bool
) -> Trees:
    """Trees whose paths end at random, with weights of either sign, zeros and NaN among them."""
    trees = Grown()

    def grown(level: int) -> int:
        is_leaf = level == depth or (level and rng.random() < 0.2)
        node = trees.add(
            0 if is_leaf else int(rng.integers(features)),
            float(rng.choice([*CATEGORIES, *rng.standard_normal(20)])),
            LEAF if is_leaf else MODES.index(str(rng.choice(modes))),
            0, 0, missing and bool(rng.random() < 0.5),
        )  # fmt: skip
        if is_leaf:
            trees.yes[node] = trees.no[node] = node
            weight = float(rng.choice([0.0, -0.0, np.nan, *rng.standard_normal(40)]))
            for target in range(targets):
                if rng.random() < 0.9:
                    trees.weights.append((node, target, weight if target == 0 else float(rng.standard_normal())))
        else:
            if trees.modes[node] == MEMBER:
                trees.members[node] = [float(category) for category in rng.choice(CATEGORIES, int(rng.integers(0, 5)))]
            trees.yes[node] = grown(level + 1)
            trees.no[node] = grown(level + 1)
        return node

    for _ in range(count):
        trees.roots.append(grown(0))
    return trees.trees()


def traced(trees: Trees, features: int, targets: int, aggregate: str = "SUM") -> Function:
    rows = TensorType(t.FLOAT, (Dim.symbol("N"), features))
    return simplify(trace("f", lambda x: [scores(x, trees, targets, aggregate, t.FLOAT) * 2], [rows]))


def rows_of(rng: np.random.Generator, count: int, features: int) -> np.ndarray:
    x = rng.standard_normal((count, features)).astype(np.float32)
    return np.where(rng.random(x.shape) < 0.4, rng.choice(np.array(CATEGORIES, np.float32), x.shape), x)
