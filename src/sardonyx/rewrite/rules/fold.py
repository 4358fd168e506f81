"""Constant folding: evaluate constant subgraphs once and store the results as weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.model.copying import copy_nodes
from sardonyx.model.tensors import tensor_from
from sardonyx.ops.evaluation import evaluate_nodes
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Patch, Refusal, Result
from sardonyx.rewrite.rewrite_context import Workspace
from sardonyx.rewrite.sweep import sweep
from sardonyx.rewrite.weight_dependencies import derive, is_watched

NEVER_FOLDED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "Identity"})
"""Operators that are never folded.

Engines match quantization nodes; other rules handle Constant and Identity."""

SPLAT_BYTES = 128
"""Bytes up to which a ConstantOfShape is folded: a larger result takes more room than the node."""

LARGEST_FILL = 16 << 20
"""Bytes up to which a ConstantOfShape is evaluated for its readers."""

ROUNDED_ONCE = frozenset(
    {
        "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "ConstantOfShape",
        "DepthToSpace", "Div", "Equal", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Greater",
        "GreaterOrEqual", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "NonZero",
        "Not", "OneHot", "Or", "Pad", "Reciprocal", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape",
        "Sign", "Size", "Slice", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "TopK", "Transpose",
        "Trilu", "Unique", "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip
"""Operators with equal float bits in every engine: they move, compare, or round once as IEEE 754 says."""


COSTLY = frozenset(
    {
        "Conv", "Cos", "CumSum", "Einsum", "Erf", "Exp", "Gather", "GatherElements", "GatherND", "Gemm", "Log",
        "MatMul", "Pow", "Resize", "ScatterElements", "ScatterND", "Sigmoid", "Sin", "Softmax", "Tanh", "TopK",
    }
)  # fmt: skip
"""Operators whose results take longer to compute than to load.

A large result of cheaper ones, as a mask of positions, stays a computation: kernels compute it where they read it.
"""


@sweep("fold_constants", exactness=EXACT)
def fold_constants(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Replace constant subgraphs by weights.

    A node that draws random numbers, quantizes, or would grow the file beyond the bound is not folded.
    """
    group, growing = _foldable(engine, graph)
    if not group:
        return
    inside = _without_cheap_growth(engine, group, growing)
    frontier: list[ir.Value] = []
    for node in (node for node in group if node in inside):
        for output in node.outputs:
            if _is_large_fill(node):
                continue  # The readers in the group are folded; the others read the node.
            if output.is_graph_output() or any(use.node not in inside for use in output.uses()):
                frontier.append(output)
    if not frontier:
        return
    tensors = _evaluate(engine, group, frontier)
    for value in frontier:
        tensor = tensors.get(value)
        producer = value.producer()
        assert producer is not None
        if tensor is None or producer.graph is None:
            continue
        growth = engine.settings.folding if value in growing else 0
        yield producer, _replace_by_constant(engine, value, tensor, set(group), growth)


def _replace_by_constant(
    engine: Engine, value: ir.Value, tensor: ir.TensorProtocol, group: set[ir.Node], growth: int
) -> Result:
    producer = value.producer()
    assert producer is not None
    if value.dtype is not None and tensor.dtype != value.dtype:
        return Refusal(f"expected element type {value.dtype} as declared, got {tensor.dtype}")
    nodes: list[ir.Node] = []
    assert producer.graph is not None
    constant = engine.new_constant(tensor, producer.graph, f"{value.name}_folded", nodes)
    exact = _is_exact(producer, group)
    return Patch({value: constant}, nodes=nodes, exactness=None if exact else REASSOCIATES, growth=growth)


def _is_exact(node: ir.Node, group: set[ir.Node]) -> bool:
    """Return True if every engine computes equal bits for the node and all of the group before it."""
    seen, stack = {node}, [node]
    while stack:
        current = stack.pop()
        floats = [v for v in current.outputs if v.dtype is None or v.dtype.is_floating_point()]
        if floats and (current.op_type not in ROUNDED_ONCE or current.domain not in STANDARD):
            return False
        readers = [v.producer() for v in current.inputs if v is not None]
        new = [source for source in readers if source in group and source not in seen]
        seen.update(new)
        stack.extend(new)
    return True


