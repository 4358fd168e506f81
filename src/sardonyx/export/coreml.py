"""The exporter of Core ML packages: nodes as operations of MIL, the intermediate language of coremltools.

Core ML runs on Apple's systems alone: the result is checked by its specification, which coremltools validates while it
builds and serializes the program, and the verdict is *not proved*. Open sizes are ranges. Integers of 64 bits become
32 bits, the only ones that Core ML has.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import UnsupportedError
from sardonyx.export.artifact import Artifact, Options, Refusal, refuse
from sardonyx.export.decomposition import converted, notes_of
from sardonyx.export.foreign_converters import operator_counts
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.opset import convert_opset

OPSET = 21
"""The operator set whose forms are written."""

LARGEST_SIZE = 4096
"""Upper end of the range of an open size."""

REASON = "checked by its specification only: Core ML runs on Apple's systems alone"

UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Sqrt": "sqrt", "Erf": "erf", "Abs": "abs",
    "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Sinh": "sinh",
    "Cosh": "cosh", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Atanh": "atanh", "Sign": "sign",
    "Not": "logical_not", "Softsign": "softsign", "Softplus": "softplus", "Identity": "identity",
}  # fmt: skip
"""Operators of one input, with their MIL names."""

BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "real_div", "Pow": "pow", "Max": "maximum", "Min": "minimum",
    "Equal": "equal", "Less": "less", "Greater": "greater", "LessOrEqual": "less_equal", "And": "logical_and",
    "GreaterOrEqual": "greater_equal", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
"""Operators of two inputs, with their MIL names."""

REDUCTIONS = {
    "ReduceMean": "reduce_mean", "ReduceSum": "reduce_sum", "ReduceMax": "reduce_max", "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod", "ReduceL1": "reduce_l1_norm", "ReduceL2": "reduce_l2_norm",
}  # fmt: skip
"""Reductions, with their MIL names."""

Emitter = Callable[["Call"], Any]

EMITTERS: dict[str, Emitter] = {}
"""The form of each other operator."""

_ACCEPTED = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL)
"""Element types of values."""


def emits(*names: str) -> Callable[[Emitter], Emitter]:
    """Register a function as the form of operators."""

    def register(function: Emitter) -> Emitter:
        EMITTERS.update(dict.fromkeys(names, function))
        return function

    return register


class Call:
    """One node during the translation.

    Attributes:
        node: The node.
        mb: MIL's builder.
        opset: The operator set of the model.
    """

    def __init__(self, node: ir.Node, values: dict[ir.Value, Any], mb: Any, opset: int) -> None:
        self.node = node
        self.mb = mb
        self.opset = opset
        self._values = values

    def refuse(self, rule: str) -> UnsupportedError:
        """Return the error of a node without a form."""
        return UnsupportedError(rule, where=node_label(self.node))

    def has(self, number: int) -> bool:
        """Return True if an input is present."""
        return number < len(self.node.inputs) and self.node.inputs[number] is not None

    def array(self, number: int) -> Any:
        """Return a constant input, with integers of 32 bits.

        Raises:
            UnsupportedError: The input is computed.
        """
        value = facts.constant(self.node.inputs[number])
        if value is None:
            raise self.refuse(f"input {number} is computed, expected a constant")
        return narrowed(value)

    def input(self, number: int = 0) -> Any:
        """Return an input as a MIL variable or a constant."""
        value = self.node.inputs[number]
        assert value is not None
        return self._values[value] if value in self._values else self.array(number)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return facts.attribute(self.node, name, self.opset, default)

    def rank(self, number: int = 0) -> int:
        """Return the rank of an input.

        Raises:
            UnsupportedError: The rank is not known.
        """
        rank = facts.rank(self.node.inputs[number])
        if rank is None:
            raise self.refuse("the rank of an input is not known")
        return rank

    def ints(self, name: str, number: int) -> list[int] | None:
        """Return integers that an attribute or a constant input holds; None without both."""
        written = self.attribute(name)
        if written is not None:
            return [int(n) for n in written]
        return [int(n) for n in self.array(number).reshape(-1)] if self.has(number) else None


def narrowed(array: Any) -> Any:
    """Return an array with an element type of Core ML.

    Raises:
        UnsupportedError: A number does not fit.
    """
    if array.dtype == np.int64:
        array = array.clip(-(2**31), 2**31 - 1) if np.abs(array.astype(np.float64)).max(initial=0) >= 2**62 else array
        if not np.array_equal(array.astype(np.int32), array):
            raise UnsupportedError("an int64 constant does not fit in int32, the only integers of Core ML")
        return array.astype(np.int32)
    if array.dtype.name not in ("float32", "float16", "int32", "bool"):
        raise UnsupportedError(f"Core ML has no tensors of {array.dtype.name}")
    return array


@emits("Conv", "ConvTranspose")
def convolution(c: Call) -> Any:
    """Return a convolution, or a transposed one."""
    w, rank = c.array(1), c.rank() - 2
    if c.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise c.refuse("auto_pad; legalize it with `--passes legalize_auto_pad`")
    pads = [int(n) for n in c.attribute("pads") or [0] * (2 * rank)]
    pairs = [pads[i + side * rank] for i in range(rank) for side in (0, 1)]
    options: dict[str, Any] = {
        "x": c.input(),
        "weight": w,
        "pad_type": "custom",
        "pad": pairs,
        "strides": [int(n) for n in c.attribute("strides") or [1] * rank],
        "dilations": [int(n) for n in c.attribute("dilations") or [1] * rank],
        "groups": int(c.attribute("group", 1)),
    }
    if c.has(2):
        options["bias"] = c.array(2)
    if c.node.op_type == "Conv":
        return c.mb.conv(**options)
    if any(c.attribute("output_padding") or []) or c.attribute("output_shape"):
        raise c.refuse("output_padding or output_shape of a transposed convolution")
    return c.mb.conv_transpose(**options)


@emits("MaxPool", "AveragePool")
def pool(c: Call) -> Any:
    """Return a pool over windows."""
    rank = c.rank() - 2
    if c.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or any(
        n != 1 for n in c.attribute("dilations") or []
    ):
        raise c.refuse("auto_pad or dilations of a pool")
    if any(not facts.unused(output) for output in c.node.outputs[1:]):
        raise c.refuse("positions of the maxima")
    pads = [int(n) for n in c.attribute("pads") or [0] * (2 * rank)]
    options: dict[str, Any] = {
        "x": c.input(),
        "kernel_sizes": [int(n) for n in c.attribute("kernel_shape")],
        "strides": [int(n) for n in c.attribute("strides") or [1] * rank],
        "pad_type": "custom",
        "pad": [pads[i + side * rank] for i in range(rank) for side in (0, 1)],
    }
    if c.attribute("ceil_mode", 0):
        raise c.refuse("ceil_mode of a pool")
    if c.node.op_type == "MaxPool":
        return c.mb.max_pool(**options)
    return c.mb.avg_pool(**options, exclude_padding_from_average=not c.attribute("count_include_pad", 0))


@emits("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Call) -> Any:
    """Return the mean or maximum of each channel."""
    name = "reduce_mean" if c.node.op_type == "GlobalAveragePool" else "reduce_max"
    return getattr(c.mb, name)(x=c.input(), axes=list(range(2, c.rank())), keep_dims=True)


@emits("MatMul")
def matmul(c: Call) -> Any:
    """Return a product of matrices."""
    return c.mb.matmul(x=c.input(0), y=c.input(1))


@emits("Gemm")
def gemm(c: Call) -> Any:
    """Return alpha * A @ B + beta * C."""
    flags = {"transpose_x": bool(c.attribute("transA", 0)), "transpose_y": bool(c.attribute("transB", 0))}
    result = c.mb.matmul(x=c.input(0), y=c.input(1), **flags)
    alpha, beta = float(c.attribute("alpha", 1.0)), float(c.attribute("beta", 1.0))
    result = result if alpha == 1.0 else c.mb.mul(x=result, y=np.float32(alpha))
    if not c.has(2) or beta == 0.0:
        return result
    addend = c.input(2) if beta == 1.0 else c.mb.mul(x=c.input(2), y=np.float32(beta))
    return c.mb.add(x=result, y=addend)


@emits("BatchNormalization")
def batch_norm(c: Call) -> Any:
    """Return a scale and a shift for each channel."""
    names = ("gamma", "beta", "mean", "variance")
    parameters = {name: c.array(i) for i, name in enumerate(names, 1)}
    return c.mb.batch_norm(x=c.input(), **parameters, epsilon=np.float32(c.attribute("epsilon", 1e-5)))


@emits("InstanceNormalization")
def instance_norm(c: Call) -> Any:
    """Return normalization of each channel of each image."""
    epsilon = np.float32(c.attribute("epsilon", 1e-5))
    return c.mb.instance_norm(x=c.input(), gamma=c.array(1), beta=c.array(2), epsilon=epsilon)


@emits("LayerNormalization")
def layer_norm(c: Call) -> Any:
    """Return normalization of the last axes."""
    axes = list(range(int(c.attribute("axis", -1)) % c.rank(), c.rank()))
    options = {"beta": c.array(2)} if c.has(2) else {}
    epsilon = np.float32(c.attribute("epsilon", 1e-5))
    return c.mb.layer_norm(x=c.input(), axes=axes, gamma=c.array(1), epsilon=epsilon, **options)


@emits("Softmax")
def softmax(c: Call) -> Any:
    """Return normalized exponentials."""
    return c.mb.softmax(x=c.input(), axis=int(c.attribute("axis", -1)))


@emits("Gelu")
def gelu(c: Call) -> Any:
    """Return the Gaussian error linear unit."""
    is_tanh = c.attribute("approximate", "none") == "tanh"
    return c.mb.gelu(x=c.input(), mode="TANH_APPROXIMATION" if is_tanh else "EXACT")


@emits("LeakyRelu", "Elu")
def leaky_relu(c: Call) -> Any:
    """Return x, or a function with a factor where negative."""
    name, default = ("leaky_relu", 0.01) if c.node.op_type == "LeakyRelu" else ("elu", 1.0)
    return getattr(c.mb, name)(x=c.input(), alpha=np.float32(c.attribute("alpha", default)))


@emits("Clip")
def clip(c: Call) -> Any:
    """Return bounds."""
    result = c.input()
    result = c.mb.maximum(x=result, y=c.input(1)) if c.has(1) else result
    return c.mb.minimum(x=result, y=c.input(2)) if c.has(2) else result


@emits("HardSigmoid")
def hard_sigmoid(c: Call) -> Any:
    """Return max(0, min(1, alpha * x + beta))."""
    factors = (np.float32(c.attribute("alpha", 0.2)), np.float32(c.attribute("beta", 0.5)))
    return c.mb.sigmoid_hard(x=c.input(), alpha=factors[0], beta=factors[1])


@emits("HardSwish")
def hard_swish(c: Call) -> Any:
    """Return x * max(0, min(1, x / 6 + 1 / 2))."""
    return c.mb.mul(x=c.input(), y=c.mb.sigmoid_hard(x=c.input(), alpha=np.float32(1 / 6), beta=np.float32(0.5)))


@emits("Neg")
def neg(c: Call) -> Any:
    """Return -x."""
    return c.mb.mul(x=c.input(), y=-1 if facts.dtype(c.node.inputs[0]) != ir.DataType.FLOAT else np.float32(-1))


@emits("Log")
def log(c: Call) -> Any:
    """Return the logarithm, without the default floor of MIL."""
    return c.mb.log(x=c.input(), epsilon=np.float32(0))


@emits("Reciprocal")
def reciprocal(c: Call) -> Any:
    """Return 1 / x."""
    return c.mb.real_div(x=np.float32(1), y=c.input())


@emits("Where")
def where(c: Call) -> Any:
    """Return a selection."""
    return c.mb.select(cond=c.input(0), a=c.input(1), b=c.input(2))


@emits("Transpose")
def transpose(c: Call) -> Any:
    """Return a permutation of axes."""
    return c.mb.transpose(x=c.input(), perm=list(c.attribute("perm") or reversed(range(c.rank()))))


@emits("Reshape")
def reshape(c: Call) -> Any:
    """Return other sizes; constant ones may hold one -1."""
    sizes = [int(n) for n in c.array(1).reshape(-1)]
    if 0 in sizes:
        shape = facts.static_shape(c.node.inputs[0])
        if shape is None:
            raise c.refuse("0 in the sizes over open sizes")
        sizes = [shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    return c.mb.reshape(x=c.input(), shape=sizes)


@emits("Flatten")
def flatten(c: Call) -> Any:
    """Return a matrix."""
    axis = int(c.attribute("axis", 1))
    return c.mb.flatten2d(x=c.input(), axis=axis)


@emits("Squeeze", "Unsqueeze")
def squeeze(c: Call) -> Any:
    """Return a tensor with axes of size 1 removed or inserted."""
    axes = c.ints("axes", 1)
    if axes is None:
        raise c.refuse("Squeeze without axes")
    return (c.mb.squeeze if c.node.op_type == "Squeeze" else c.mb.expand_dims)(x=c.input(), axes=axes)


@emits("Concat")
def concat(c: Call) -> Any:
    """Return tensors joined along an axis."""
    values = [c.input(i) for i in range(len(c.node.inputs))]
    return c.mb.concat(values=values, axis=int(c.attribute("axis")))


@emits("Split")
def split(c: Call) -> Any:
    """Return parts along an axis."""
    axis, sizes = int(c.attribute("axis", 0)), c.ints("split", 1)
    if sizes is None:
        return c.mb.split(x=c.input(), num_splits=len(c.node.outputs), axis=axis)
    return c.mb.split(x=c.input(), split_sizes=sizes, axis=axis)


@emits("Slice")
def slice_(c: Call) -> Any:
    """Return slices with constant bounds and positive steps."""
    rank = c.rank()
    starts, ends = ([int(n) for n in c.array(i)] for i in (1, 2))
    axes = [int(n) % rank for n in c.array(3)] if c.has(3) else list(range(len(starts)))
    steps = [int(n) for n in c.array(4)] if c.has(4) else [1] * len(starts)
    if any(step < 1 for step in steps):
        raise c.refuse("a slice with a negative step")
    begin, end, stride = [0] * rank, [0] * rank, [1] * rank
    begin_mask, end_mask = [True] * rank, [True] * rank
    for axis, first, last, step in zip(axes, starts, ends, steps, strict=True):
        size = facts.dim_at(c.node.inputs[0], axis)
        begin[axis], end[axis], stride[axis] = first, last, step
        begin_mask[axis] = False
        end_mask[axis] = last >= (2**31 - 1 if size is None else size)
    options = {"begin": begin, "end": end, "stride": stride, "begin_mask": begin_mask, "end_mask": end_mask}
    return c.mb.slice_by_index(x=c.input(), **options)


@emits("Gather")
def gather(c: Call) -> Any:
    """Return slices at indices along an axis."""
    return c.mb.gather(x=c.input(0), indices=c.input(1), axis=int(c.attribute("axis", 0)), validate_indices=False)


@emits("Pad")
def pad(c: Call) -> Any:
    """Return constant, reflecting or repeating padding."""
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}
    mode = c.attribute("mode", "constant")
    if mode not in modes or c.has(3):
        raise c.refuse(f"padding in mode {mode}, or of chosen axes")
    pads, rank = [int(n) for n in c.array(1)], c.rank()
    if min(pads) < 0:
        raise c.refuse("negative padding")
    number = np.float32(c.array(2).reshape(())) if c.has(2) else np.float32(0)
    pairs = [pads[i + side * rank] for i in range(rank) for side in (0, 1)]
    return c.mb.pad(x=c.input(), pad=pairs, mode=modes[mode], constant_val=number)


@emits("Cast")
def cast(c: Call) -> Any:
    """Return another element type."""
    names = {1: "fp32", 6: "int32", 7: "int32", 9: "bool", 10: "fp16"}
    to = int(c.attribute("to"))
    if to not in names:
        raise c.refuse(f"a conversion to {ir.DataType(to).name.lower()}")
    return c.mb.cast(x=c.input(), dtype=names[to])


def _form(c: Call) -> Any:
    name = c.node.op_type
    if c.node.domain not in facts.STANDARD or name not in (*UNARY, *BINARY, *REDUCTIONS, *EMITTERS):
        raise c.refuse(f"MIL has no form for {name}")
    for value in (*c.node.inputs, *c.node.outputs):
        kind = facts.dtype(value)
        if kind is not None and kind not in _ACCEPTED:
            raise c.refuse(f"Core ML has no tensors of {kind.name.lower()}")
    if name in UNARY:
        return getattr(c.mb, UNARY[name])(x=c.input())
    if name in BINARY:
        kind = facts.dtype(c.node.inputs[0])
        operator = "floor_div" if name == "Div" and kind != ir.DataType.FLOAT else BINARY[name]
        if operator == "floor_div":
            raise c.refuse("integer division, which rounds toward zero in ONNX and down in Core ML")
        result = c.input(0)
        for i in range(1, len(c.node.inputs)):
            result = getattr(c.mb, operator)(x=result, y=c.input(i))
        return result
    if name in REDUCTIONS:
        axes = c.ints("axes", 1)
        return getattr(c.mb, REDUCTIONS[name])(
            x=c.input(), axes=axes or list(range(c.rank())), keep_dims=bool(c.attribute("keepdims", 1))
        )
    return EMITTERS[name](c)


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield the nodes and inputs without a form in MIL."""
    yield from converted(_current(model), _convert)[2]


