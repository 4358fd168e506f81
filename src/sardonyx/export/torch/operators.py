"""Operators of ONNX as functions of torch. Any other operator is written by the definition over Core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import NodeForm, Value
from sardonyx.core.ir.types import Shape
from sardonyx.export.torch.primitives import dtype_of, expression, shape_of
from sardonyx.export.torch.source import Source


@dataclass(frozen=True)
class Unpacked:
    """A call that returns a tuple.

    Attributes:
        text: The expression of the call.
        count: Number of elements.
    """

    text: str
    count: int


OperatorRule = Callable[["Call"], "str | Unpacked | None"]

OPERATOR_FORMS: dict[str, OperatorRule] = {}


class Call:
    """A call of an operator that is being written.

    Attributes:
        s: The statements.
        inputs: The values of the inputs; None for omitted ones.
        attributes: The attributes of the node.
        result: Sizes of the first result.
        spelling: The function of torch, for the report.
        version: Version of ``ai.onnx``.
        outputs: Number of results.
        name: The operator.
    """

    def __init__(self, s: Source, value: Value, form: NodeForm) -> None:
        operands = iter(value.operands)
        self.s = s
        self.inputs: list[Value | None] = [next(operands) if there else None for there in form.present]
        self.attributes: dict[str, Any] = dict(form.attributes)
        self.result: Shape = value.type.results[0].shape  # type: ignore[union-attr,assignment]
        self.outputs = len(value.type.results)  # type: ignore[union-attr]
        self.version = form.version
        self.name = form.name
        self.spelling = ""

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def value(self, index: int) -> Value | None:
        """Return the value of an input; None if omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def shape(self, index: int) -> Shape:
        """Return the sizes of an input."""
        value = self.inputs[index]
        assert value is not None
        return shape_of(value)

    def text(self, index: int) -> str:
        """Return the expression of an input; ``None`` if omitted."""
        value = self.value(index)
        return "None" if value is None else expression(self.s, value)

    def is_float(self, index: int) -> bool:
        """Return True if an input is a tensor of floats."""
        value = self.value(index)
        return value is not None and t.is_float(dtype_of(value))

    def number(self, index: int) -> str | None:
        """Return an input of one known element as a number; None for other inputs."""
        value = self.value(index)
        return None if value is None else self.s.literal(value)

    def numbers(self, index: int) -> list[int] | None:
        """Return a known input as integers; None if unknown or omitted."""
        value = self.value(index)
        if value is None or not value.is_constant:
            return None
        return [int(number) for number in value.known.reshape(-1)]

    def floats(self, index: int) -> list[float] | None:
        """Return a known input as floats; None if unknown or omitted."""
        value = self.value(index)
        if value is None or not value.is_constant:
            return None
        return [float(number) for number in value.known.reshape(-1)]

    def apply(self, function: str, *arguments: str, **options: str) -> str:
        """Return a call of a function, and remember its name for the report."""
        self.spelling = function.removeprefix("torch.").removeprefix("F.")
        named = [f"{name}={text}" for name, text in options.items()]
        return f"{function}({', '.join([*arguments, *named])})"


def operator_form(*names: str) -> Callable[[OperatorRule], OperatorRule]:
    """Register the torch form of operators of ``ai.onnx``."""

    def register(rule: OperatorRule) -> OperatorRule:
        OPERATOR_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return register


@operator_form("Conv")
def _conv(c: Call) -> str | None:
    n = len(c.shape(0)) - 2
    if n not in (1, 2, 3):
        return None
    x = c.text(0)
    auto, pads = c.get("auto_pad", "NOTSET"), c.get("pads", (0,) * (2 * n))
    if auto == "VALID":
        pads = (0,) * (2 * n)
    elif auto != "NOTSET":
        return None
    options: dict[str, str] = {}
    if pads[:n] == pads[n:]:
        if any(pads):
            options["padding"] = _compact(pads[:n])
    else:
        flat = [amount for axis in reversed(range(n)) for amount in (pads[axis], pads[n + axis])]
        x = f"F.pad({x}, {tuple(flat)!r})"
    for name, onnx in (("stride", "strides"), ("dilation", "dilations")):
        if any(step != 1 for step in c.get(onnx, ())):
            options[name] = _compact(c.get(onnx, ()))
    if c.get("group", 1) != 1:
        options["groups"] = str(c.get("group", 1))
    arguments = [x, c.text(1), *([c.text(2)] if c.value(2) is not None else [])]
    return c.apply(f"F.conv{n}d", *arguments, **options)


