"""Constant folding: whole constant subgraphs are evaluated once, here, and become weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import EvaluationError
from sardonyx.rewrite import evaluate, facts, inference
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.facts import STANDARD
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.sweep import sweep

KEPT = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "Identity"})
"""Never folded: quantization is what engines look for, and a Constant or Identity is the rules' business."""

SPLAT_BYTES = 128
"""Bytes up to which a ConstantOfShape is folded: its node costs about as much, and says the same in less."""

UNSUPPORTED = frozenset(
    {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4", "float4_e2m1fn"}
)


@sweep("fold_constants", exactness=EXACT)
def fold_constants(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Subgraphs of constants become weights, unless they draw, quantize, or would grow the file beyond bounds."""
    group = _foldable(engine, graph)
    if not group:
        return
    inside = set(group)
    frontier: list[ir.Value] = []
    for node in group:
        for output in node.outputs:
            if output.is_graph_output() or any(use.node not in inside for use in output.uses()):
                frontier.append(output)
    if not frontier:
        return
    answers = _evaluate(engine, group, frontier)
    for value in frontier:
        found = answers.get(value)
        producer = value.producer()
        assert producer is not None
        if found is None or producer.graph is None:
            continue
        yield producer, _replaced(engine, value, found)


def _replaced(engine: Engine, value: ir.Value, array: np.ndarray) -> Result:
    producer = value.producer()
    assert producer is not None
    if value.dtype is not None and value.dtype != ir.DataType.STRING and array.dtype != value.dtype.numpy():
        return Refusal(f"it evaluates to {array.dtype}, and {value.dtype} is declared")
    if array.dtype.kind in "OUS":
        strings = [x.encode() if isinstance(x, str) else bytes(x) for x in array.reshape(-1).tolist()]
        tensor: ir.TensorProtocol = ir.StringTensor(strings, shape=ir.Shape(list(array.shape)))
    else:
        tensor = ir.Tensor(array)
    nodes: list[ir.Node] = []
    assert producer.graph is not None
    constant = engine.new_constant(tensor, producer.graph, f"{value.name}_folded", nodes)
    return Patch({value: constant}, nodes=nodes)


def _foldable(engine: Engine, graph: ir.Graph) -> list[ir.Node]:
    """The nodes, in order, whose inputs are constants or outputs of other such nodes, within the growth bound."""
    known: set[ir.Value] = set()
    group: list[ir.Node] = []
    for node in facts.nodes_of(graph):
        if not node.inputs or not all(v is None or v in known or facts.is_constant(v) for v in node.inputs):
            continue
        if node.domain not in STANDARD or node.op_type in KEPT or not facts.is_pure(node):
            continue
        if facts.bodies(node) or facts.refers_to_function_attribute(node):
            continue
        reason = _objection(engine, node, known)
        if reason is not None:
            engine.refused[("fold_constants", node_label(node))] = reason
            continue
        group.append(node)
        known.update(node.outputs)
    return group


def _objection(engine: Engine, node: ir.Node, known: set[ir.Value]) -> str | None:
    """Why a node of constants must not be folded, if there is a reason."""
    size = 0
    for output in node.outputs:
        shape = facts.static_shape(output)
        if shape is None:
            inference.infer_node(node, engine.opset_imports, engine.model.ir_version)
            shape = facts.static_shape(output)
        kind = facts.dtype(output)
        if kind is None or (shape is None and node.op_type not in ("NonZero", "Unique", "Compress")):
            if not all(v is None or facts.is_constant(v) for v in node.inputs):
                return "the size of its result is not known yet"
            return "the size of its result cannot be told"
        if kind.name.lower() in UNSUPPORTED:
            return f"numpy holds no {kind.name}"
        if shape is None:
            source = facts.static_shape(node.inputs[0]) or (0,)
            shape = (len(source) + 1, int(np.prod(source, dtype=object)))
        size += (
            int(np.prod(shape, dtype=object) * kind.itemsize)
            if kind != ir.DataType.STRING
            else 64 * int(np.prod(shape, dtype=object))
        )
    freed = 0
    for value in node.inputs:
        tensor = facts.constant_tensor(value)
        if tensor is not None and value is not None and tensor.dtype != ir.DataType.STRING and len(value.uses()) == 1:
            freed += tensor.nbytes
        elif value in known and (shape := facts.static_shape(value)) is not None and value is not None:
            freed += int(np.prod(shape, dtype=object) * (value.dtype.itemsize if value.dtype else 0))
    if node.op_type == "ConstantOfShape" and size > SPLAT_BYTES:
        return f"one number stands for {size} bytes"
    if size - freed > engine.settings.growth:
        return f"folding it would add {size - freed} bytes"
    return None


def _evaluate(engine: Engine, group: Sequence[ir.Node], frontier: Sequence[ir.Value]) -> Mapping[ir.Value, np.ndarray]:
    """The frontier's values, from one run over the whole group; node by node where an engine refuses it whole."""
    try:
        return evaluate_constants(engine, group, frontier)
    except EvaluationError as error:
        if len(group) == 1:
            engine.refused[("fold_constants", node_label(group[0]))] = str(error)
            return {}
    answers: dict[ir.Value, np.ndarray] = {}
    for node in group:
        if all(v is None or v in answers or facts.is_constant(v) for v in node.inputs):
            try:
                answers.update(evaluate_constants(engine, [node], [v for v in node.outputs if v.name], answers))
            except EvaluationError as error:
                engine.refused[("fold_constants", node_label(node))] = str(error)
    return {v: answers[v] for v in frontier if v in answers}


def evaluate_constants(
    engine: Engine,
    nodes: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    known: Mapping[ir.Value, np.ndarray] | None = None,
) -> dict[ir.Value, np.ndarray]:
    """The values of ``outputs``, from ``nodes`` run on constants (and on what is ``known`` besides).

    Raises:
        EvaluationError: no engine runs the nodes.
    """
    inside = {v for node in nodes for v in node.outputs}
    inputs = list({v: None for node in nodes for v in node.inputs if v is not None and v not in inside})
    # Sibling bodies may use one name for different values: here each value gets a name of its own.
    names = {v: f"v{i}" for i, v in enumerate([*inputs, *(v for node in nodes for v in node.outputs)])}
    feeds = {names[v]: _fed(known[v] if known and v in known else facts.constant(v), nodes[0]) for v in inputs}
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            [_renamed(node, names) for node in nodes],
            "constants",
            [_info(names[v], feeds[names[v]]) for v in inputs],
            [onnx.helper.make_value_info(names[v], _type(v)) for v in outputs],
        ),
        opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in engine.opset_imports.items()],
        ir_version=min(engine.model.ir_version, 13),
    )
    if len(nodes) == 1:
        answers = evaluate.evaluate(proto, feeds)
    else:
        run = evaluate.runner(proto)
        if run.name != evaluate.OnnxRuntimeRunner.name:
            # The reference rounds in its own way: it is asked for the node that needs it, not for its neighbours.
            raise EvaluationError("ONNX Runtime refuses the nodes as a whole", where=node_label(nodes[0]))
        answers = run.run(feeds)
    return {v: np.asarray(answers[names[v]]) for v in outputs}


def _renamed(node: ir.Node, names: Mapping[ir.Value, str]) -> onnx.NodeProto:
    proto = ir.serde.serialize_node(node)
    proto.name = ""
    proto.input[:] = ["" if v is None else names[v] for v in node.inputs]
    proto.output[:] = [names[v] if v.name else "" for v in node.outputs]
    return proto


def _fed(array: np.ndarray | None, node: ir.Node) -> np.ndarray:
    """An input as engines take it: strings as text, for bytes are read beyond their end."""
    if array is None:
        raise EvaluationError("an input is not constant", where=node_label(node))
    if array.dtype.kind not in "OUS":
        return array
    try:
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise EvaluationError("a string is not UTF-8", where=node_label(node)) from error
    return np.array(words, object).reshape(array.shape)


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.STRING if array.dtype.kind in "OUS" else int(ir.DataType.from_numpy(array.dtype))
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def _type(value: ir.Value) -> onnx.TypeProto:
    kind = facts.dtype(value)
    assert kind is not None
    return onnx.helper.make_tensor_type_proto(int(kind), None)
