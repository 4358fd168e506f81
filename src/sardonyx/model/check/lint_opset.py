"""Nodes that spell out an operator which a later opset has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.findings import Finding
from sardonyx.model.check.scopes import Scope

_SCORE_STEPS = ("Add", "Mul", "Div", "Sub", "Where", "Cast", "Dropout", "Identity")
_MAX_STEPS = 6


@dataclass(frozen=True, slots=True)
class _Graph:
    """Who makes and who reads each value of one graph."""

    makers: dict[str, onnx.NodeProto]
    readers: dict[str, list[onnx.NodeProto]]

    def made_by(self, node: onnx.NodeProto | None, *kinds: str) -> onnx.NodeProto | None:
        """The first node of these kinds among the makers of a node's inputs."""
        names = node.input if node is not None else ()
        makers = (self.makers.get(name) for name in names)
        return next((maker for maker in makers if maker is not None and maker.op_type in kinds), None)

    def read_by(self, node: onnx.NodeProto | None, *kinds: str) -> onnx.NodeProto | None:
        """The first node of these kinds among the readers of a node's outputs."""
        names = node.output if node is not None else ()
        return next(
            (reader for name in names for reader in self.readers.get(name, ()) if reader.op_type in kinds), None
        )


def lint_opset(scope: Scope, commands: Commands) -> Iterator[Finding]:
    """Finds operators spelled out in nodes that one node of a later opset replaces.

    Args:
        scope: The graph.
        commands: Writes the command lines of the remedies.

    Yields:
        One finding for each operator.
    """
    opset = scope.opsets.get("", 0)
    makers = {name: node for node in scope.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in scope.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    graph = _Graph(makers, readers)
    found: dict[tuple[str, int], list[onnx.NodeProto]] = {}
    for node in scope.graph.node:
        for operator, since, match in _WANTED.get(node.op_type, ()):
            if 0 < opset < since and match(graph, node):
                found.setdefault((operator, since), []).append(node)
    for (operator, since), nodes in found.items():
        times = "once" if len(nodes) == 1 else f"{len(nodes)} times"
        yield finding(
            "opset-old",
            f"{operator}, an operator since opset {since}, is spelled out {times}; the model has opset {opset}.",
            scope.at(nodes[0]),
            command=commands.optimize(opset=since),
        )


def _gelu(graph: _Graph, erf: onnx.NodeProto) -> bool:
    return graph.read_by(graph.read_by(erf, "Add"), "Mul") is not None


def _variance(graph: _Graph, root: onnx.NodeProto) -> onnx.NodeProto | None:
    """The node that squares, where ``root`` is the root of a mean of squares plus epsilon."""
    return graph.made_by(graph.made_by(graph.made_by(root, "Add"), "ReduceMean"), "Pow", "Mul")


def _normalized(graph: _Graph, root: onnx.NodeProto) -> bool:
    return graph.read_by(root, "Div") is not None or graph.read_by(graph.read_by(root, "Reciprocal"), "Mul") is not None


def _layer_norm(graph: _Graph, root: onnx.NodeProto) -> bool:
    return _normalized(graph, root) and graph.made_by(_variance(graph, root), "Sub") is not None


def _rms_norm(graph: _Graph, root: onnx.NodeProto) -> bool:
    square = _variance(graph, root)
    return _normalized(graph, root) and square is not None and graph.made_by(square, "Sub") is None


def _times_own_input(graph: _Graph, gate: onnx.NodeProto) -> bool:
    product = graph.read_by(gate, "Mul")
    return product is not None and gate.input[0] in product.input


def _mish(graph: _Graph, softplus: onnx.NodeProto) -> bool:
    product = graph.read_by(graph.read_by(softplus, "Tanh"), "Mul")
    return product is not None and softplus.input[0] in product.input


def _attention(graph: _Graph, softmax: onnx.NodeProto) -> bool:
    if (
        graph.read_by(softmax, "MatMul") is None
        and graph.read_by(graph.read_by(softmax, "Dropout", "Cast", "Where"), "MatMul") is None
    ):
        return False
    step: onnx.NodeProto | None = softmax
    for _ in range(_MAX_STEPS):
        if graph.made_by(step, "MatMul") is not None:
            return True
        step = graph.made_by(step, *_SCORE_STEPS)
    return False


def _group_norm(graph: _Graph, norm: onnx.NodeProto) -> bool:
    return graph.made_by(norm, "Reshape") is not None and graph.read_by(norm, "Reshape") is not None


_Match = Callable[[_Graph, onnx.NodeProto], bool]

_WANTED: dict[str, tuple[tuple[str, int, _Match], ...]] = {
    "Erf": (("Gelu", 20, _gelu),),
    "Sqrt": (("LayerNormalization", 17, _layer_norm), ("RMSNormalization", 23, _rms_norm)),
    "HardSigmoid": (("HardSwish", 14, _times_own_input),),
    "Sigmoid": (("Swish", 24, _times_own_input),),
    "Softplus": (("Mish", 18, _mish),),
    "Softmax": (("Attention", 23, _attention),),
    "InstanceNormalization": (("GroupNormalization", 21, _group_norm),),
}