def _current(model: ir.Model) -> ir.Model:
    """Return the model in the operator set of the forms or a newer one: older ones have attributes for inputs."""
    return model if model.graph.opset_imports.get("", OPSET) >= OPSET else convert_opset(model, OPSET)


def _convert(model: ir.Model) -> tuple[tuple[Any, list[Any]], list[Refusal], frozenset[str]]:
    """Return the MIL program with the types of its inputs, what has no form, and the operators of these nodes."""
    program, refused, declared = _built(model)
    return (program, declared), refused, frozenset(one.operator for one in refused if one.operator)


def _built(model: ir.Model) -> tuple[Any, list[Refusal], list[Any]]:
    """Return the MIL program, what has no form, and the types of the inputs."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    import coremltools
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, get_new_symbol, types

    refused: list[Refusal] = []
    kinds = {ir.DataType.FLOAT: types.fp32, ir.DataType.FLOAT16: types.fp16, ir.DataType.BOOL: types.bool}
    inputs: dict[str, Any] = {}
    declared: list[Any] = []
    symbols: dict[str, Any] = {}
    sources = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    for value in sources:
        if value.dtype not in _ACCEPTED or value.shape is None or not 1 <= len(value.shape) <= 5:
            rule = "Core ML has inputs of float32, float16, int32 and bool, of 1 to 5 axes"
            refused.append(Refusal(str(value.name), "", rule))
            continue
        names = [size if isinstance(size, int) else str(size.value) for size in value.shape]
        shape = [n if isinstance(n, int) else symbols.setdefault(n, get_new_symbol()) for n in names]
        inputs[str(value.name)] = mb.placeholder(shape=shape, dtype=kinds.get(value.dtype, types.int32))
        ranges = [n if isinstance(n, int) else coremltools.RangeDim(1, LARGEST_SIZE, default=2) for n in names]
        declared.append(coremltools.TensorType(name=str(value.name), shape=tuple(ranges)))
    if refused:
        return None, refused, []
    opset = model.graph.opset_imports.get("", 1)
    program = Program()
    with Function(inputs, opset_version=coremltools.target.iOS17) as function:
        values = {value: function.inputs[str(value.name)] for value in sources}
        for node in model.graph:
            if facts.is_op(node, "Constant"):
                continue
            try:
                results = _form(Call(node, values, mb, opset))
            except (UnsupportedError, ValueError, TypeError, KeyError) as error:
                rule = error.problem if isinstance(error, UnsupportedError) else f"MIL refuses: {str(error)[:200]}"
                if not any(v is not None and v not in values and not facts.is_constant(v) for v in node.inputs):
                    refused.append(Refusal(node_label(node), node.op_type, rule))
                continue
            results = results if isinstance(results, (list, tuple)) else [results]
            values.update(zip(node.outputs, results, strict=False))
        if not refused:
            outputs = [values.get(value) for value in model.graph.outputs]
            if any(output is None for output in outputs):
                refused.append(Refusal("model", "", "an output is a constant"))
            else:
                function.set_outputs([mb.identity(x=o, name=str(v.name)) for o, v in _pairs(outputs, model)])
    program.add_function("main", function)
    return program, refused, declared


def _pairs(outputs: Sequence[Any], model: ir.Model) -> list[tuple[Any, ir.Value]]:
    return list(zip(outputs, model.graph.outputs, strict=True))


def export(model: ir.Model, options: Options) -> Artifact:
    """Return a model as a Core ML package, in full precision.

    Raises:
        UnsupportedError: Nodes have no form in MIL, or coremltools refuses the program.
    """
    import coremltools

    model, (program, declared), refused, replaced = converted(_current(model), _convert)
    refuse("coreml", refused)
    try:
        package = coremltools.convert(
            program,
            source="milinternal",
            convert_to="mlprogram",
            minimum_deployment_target=coremltools.target.iOS17,
            compute_precision=coremltools.precision.FLOAT32,
            inputs=declared,
            skip_model_load=True,
        )
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        refuse("coreml", [Refusal("model", "", f"coremltools refuses: {str(error)[:300]}")])
        raise

    def write(path: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="package-", dir=path.parent) as folder:
            package.save(str(Path(folder) / "model.mlpackage"))
            (Path(folder) / "model.mlpackage").rename(path)

    notes = [f"open sizes are ranges from 1 to {LARGEST_SIZE}", "integers have 32 bits", *notes_of(replaced)]
    return Artifact(write, None, REASON, forms=operator_counts(model), notes=notes, value=package.get_spec())
