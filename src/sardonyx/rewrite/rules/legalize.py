"""Legalization: decompose operators absent from a target or an older operator set.

The decompositions are those of opset conversion. Each is a separate pass, ``legalize_…``, which runs if named or if the
parser of the target does not support the operator. The profile of the target then forbids fusions back.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OpsetConversionError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    A,
    Expr,
    Match,
    Patch,
    Refusal,
    Result,
    Rewrite,
    V,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import (
    Add,
    BatchNormalization,
    Erf,
    Gemm,
    MatMul,
    Mul,
    Neg,
    Reciprocal,
    Sigmoid,
    Transpose,
)
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
"""Operators with a decomposition, and the pass that applies the decomposition."""


def _extract_model(node: ir.Node, opset: int, ir_version: int) -> ir.Model:
    """Return the node as a model of its own; constant operands are initializers, the others inputs."""
    inputs: list[ir.Value] = []
    weights: list[ir.Value] = []
    twins: dict[ir.Value, ir.Value] = {}
    for value in node.inputs:
        if value is None or value in twins:
            continue
        tensor = facts.constant_tensor(value)
        name = f"in{len(twins)}"
        copy_of_value = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
        if tensor is not None:
            copy_of_value.type, copy_of_value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        twins[value] = copy_of_value
        (inputs if tensor is None else weights).append(copy_of_value)
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else twins[v] for v in node.inputs],
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


def decompose_node(s: Site) -> Result:
    """Decompose the node into other operators at the operator set in force."""
    node = s.node
    if facts.refers_to_function_attribute(node):
        return Refusal("an attribute refers to an attribute of the enclosing function")
    if any(v is not None and (v.dtype is None or v.shape is None) for v in node.inputs):
        return Refusal("the type or rank of an input is not known")
    try:
        decomposed = decompose(_extract_model(node, s.opset, s.workspace.model.ir_version), {node.op_type})
    except OpsetConversionError as error:
        return Refusal(error.problem)
    if any(n.op_type == node.op_type for n in decomposed.graph.all_nodes()):
        return Refusal("the decomposition contains the operator again")
    read = [v for v in node.outputs if not facts.unused(v)]
    if any(facts.rank(new) != facts.rank(old) for old, new in zip(read, decomposed.graph.outputs, strict=True)):
        return Refusal("the decomposition is not known to keep the rank")
    return Patch(build=lambda: _splice(s.workspace, node, decomposed.graph))


def _splice(workspace: Workspace, node: ir.Node, body: ir.Graph) -> Patch:
    """Return the patch that replaces the node by its decomposition."""
    graph = node.graph
    assert graph is not None
    operands = {f"in{i}": v for i, v in enumerate(dict.fromkeys(v for v in node.inputs if v is not None))}
    nodes: list[ir.Node] = []
    for value in [*body.inputs, *body.initializers.values()]:
        if not value.uses():
            continue
        operand = operands.get(str(value.name))
        if operand is None:
            assert value.const_value is not None
            operand = workspace.new_constant(value.const_value, graph, str(value.name), nodes)
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, operand)
    results = list(body.outputs)
    while len(body.outputs):
        body.outputs.pop()
    inner = list(body)
    body.remove(inner)
    for inner_node in inner:
        inner_node.name = workspace.node_names.fresh(inner_node.name or inner_node.op_type)
        for output in inner_node.outputs:
            if output.name:
                output.name = workspace.names.fresh(f"{output.name}_legal")
    read = [v for v in node.outputs if not facts.unused(v)]
    return Patch(dict(zip(read, results, strict=True)), nodes=[*nodes, *inner])


def _register(op_type: str, name: str) -> None:
    def legalize(s: Site) -> Result:
        return decompose_node(s)

    legalize.__name__ = name
    legalize.__doc__ = f"Decompose {op_type} into other operators."
    rule(name, on=op_type, exactness=REASSOCIATES, default=False)(legalize)


for _op_type, _name in DECOMPOSED.items():
    _register(_op_type, _name)


@rule("legalize_gemm", exactness=REASSOCIATES, opset=7, default=False)
def gemm_by_product(a: V, b: V) -> Rewrite:
    """Decompose Gemm into Transpose, MatMul, Mul and Add."""

    def decompose(m: Match) -> Result:
        s, c, kind = m.site, m.site.input(2), facts.dtype(m.a)
        if kind is None or facts.refers_to_function_attribute(s.node):
            return Refusal("the element type is not known")
        if not kind.is_floating_point():
            return Refusal("alpha and beta do not apply to integers")
        if c is not None and s.attr("beta", 1.0) == 0.0:
            return Refusal("beta is 0, which discards non-finite elements of C")
        left = Transpose(m.a, perm=[1, 0]) if s.attr("transA", 0) else m.a
        right = Transpose(m.b, perm=[1, 0]) if s.attr("transB", 0) else m.b
        result = _scaled(MatMul(left, right), s.attr("alpha", 1.0), kind)
        return result if c is None else Add(result, _scaled(c, s.attr("beta", 1.0), kind))

    return Gemm(a, b, ...) >> decompose


def _scaled(value: ir.Value | Expr, factor: float, kind: ir.DataType) -> ir.Value | Expr:
    return value if factor == 1.0 else Mul(value, np.array(factor, kind.numpy()))


@rule("legalize_batch_normalization", exactness=REASSOCIATES, opset=9, default=False)
def batch_norm_as_linear(x: V, scale: V, bias: V, mean: V, variance: V, epsilon: A) -> Rewrite:
    """Decompose BatchNormalization outside of training with constant statistics into one Mul and one Add."""

    def linear(m: Match) -> Result:
        s, rank = m.site, facts.rank(m.x)
        if s.attr("training_mode", 0) or not s.unused_outputs_from(1):
            return Refusal("the node is in training mode")
        operands = (m.scale, m.bias, m.mean, m.variance)
        kinds, constants = {facts.dtype(v) for v in (m.x, *operands)}, [facts.constant(v) for v in operands]
        if rank is None or rank < 2 or any(array is None for array in constants) or len(kinds) != 1:
            return Refusal("the rank is not known, the statistics are not constant, or the types differ")
        scale, bias, mean, variance = (np.asarray(array, np.float64) for array in constants)
        slope = scale / np.sqrt(variance + m.epsilon)
        (kind,) = kinds
        assert kind is not None
        shape = (-1, *[1] * (rank - 2))
        factor, shift = (v.reshape(shape).astype(kind.numpy()) for v in (slope, bias - mean * slope))
        return Add(Mul(m.x, factor), shift)

    return BatchNormalization(x, scale, bias, mean, variance, epsilon=epsilon) >> linear


@rule("legalize_reciprocal", exactness=REASSOCIATES, opset=7, default=False)
def product_with_reciprocal(x: V, y: V) -> Rewrite:
    """Replace x · (1 / y) by x / y."""
    return x * Reciprocal(y) >> x / y | where(unshared)


@rule("legalize_neg", exactness=EXACT, default=False, opset=7)
def negation_by_product(x: V) -> Rewrite:
    """Replace Neg by a product with −1."""

    def product(m: Match) -> Result:
        kind = facts.dtype(m.x)
        if kind is None or kind.name not in ("FLOAT", "DOUBLE", "FLOAT16", "INT32", "INT64"):
            return Refusal("Mul does not support this element type in every operator set")
        return Mul(m.x, np.array(-1, kind.numpy()))

    return Neg(x) >> product


PADDED = ("Conv", "MaxPool", "AveragePool", "LpPool")


@rule("legalize_auto_pad", on=PADDED, exactness=EXACT, opset=7, default=False)
def explicit_pads(s: Site) -> Result:
    """Replace auto_pad by explicit pads."""
    mode = s.attr("auto_pad", "NOTSET")
    if mode == "NOTSET" or facts.refers_to_function_attribute(s.node):
        return None
    kernel = s.attr("kernel_shape")
    weight = facts.static_shape(s.input(1)) if s.node.op_type == "Conv" else None
    if kernel is None and weight is not None:
        kernel = list(weight[2:])
    rank = s.rank(0)
    if kernel is None or rank is None:
        return Refusal("the kernel size is not known")
    spatial = rank - 2
    pads = [0] * (2 * spatial)
    if mode != "VALID":
        strides = s.attr("strides") or [1] * spatial
        dilations = s.attr("dilations") or [1] * spatial
        for axis in range(spatial):
            size = facts.dim_at(s.input(0), axis + 2)
            if size is None:
                return Refusal("the padding depends on an open size")
            steps = -(-size // strides[axis])
            total = max(0, (steps - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1 - size)
            more, less = total - total // 2, total // 2
            before, after = (less, more) if mode == "SAME_UPPER" else (more, less)
            pads[axis], pads[axis + spatial] = before, after
    attributes = {name: attribute for name, attribute in s.node.attributes.items() if name not in ("auto_pad", "pads")}
    if s.node.op_type in ("MaxPool", "AveragePool", "LpPool") and s.attr("ceil_mode", 0):
        return Refusal("ceil_mode changes the number of windows")
    if len(s.node.outputs) > 1 and not s.unused_outputs_from(1):
        return Refusal("the output of indices is used")
    return Expr((s.node.op_type,), tuple(s.node.inputs), {**attributes, "pads": pads})


@rule("legalize_microsoft", on="*", exactness=REASSOCIATES, opset=9, default=False)
def contributed_activations(s: Site) -> Result:
    """Decompose QuickGelu, Gelu and BiasGelu of com.microsoft into standard operators."""
    if s.node.domain != "com.microsoft":
        return None
    x, kind = s.input(0), facts.dtype(s.input(0))
    build = _CONTRIBUTED.get(s.node.op_type)
    if build is None:
        return None
    if x is None or kind is None:
        return Refusal("the element type is not known")
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
