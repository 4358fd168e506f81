"""The values by which the noise of a model is measured, in place of outputs that hide it."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts

_MOVING = frozenset(("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"))
_MOST_PARTS = 64
"""Operators that keep the elements of a value, and the most outputs of a model whose outputs are measured in parts."""


def measure_values(model: ir.Model) -> list[int]:
    """Let the outputs of a model be the values by which noise is measured; return the kind of each."""
    _measure_sources(model)
    _measure_logits(model)
    return measure_parts(model)


def _measure_sources(model: ir.Model) -> None:
    """Let outputs that are no tensors of floats be the floats that decide on these: labels hide most of the noise."""
    outputs: list[ir.Value] = []
    for value in model.graph.outputs:
        outputs += [source for source in _float_sources(value) if source not in outputs]
    model.graph.outputs[:] = outputs


def _float_sources(value: ir.Value) -> list[ir.Value]:
    """Return the value if it is a tensor of floats, else the nearest ones that it is computed from, or itself."""
    pending, seen, sources = [value], {value}, []
    while pending:
        current = pending.pop(0)
        node = current.producer()
        if isinstance(current.type, ir.TensorType) and current.dtype == ir.DataType.FLOAT:
            if current is value or not (node is None or facts.is_constant(current)):
                sources.append(current)
            continue
        for source in node.inputs if node is not None else ():
            if source is not None and source not in seen and not facts.is_constant(source):
                seen.add(source)
                pending.append(source)
    return sources or [value]


def _measure_logits(model: ir.Model) -> None:
    """Let outputs of Softmax be its inputs: few samples near a decision have nearly all noise of the probabilities."""
    outputs = model.graph.outputs
    for index, value in enumerate(list(outputs)):
        producer = value.producer()
        if producer is None or producer.domain or producer.op_type not in ("Softmax", "LogSoftmax"):
            continue
        logits = producer.inputs[0]
        if logits is not None and logits.dtype == ir.DataType.FLOAT and not logits.is_graph_output():
            outputs[index] = logits


def measure_parts(model: ir.Model) -> list[int]:
    """Let outputs that join values of several kinds be these values, and return the kind of each output.

    A detector joins boxes of hundreds of pixels and scores below 1: the error of the boxes hides that of the scores.
    Parts that are computed alike, as those of several sizes of a picture, are of one kind.
    """
    parts = [part for index, output in enumerate(model.graph.outputs) for part in _parts(output, (index,))]
    if len(parts) > _MOST_PARTS:
        return list(range(len(model.graph.outputs)))
    numbers = {path: number for number, path in enumerate(dict.fromkeys(path for _, path in parts))}
    model.graph.outputs[:] = [value for value, _ in parts]
    return [numbers[path] for _, path in parts]


def _parts(value: ir.Value, path: tuple[int, ...]) -> list[tuple[ir.Value, tuple[int, ...]]]:
    """Return the values that an output joins, with its indices in joins of different kinds."""
    joined = _moved(value)
    node = joined.producer()
    if node is None or node.domain or node.op_type != "Concat":
        return [(value, path)]
    sources = [source for source in node.inputs if source is not None]
    if not all(source.dtype == ir.DataType.FLOAT and not facts.is_constant(source) for source in sources):
        return [(value, path)]
    producers = [_moved(source).producer() for source in sources]
    are_alike = len({None if one is None else one.op_type for one in producers}) == 1
    parts = []
    for index, source in enumerate(sources):
        parts += _parts(source, path if are_alike else (*path, index))
    return parts


def _moved(value: ir.Value) -> ir.Value:
    """Return the value whose elements an output holds in another order or shape."""
    while True:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _MOVING or node.inputs[0] is None:
            return value
        value = node.inputs[0]
