"""The registry of finding codes: severity, meaning and repair of each code, in one table."""

from __future__ import annotations

from sardonyx.model.check.findings import Code, Finding, Location, Severity

_ERRORS = [
    # The model and its parts.
    ("ir-version", "The IR version is missing or unknown.", "Write the model with a known IR version."),
    ("opset-missing", "A node or a function uses a domain that no opset import names.", "Import the domain."),
    ("opset-duplicate", "A domain is imported twice with different versions.", "Keep one import of the domain."),
    (
        "message-too-large",
        "The file is larger than the 2 GB that a protobuf message may hold, so most readers refuse it.",
        "Save the weights as external data.",
    ),
    (
        "nesting-too-deep",
        "Graphs or types are nested deeper than the 100 levels that protobuf readers accept.",
        "Flatten the nesting in the exporter.",
    ),
    ("text-encoding", "A name is not UTF-8 text; nothing else was checked.", "Rename it in the exporter."),
    (
        "attribute-unknown",
        "The operator of com.microsoft has no such attribute; sessions and ONNX Runtime refuse the model.",
        "Correct the name, or remove the attribute.",
    ),
    ("metadata-duplicate", "A metadata key occurs twice.", "Keep one entry of the key."),
    # Functions.
    ("function-duplicate", "Two functions have the same domain, name and overload.", "Rename or remove one of them."),
    (
        "function-recursive",
        "A function calls itself, directly, through others, or from inside a body.",
        "Break the cycle: functions are inlined and cannot recurse.",
    ),
    (
        "function-depth",
        "Functions call each other more than 100 levels deep, which ONNX readers refuse.",
        "Inline the inner functions in the exporter.",
    ),
    (
        "function-expansion",
        "Inlining the functions gives more than a million nodes.",
        "Remove the repeated calls in the exporter.",
    ),
    ("attribute-reference", "An attribute refers to a function attribute that does not exist.", "Declare it."),
    # Graphs and values.
    ("graph-cycle", "Nodes depend on their own outputs.", "Break the cycle in the exporter."),
    (
        "graph-unsorted",
        "A node precedes the producer of its input; sessions sort the nodes in memory.",
        "Sort the nodes: `sardonyx optimize` writes them in order.",
    ),
    ("graph-name", "A graph has no name.", "Name the graph."),
    ("value-undefined", "A node reads a name that nothing defines.", "Add the producer, or fix the name."),
    ("value-duplicate", "A name is defined more than once (the graph is not in SSA form).", "Rename one of them."),
    (
        "output-undefined",
        "A graph or function output has no producer inside its graph.",
        "Produce it, or drop the output.",
    ),
    ("output-duplicate", "The same output is listed twice.", "Remove one, or copy it with Identity."),
    ("value-type", "An input or output lacks a complete type.", "Declare the type and shape."),
    ("opaque-type", "An opaque type has no name, or no operator accepts it.", "Name it, or replace it."),
    ("dimension-invalid", "A dimension is negative.", "Declare a size, or a name for an unknown size."),
    ("dimension-overflow", "Sizes multiply or add beyond 64-bit integers.", "Correct the sizes."),
    ("initializer-not-input", "Below IR version 4 every weight must also be a graph input.", "Raise the IR version."),
    ("body-input-weight", "A body has a weight and an input of the same name.", "Rename one of them."),
    # Nodes.
    ("node-operator", "A node has no operator type.", "Set the operator type."),
    ("operator-unknown", "The imported opset has no such operator.", "Fix the name, or import the opset that has it."),
    ("operator-deprecated", "The operator was removed from the imported opset.", "Use the operator that replaced it."),
    ("arity", "The node has too few or too many inputs or outputs.", "Pass the inputs and outputs of the operator."),
    ("input-missing", "A required input is empty.", "Connect the input."),
    ("attribute-unknown", "The operator has no such attribute.", "Remove the attribute, or change the opset."),
    (
        "attribute-type",
        "An attribute's type differs from the operator's.",
        "Write the attribute with the operator's type.",
    ),
    (
        "attribute-range",
        "An attribute has a value for which onnx's inference fails without an error; types were not inferred.",
        "Correct the value.",
    ),
    ("attribute-missing", "A required attribute is missing.", "Add the attribute."),
    ("attribute-duplicate", "An attribute occurs twice.", "Keep one of them."),
    ("type-mismatch", "A declared or actual element type contradicts the inferred one.", "Correct the type."),
    ("shape-mismatch", "A declared shape contradicts the inferred one.", "Correct the declaration."),
    ("inference", "The operator rejects its inputs or attributes.", "Correct them."),
    ("checker", "onnx.checker refuses the model for another reason.", "See the reason."),
    # Tensors.
    ("tensor-type", "A tensor's element type is missing or unknown.", "Write the element type."),
    ("tensor-content", "A tensor's contents are missing or spread over several fields.", "Write the contents once."),
    ("tensor-size", "The size of a tensor's contents contradicts its type and shape.", "Write all elements."),
    ("sparse-tensor", "The indices of a sparse tensor do not fit its shape.", "Write valid, sorted indices."),
    (
        "external-file",
        "The file with the external data is missing, or outside of the model's folder and may not be read.",
        "Put the file into the model's folder.",
    ),
    (
        "external-range",
        "Offset and length of external data do not fit the file or the tensor.",
        "Write the data again.",
    ),
    # Targets.
    ("target-operator", "The target cannot run the operator.", "Legalize the model for the target."),
    ("target-type", "The target cannot run the operator with this element type.", "Change the type."),
    ("target-form", "The export target has no form for the operator or type.", "Export to another target."),
    ("target-opset", "The target does not know the opset.", "Convert the opset."),
    ("target-ir", "The target does not read the IR version.", "Write an older IR version."),
]