def _compact(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else repr(tuple(numbers))


@operator_form("ConvTranspose")
def _conv_transpose(c: Call) -> str | None:
    n = len(c.shape(0)) - 2
    pads, extra = c.get("pads", (0,) * (2 * n)), c.get("output_padding", (0,) * n)
    unusual = c.get("auto_pad", "NOTSET") != "NOTSET" or c.get("output_shape", ()) or pads[:n] != pads[n:]
    strides, dilations = c.get("strides", (1,) * n), c.get("dilations", (1,) * n)
    limits = zip(extra, strides, dilations, strict=True)
    if n not in (1, 2, 3) or unusual or any(more >= max(step, wide) for more, step, wide in limits):
        return None
    options: dict[str, str] = {}
    for name, numbers in (("stride", strides), ("padding", pads[:n]), ("output_padding", extra)):
        if any(number != (name == "stride") for number in numbers):
            options[name] = _compact(numbers)
    if c.get("group", 1) != 1:
        options["groups"] = str(c.get("group", 1))
    if any(wide != 1 for wide in dilations):
        options["dilation"] = _compact(dilations)
    arguments = [c.text(0), c.text(1), *([c.text(2)] if c.value(2) is not None else [])]
    return c.apply(f"F.conv_transpose{n}d", *arguments, **options)


@operator_form("Gemm")
def _gemm(c: Call) -> str | None:
    if not c.is_float(0):
        return None
    alpha, beta = float(c.get("alpha", 1.0)), float(c.get("beta", 1.0))
    x, w, b = c.text(0), c.text(1), c.value(2)
    if c.get("transA", 0):
        x = f"{x}.t()"
    columns = c.result[1]
    plain = alpha == 1 and (b is None or (beta == 1 and c.shape(2) == (columns,)))
    if c.get("transB", 0) and plain:
        return c.apply("F.linear", x, w, *([] if b is None else [c.text(2)]))
    if c.get("transB", 0):
        w = f"{w}.t()"
    text = c.apply("torch.matmul", x, w)
    if alpha != 1:
        text = f"{alpha!r} * {text}"
    if b is not None:
        text += f" + {c.text(2)}" if beta == 1 else f" + {beta!r} * {c.text(2)}"
    return text


@operator_form("MatMul")
def _matmul(c: Call) -> str | None:
    return c.apply("torch.matmul", c.text(0), c.text(1)) if c.is_float(0) else None


@operator_form("Einsum")
def _einsum(c: Call) -> str | None:
    equation = c.get("equation", "").replace(" ", "")
    if not c.is_float(0) or '"' in equation or "\\" in equation:
        return None
    return c.apply("torch.einsum", f'"{equation}"', *(c.text(i) for i in range(len(c.inputs))))


# Activations.

_ACTIVATIONS = {
    "Relu": "torch.relu", "Sigmoid": "torch.sigmoid", "Tanh": "torch.tanh", "Softplus": "F.softplus",
    "Softsign": "F.softsign", "Mish": "F.mish", "HardSwish": "F.hardswish", "IsNaN": "torch.isnan",
}  # fmt: skip


def _activation(name: str, function: str) -> None:
    @operator_form(name)
    def form(c: Call) -> str | None:
        return c.apply(function, c.text(0)) if c.is_float(0) else None


for _name, _function in _ACTIVATIONS.items():
    _activation(_name, _function)


@operator_form("Gelu")
def _gelu(c: Call) -> str:
    approximate = c.get("approximate", "none")
    return c.apply("F.gelu", c.text(0), **({"approximate": '"tanh"'} if approximate == "tanh" else {}))


@operator_form("LeakyRelu")
def _leaky_relu(c: Call) -> str | None:
    return c.apply("F.leaky_relu", c.text(0), f"{float(c.get('alpha', 0.01))!r}") if c.is_float(0) else None


@operator_form("Elu", "Celu")
def _elu(c: Call) -> str | None:
    name = "F.celu" if c.name == "Celu" else "F.elu"
    return c.apply(name, c.text(0), f"{float(c.get('alpha', 1.0))!r}") if c.is_float(0) else None


@operator_form("Selu")
def _selu(c: Call) -> str | None:
    usual = abs(c.get("alpha", 1.67326) - 1.67326) < 1e-4 and abs(c.get("gamma", 1.0507) - 1.0507) < 1e-4
    return c.apply("F.selu", c.text(0)) if usual and c.version >= 6 else None


@operator_form("HardSigmoid")
def _hard_sigmoid(c: Call) -> str | None:
    usual = abs(c.get("alpha", 0.2) - 1 / 6) < 1e-6 and c.get("beta", 0.5) == 0.5
    return c.apply("F.hardsigmoid", c.text(0)) if usual and c.is_float(0) else None


@operator_form("Clip")
def _clip(c: Call) -> str | None:
    if c.version < 11:
        low, high = c.attributes.get("min"), c.attributes.get("max")
        bounds = {"min": None if low is None else repr(float(low)), "max": None if high is None else repr(float(high))}
    else:
        bounds = {"min": c.number(1), "max": c.number(2)}
        if any(c.value(i) is not None and bounds[name] is None for i, name in ((1, "min"), (2, "max"))):
            return None
    present = {name: text for name, text in bounds.items() if text is not None}
    return c.apply("torch.clamp", c.text(0), **present) if present else None


@operator_form("Softmax", "LogSoftmax")
def _softmax(c: Call) -> str | None:
    rank = len(c.shape(0))
    axis = c.get("axis", -1 if c.version >= 13 else 1)
    if not rank or (c.version < 13 and axis % rank != rank - 1):
        return None
    return c.apply("torch.softmax" if c.name == "Softmax" else "torch.log_softmax", c.text(0), dim=str(axis))


# Normalization.


@operator_form("LayerNormalization", "RMSNormalization")
def _layer_norm(c: Call) -> str | None:
    axis = c.get("axis", -1) % len(c.shape(0))
    sizes = c.shape(0)[axis:]
    if c.outputs != 1 or any(c.shape(i) != sizes for i in (1, 2) if c.value(i) is not None):
        return None
    weights = [c.text(1), *([c.text(2)] if c.value(2) is not None else [])]
    name = "F.layer_norm" if c.name == "LayerNormalization" else "F.rms_norm"
    return c.apply(name, c.text(0), c.s.shape(sizes), *weights, eps=repr(float(c.get("epsilon", 1e-5))))


@operator_form("BatchNormalization")
def _batch_norm(c: Call) -> str | None:
    same = len({value.type.dtype for value in c.inputs if value is not None}) == 1  # type: ignore[union-attr]
    if c.outputs != 1 or c.version < 7 or c.get("training_mode", 0) or not same or len(c.shape(0)) < 2:
        return None
    x, w, b, mean, variance = (c.text(i) for i in range(5))
    eps = repr(float(c.get("epsilon", 1e-5)))
    return c.apply("F.batch_norm", x, mean, variance, w, b, training="False", eps=eps)


@operator_form("InstanceNormalization", "GroupNormalization")
def _group_norm(c: Call) -> str | None:
    channels = c.shape(0)[1] if len(c.shape(0)) > 2 else None
    groups = channels if c.name == "InstanceNormalization" else c.get("num_groups", 1)
    if not isinstance(channels, int) or c.shape(1) != (channels,):
        return None
    eps = repr(float(c.get("epsilon", 1e-5)))
    return c.apply("F.group_norm", c.text(0), str(groups), c.text(1), c.text(2), eps=eps)


# Reductions.

_REDUCTIONS = {
    "ReduceMean": "torch.mean", "ReduceSum": "torch.sum", "ReduceMax": "torch.amax", "ReduceMin": "torch.amin",
    "ReduceLogSumExp": "torch.logsumexp",
}  # fmt: skip


@operator_form(*_REDUCTIONS)
def _reduction(c: Call) -> str | None:
    rank = len(c.shape(0))
    axes = c.attributes.get("axes")
    if len(c.inputs) > 1 and c.inputs[1] is not None:
        axes = c.numbers(1)
        if axes is None:
            return None
    if not c.is_float(0) or not rank or (not axes and c.get("noop_with_empty_axes", 0)):
        return None
    chosen = tuple(sorted(axis % rank for axis in axes)) if axes else tuple(range(rank))
    if any(c.shape(0)[axis] == 0 for axis in chosen):
        return None
    options = {"keepdim": "True"} if c.get("keepdims", 1) else {}
    return c.apply(_REDUCTIONS[c.name], c.text(0), dim=str(chosen[0]) if len(chosen) == 1 else repr(chosen), **options)


@operator_form("ArgMax", "ArgMin")
def _arg(c: Call) -> str | None:
    if c.get("select_last_index", 0) or not c.is_float(0) or not c.shape(0):
        return None
    options = {"keepdim": "True"} if c.get("keepdims", 1) else {}
    return c.apply(f"torch.{c.name.lower()}", c.text(0), dim=str(c.get("axis", 0)), **options)


@operator_form("CumSum")
def _cumulative_sum(c: Call) -> str | None:
    axis = c.numbers(1)
    if axis is None or len(axis) != 1 or c.get("exclusive", 0) or c.get("reverse", 0) or not c.is_float(0):
        return None
    return c.apply("torch.cumsum", c.text(0), dim=str(axis[0]))


# Pooling.


@operator_form("MaxPool", "AveragePool")
def _pool(c: Call) -> str | None:
    n = len(c.shape(0)) - 2
    kernel = c.get("kernel_shape", ())
    pads = c.get("pads", (0,) * (2 * n)) if c.get("auto_pad", "NOTSET") == "NOTSET" else (0,) * (2 * n)
    wide = any(2 * pad > size for pad, size in zip(pads[:n], kernel, strict=True))
    unusual = c.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or pads[:n] != pads[n:] or wide
    if n not in (1, 2, 3) or c.outputs != 1 or c.get("ceil_mode", 0) or unusual or not c.is_float(0):
        return None
    options = {"stride": _compact(c.get("strides", (1,) * n))}
    if any(pads):
        options["padding"] = _compact(pads[:n])
    dilated = any(step != 1 for step in c.get("dilations", ()))
    if c.name == "MaxPool":
        if dilated:
            options["dilation"] = _compact(c.get("dilations", ()))
        return c.apply(f"F.max_pool{n}d", c.text(0), _compact(kernel), **options)
    if dilated:
        return None
    if any(pads) and not c.get("count_include_pad", 0):
        options["count_include_pad"] = "False"
    return c.apply(f"F.avg_pool{n}d", c.text(0), _compact(kernel), **options)


@operator_form("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(c: Call) -> str | None:
    axes = tuple(range(2, len(c.shape(0))))
    if not axes or not c.is_float(0):
        return None
    name = "torch.mean" if c.name == "GlobalAveragePool" else "torch.amax"
    return c.apply(name, c.text(0), dim=repr(axes), keepdim="True")


# Movement.


@operator_form("Gather")
def _gather(c: Call) -> str | None:
    rank = len(c.shape(0))
    axis = c.get("axis", 0) % rank if rank else 0
    index = c.value(1)
    if not rank or index is None:
        return None
    number = c.number(1) if c.shape(1) == () else None
    spelled = number if number is not None else c.text(1)
    c.spelling = "indexing"
    return f"{c.text(0)}[{':, ' * axis}{spelled}]"


@operator_form("TopK")
def _top_k(c: Call) -> Unpacked | None:
    axis, rank = c.get("axis", -1), len(c.shape(0))
    if not rank or t.kind(dtype_of(c.value(0))) == "bool":  # type: ignore[arg-type]
        return None
    size = c.s.size(c.result[axis % rank])
    text = c.apply(c.s.helper("top_k"), c.text(0), size, str(axis), str(bool(c.get("largest", 1))))
    return Unpacked(text, 2)


@operator_form("GatherElements")
def _gather_elements(c: Call) -> str | None:
    axis, shape = c.get("axis", 0), c.shape(0)
    if not shape:
        return None
    size = c.s.size(shape[axis % len(shape)])
    return c.apply("torch.gather", c.text(0), str(axis), f"{c.s.helper('from_start')}({c.text(1)}, {size})")


@operator_form("ScatterElements")
def _scatter_elements(c: Call) -> str | None:
    axis, shape, reduction = c.get("axis", 0), c.shape(0), c.get("reduction", "none")
    names = {"none": "torch.scatter", "add": "torch.scatter_add"}
    if not shape or reduction not in names:
        return None
    size = c.s.size(shape[axis % len(shape)])
    indices = f"{c.s.helper('from_start')}({c.text(1)}, {size})"
    return c.apply(names[reduction], c.text(0), str(axis), indices, c.text(2))


@operator_form("Trilu")
def _trilu(c: Call) -> str | None:
    shift = c.numbers(1) if c.value(1) is not None else [0]
    if shift is None:
        return None
    return c.apply("torch.triu" if c.get("upper", 1) else "torch.tril", c.text(0), diagonal=str(shift[0]))


@operator_form("Pad")
def _pad(c: Call) -> str | None:
    rank, mode = len(c.shape(0)), c.get("mode", "constant")
    pads = c.numbers(1) if c.version >= 11 else list(c.attributes.get("pads", ()))
    if pads is None or len(pads) != 2 * rank or c.value(3) is not None or mode == "wrap" or not c.is_float(0):
        return None
    if mode == "constant":
        filler = c.number(2) if c.version >= 11 and c.value(2) is not None else repr(float(c.get("value", 0.0)))
        flat = [amount for axis in reversed(range(rank)) for amount in (pads[axis], pads[rank + axis])]
        while len(flat) > 2 and flat[-2:] == [0, 0]:
            flat = flat[:-2]
        return None if filler is None else c.apply("F.pad", c.text(0), repr(tuple(flat)), value=filler)
    n = rank - 2
    if n not in (1, 2, 3) or any(pads[:2]) or any(pads[rank : rank + 2]) or any(pad < 0 for pad in pads):
        return None
    flat = [amount for axis in reversed(range(2, rank)) for amount in (pads[axis], pads[rank + axis])]
    return c.apply("F.pad", c.text(0), repr(tuple(flat)), mode='"reflect"' if mode == "reflect" else '"replicate"')


@operator_form("DepthToSpace")
def _depth_to_space(c: Call) -> str | None:
    return c.apply("F.pixel_shuffle", c.text(0), str(c.get("blocksize", 1))) if c.get("mode", "DCR") == "CRD" else None


@operator_form("Resize")
def _resize(c: Call) -> str | None:
    """Write linear, cubic and nearest interpolation of the last axes where torch has the same coordinates."""
    n = len(c.shape(0)) - 2
    mode, how = c.get("mode", "nearest"), c.get("coordinate_transformation_mode", "half_pixel")
    plain = ("axes", "antialias", "exclude_outside")
    if c.version < 11 or any(c.get(name, 0) for name in plain) or c.get("cubic_coeff_a", -0.75) != -0.75:
        return None
    if c.get("keep_aspect_ratio_policy", "stretch") != "stretch" or c.result[:2] != c.shape(0)[:2] or not c.is_float(0):
        return None
    name = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}
    options: dict[str, str] = {}
    if mode == "nearest":
        if how != "asymmetric" or c.get("nearest_mode", "round_prefer_floor") != "floor" or n not in (1, 2, 3):
            return None
        options["mode"] = '"nearest"'
    elif (mode, n) in name and how in ("half_pixel", "align_corners"):
        options["mode"], options["align_corners"] = f'"{name[mode, n]}"', str(how == "align_corners")
    else:
        return None
    scales = c.floats(2) if c.value(2) is not None and c.shape(2) != (0,) else None
    if scales is not None:
        if scales[:2] != [1.0, 1.0]:
            return None
        return c.apply("F.interpolate", c.text(0), scale_factor=repr(tuple(scales[2:])), **options)
    if c.value(3) is None or c.shape(3) == (0,):
        return None
    return c.apply("F.interpolate", c.text(0), size=c.s.shape(c.result[2:]), **options)


@operator_form("GridSample")
def _grid_sample(c: Call) -> str | None:
    rank = len(c.shape(0))
    mode = {
        "linear": "bilinear",
        "bilinear": "bilinear",
        "nearest": "nearest",
        "cubic": "bicubic",
        "bicubic": "bicubic",
    }
    chosen = mode[c.get("mode", "linear")]
    if rank not in (4, 5) or (rank == 5 and chosen == "bicubic") or not c.is_float(0):
        return None
    return c.apply(
        "F.grid_sample",
        c.text(0),
        c.text(1),
        mode=f'"{chosen}"',
        padding_mode=f'"{c.get("padding_mode", "zeros")}"',
        align_corners=str(bool(c.get("align_corners", 0))),
    )


# Attention and recurrence.


@operator_form("Attention")
def _attention(c: Call) -> str | None:
    ranks = {len(c.shape(i)) for i in range(3)}
    mask = c.value(3)
    unusual = c.get("softcap", 0.0) or c.get("qk_matmul_output_mode", 0) or len(c.inputs) > 4 or c.outputs != 1
    if ranks != {4} or unusual or (mask is not None and (c.get("is_causal", 0) == 1 or len(c.shape(3)) < 2)):
        return None
    if mask is not None and c.shape(3)[-1] != c.shape(1)[2]:
        return None
    options: dict[str, str] = {}
    if mask is not None:
        options["attn_mask"] = c.text(3)
    if c.get("is_causal", 0) == 1:
        options["is_causal"] = "True"
    if c.attributes.get("scale") is not None:
        options["scale"] = repr(float(c.attributes["scale"]))
    if c.shape(0)[1] != c.shape(1)[1]:
        options["enable_gqa"] = "True"
    return c.apply("F.scaled_dot_product_attention", *(c.text(i) for i in range(3)), **options)


_DEFAULT_ACTIVATIONS = {
    "LSTM": (("sigmoid", "tanh", "tanh"),),
    "GRU": (("sigmoid", "tanh"),),
    "RNN": (("tanh",), ("relu",)),
}


@operator_form("LSTM", "GRU", "RNN")
def _recurrent(c: Call) -> Unpacked | None:
    """Write a layer with the usual activations, of full sequences, as torch's layer."""
    directions = 2 if c.get("direction", "forward") == "bidirectional" else 1
    written = tuple(str(name).lower() for name in c.get("activations", ()) or ())
    usual = _DEFAULT_ACTIVATIONS[c.name]
    activations = next((one for one in usual if written in ((), one * directions)), None)
    if activations is None or c.attributes.get("clip") is not None or c.get("input_forget", 0) or c.get("layout", 0):
        return None
    if c.value(4) is not None or c.value(7) is not None or not c.is_float(0):
        return None
    if c.name == "GRU" and not c.get("linear_before_reset", 0):
        return None
    states = [c.text(5)] + ([c.text(6)] if c.name == "LSTM" else [])
    function = {"LSTM": "onnx_lstm", "GRU": "onnx_gru", "RNN": "onnx_rnn"}[c.name]
    direction = c.get("direction", "forward")
    more = [f'"{activations[0]}"'] if c.name == "RNN" else []
    arguments = [*(c.text(i) for i in range(4)), *states, f'"{direction}"', *more]
    text = c.apply(c.s.helper(function), *arguments)
    c.spelling = f"torch.{c.name.lower() if c.name != 'RNN' else f'rnn_{activations[0]}'}"
    return Unpacked(text, 3 if c.name == "LSTM" else 2)
