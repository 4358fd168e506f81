"""Modules of torch's quantization as modules of plain tensors, which torch can capture.

A quantized tensor is a tensor of the numbers that its codes stand for, and every operator rounds its result to the
codes of its scale and zero point. Packed weights become integers with scales again. Plain functions of quantized
tensors (pools, means) round to the scale of their operand, which travels with the tensor.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._higher_order_ops.scan import scan
from torch.overrides import TorchFunctionMode

from sardonyx.base.replaced_attributes import replaced
from sardonyx.errors import UnsupportedError

F = torch.nn.functional

CODE_BITS = 8
"""Width of the codes of activations."""

_SMALLEST_SCALE = 6.1e-5
"""torch's smallest scale of activations that are quantized at run time."""


class Packed(torch.nn.Module):  # type: ignore[misc]
    """Packed weights as integers with scales, with the numbers of a convolution.

    Args:
        weight: A quantized tensor, or one in floating point.
        bias: The bias; None without.
        numbers: Strides, paddings, dilations and output paddings by name, and groups.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, **numbers: Any) -> None:
        super().__init__()
        self.numbers = numbers
        self.axis: int | None = None
        if not weight.is_quantized:
            self.register_buffer("codes", weight.detach().float())
            self.register_buffer("scales", None)
        elif weight.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            self.register_buffer("codes", weight.int_repr())
            self.register_buffer("scales", torch.tensor(weight.q_scale()))
            self.register_buffer("zeros", torch.tensor(weight.q_zero_point()))
        elif weight.dtype in (torch.qint8, torch.quint8) and not weight.q_per_channel_zero_points().is_floating_point():
            self.register_buffer("codes", weight.int_repr())
            self.register_buffer("scales", weight.q_per_channel_scales().float())
            self.register_buffer("zeros", weight.q_per_channel_zero_points())
            self.axis = weight.q_per_channel_axis()
        else:
            self.register_buffer("codes", weight.dequantize())
            self.register_buffer("scales", None)
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def weight(self) -> Any:
        """Return the weights that the integers stand for."""
        if self.scales is None:
            return self.codes
        limits = torch.iinfo(self.codes.dtype)
        arguments = (self.codes, self.scales, self.zeros)
        operators = torch.ops.quantized_decomposed
        if self.axis is None:
            return operators.dequantize_per_tensor.tensor(*arguments, limits.min, limits.max, self.codes.dtype)
        return operators.dequantize_per_channel(*arguments, self.axis, limits.min, limits.max, self.codes.dtype)


class PackedCell(torch.nn.Module):  # type: ignore[misc]
    """Packed weights of a recurrent cell: of its input and of its state."""

    def __init__(self, of_input: Any, of_state: Any, reduced: bool) -> None:
        super().__init__()
        self.of_input, self.of_state, self.reduced = _plain(of_input), _plain(of_state), reduced


def mirror_of(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return a copy of a module whose packed weights are plain ones; None if the module has none.

    Raises:
        UnsupportedError: A packed object is of an unknown kind.
    """
    if not any(_packed(part) for part in module.modules()):
        return None
    importlib.import_module("torch.ao.quantization.fx._decomposed")

    mirror = copy.deepcopy(module)
    for part in list(mirror.modules()):
        for name, value in _packed(part).items():
            del part.__dict__[name]
            part.add_module(name, _plain(value))
        if type(part).__module__.startswith("torch.ao.nn."):
            for name in ("scale", "zero_point"):
                if isinstance(number := part._buffers.get(name), torch.Tensor) and number.numel() == 1:
                    del part._buffers[name]
                    setattr(part, name, number.item())
        if isinstance(part, torch.fx.GraphModule):
            _replace_targets(part)
        # torch's quantized modules write packed weights to their states.
        part.__dict__["_save_to_state_dict"] = types.MethodType(torch.nn.Module._save_to_state_dict, part)
    return mirror


def _packed(part: torch.nn.Module) -> dict[str, Any]:
    """Return the packed weights among the attributes of a module; modules of TorchScript are none."""
    return {
        name: value
        for name, value in vars(part).items()
        if isinstance(value, torch.ScriptObject) and not isinstance(value, torch._C.ScriptModule)
    }


