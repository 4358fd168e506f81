"""Nodes that an engine cannot load: operators without a kernel for the element types at hand.

A portable result must run where the original ran. The measure is the table of kernels of ONNX Runtime's processor
provider (``model/check/targets/onnxruntime.json``, written by ``tools/make_target_tables.py``): if each node of the
original is in the table, so is each node of the result. Operators of unknown domains are not judged: applications
register kernels for these.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import onnx
import onnx_ir as ir

from sardonyx.model.check.target_check import supports_node
from sardonyx.model.check.targets import Target, find_target
from sardonyx.rewrite.analysis import facts

_JUDGED = frozenset({"", "ai.onnx.ml", "com.microsoft"})


def unloadable_nodes(model: ir.Model, engine: str) -> Iterator[ir.Node]:
    """Yield the nodes of a model that the newest known version of an engine cannot load.

    Args:
        model: The model, its types inferred; values without a type are accepted.
        engine: Name of a target of ``check``.
    """
    target = find_target(engine)
    assert target is not None
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        imports = {_domain(domain): version for domain, version in (root.opset_imports or model.opset_imports).items()}
        opsets = tuple(sorted(imports.items()))
        for node in facts.nodes_of(root):
            if _domain(node.domain) in _JUDGED and not _is_loadable(node, opsets, target):
                yield node


def describe_types(node: ir.Node) -> str:
    """Return the operator and the element types of its inputs, for a message."""
    types = [kind for value in node.inputs if value is not None and (kind := _type_name(value))]
    return f"{node.op_type} of {', '.join(dict.fromkeys(types))}" if types else node.op_type


def _is_loadable(node: ir.Node, opsets: tuple[tuple[str, int], ...], target: Target) -> bool:
    inputs = tuple(None if value is None else _type_name(value) for value in node.inputs)
    outputs = tuple(_type_name(value) for value in node.outputs)
    attributes = tuple(
        (name, attribute.value)
        for name, attribute in sorted(node.attributes.items())
        if attribute.type == ir.AttributeType.INT and not attribute.is_ref()
    )
    return _supports(_domain(node.domain), node.op_type, inputs, outputs, attributes, opsets, target.name)


@lru_cache(maxsize=4096)
def _supports(
    domain: str,
    op_type: str,
    inputs: tuple[str | None, ...],
    outputs: tuple[str, ...],
    attributes: tuple[tuple[str, int], ...],
    opsets: tuple[tuple[str, int], ...],
    engine: str,
) -> bool:
    """Return True if the engine runs a node with these types; integer attributes select the body of a function."""
    names = ["" if kind is None else f"i{number}" for number, kind in enumerate(inputs)]
    results = [f"o{number}" for number in range(len(outputs))]
    types = {name: kind for name, kind in zip([*names, *results], [*inputs, *outputs], strict=True) if name and kind}
    node = onnx.helper.make_node(op_type, names, results, domain=domain)
    node.attribute.extend(onnx.helper.make_attribute(name, number) for name, number in attributes)
    target = find_target(engine)
    assert target is not None
    return supports_node(node, dict(opsets), types, target)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _type_name(value: ir.Value) -> str:
    dtype = facts.dtype(value)
    return "" if dtype is None or not isinstance(value.type, (ir.TensorType, type(None))) else dtype.name.lower()
