"""The shapes of the operands of recurrent layers, which onnx's inference does not compare."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding
from sardonyx.model.check.onnx_inference import infer
from sardonyx.model.check.scopes import canonical_domain, scopes
from sardonyx.model.check.skeleton import without_weights

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")

_Shape = list[int | None]


def check_recurrent(model: onnx.ModelProto) -> Iterator[Finding]:
    """Report operands of ``LSTM``, ``GRU`` and ``RNN`` whose known sizes contradict the other operands.

    Args:
        model: The message, with a sound structure.

    Yields:
        The findings.
    """
    located = [(scope, node) for scope in scopes(model) for node in scope.graph.node if _is_recurrent(node)]
    if not located:
        return
    shapes = _shapes(infer(without_weights(model, keep_shapes=True), data_prop=True) or model)
    for scope, node in located:
        operands = [shapes.get(name) for name in node.input]
        for index, expected in enumerate(_expected_shapes(node, operands)):
            actual = operands[index] if index < len(operands) and node.input[index] else None
            if actual is not None and not _agree(actual, expected):
                reason = f"expected the shape {_text(expected)} for `{_NAMES[index]}`, got {_text(actual)}."
                yield finding("inference", reason, scope.at(node, tensor=node.input[index]))


def _is_recurrent(node: onnx.NodeProto) -> bool:
    return node.op_type in _GATES and not canonical_domain(node.domain)


def _shapes(model: onnx.ModelProto) -> dict[str, _Shape]:
    """Return the known shapes of tensors by name; a name with several shapes is left out."""
    shapes: dict[str, _Shape] = {}
    conflicts: set[str] = set()

    def add(name: str, shape: _Shape) -> None:
        if shapes.setdefault(name, shape) != shape:
            conflicts.add(name)

    for scope in scopes(model):
        if not isinstance(scope.graph, onnx.GraphProto):
            continue
        for tensor in scope.graph.initializer:
            add(tensor.name, list(tensor.dims))
        weights = {tensor.name for tensor in scope.graph.initializer}
        for value in (*scope.graph.input, *scope.graph.value_info, *scope.graph.output):
            if value.name not in weights and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                add(value.name, [dim.dim_value if dim.HasField("dim_value") else None for dim in dims])
    return {name: shape for name, shape in shapes.items() if name not in conflicts}


def _expected_shapes(node: onnx.NodeProto, operands: list[_Shape | None]) -> list[_Shape]:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    x, _, recurrence = [*operands, None, None, None][:3]
    x_shape: _Shape = x if x is not None and len(x) == 3 else [None] * 3
    gates, directions = _GATES[node.op_type], 1
    if "direction" in attributes and attributes["direction"].s == b"bidirectional":
        directions = 2
    hidden = recurrence[2] if recurrence is not None and len(recurrence) == 3 else None
    if "hidden_size" in attributes and not attributes["hidden_size"].ref_attr_name:
        hidden = attributes["hidden_size"].i
    batch_first = "layout" in attributes and attributes["layout"].i == 1
    batch, width = x_shape[0 if batch_first else 1], x_shape[2]
    state: _Shape = [batch, directions, hidden] if batch_first else [directions, batch, hidden]
    per_gate = None if hidden is None else gates * hidden
    biases = None if per_gate is None else 2 * per_gate
    peepholes = None if hidden is None else 3 * hidden
    return [
        x_shape, [directions, per_gate, width], [directions, per_gate, hidden], [directions, biases], [batch],
        state, state, [directions, peepholes],
    ]  # fmt: skip


def _agree(actual: _Shape, expected: _Shape) -> bool:
    return len(actual) == len(expected) and all(
        a is None or b is None or a == b for a, b in zip(actual, expected, strict=True)
    )


def _text(shape: _Shape) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
