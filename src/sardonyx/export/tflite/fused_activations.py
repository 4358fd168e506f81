"""Activations fused into the operators before them, as an option of these."""

from __future__ import annotations

from typing import Any

from sardonyx.export.tflite.file_builder import FileBuilder, SubgraphBuilder

ACTIVATIONS = {"RELU": 1, "RELU6": 3}
"""Number of the fused activation of each operator."""

FUSING = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D", "FULLY_CONNECTED", "ADD", "SUB", "MUL", "DIV", "MAX_POOL_2D"}
    | {"AVERAGE_POOL_2D"}
)
"""Operators that apply an activation to their result."""


def fuse_activations(file: FileBuilder) -> None:
    """Fuse activations of float tensors whose input nothing else reads."""
    names = file.operator_names()
    for subgraph in file.subgraphs:
        _fuse(subgraph, names)


def _fuse(subgraph: SubgraphBuilder, names: list[str]) -> None:
    readers: dict[int, int] = {}
    for operator in subgraph.operators:
        for index in operator["inputs"]:
            readers[index] = readers.get(index, 0) + 1
    for index in subgraph.outputs:
        readers[index] = readers.get(index, 0) + 1
    producers: dict[int, dict[str, Any]] = {}
    remaining = []
    for operator in subgraph.operators:
        activation = ACTIVATIONS.get(names[operator["opcode_index"]])
        source = producers.get(operator["inputs"][0]) if activation else None
        if source is not None and _can_fuse(subgraph, source, names, readers):
            kind, options = source["builtin_options"]
            source["builtin_options"] = (kind, {**options, "fused_activation_function": activation})
            source["outputs"] = operator["outputs"]
            producers[operator["outputs"][0]] = source
            continue
        for index in operator["outputs"]:
            producers[index] = operator
        remaining.append(operator)
    subgraph.operators = remaining


def _can_fuse(subgraph: SubgraphBuilder, source: dict[str, Any], names: list[str], readers: dict[int, int]) -> bool:
    index = source["outputs"][0]
    if names[source["opcode_index"]] not in FUSING or readers.get(index, 0) != 1:
        return False
    record, options = subgraph.records[index], source["builtin_options"]
    is_float = record["type"] == 0 and "quantization" not in record
    return is_float and options is not None and not options[1].get("fused_activation_function")