def _replace_targets(module: torch.fx.GraphModule) -> None:
    """Replace the quantizing calls of a graph: torch captures a graph by its nodes, not by the names in its code."""
    for node in module.graph.nodes:
        if node.op == "call_function":
            name = str(getattr(node.target, "_qualified_op_name", ""))
            own = FUNCTIONS.get(node.target) or (
                _OPERATORS.get(name.removeprefix("quantized::")) if name.startswith("quantized::") else None
            )
            node.target = own or node.target
    module.recompile()


def is_quantized(module: torch.nn.Module) -> bool:
    """Return True if a module is a mirror."""
    return any(isinstance(part, (Packed, PackedCell)) for part in module.modules())


def _plain(packed: Any) -> torch.nn.Module:
    name = str(packed._type().name()) if hasattr(packed, "_type") else type(packed).__name__
    if name == "LinearPackedParamsBase":
        return Packed(*packed.unpack())
    if name in ("Conv2dPackedParamsBase", "Conv3dPackedParamsBase"):
        names = ("stride", "padding", "dilation", "output_padding", "groups")
        return Packed(*packed.unpack(), **{name: getattr(packed, name)() for name in names})
    if name == "EmbeddingPackedParamsBase":
        return Packed(torch.ops.quantized.embedding_bag_unpack(packed), None)
    if name == "CellParamsBase":
        state = packed.__getstate__()[0]
        if state[0] == "quantized_dynamic":
            of_input, of_state = state[4]
            return PackedCell(of_input, of_state, bool(state[3][0]))
    raise UnsupportedError(f"packed weights of the kind {name}", where="source")


def rounded(x: Any, scale: Any, zero_point: Any, dtype: Any = torch.quint8) -> Any:
    """Return numbers rounded to those that codes stand for."""
    if dtype not in (torch.quint8, torch.qint8):
        if dtype == torch.qint32:
            return torch.round(x / scale) * scale
        raise UnsupportedError(f"quantized tensors of type {dtype}", where="source")
    low, high = (0, 255) if dtype == torch.quint8 else (-128, 127)
    if isinstance(zero_point, torch.Tensor):
        zero_point = zero_point.to(torch.int32)
    result = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)
    result._sardonyx_codes = (scale, zero_point, dtype)
    return result


def rounded_by_channel(x: Any, scales: Any, zero_points: Any, axis: int, dtype: Any) -> Any:
    """Return numbers rounded to those that the codes of their channel stand for."""
    low, high = (0, 255) if dtype == torch.quint8 else (-128, 127)
    return torch.fake_quantize_per_channel_affine(x, scales.float(), zero_points.to(torch.int32), axis, low, high)


def codes_of(x: Any) -> Any:
    """Return the codes of a rounded tensor.

    Raises:
        UnsupportedError: The tensor was not rounded by the last operator.
    """
    known = getattr(x, "_sardonyx_codes", None)
    if known is None:
        raise UnsupportedError("codes of a tensor whose scale is not known", where="source")
    scale, zero_point, dtype = known
    low, high, plain = (0, 255, torch.uint8) if dtype == torch.quint8 else (-128, 127, torch.int8)
    return (torch.round(x / scale) + zero_point).clamp(low, high).to(plain)


def rounded_at_run_time(x: Any, dtype: Any = torch.quint8, reduce_range: bool = False) -> Any:
    """Return numbers rounded to codes whose scale follows from the least and the largest number."""
    low, high = (0, 255) if dtype == torch.quint8 else (-128, 127)
    if reduce_range:
        low, high = low // 2, high // 2
    least, most = x.amin().clamp(max=0).double(), x.amax().clamp(min=0).double()
    scale = ((most - least) / (high - low)).clamp(min=_SMALLEST_SCALE)
    zero = torch.where(
        low + (least / scale).abs() < high + (most / scale).abs(), low - least / scale, high - most / scale
    )
    zero = torch.round(zero).clamp(low, high)
    scale, zero = scale.to(x.dtype), zero.to(x.dtype)
    return (torch.round(x / scale + zero).clamp(low, high) - zero) * scale


_AVERAGES = frozenset({
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "cat", "concat", "interpolate", "mean", "upsample", "upsample_bilinear2d",
})  # fmt: skip
"""Functions whose results are rounded to the scale of the first operand."""