def _foldable(engine: Engine, graph: ir.Graph) -> tuple[list[ir.Node], dict[ir.Value, bool]]:
    """Return the nodes, in order, that depend on constants alone and stay within the growth bound.

    Further the values that exceed the bound of a patch, or depend on such, each with True if a costly node made it.
    """
    known: set[ir.Value] = set()
    growing: dict[ir.Value, bool] = {}
    group: list[ir.Node] = []
    for node in facts.nodes_of(graph):
        if not _reads_constants(node, known):
            continue
        known_here = node.domain in STANDARD or facts.is_users(node)
        if not known_here or node.op_type in NEVER_FOLDED or not facts.is_pure(node):
            continue
        if facts.bodies(node) or facts.refers_to_function_attribute(node):
            continue
        added = _added_bytes(engine, node, known)
        if isinstance(added, str) or added > max(engine.settings.growth, engine.settings.folding):
            reason = added if isinstance(added, str) else f"folding would add {added} bytes"
            engine.refused[("fold_constants", node_label(node))] = reason
            continue
        group.append(node)
        known.update(node.outputs)
        operands = [growing[value] for value in node.inputs if value in growing]
        if operands or added > engine.settings.growth:
            growing.update(dict.fromkeys(node.outputs, node.op_type in COSTLY or any(operands)))
    return _without_idle_fills(engine, group), growing


def _without_cheap_growth(engine: Engine, group: Sequence[ir.Node], growing: Mapping[ir.Value, bool]) -> set[ir.Node]:
    """Return the nodes that are replaced: without those of cheap, large results that other nodes read."""
    inside = set(group)
    for node in reversed(group):
        cheap = [output for output in node.outputs if growing.get(output) is False]
        if any(output.is_graph_output() or any(use.node not in inside for use in output.uses()) for output in cheap):
            inside.remove(node)
            reason = f"folding would add {sum(map(_bytes_of, cheap))} bytes"
            engine.refused[("fold_constants", node_label(node))] = reason
    return inside


def _is_large_fill(node: ir.Node) -> bool:
    """Return True for a ConstantOfShape that is smaller than its result: a constant for its readers alone."""
    return facts.is_op(node, "ConstantOfShape") and _bytes_of(node.outputs[0]) > SPLAT_BYTES


def _bytes_of(value: ir.Value) -> int:
    """Return the bytes of a value of known shape and type, else 0."""
    shape, kind = facts.static_shape(value), facts.dtype(value)
    return 0 if shape is None or kind is None else int(np.prod(shape, dtype=object) * facts.element_bytes(kind))


def _without_idle_fills(engine: Engine, group: list[ir.Node]) -> list[ir.Node]:
    """Return the group without large fills of which nothing in the group reads the result."""
    inside = set(group)
    for node in reversed(group):
        if _is_large_fill(node) and not any(use.node in inside for use in node.outputs[0].uses()):
            inside.remove(node)
            reason = f"the node replaces {_bytes_of(node.outputs[0])} bytes by one number"
            engine.refused[("fold_constants", node_label(node))] = reason
    return [node for node in group if node in inside]


def _reads_constants(node: ir.Node, known: set[ir.Value]) -> bool:
    """Return True if the node has inputs, and each is a constant or in ``known`` (folded earlier)."""
    for value in node.inputs:  # A loop is faster than `all(...)`: this runs at every node, and most fail at once.
        if value is not None and value not in known and not facts.is_constant(value):
            return False
    return bool(node.inputs)


