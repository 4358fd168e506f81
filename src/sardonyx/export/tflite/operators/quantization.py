"""Quantized tensors: QuantizeLinear and DequantizeLinear, and operators between them in integer arithmetic.

An operator whose inputs are dequantized and whose result is quantized becomes one operator over codes if the format's
integer kernel computes it: activations int8 (uint8 codes are shifted by 128), weights int8 around zero, biases int32.
Every other operator stays in float32 between DEQUANTIZE and QUANTIZE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.export.tflite.emission import EMITTERS, FORMS, INTEGER, Call, emits
from sardonyx.export.tflite.file_builder import Quantization, Size, Tensor
from sardonyx.export.tflite.operators import windows
from sardonyx.rewrite.analysis import facts

RELU, RELU6 = 1, 3

SAME_CODES = frozenset(
    {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Pad", "DepthToSpace"}
    | {"SpaceToDepth", "MaxPool", "Resize", "Expand"}
)
"""Operators that move codes, or select among them, if input and result have the same scale."""


@emits("QuantizeLinear")
def quantize_linear(c: Call) -> Tensor:
    """Write codes of real numbers."""
    s, q = c.scope, c.scope.scales(c.node)
    if q is None or len(q.scale) != 1:
        raise c.refuse("computed scales, blocks, or scales along an axis of a computed tensor")
    kind = c.type()
    if kind not in ("INT8", "UINT8", "INT16"):
        raise c.refuse(f"codes of type {kind}")
    x = s.cast(c.input(), "FLOAT32")
    if x.array is not None:
        x = s.copy(x)
    return s.op("QUANTIZE", [x], x.shape, kind, quantization=q)


@emits("DequantizeLinear")
def dequantize_linear(c: Call) -> Tensor:
    """Write real numbers of codes."""
    s, value = c.scope, c.call.outputs[0]
    constant = s.constant_codes(value)
    if constant is not None:
        return s.dequantized(constant)
    q = s.scales(c.node)
    if q is None:
        folded = _folded(c)
        if folded is None:
            raise c.refuse("computed scales, or blocks of a computed tensor")
        return folded
    codes = s.codes_with(c.value(0), q)
    if codes is not None:
        return s.dequantized(codes)
    x = c.input()
    if len(q.scale) > 1:
        raise c.refuse("scales along an axis of a computed tensor")
    real = s.binary("SUB", s.cast(x, "FLOAT32"), s.constant(np.float32(q.zero_point[0])))
    return s.binary("MUL", real, s.constant(np.float32(q.scale[0])))


def _folded(c: Call) -> Tensor | None:
    """Return dequantized constants, for codes that the format has no scales for."""
    codes, scale, zero = (facts.constant(c.value(i)) if c.has(i) else None for i in range(3))
    if codes is None or scale is None:
        return None
    axis, block = int(c.attribute("axis", 1)), int(c.attribute("block_size", 0))
    numbers = codes.astype(np.float64)
    parts = [np.asarray(scale, np.float64), np.zeros(()) if zero is None else zero.astype(np.float64)]
    for i, part in enumerate(parts):
        if block and part.ndim:
            part = np.repeat(part, block, axis)[tuple(slice(0, n) for n in codes.shape)]
        elif part.ndim == 1 and part.size > 1:
            part = part.reshape([-1 if k == axis % codes.ndim else 1 for k in range(codes.ndim)])
        parts[i] = part
    return c.scope.constant(((numbers - parts[1]) * parts[0]).astype(np.float32))


@emits("DynamicQuantizeLinear")
def dynamic_quantize_linear(c: Call) -> list[Tensor]:
    """Refuse: the format has no codes whose scale is a tensor."""
    raise c.refuse("codes whose scale is computed")


@dataclass
class Result:
    """The quantized result that one operator over codes computes.

    Attributes:
        quantization: Scale and zero point of the result, for int8.
        output: The value of codes.
        nodes: Nodes between the operator and the codes, QuantizeLinear included.
        activation: The fused activation.
        orders: Permutations of axes between the operator and the codes.
    """

    quantization: Quantization
    output: ir.Value
    nodes: list[ir.Node] = field(default_factory=list)
    activation: int = 0
    orders: list[Sequence[int]] = field(default_factory=list)


def result_of(c: Call) -> Result | None:
    """Return the quantized result of a node, None if its result is used as a real number."""
    value, nodes, orders, activation = c.call.outputs[0], list[ir.Node](), list[Sequence[int]](), 0
    while facts.used_once(value):
        (use,) = value.uses()
        node = use.node
        if use.idx or node.graph is not c.call.graph:
            return None
        nodes.append(node)
        if facts.is_op(node, "QuantizeLinear"):
            q = c.scope.scales(node)
            kind = facts.dtype(node.outputs[0])
            if q is None or len(q.scale) != 1 or kind not in (ir.DataType.INT8, ir.DataType.UINT8):
                return None
            return Result(as_int8(q, kind), node.outputs[0], nodes, activation, orders)
        if facts.is_op(node, "Transpose"):
            orders.append(facts.attribute(node, "perm", 21) or list(reversed(range(facts.rank(value) or 0))))
        elif facts.is_op(node, "Relu") and not activation:
            activation = RELU
        elif facts.is_op(node, "Clip") and not activation:
            low, high = (facts.scalar(v) for v in (*node.inputs[1:3], None, None)[:2])
            if low != 0 or high != 6:
                return None
            activation = RELU6
        else:
            return None
        value = node.outputs[0]
    return None


def as_int8(q: Quantization, kind: ir.DataType | str | None) -> Quantization:
    """Return the quantization of codes shifted from uint8 to int8."""
    shift = 128 if kind in (ir.DataType.UINT8, "UINT8") else 0
    return Quantization(q.scale, q.zero_point - shift, q.axis)


def integer_form(c: Call) -> bool:
    """Write a node over codes if its inputs are dequantized, its result is quantized, and a kernel computes it.

    Returns:
        True if the node, and the nodes up to its QuantizeLinear, were written.
    """
    name = c.node.op_type
    if name not in INTEGER and name not in SAME_CODES:
        return False
    codes = c.scope.real_codes(c.value(0)) if c.has(0) else None
    if codes is None or (result := result_of(c)) is None:
        return False
    if name in SAME_CODES:
        same = codes.quantization is not None and codes.quantization.equals(result.quantization)
        if not same or result.activation:
            return False
        c.codes[0] = codes
        results = EMITTERS[name](c)
        tensor = results if isinstance(results, Tensor) else results[0]
    else:
        form = INTEGER[name](c, codes, result)
        if form is None:
            return False
        tensor = form
    for order in result.orders:
        tensor = c.scope.transpose(tensor, order)
    c.scope.define_codes(result.output, tensor)
    c.scope.written.update(result.nodes)
    return True


def integer(*names: str) -> Callable[[Callable[[Call, Tensor, Result], Tensor | None]], object]:
    """Register the form of operators over codes."""

    def register(function: Callable[[Call, Tensor, Result], Tensor | None]) -> object:
        for name in names:
            INTEGER[name] = function
        return function

    return register


def _weight_codes(c: Call, number: int) -> Tensor | None:
    """Return constant int8 codes around zero."""
    codes = c.scope.constant_codes(c.value(number))
    if codes is None or codes.type != "INT8" or codes.quantization is None or codes.quantization.zero_point.any():
        return None
    return codes


def _bias_codes(c: Call, number: int, x: Tensor, w: Tensor, count: int) -> Tensor | None:
    """Return the bias as int32 codes of the scale of products; None if the bias does not fit."""
    assert x.quantization is not None and w.quantization is not None
    scale = x.quantization.scale.astype(np.float64) * w.quantization.scale.astype(np.float64)
    if not c.has(number):
        numbers = np.zeros(count)
    else:
        value = c.value(number)
        stored = c.scope.constant_codes(value)
        array = facts.constant(value) if stored is None else c.scope.decoded(stored)
        if array is None or array.size != count:
            return None
        numbers = np.asarray(array, np.float64).reshape(-1)
    integers = np.rint(numbers / scale)
    if not (np.abs(integers) < 2**31).all():
        return None
    q = Quantization(scale.astype(np.float32), np.zeros(len(scale), np.int64))
    return c.scope.constant(integers.astype(np.int32), quantization=q)


@integer("Conv")
def conv(c: Call, x: Tensor, result: Result) -> Tensor | None:
    """Write a convolution of codes."""
    rank = x.rank - 2
    w = _weight_codes(c, 1) if c.is_last and rank in (1, 2) else None
    if w is None or w.quantization is None or (len(w.quantization.scale) > 1 and w.quantization.axis != 0):
        return None
    groups, inner = int(c.attribute("group", 1)), w.shape[1]
    if groups > 1 and not (inner == 1 and x.shape[-1] == groups):
        return None
    bias = _bias_codes(c, 2, x, w, int(w.shape[0]))
    if bias is None:
        return None
    ordered = c.scope.transpose(w, (0, 2, 1) if rank == 1 else (0, 2, 3, 1))
    if rank == 1:
        q = ordered.quantization
        ordered = Tensor(ordered.type, (ordered.shape[0], 1, *ordered.shape[1:]), _at_axis_1(ordered), q)
    return windows.convolution(c, x, ordered, bias, result.quantization, result.activation)


def _at_axis_1(w: Tensor) -> np.ndarray:
    assert w.array is not None
    return w.array[:, None]


@integer("Gemm", "MatMul")
def product(c: Call, x: Tensor, result: Result) -> Tensor | None:
    """Write a layer of codes."""
    s, w = c.scope, _weight_codes(c, 1)
    if w is None or w.rank != 2 or w.quantization is None:
        return None
    is_gemm = c.node.op_type == "Gemm"
    if is_gemm and (c.attribute("transA", 0) or c.attribute("alpha", 1.0) != 1 or c.attribute("beta", 1.0) != 1):
        return None
    by_rows = is_gemm and bool(c.attribute("transB", 0))
    if len(w.quantization.scale) > 1 and w.quantization.axis != (0 if by_rows else 1):
        return None
    rows = w if by_rows else s.transpose(w, (1, 0))
    bias = _bias_codes(c, 2, x, rows, int(rows.shape[0])) if is_gemm else _bias_codes(c, 9, x, rows, int(rows.shape[0]))
    if bias is None:
        return None
    options = {"keep_num_dims": True, "fused_activation_function": result.activation}
    shape = [*x.shape[:-1], rows.shape[0]]
    kind = ("FullyConnectedOptions", options)
    return s.op("FULLY_CONNECTED", [x, rows, bias], shape, options=kind, quantization=result.quantization)


@integer("Add", "Mul")
def arithmetic(c: Call, a: Tensor, result: Result) -> Tensor | None:
    """Write a sum or a product of codes."""
    s, b = c.scope, c.scope.real_codes(c.value(1))
    if b is None:
        return None
    shape = s.joint_shape([a.shape, b.shape])
    if len(shape) > 4 and a.shape != b.shape:
        return None
    name = c.node.op_type.upper()
    kind = (f"{c.node.op_type}Options", {"fused_activation_function": result.activation})
    return s.op(name, [a, b], shape, options=kind, quantization=result.quantization)


@integer("AveragePool")
def average_pool(c: Call, x: Tensor, result: Result) -> Tensor | None:
    """Write the mean over windows of codes, of one scale."""
    if result.activation or x.quantization is None or not x.quantization.equals(result.quantization):
        return None
    window = windows.Window(c, [int(n) for n in c.attribute("kernel_shape")], x.shape[1:-1]) if c.is_last else None
    if window is None or x.rank not in (3, 4) or any(n != 1 for n in window.dilations):
        return None
    if window.padding(x.shape[1:-1]) != windows.VALID:
        return None
    return windows.average_pooled(c, x, window)


@integer("GlobalAveragePool", "ReduceMean")
def mean(c: Call, x: Tensor, result: Result) -> Tensor | None:
    """Write the mean of codes along axes."""
    from sardonyx.export.tflite.operators.reductions import axes_of

    if result.activation:
        return None
    if c.node.op_type == "ReduceMean":
        axes, keepdims = axes_of(c), bool(c.attribute("keepdims", 1))
    else:
        axes, keepdims = list(range(1, x.rank - 1)) if c.is_last else list(range(2, x.rank)), True
    if axes is None:
        return None
    shape: list[Size] = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    operands = [x, c.scope.constant(axes, np.int32)]
    kind = ("ReducerOptions", {"keep_dims": keepdims})
    return c.scope.op("MEAN", operands, shape, options=kind, quantization=result.quantization)


@integer("Relu")
def relu(c: Call, x: Tensor, result: Result) -> Tensor | None:
    """Write the positive part of codes."""
    return None if result.activation else c.scope.op("RELU", [x], x.shape, quantization=result.quantization)


@integer("Concat")
def concat(c: Call, x: Tensor, result: Result) -> Tensor | None:
    """Write concatenation of codes of one scale."""
    parts = [c.scope.real_codes(c.value(i)) for i in range(len(c.call.inputs))]
    if result.activation:
        return None
    same = [p for p in parts if p is not None and p.quantization and p.quantization.equals(result.quantization)]
    return c.scope.concatenation(same, c.axis(rank=x.rank)) if len(same) == len(parts) else None


FORMS.append(integer_form)