_MOVEMENT = frozenset({
    "_getitem__", "chunk", "clamp", "contiguous", "flatten", "hardtanh", "hardtanh_", "max_pool1d", "max_pool2d",
    "max_pool3d", "narrow", "permute", "pixel_shuffle", "relu", "relu6", "relu6_", "relu_", "reshape", "select",
    "split", "squeeze", "transpose", "unbind", "unsqueeze", "upsample_nearest2d", "view",
})  # fmt: skip
"""Functions whose results have the codes of the operand, without a leading underscore."""

_FIXED = {"sigmoid": (1 / 256, 0), "sigmoid_": (1 / 256, 0), "hardsigmoid": (1 / 256, 0), "tanh": (1 / 128, 128)}
"""Scales and zero points of functions whose results have a known range."""


class _Scales(TorchFunctionMode):  # type: ignore[misc]
    """Rounds the results of plain functions of rounded tensors, and passes the scales on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = args[0] if args else None
        first = first[0] if isinstance(first, (tuple, list)) and first else first
        known = getattr(first, "_sardonyx_codes", None)
        if known is None:
            return result
        name = getattr(func, "__name__", "").removeprefix("_")
        if name in _AVERAGES:
            return rounded(result, *known)
        if name in _FIXED:
            return rounded(result, *_FIXED[name])
        if name in _MOVEMENT:
            for part in result if isinstance(result, (tuple, list)) else (result,):
                part._sardonyx_codes = known
        return result


FUNCTIONS = {
    torch.quantize_per_tensor: rounded,
    torch.quantize_per_channel: rounded_by_channel,
    torch.quantize_per_tensor_dynamic: rounded_at_run_time,
}
"""Equal programs of torch's functions that quantize."""


@contextlib.contextmanager
def quantized_operators(module: torch.nn.Module) -> Iterator[None]:
    """Replace torch's operators of quantized tensors inside of the ``with`` statement, if a module is a mirror."""
    with contextlib.ExitStack() as stack:
        if is_quantized(module):
            for name, function in _OPERATORS.items():
                stack.enter_context(replaced(torch.ops.quantized, name, function, is_new=True))
            for name, function in (("quantized_lstm", _lstm), ("quantized_gru", _gru)):
                stack.enter_context(replaced(torch, name, function))
            stack.enter_context(replaced(torch.nn.RNNBase, "check_forward_args", lambda *_: None))
            stack.enter_context(_Scales())
        yield


def _with_relu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator that is followed by a ReLU before the rounding."""
    return lambda *operands, **options: function(*operands, **options, _after=torch.relu)


def _same(x: Any) -> Any:
    return x


def _linear(x: Any, packed: Packed, scale: float, zero: int, _after: Callable[[Any], Any] = _same) -> Any:
    return rounded(_after(F.linear(x, packed.weight(), packed.bias)), scale, zero)


def _dynamic_linear(x: Any, packed: Packed, reduce_range: bool = False, _after: Callable[[Any], Any] = _same) -> Any:
    is_rounded = packed.scales is not None
    x = rounded_at_run_time(x, reduce_range=reduce_range) if is_rounded else x
    return _after(F.linear(x, packed.weight(), packed.bias))


def _convolution(axes: int, is_transposed: bool) -> Callable[..., Any]:
    plain: Any = getattr(F, f"conv{'_transpose' if is_transposed else ''}{axes}d")

    def convolved(x: Any, packed: Packed) -> Any:
        weight, numbers = packed.weight(), packed.numbers
        if axes == 1 and weight.dim() == 4:
            weight = weight.squeeze(-2)
        options = {name: list(numbers[name])[-axes:] for name in ("stride", "padding", "dilation")}
        if is_transposed:
            options["output_padding"] = list(numbers["output_padding"])[-axes:]
        return plain(x, weight, packed.bias, groups=numbers["groups"], **options)

    return convolved


def _static_convolution(axes: int, is_transposed: bool = False) -> Callable[..., Any]:
    convolved = _convolution(axes, is_transposed)

    def operator(x: Any, packed: Packed, scale: float, zero: int, _after: Callable[[Any], Any] = _same) -> Any:
        return rounded(_after(convolved(x, packed)), scale, zero)

    return operator


def _dynamic_convolution(axes: int, is_transposed: bool = False) -> Callable[..., Any]:
    convolved = _convolution(axes, is_transposed)

    def operator(x: Any, packed: Packed, reduce_range: bool = False) -> Any:
        return convolved(rounded_at_run_time(x, reduce_range=reduce_range), packed)

    return operator


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def operator(x: Any, y: Any, scale: float, zero_point: int, _after: Callable[[Any], Any] = _same) -> Any:
        return rounded(_after(function(x, y)), scale, zero_point)

    return operator


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator whose last operands are scale and zero point."""
    return lambda x, *rest: rounded(function(x, *rest[:-2]), rest[-2], rest[-1])