def _added_bytes(engine: Engine, node: ir.Node, known: set[ir.Value]) -> int | str:
    """Return the bytes that folding a constant node adds, or the reason why it must not be folded."""
    size = 0
    for output in node.outputs:
        shape = facts.static_shape(output)
        if shape is None:
            inference.infer_node(node, engine.opset_imports, engine.model.ir_version)
            shape = facts.static_shape(output)
        kind = facts.dtype(output)
        if kind is None or (shape is None and node.op_type not in ("NonZero", "Unique", "Compress")):
            if not all(v is None or facts.is_constant(v) for v in node.inputs):
                return "the size of the result is not known yet"
            return "the size of the result cannot be inferred"
        if shape is None:
            source = facts.static_shape(node.inputs[0]) or (0,)
            shape = (len(source) + 1, int(np.prod(source, dtype=object)))
        size += int(np.prod(shape, dtype=object) * facts.element_bytes(kind))
    if _is_large_fill(node):
        return f"the node replaces {size} bytes by one number" if size > LARGEST_FILL else 0
    return size - sum(_freed_bytes(value, node, known) for value in dict.fromkeys(node.inputs) if value is not None)


def _freed_bytes(value: ir.Value, node: ir.Node, known: set[ir.Value]) -> int:
    """Return the bytes of a constant operand that only this node reads, or that is folded itself."""
    tensor = facts.constant_tensor(value)
    if tensor is not None and tensor.dtype != ir.DataType.STRING and all(use.node is node for use in value.uses()):
        return tensor.nbytes
    producer = value.producer()
    if value not in known or producer is None or _is_large_fill(producer):
        return 0
    return _bytes_of(value)


def _evaluate(
    engine: Engine, group: Sequence[ir.Node], frontier: Sequence[ir.Value]
) -> Mapping[ir.Value, ir.TensorProtocol]:
    """Return the values of the frontier; node by node if the group as a whole fails."""
    try:
        return _evaluate_group(engine, group, frontier)
    except SardonyxError as error:
        if len(group) == 1:
            engine.refused[("fold_constants", node_label(group[0]))] = str(error)
            return {}
    arrays: dict[ir.Value, np.ndarray] = {}
    for node in group:
        if all(v is None or v in arrays or facts.is_constant(v) for v in node.inputs):
            try:
                arrays.update(evaluate_constants(engine, [node], [v for v in node.outputs if v.name], arrays))
            except SardonyxError as error:
                engine.refused[("fold_constants", node_label(node))] = str(error)
    return {v: tensor_from(arrays[v]) for v in frontier if v in arrays}


def _evaluate_group(
    engine: Engine, group: Sequence[ir.Node], frontier: Sequence[ir.Value]
) -> Mapping[ir.Value, ir.TensorProtocol]:
    read = dict.fromkeys(value for node in group for value in node.inputs)
    constants = {value: tensor for value in read if (tensor := facts.constant_tensor(value)) is not None}
    if is_watched(constants.values()):
        # Folding removes the nodes from the graph, and a change of a weight evaluates the copies again.
        nodes, twins = copy_nodes(group)
    else:
        nodes, twins = list(group), {value: value for value in (*constants, *frontier) if value is not None}
    inputs, outputs = [twins[value] for value in constants if value is not None], [twins[value] for value in frontier]
    compute = functools.partial(_results, nodes, inputs, outputs, _imports(engine))
    return dict(zip(frontier, derive(compute, *constants.values()), strict=True))


def _results(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    imports: Mapping[str, int],
    *arrays: np.ndarray,
) -> list[np.ndarray]:
    arrays_by_value = evaluate_nodes(nodes, outputs, dict(zip(inputs, arrays, strict=True)).get, imports)
    return [arrays_by_value[value] for value in outputs]


def _imports(workspace: Workspace) -> dict[str, int]:
    return {("" if domain == "ai.onnx" else domain): version for domain, version in workspace.opset_imports.items()}


def evaluate_constants(
    workspace: Workspace,
    nodes: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    known: Mapping[ir.Value, np.ndarray] | None = None,
) -> dict[ir.Value, np.ndarray]:
    """Return the values of ``outputs``, computed by ``nodes`` from constants and the arrays in ``known``.

    Raises:
        UnsupportedError: an operator has no definition, or an input is not constant.
        ExecutionError: a node has no result for these values.
        ResourceError: the computation exceeds the limit of memory or time.
    """

    def tensor(value: ir.Value) -> np.ndarray | None:
        return known[value] if known and value in known else facts.constant(value)

    return evaluate_nodes(nodes, outputs, tensor, _imports(workspace))
