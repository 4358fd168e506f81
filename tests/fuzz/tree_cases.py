"""Random tree ensembles of the three operators of ``ai.onnx.ml``."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from onnx.numpy_helper import from_array

from tests.ops.generators.draw import Case, Draw

DOMAIN = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def draw_trees(draw: Draw, name: str) -> Case:
    """Return a case of a few trees; some ensembles look at a feature that the rows may not have."""
    rows, columns, targets = draw.integer(1, 40), draw.integer(1, 6), draw.integer(1, 3)
    most = columns - 1 if draw.chance(0.8) else columns + draw.integer(0, 3)
    x = draw.array((rows, columns))
    if name == "TreeEnsemble":
        return Case(name, 5, [x], _by_position(draw, most, targets), 1, DOMAIN)
    attributes = _by_id(draw, most, targets)
    if name == "TreeEnsembleRegressor":
        leaves = {key.replace("class_", "target_"): value for key, value in attributes.items()}
        return Case(name, 1, [x], {**leaves, "n_targets": targets}, 1, DOMAIN)
    classes = {"classlabels_int64s": list(range(max(targets, 2)))}
    return Case(name, 1, [x], {**attributes, **classes}, 2, DOMAIN)


def _by_id(draw: Draw, most: int, targets: int) -> dict[str, Any]:
    """Return the attributes of versions 1 and 3: nodes by the numbers of trees and nodes."""
    nodes: dict[str, list[Any]] = {
        f"nodes_{key}": []
        for key in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    leaves: dict[str, list[Any]] = {f"class_{key}": [] for key in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(draw.integer(1, 5)):
        inner = draw.integer(0, 12)
        # Node i has the children 2 i + 1 and 2 i + 2; nodes from ``inner`` on are leaves.
        for node in range(2 * inner + 1):
            is_leaf = node >= inner
            children = (0, 0) if is_leaf else (2 * node + 1, 2 * node + 2)
            feature, mode = (0, "LEAF") if is_leaf else (draw.integer(0, most), draw.pick(*MODES))
            row = (tree, node, feature, float(draw.integer(-2, 2)), mode, *children)
            for values, value in zip(nodes.values(), row, strict=True):
                values.append(value)
            if is_leaf:
                weight = (tree, node, draw.integer(0, targets - 1), float(draw.integer(-3, 3)))
                for values, value in zip(leaves.values(), weight, strict=True):
                    values.append(value)
    return {**nodes, **leaves}


def _by_position(draw: Draw, most: int, targets: int) -> dict[str, Any]:
    """Return the attributes of version 5: nodes and leaves by position, in one tree."""
    inner = draw.integer(1, 12)
    children = [(2 * node + 1, 2 * node + 2) for node in range(inner)]

    def position(child: int) -> tuple[int, int]:
        return (child, 0) if child < inner else (child - inner, 1)

    true, false = ([position(pair[side]) for pair in children] for side in (0, 1))
    leaves = inner + 1
    return {
        "n_targets": targets, "aggregate_function": draw.integer(0, 3), "tree_roots": [0],
        "nodes_featureids": [draw.integer(0, most) for _ in range(inner)],
        "nodes_splits": _tensor(draw.array((inner,), special=False)),
        "nodes_modes": _tensor(draw.array((inner,), np.uint8, 0, 5)),
        "nodes_truenodeids": [at for at, _ in true], "nodes_trueleafs": [leaf for _, leaf in true],
        "nodes_falsenodeids": [at for at, _ in false], "nodes_falseleafs": [leaf for _, leaf in false],
        "leaf_targetids": [draw.integer(0, targets - 1) for _ in range(leaves)],
        "leaf_weights": _tensor(draw.array((leaves,), special=False)),
    }  # fmt: skip


def _tensor(x: np.ndarray) -> Any:
    assert helper.np_dtype_to_tensor_dtype(x.dtype)
    return from_array(x)