def _concatenated(
    tensors: Sequence[Any], dim: int, scale: float, zero_point: int, _after: Callable[[Any], Any] = _same
) -> Any:
    return rounded(_after(torch.cat(list(tensors), dim)), scale, zero_point)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float, scale: float, zero: int,
    _after: Callable[[Any], Any] = _same,
) -> Any:  # fmt: skip
    return rounded(_after(F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)), scale, zero)


def _normed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a norm whose operands are those of torch's quantized norms: weight, bias and eps by name or position."""

    def operator(x: Any, *rest: Any, **options: Any) -> Any:
        scale, zero = options.pop("output_scale", None), options.pop("output_zero_point", None)
        if scale is None:
            *rest, scale, zero = rest  # type: ignore[assignment]
        return rounded(function(x, *rest, **options), scale, zero)

    return operator


def _instance_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return F.instance_norm(x, weight=weight, bias=bias, eps=eps)


def _elu(x: Any, scale: float, zero: int, alpha: float = 1.0, *_: Any) -> Any:
    return rounded(F.elu(x, alpha), scale, zero)


def _leaky_relu(x: Any, slope: float, inplace: bool, scale: float, zero: int) -> Any:
    return rounded(F.leaky_relu(x, slope), scale, zero)


def _embedding(packed: Packed, indices: Any, *_: Any, **__: Any) -> Any:
    return F.embedding(indices, packed.weight())


def _bag(
    packed: Packed, indices: Any, offsets: Any = None, scale_grad_by_freq: bool = False, mode: int = 0,
    pruned_weights: bool = False, per_sample_weights: Any = None, compressed_indices_mapping: Any = None,
    include_last_offset: bool = False,
) -> Any:  # fmt: skip
    kind = ("sum", "mean", "max")[mode]
    options = {"mode": kind, "per_sample_weights": per_sample_weights, "include_last_offset": include_last_offset}
    return F.embedding_bag(indices, packed.weight(), offsets, **options)


_RELU: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "conv1d": _static_convolution(1),
    "conv2d": _static_convolution(2),
    "conv3d": _static_convolution(3),
    "add": _binary(torch.add),
    "mul": _binary(torch.mul),
    "cat": _concatenated,
    "batch_norm": _batch_norm,
    "batch_norm1d": _batch_norm,
    "batch_norm2d": _batch_norm,
    "batch_norm3d": _batch_norm,
}
_OPERATORS: dict[str, Callable[..., Any]] = {
    **_RELU,
    **{f"{name}_relu": _with_relu(function) for name, function in _RELU.items()},
    "linear_dynamic": _dynamic_linear,
    "linear_relu_dynamic": _with_relu(_dynamic_linear),
    "linear_dynamic_fp16": lambda x, packed: F.linear(x, packed.weight(), packed.bias),
    "linear_relu_dynamic_fp16": lambda x, packed: torch.relu(F.linear(x, packed.weight(), packed.bias)),
    "linear_leaky_relu": lambda x, packed, scale, zero, slope: rounded(
        F.leaky_relu(F.linear(x, packed.weight(), packed.bias), slope), scale, zero
    ),
    "linear_tanh": lambda x, packed, scale, zero: _linear(x, packed, scale, zero, torch.tanh),
    **{f"conv_transpose{axes}d": _static_convolution(axes, True) for axes in (1, 2, 3)},
    **{f"conv{axes}d_dynamic": _dynamic_convolution(axes) for axes in (1, 2, 3)},
    **{f"conv_transpose{axes}d_dynamic": _dynamic_convolution(axes, True) for axes in (1, 2, 3)},
    "add_scalar": lambda x, y: x + y,
    "add_scalar_relu": lambda x, y: torch.relu(x + y),
    "mul_scalar": lambda x, y: x * y,
    "mul_scalar_relu": lambda x, y: torch.relu(x * y),
    "matmul": _binary(torch.matmul),
    "hardswish": _unary(F.hardswish),
    "sigmoid": _unary(torch.sigmoid),
    "softmax": _unary(torch.softmax),
    "prelu": _unary(F.prelu),
    "elu": _elu,
    "celu": lambda x, scale, zero, alpha=1.0: rounded(F.celu(x, alpha), scale, zero),
    "leaky_relu": _leaky_relu,
    "relu6": lambda x, inplace=False: F.relu6(x),
    "clamp": lambda x, low=None, high=None: torch.clamp(x, low, high),
    "threshold": F.threshold,
    "dropout": lambda x, *_: x,
    "layer_norm": _normed(F.layer_norm),
    "group_norm": _normed(F.group_norm),
    "instance_norm": _normed(_instance_norm),
    "embedding_byte": _embedding,
    "embedding_4bit": _embedding,
    "embedding_bag_byte": _bag,
    "embedding_bag_4bit": _bag,
}
"""Equal programs by the names of torch's quantized operators."""


