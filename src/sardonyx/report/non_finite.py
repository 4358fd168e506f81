"""Search for the nodes that make NaN or infinity out of finite inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.model import Loadable
from sardonyx.report.accuracy import BUDGET, Side, computed_values, slices
from sardonyx.report.node_matching import operator
from sardonyx.report.output_figures import special_counts
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.names import node_label

KINDS = ("NaN", "infinity")


@dataclass(frozen=True)
class NonFinite:
    """The first value with NaN, or with infinity, that has none in the inputs of its node.

    Attributes:
        kind: ``"NaN"`` or ``"infinity"``.
        tensor: The value: an input of the model, or the output of the node.
        node: The node; empty for an input of the model.
        operator: Operator of the node; empty for an input of the model.
        count: Number of such elements.
        elements: Number of all elements.
    """

    kind: str
    tensor: str
    node: str
    operator: str
    count: int
    elements: int

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        source = f"{self.operator} {self.node} computes" if self.node else "the input"
        return f"{self.kind} first in '{self.tensor}': {source} {self.count} of {self.elements} elements"


def non_finite(
    model: Loadable, feeds: Mapping[str, Any], *, provider: str = "native", budget: int = BUDGET
) -> tuple[NonFinite, ...]:
    """Return the first node that makes NaN and the first that makes infinity, in the order of the model.

    Every tensor of the main graph is computed, as many at a time as fit the budget; a node with a body or a model
    function counts as one node.

    Args:
        model: The model.
        feeds: Inputs by name.
        provider: The provider that computes.
        budget: Bytes of tensors in memory at a time.

    Raises:
        SardonyxError: The model cannot be loaded or run.
    """
    side = Side(model_io.load(model), provider)
    inference.infer_shapes(side.model, strict=False)
    present: dict[str, set[str]] = {name: set() for name in feeds}
    first: dict[str, NonFinite] = {}
    for name, array in feeds.items():
        for kind, count in _counts(array):
            present[name].add(kind)
            first.setdefault(kind, NonFinite(kind, name, "", "", count, array.size))
    values = [(v, v) for node in side.model.graph for v in node.outputs if v.name and _is_tensor(v)]
    for part in slices(values, feeds, budget):
        arrays = computed_values(side, [str(value.name) for value, _ in part], feeds)
        for value, _ in part:
            name = str(value.name)
            present[name] = set()
            for kind, count in _counts(arrays[name]):
                present[name].add(kind)
                node = value.producer()
                if kind not in first and node is not None and not _reads(node, kind, present):
                    size = arrays[name].size
                    first[kind] = NonFinite(kind, name, node_label(node), operator(node), count, size)
        if len(first) == len(KINDS):
            break
    return tuple(first[kind] for kind in KINDS if kind in first)


def _counts(value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, np.ndarray):
        yield from ((kind, count) for kind, count in zip(KINDS, special_counts(value), strict=True) if count)


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _reads(node: ir.Node, kind: str, present: Mapping[str, set[str]]) -> bool:
    """Return True if an input of a node contains elements of this kind already."""
    for value in node.inputs:
        if value is None:
            continue
        tensor = facts.constant_tensor(value)
        if tensor is not None and tensor.dtype != ir.DataType.STRING:
            if any(kind == other for other, _ in _counts(tensor.numpy())):
                return True
        elif kind in present.get(str(value.name), ()):
            return True
    return False
