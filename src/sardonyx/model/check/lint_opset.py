"""Lint of nodes that together decompose an operator of a later opset."""

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
    """Producer and consumers of each value of one graph."""

    producers: dict[str, onnx.NodeProto]
    consumers: dict[str, list[onnx.NodeProto]]

    def producer_of(self, node: onnx.NodeProto | None, *kinds: str) -> onnx.NodeProto | None:
        """Return the first node of the given kinds among the producers of a node's inputs."""
        names = node.input if node is not None else ()
        producers = (self.producers.get(name) for name in names)
        return next((node for node in producers if node is not None and node.op_type in kinds), None)

    def consumer_of(self, node: onnx.NodeProto | None, *kinds: str) -> onnx.NodeProto | None:
        """Return the first node of the given kinds among the consumers of a node's outputs."""
        names = node.output if node is not None else ()
        return next((node for name in names for node in self.consumers.get(name, ()) if node.op_type in kinds), None)


def lint_opset(scope: Scope, commands: Commands) -> Iterator[Finding]:
    """Report decomposed operators that one node of a later opset replaces.

    Args:
        scope: The graph.
        commands: Builds the command lines of the remedies.

    Yields:
        One finding for each operator.
    """
    opset = scope.opsets.get("", 0)
    producers = {name: node for node in scope.graph.node for name in node.output}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in scope.graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    graph = _Graph(producers, consumers)
    decomposed: dict[tuple[str, int], list[onnx.NodeProto]] = {}
    for node in scope.graph.node:
        for operator, since, match in _REPLACEMENTS.get(node.op_type, ()):
            if 0 < opset < since and match(graph, node):
                decomposed.setdefault((operator, since), []).append(node)
    for (operator, since), nodes in decomposed.items():
        times = "once" if len(nodes) == 1 else f"{len(nodes)} times"
        yield finding(
            "opset-old",
            f"{operator}, an operator since opset {since}, is decomposed {times}; the model has opset {opset}.",
            scope.at(nodes[0]),
            command=commands.optimize(opset=since),
        )


def _gelu(graph: _Graph, erf: onnx.NodeProto) -> bool:
    return graph.consumer_of(graph.consumer_of(erf, "Add"), "Mul") is not None


def _variance(graph: _Graph, root: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return the squaring node if ``root`` is the root of a mean of squares plus epsilon."""
    return graph.producer_of(graph.producer_of(graph.producer_of(root, "Add"), "ReduceMean"), "Pow", "Mul")


def _normalized(graph: _Graph, root: onnx.NodeProto) -> bool:
    return (
        graph.consumer_of(root, "Div") is not None
        or graph.consumer_of(graph.consumer_of(root, "Reciprocal"), "Mul") is not None
    )


def _layer_norm(graph: _Graph, root: onnx.NodeProto) -> bool:
    return _normalized(graph, root) and graph.producer_of(_variance(graph, root), "Sub") is not None


def _rms_norm(graph: _Graph, root: onnx.NodeProto) -> bool:
    square = _variance(graph, root)
    return _normalized(graph, root) and square is not None and graph.producer_of(square, "Sub") is None


def _times_own_input(graph: _Graph, gate: onnx.NodeProto) -> bool:
    product = graph.consumer_of(gate, "Mul")
    return product is not None and gate.input[0] in product.input


def _mish(graph: _Graph, softplus: onnx.NodeProto) -> bool:
    product = graph.consumer_of(graph.consumer_of(softplus, "Tanh"), "Mul")
    return product is not None and softplus.input[0] in product.input


def _attention(graph: _Graph, softmax: onnx.NodeProto) -> bool:
    if (
        graph.consumer_of(softmax, "MatMul") is None
        and graph.consumer_of(graph.consumer_of(softmax, "Dropout", "Cast", "Where"), "MatMul") is None
    ):
        return False
    step: onnx.NodeProto | None = softmax
    for _ in range(_MAX_STEPS):
        if graph.producer_of(step, "MatMul") is not None:
            return True
        step = graph.producer_of(step, *_SCORE_STEPS)
    return False


def _group_norm(graph: _Graph, norm: onnx.NodeProto) -> bool:
    return graph.producer_of(norm, "Reshape") is not None and graph.consumer_of(norm, "Reshape") is not None


_Match = Callable[[_Graph, onnx.NodeProto], bool]

_REPLACEMENTS: dict[str, tuple[tuple[str, int, _Match], ...]] = {
    "Erf": (("Gelu", 20, _gelu),),
    "Sqrt": (("LayerNormalization", 17, _layer_norm), ("RMSNormalization", 23, _rms_norm)),
    "HardSigmoid": (("HardSwish", 14, _times_own_input),),
    "Sigmoid": (("Swish", 24, _times_own_input),),
    "Softplus": (("Mish", 18, _mish),),
    "Softmax": (("Attention", 23, _attention),),
    "InstanceNormalization": (("GroupNormalization", 21, _group_norm),),
}