def _sequence(
    x: Any, states: Sequence[Any], cells: Sequence[Any], layers: int, bidirectional: bool, batch_first: bool, step: Any
) -> tuple[Any, ...]:
    """Return the outputs and the last states of recurrent layers.

    Args:
        x: Inputs ``[steps, batch, features]``.
        states: First states ``[layers * directions, batch, features]``, one of each kind.
        cells: The weights, one cell for each layer and direction.
        layers: Number of layers.
        bidirectional: True for two directions.
        batch_first: True if the first axis of inputs and outputs is the batch.
        step: Returns the states after a step from the sums of the input, the states and the cell.
    """
    values = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    finals: list[Any] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            cell = cells[number]
            sums = _dynamic_linear(values, cell.of_input, cell.reduced)

            def advance(state: Any, item: Any, cell: Any = cell) -> Any:
                new = step(item, state, cell)
                return new, new[0].clone()

            first = tuple(kind[number].clone() for kind in states)
            final, rows = scan(advance, first, sums, dim=0, reverse=direction == 1)
            finals.append(final)
            outputs.append(rows)
        values = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
    stacked = (torch.stack([final[i] for final in finals]) for i in range(len(states)))
    return values.transpose(0, 1) if batch_first else values, *stacked


def _lstm_step(item: Any, state: Any, cell: Any) -> tuple[Any, Any]:
    hidden, memory = state
    gates = item + _dynamic_linear(hidden, cell.of_state, cell.reduced)
    enter, forget, value, leave = gates.chunk(4, -1)
    memory = forget.sigmoid() * memory + enter.sigmoid() * value.tanh()
    return leave.sigmoid() * memory.tanh(), memory


def _gru_step(item: Any, state: Any, cell: Any) -> tuple[Any]:
    (hidden,) = state
    reset, update, value = item.chunk(3, -1)
    own_reset, own_update, own_value = _dynamic_linear(hidden, cell.of_state, cell.reduced).chunk(3, -1)
    reset, update = (reset + own_reset).sigmoid(), (update + own_update).sigmoid()
    value = (value + reset * own_value).tanh()
    return ((1 - update) * value + update * hidden,)


def _require_plain(second: Any, train: bool) -> None:
    if train or (isinstance(second, torch.Tensor) and second.dim() == 1):
        raise UnsupportedError("packed sequences in quantized recurrent layers", where="source")


def _lstm(
    x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool = False, *, dtype: Any = None, use_dynamic: bool = False,
) -> Any:  # fmt: skip
    _require_plain(hx, train)
    return _sequence(x, hx, params, layers, bidirectional, batch_first, _lstm_step)


def _gru(
    x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool = False, **_: Any,
) -> Any:  # fmt: skip
    _require_plain(hx, train)
    return _sequence(x, [hx], params, layers, bidirectional, batch_first, _gru_step)
