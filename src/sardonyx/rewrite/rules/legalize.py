"""Operators that a target or an older operator set lacks, written as those it has.

The decompositions are those of opset conversion; here each is a pass of its own, ``legalize_…``, which runs when it is
named or when a target's parser does not take the operator. A target's profile then forbids the fusions that would
make the operator again.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OpsetConversionError
from sardonyx.rewrite import facts
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    Expr,
    Patch,
    Refusal,
    Result,
    Rewrite,
    V,
    rule,
)
from sardonyx.rewrite.notation import Add, Div, Erf, MatMul, Mul, Reciprocal, Sigmoid, Transpose
from sardonyx.rewrite.opset import decompose
from sardonyx.rewrite.rewrite_context import Workspace
from sardonyx.rewrite.site import Site

DECOMPOSED = {
    "Attention": "legalize_attention",
    "Celu": "legalize_celu",
    "CenterCropPad": "legalize_center_crop_pad",
    "Einsum": "legalize_einsum",
    "Gelu": "legalize_gelu",
    "GroupNormalization": "legalize_group_normalization",
    "HardSwish": "legalize_hard_swish",
    "LayerNormalization": "legalize_layer_normalization",
    "MatMulInteger": "legalize_matmul_integer",
    "MeanVarianceNormalization": "legalize_mean_variance_normalization",
    "Mish": "legalize_mish",
    "RMSNormalization": "legalize_rms_normalization",
    "RotaryEmbedding": "legalize_rotary_embedding",
    "Shrink": "legalize_shrink",
    "Swish": "legalize_swish",
    "ThresholdedRelu": "legalize_thresholded_relu",
}
"""Operators with a decomposition, and the pass that writes it."""


def _lone(node: ir.Node, opset: int, ir_version: int) -> ir.Model:
    """The node as a model of its own: what it reads are inputs, or weights where they are constant."""
    inputs: list[ir.Value] = []
    weights: list[ir.Value] = []
    stand_ins: dict[ir.Value, ir.Value] = {}
    for value in node.inputs:
        if value is None or value in stand_ins:
            continue
        tensor = facts.constant_tensor(value)
        name = f"in{len(stand_ins)}"
        twin = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
        if tensor is not None:
            twin.type, twin.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        stand_ins[value] = twin
        (inputs if tensor is None else weights).append(twin)
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else stand_ins[v] for v in node.inputs],
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    outputs: list[ir.Value] = []
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        if not facts.unused(old):
            outputs.append(new)
    graph = ir.Graph(inputs, outputs, nodes=[copy], initializers=weights, opset_imports={"": opset}, name="lone")
    return ir.Model(graph, ir_version=max(ir_version, 4))


def decomposition(s: Site) -> Result:
    """The node written as other operators at the operator set in force."""
    node = s.node
    if facts.refers_to_function_attribute(node):
        return Refusal("an attribute is a parameter of the function")
    if any(v is not None and (v.dtype is None or v.shape is None) for v in node.inputs):
        return Refusal("types and ranks of its inputs are not all known")
    try:
        written = decompose(_lone(node, s.opset, s.workspace.model.ir_version), {node.op_type})
    except OpsetConversionError as error:
        return Refusal(error.problem)
    if any(n.op_type == node.op_type for n in written.graph.all_nodes()):
        return Refusal("its decomposition holds it again")
    read = [v for v in node.outputs if not facts.unused(v)]
    if any(facts.rank(new) != facts.rank(old) for old, new in zip(read, written.graph.outputs, strict=True)):
        return Refusal("its decomposition is not known to keep the rank")
    return Patch(build=lambda: _spliced(s.workspace, node, written.graph))


def _spliced(workspace: Workspace, node: ir.Node, body: ir.Graph) -> Patch:
    """The nodes of a decomposition, wired to what the node reads, in place of it."""
    graph = node.graph
    assert graph is not None
    actual = {f"in{i}": v for i, v in enumerate(dict.fromkeys(v for v in node.inputs if v is not None))}
    nodes: list[ir.Node] = []
    for value in [*body.inputs, *body.initializers.values()]:
        if not value.uses():
            continue
        stands_for = actual.get(str(value.name))
        if stands_for is None:
            assert value.const_value is not None
            stands_for = workspace.new_constant(value.const_value, graph, str(value.name), nodes)
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, stands_for)
    results = list(body.outputs)
    while len(body.outputs):
        body.outputs.pop()
    inner = list(body)
    body.remove(inner)
    for each in inner:
        each.name = workspace.node_names.fresh(each.name or each.op_type)
        for output in each.outputs:
            if output.name:
                output.name = workspace.names.fresh(f"{output.name}_legal")
    read = [v for v in node.outputs if not facts.unused(v)]
    return Patch(dict(zip(read, results, strict=True)), nodes=[*nodes, *inner])


def _register(op_type: str, name: str) -> None:
    def legalize(s: Site) -> Result:
        return decomposition(s)

    legalize.__name__ = name
    legalize.__doc__ = f"{op_type} written as the operators that it is made of."
    rule(name, on=op_type, exactness=REASSOCIATES, default=False)(legalize)


for _op_type, _name in DECOMPOSED.items():
    _register(_op_type, _name)


@rule("legalize_gemm", on="Gemm", exactness=REASSOCIATES, opset=7, default=False)
def gemm_by_product(s: Site) -> Result:
    """Gemm as Transpose, MatMul, Mul and Add."""
    a, b, c = s.input(0), s.input(1), s.input(2)
    kind = facts.dtype(a)
    if a is None or b is None or kind is None or facts.refers_to_function_attribute(s.node):
        return Refusal("its element type is not known")
    if not kind.is_floating_point():
        return Refusal("alpha and beta scale integers only where they are 1")
    if s.attr("beta", 1.0) != 1.0 and c is not None and s.attr("beta", 1.0) == 0.0:
        return Refusal("beta is 0, and hides what is not finite in the third operand")
    left: ir.Value | Expr = Transpose(a, perm=[1, 0]) if s.attr("transA", 0) else a
    right: ir.Value | Expr = Transpose(b, perm=[1, 0]) if s.attr("transB", 0) else b
    result = _scaled(MatMul(left, right), s.attr("alpha", 1.0), kind)
    return result if c is None else Add(result, _scaled(c, s.attr("beta", 1.0), kind))


def _scaled(value: ir.Value | Expr, factor: float, kind: ir.DataType) -> ir.Value | Expr:
    return value if factor == 1.0 else Mul(value, np.array(factor, kind.numpy()))


@rule("legalize_batch_normalization", on="BatchNormalization", exactness=REASSOCIATES, opset=9, default=False)
def batch_norm_as_linear(s: Site) -> Result:
    """BatchNormalization in test mode with constant statistics is one Mul and one Add."""
    if s.attr("training_mode", 0) or not s.unused_outputs_from(1):
        return Refusal("it is in training mode")
    x, rank = s.input(0), s.rank(0)
    statistics = [facts.constant(s.input(i)) for i in range(1, 5)]
    kinds = {facts.dtype(s.input(i)) for i in range(5)}
    if x is None or rank is None or rank < 2 or any(v is None for v in statistics) or len(kinds) != 1:
        return Refusal("its rank is not known, its statistics are not constant, or its types differ")
    scale, bias, mean, variance = (np.asarray(v, np.float64) for v in statistics)
    slope = scale / np.sqrt(variance + s.attr("epsilon", 1e-5))
    kind = facts.dtype(x)
    assert kind is not None
    shape = (-1, *[1] * (rank - 2))
    factor, shift = ((v.reshape(shape)).astype(kind.numpy()) for v in (slope, bias - mean * slope))
    return Add(Mul(x, factor), shift)


@rule("legalize_reciprocal", exactness=REASSOCIATES, opset=7, default=False)
def product_with_reciprocal(x: V, y: V) -> Rewrite:
    """X · (1 / y) is x / y."""
    return Mul(x, Reciprocal(y).once) >> Div(x, y)


@rule("legalize_neg", on="Neg", exactness=EXACT, default=False, opset=7)
def negation_by_product(s: Site) -> Result:
    """Neg is a product with −1."""
    kind = facts.dtype(s.input(0))
    if kind is None or kind.name not in ("FLOAT", "DOUBLE", "FLOAT16", "INT32", "INT64"):
        return Refusal("Mul does not have this element type at every operator set")
    return Mul(s.node.inputs[0], np.array(-1, kind.numpy()))


PADDED = ("Conv", "MaxPool", "AveragePool", "LpPool")


@rule("legalize_auto_pad", on=PADDED, exactness=EXACT, opset=7, default=False)
def explicit_pads(s: Site) -> Result:
    """Padding that the operator chooses itself is stated as numbers."""
    mode = s.attr("auto_pad", "NOTSET")
    if mode == "NOTSET" or facts.refers_to_function_attribute(s.node):
        return None
    kernel = s.attr("kernel_shape")
    weight = facts.static_shape(s.input(1)) if s.node.op_type == "Conv" else None
    if kernel is None and weight is not None:
        kernel = list(weight[2:])
    rank = s.rank(0)
    if kernel is None or rank is None:
        return Refusal("the size of its kernel is not known")
    spatial = rank - 2
    pads = [0] * (2 * spatial)
    if mode != "VALID":
        strides = s.attr("strides") or [1] * spatial
        dilations = s.attr("dilations") or [1] * spatial
        for axis in range(spatial):
            size = facts.dim_at(s.input(0), axis + 2)
            if size is None:
                return Refusal("its padding depends on an open size")
            steps = -(-size // strides[axis])
            total = max(0, (steps - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1 - size)
            more, less = total - total // 2, total // 2
            before, after = (less, more) if mode == "SAME_UPPER" else (more, less)
            pads[axis], pads[axis + spatial] = before, after
    kept = {name: attribute for name, attribute in s.node.attributes.items() if name not in ("auto_pad", "pads")}
    if s.node.op_type in ("MaxPool", "AveragePool", "LpPool") and s.attr("ceil_mode", 0):
        return Refusal("with ceil_mode its windows are counted otherwise")
    if len(s.node.outputs) > 1 and not s.unused_outputs_from(1):
        return Refusal("its indices are read")
    return Expr((s.node.op_type,), tuple(s.node.inputs), {**kept, "pads": pads})


@rule("legalize_microsoft", on="*", exactness=REASSOCIATES, opset=9, default=False)
def contributed_activations(s: Site) -> Result:
    """QuickGelu, Gelu and BiasGelu of com.microsoft as standard operators."""
    if s.node.domain != "com.microsoft":
        return None
    x, kind = s.input(0), facts.dtype(s.input(0))
    build = _CONTRIBUTED.get(s.node.op_type)
    if build is None:
        return None
    if x is None or kind is None:
        return Refusal("its element type is not known")
    return build(s, x, kind)


def _quick_gelu(s: Site, x: ir.Value, kind: ir.DataType) -> Expr:
    attribute = s.node.attributes.get("alpha")
    alpha = 1.702 if attribute is None else attribute.as_float()
    return Mul(x, Sigmoid(Mul(x, np.array(alpha, kind.numpy()))))


def _gelu(s: Site, x: ir.Value | Expr, kind: ir.DataType) -> Expr:
    half, root = (np.array(number, kind.numpy()) for number in (0.5, np.sqrt(0.5)))
    return Mul(Mul(x, half), Add(Erf(Mul(x, root)), np.array(1.0, kind.numpy())))


def _bias_gelu(s: Site, x: ir.Value, kind: ir.DataType) -> Expr:
    return _gelu(s, Add(x, s.input(1)), kind)


_CONTRIBUTED = {"QuickGelu": _quick_gelu, "Gelu": _gelu, "BiasGelu": _bias_gelu}