_WARNINGS = [
    ("opset-unknown", "The opset is newer than the installed onnx package.", "Update onnx, or convert down."),
    ("opset-redundant", "A domain is imported twice with the same version.", "Keep one import of the domain."),
    ("ir-too-old", "The model uses a feature of a later IR version.", "Raise the IR version."),
    (
        "operator-custom",
        "The operator's domain is unknown; the operator was not checked.",
        "Make sure that the runtime implements the operator.",
    ),
    (
        "attribute-ignored",
        "The operator has no such attribute, and engines ignore the attribute.",
        "Correct the name, or remove the attribute.",
    ),
    (
        "function-undefined",
        "The domain has model functions, but not one of this name.",
        "Add the function or fix the name.",
    ),
    ("name-shadowed", "A body defines a name that an enclosing graph defines too.", "Rename one of them."),
    ("node-duplicate", "Two nodes of a graph have the same name.", "Make the names unique."),
    ("tensor-too-large", "A tensor computed by the graph would take more than a terabyte.", "Correct the sizes."),
    (
        "target-restriction",
        "The target runs the operator only under a condition.",
        "Make sure that the condition holds.",
    ),
]

_LINT = [
    ("unused-input", "Nothing reads the graph input.", "Remove the input."),
    ("unused-weight", "Nothing reads the weight.", "Remove the weight."),
    ("unused-node", "No output depends on the node.", "Remove the node."),
    ("unused-function", "Nothing calls the function.", "Remove the function."),
    ("weight-nan", "A weight contains NaN.", "Export the model again from a valid checkpoint."),
    ("weight-inf", "A weight contains an infinity.", "Replace infinities of masks by finite numbers."),
    (
        "weight-denormal",
        "A weight contains denormal numbers, which are slow on many processors.",
        "Flush them to zero.",
    ),
    (
        "batch-baked",
        "The first dimension of the inputs is a fixed number: the batch size is baked in.",
        "Make the dimension symbolic.",
    ),
    ("opset-old", "Nodes decompose an operator that a later opset defines.", "Raise the opset."),
    ("int64-fits-int32", "An int64 weight contains only numbers that fit int32.", "Store it in 32 bits where allowed."),
    ("float64", "A tensor is float64, which costs twice the time and memory of float32.", "Use float32."),
    (
        "float16-overflow",
        "A float32 constant is at or beyond 65504, the largest float16.",
        "Clip the constant on conversion.",
    ),
    ("duplicate-weight", "Two weights have equal contents.", "Keep one of them."),
    (
        "weight-is-input",
        "A weight is also a graph input, and `optimize` does not fold an input.",
        "Remove the weight from the inputs, with `optimize --freeze-defaults`.",
    ),
    ("training-mode", "A node runs in training mode.", "Export the model in inference mode."),
]

_SECTIONS: tuple[tuple[Severity, list[tuple[str, str, str]]], ...] = (
    ("error", _ERRORS),
    ("warning", _WARNINGS),
    ("lint", _LINT),
)

CODES: dict[str, Code] = {
    name: Code(name, severity, meaning, repair) for severity, rows in _SECTIONS for name, meaning, repair in rows
}
"""All codes, by name."""


def finding(code: str, reason: str, where: Location, *, remedy: str = "", command: str = "") -> Finding:
    """Create a finding of a registered code.

    Args:
        code: A name in ``CODES``.
        reason: The problem at this location.
        where: The location.
        remedy: The remedy; the code's own repair if empty.
        command: The command that repairs the problem, if one can.

    Returns:
        The finding, with the severity of its code.
    """
    entry = CODES[code]
    return Finding(entry.severity, code, reason, where, remedy or entry.repair, command)
