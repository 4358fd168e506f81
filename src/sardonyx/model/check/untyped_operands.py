"""Operators whose inference in onnx's C++ code reads the type of an operand that has none, which ends the process."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from sardonyx.model.check.scopes import canonical_domain, scopes

_OPERATORS = frozenset(
    {
        ("", "EyeLike"),
        ("", "RegexFullMatch"),
        ("ai.onnx.ml", "DictVectorizer"),
        ("ai.onnx.ml", "LabelEncoder"),
        ("ai.onnx.ml", "TreeEnsemble"),
    }
)
"""Source: `tests/fuzz/test_onnx_inference.py`, which leaves the types of operands out for all operators."""

_HIDDEN = "sardonyx.hidden."
"""Prefix of the domain of a node that inference must not see."""

_NEEDS_CONTENTS = "Cannot parse data from external tensors"

_PASSES = 4
"""Most inferences that look for the types of operands; a node whose operand has none after them stays hidden."""


def infer_typed(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """Return ``onnx.shape_inference.infer_shapes``, which does not see nodes of these operators without a type.

    Args:
        model: The message; not changed.
        options: The options of ``infer_shapes``.
    """
    if not any(True for _ in _nodes(model)):
        return _inferred(model, **options)
    safe = onnx.ModelProto()
    safe.CopyFrom(model)
    hidden = list(_nodes(safe))
    for node in hidden:
        node.domain = _HIDDEN + node.domain
    for imports in (safe.opset_import, *(function.opset_import for function in safe.functions)):
        imports.extend(onnx.helper.make_opsetid(_HIDDEN + domain, 1) for domain in sorted({d for d, _ in _OPERATORS}))
    for _ in range(_PASSES):
        typed = _typed_names(onnx.shape_inference.infer_shapes(safe))
        visible = [node for node in hidden if node.input and node.input[0] in typed]
        for node in visible:
            node.domain = node.domain.removeprefix(_HIDDEN)
        hidden = [node for node in hidden if node.domain.startswith(_HIDDEN)]
        if not visible or not hidden:
            break
    return _inferred(safe, **options)


def _inferred(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """Return the result of onnx's inference, without data propagation where it needs the contents of a weight.

    Propagation reads all indices of a ``Gather`` from a vector, and refuses the emptied tensors of a skeleton.
    """
    try:
        return onnx.shape_inference.infer_shapes(model, **options)
    except onnx.shape_inference.InferenceError as error:
        if not options.get("data_prop") or _NEEDS_CONTENTS not in str(error):
            raise
        return onnx.shape_inference.infer_shapes(model, **{**options, "data_prop": False})


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the operators, in all graphs and functions."""
    for scope in scopes(model):
        for node in scope.graph.node:
            if (canonical_domain(node.domain), node.op_type) in _OPERATORS:
                yield node


def _typed_names(model: onnx.ModelProto) -> set[str]:
    """Return the names of the values with a known type in the main graph, which bodies may read too."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    names = {value.name for value in values if value.type.WhichOneof("value")}
    names |= {tensor.name for tensor in model.graph.initializer}
    for scope in scopes(model):
        if scope.is_main:
            continue
        shadowing = {name for node in scope.graph.node for name in node.output}
        names -= shadowing | {value if isinstance(value, str) else value.name for value in scope.graph.input}
    return names
