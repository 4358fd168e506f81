"""Functions of TorchScript on numbers, lists, dictionaries and strings."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sardonyx.errors import ConversionError

DTYPES: Mapping[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
}
"""Element types by the numbers that graphs have for them."""

_CODES = {dtype: number for number, dtype in DTYPES.items()}

LAYOUTS = {0: torch.strided, 1: torch.sparse_coo, 2: torch.sparse_csr}
FORMATS = {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last, 3: torch.channels_last_3d}


def is_number(value: Any) -> bool:
    """Return True for numbers and sizes."""
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def as_number(value: Any) -> Any:
    """Return a value as a number: a constant tensor without axes as its element; None for other tensors."""
    if not isinstance(value, torch.Tensor):
        return value if is_number(value) else None
    if type(value) is torch.Tensor and value.dim() == 0 and not torch._is_functional_tensor(value):
        return value.item()
    return None


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of numbers and texts that leaves tensors to their operator."""

    def called(*operands: Any) -> Any:
        if not any(isinstance(x, torch.Tensor) for x in operands):
            return function(*operands)
        numbers = [as_number(x) for x in operands]
        is_size = any(is_number(x) for x in operands[:2]) and None not in numbers
        return function(*numbers) if is_size else NotImplemented

    return called


def _added(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + y if isinstance(x, (str, list, tuple)) else x + alpha * y


def _divided(x: Any, y: Any, mode: str | None = None) -> Any:
    if mode is None:
        return x / y
    return x // y if mode == "floor" else torch.sym_int(x / y)


def _item(container: Any, key: Any) -> Any:
    return container[key]


def _slice(values: Any, *bounds: Any) -> Any:
    return NotImplemented if isinstance(values, torch.Tensor) else values[slice(*bounds)]


def _of_containers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of lists, dictionaries and texts that leaves tensors to their operator."""

    def called(first: Any, *rest: Any) -> Any:
        return NotImplemented if isinstance(first, torch.Tensor) else function(first, *rest)

    return called


def _integer(value: Any, *_: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return int(value) if type(value) is torch.Tensor else value.item()
    return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(value)


def _float(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    return torch.sym_float(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value)


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _tensor(data: Any, dtype: int | None = None, device: Any = None, requires_grad: bool = False) -> Any:
    kind = None if dtype is None else DTYPES[dtype]
    if isinstance(data, torch.Tensor):
        return data.clone() if kind is None else data.to(kind)
    if _has_symbols(data):
        parts = [_tensor(entry, dtype) for entry in data] if isinstance(data, (list, tuple)) else None
        if parts is not None:
            return torch.stack(parts)
        whole = isinstance(data, torch.SymInt)
        return torch.scalar_tensor(data, dtype=kind or (torch.int64 if whole else torch.get_default_dtype()))
    return torch.tensor(data, dtype=kind)


def _has_symbols(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_has_symbols, data))
    return isinstance(data, (torch.SymInt, torch.SymFloat, torch.Tensor))


def _size(x: Any, axis: Any = None) -> Any:
    return list(x.shape) if axis is None else x.shape[axis]


def _set_item(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def _text(value: Any) -> str:
    """Return the text of a value as TorchScript prints it; nothing for tensors."""
    if isinstance(value, torch.Tensor):
        return ""
    if isinstance(value, float):
        return f"{int(value)}." if value.is_integer() and abs(value) < 1 << 63 else f"{value:.17g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(entry)}' for key, entry in value.items())}}}"
    return str(value)


def _formatted(text: str, *values: Any) -> str:
    """Put texts of values in the place of ``{}``, as TorchScript does: other braces are themselves."""
    parts = text.split("{}")
    if len(parts) - 1 > len(values):
        raise ConversionError(f"expected {len(parts) - 1} values of the format '{text[:80]}', got {len(values)}")
    shown = [_text(value) for value in values[: len(parts) - 1]]
    return "".join(part + value for part, value in zip(parts, (*shown, ""), strict=True))


def _percent_formatted(text: str, *values: Any) -> str:
    """Format values by the conversions of TorchScript, which have neither widths nor precisions."""
    if re.sub(r"%[%sdiuoxXeEfFgGc]", "", text).count("%"):
        raise ConversionError(f"the format '{text[:80]}' has no translation")
    return text % values


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) else len(value)


def _derived_index(index: Any, start: Any, step: Any) -> Any:
    return start + index * step


def _range_length(low: Any, high: Any, step: Any) -> Any:
    if step > 0:
        return torch.sym_max(0, (high - low + step - 1) // step)
    return torch.sym_max(0, (low - high - step - 1) // -step)


def _popped(values: Any, index: Any = -1) -> Any:
    return values.pop(index)


def _appended(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _extended(values: list[Any], more: Any) -> list[Any]:
    values.extend(more)
    return values


def _inserted(values: list[Any], index: int, value: Any) -> list[Any]:
    values.insert(index, value)
    return values


def _negated(value: Any) -> Any:
    return torch.sym_not(value) if isinstance(value, torch.SymBool) else not value


def _to(x: Any, *rest: Any) -> Any:
    """Convert an element type; devices change no value, but a copy may be written to."""
    flags = [value for value in rest if isinstance(value, bool)]
    copy = len(flags) > 1 and flags[-1]
    # The overload of seven operands has a layout, which is a number too, after the element type.
    for value in rest[:1] if len(rest) == 7 else rest:
        if isinstance(value, torch.Tensor):
            return x.to(value.dtype, copy=copy)
        if isinstance(value, bool):
            break
        if isinstance(value, int):
            return x.to(DTYPES[value], copy=copy)
    return x.clone() if copy else x


def _interpolate(x: Any, size: Any, scale: Any, mode: str, corners: Any, recompute: Any = None, *smooth: Any) -> Any:
    return torch.nn.functional.interpolate(x, size, scale, mode, corners, recompute, *smooth)


def _recurrent(name: str) -> Callable[..., Any]:
    """Return a recurrent layer by the function that the capture replaces."""
    return lambda *operands: getattr(torch.nn.modules.rnn._VF, name)(*operands)


def _packing(name: str) -> Callable[..., Any]:
    return lambda *operands: getattr(torch.nn.utils.rnn._VF, name)(*operands)


def _identity(value: Any, *_: Any) -> Any:
    return value


def _nothing(*_: Any) -> None:
    return None


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": _added,
    "sub": lambda x, y, alpha=1: x - alpha * y,
    "mul": operator.mul,
    "div": _divided,
    "floordiv": operator.floordiv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "abs": abs,
    "floor": lambda x: x if isinstance(x, (int, torch.SymInt)) else math.floor(x),
    "ceil": lambda x: x if isinstance(x, (int, torch.SymInt)) else math.ceil(x),
    "round": lambda x, digits=None: round(x, digits) if digits is not None else float(round(x)),
    "sqrt": torch.sym_sqrt,
    "exp": math.exp,
    "log": math.log,
    "fmod": math.fmod,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "tanh": math.tanh,
    "isnan": math.isnan,
    "isinf": math.isinf,
    "isfinite": math.isfinite,
}

_TEXTS = (
    "startswith endswith lower upper strip lstrip rstrip replace join find rfind title splitlines isdigit isalpha "
    "capitalize zfill"
)
"""Methods of texts."""

_DEVICES = "cuda meta mkldnn mps nested quantized sparse sparse_csr vulkan xla xpu ipu maia mtia"
"""Kinds of tensors of which none is met."""


def _method(name: str) -> Callable[..., Any]:
    return lambda text, *rest: getattr(text, name)(*rest)


_CONTAINERS: Mapping[str, Callable[..., Any]] = {
    "__getitem__": _item,
    "_set_item": _set_item,
    "__contains__": lambda container, value: value in container,
    "append": _appended,
    "extend": _extended,
    "insert": _inserted,
    "pop": _popped,
    "copy": lambda values: values.copy(),
    "clear": lambda values: values.clear() or values,
    "reverse": lambda values: values.reverse() or values,
    "index": lambda values, value, *bounds: values.index(value, *bounds),
    "count": lambda values, value, *bounds: values.count(value, *bounds),
    "remove": lambda values, value: values.remove(value),
    "Delete": lambda container, key: container.pop(key),
    "keys": lambda values: list(values.keys()),
    "values": lambda values: list(values.values()),
    "items": lambda values: list(values.items()),
    "get": lambda values, key, default=None: values.get(key, default),
    "setdefault": lambda values, key, default: values.setdefault(key, default),
    "update": lambda values, other: values.update(other),
    "sorted": lambda values, *_: sorted(values),
    "sum": sum,
    "all": all,
    "any": any,
    "dict": lambda values=(): dict(values),
    **{name: _method(name) for name in _TEXTS.split()},
}


def _sorted_in_place(values: Any, *rest: Any) -> Any:
    if not isinstance(values, list):
        return NotImplemented
    values.sort(reverse=bool(rest and rest[0]))
    return None


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"aten::{name}": _of_numbers(function) for name, function in _ARITHMETIC.items()},
    **{f"aten::{name}": _of_containers(function) for name, function in _CONTAINERS.items() if name not in _ARITHMETIC},
    "aten::slice": _slice,
    "aten::sort": _sorted_in_place,
    "aten::split": lambda text, *rest: text.split(*rest) if isinstance(text, str) else NotImplemented,
    "aten::list": lambda values: list(values),
    "aten::len": _length,
    "aten::size": _size,
    "aten::dim": lambda x: x.dim(),
    "aten::numel": lambda x: x.numel(),
    "aten::format": _formatted,
    "aten::str": _text,
    "aten::percentFormat": _percent_formatted,
    "aten::warn": _nothing,
    "aten::_print": _nothing,
    "prim::Print": _nothing,
    "aten::Int": _integer,
    "aten::IntImplicit": _integer,
    "aten::ScalarImplicit": _scalar,
    "aten::Float": _float,
    "aten::FloatImplicit": _float,
    "aten::item": _scalar,
    "aten::Bool": bool,
    "aten::tensor": _tensor,
    "aten::as_tensor": _tensor,
    "aten::_list_to_tensor": _tensor,
    "prim::NumToTensor": _identity,
    "aten::to": lambda x, *rest: _to(x, *rest) if isinstance(x, torch.Tensor) else x,
    "aten::__is__": lambda x, y: x is y,
    "aten::__isnot__": lambda x, y: x is not y,
    "aten::__not__": _negated,
    "aten::__derive_index": _derived_index,
    "aten::__range_length": _range_length,
    "aten::_unwrap_optional": _identity,
    "aten::is_floating_point": lambda x: x.is_floating_point(),
    "aten::is_complex": lambda x: x.is_complex(),
    "aten::is_grad_enabled": lambda: False,
    "aten::is_scripting": lambda: True,
    "aten::has_torch_function": lambda *_: False,
    "aten::_get_tracing_state": lambda *_: False,
    "aten::is_autocast_enabled": lambda *_: False,
    "aten::is_autocast_cpu_enabled": lambda *_: False,
    "aten::set_grad_enabled": _nothing,
    "aten::requires_grad_": _identity,
    "aten::cpu": _identity,
    "aten::device": torch.device,
    "aten::result_type": lambda x, y: _CODES[torch.result_type(x, y)],
    "aten::promote_types": lambda x, y: _CODES[torch.promote_types(DTYPES[x], DTYPES[y])],
    "aten::__interpolate": _interpolate,
    "aten::_pack_padded_sequence": _packing("_pack_padded_sequence"),
    "aten::_pad_packed_sequence": _packing("_pad_packed_sequence"),
    **{f"aten::{name}": _recurrent(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "prim::unchecked_cast": _identity,
    "prim::unchecked_unwrap_optional": _identity,
    "prim::Uninitialized": _nothing,
    "prim::data": lambda x: x.detach(),
    "prim::dtype": lambda x: _CODES[x.dtype],
    "prim::device": lambda x: x.device,
    "prim::layout": lambda _: 0,
    "prim::requires_grad": lambda _: False,
    "prim::itemsize": lambda x: x.element_size(),
    "prim::TupleIndex": lambda values, index: values[index],
    "prim::ModuleContainerIndex": lambda container, index: container[index],
    "prim::StringIndex": lambda text, index: text[index],
    "prim::rangelist": lambda count: list(range(count)),
    "prim::type": lambda device: device.type,
    "prim::index": lambda device: device.index,
    "prim::EnumName": lambda value: value.name,
    "prim::EnumValue": lambda value: value.value,
    "prim::is_cpu": lambda _: True,
    **{f"prim::is_{name}": lambda _: False for name in _DEVICES.split()},
    "prim::min": lambda *values: torch.sym_min(*values) if len(values) > 1 else min(values[0]),
    "prim::max": lambda *values: torch.sym_max(*values) if len(values) > 1 else max(values[0]),
    "prim::abs": abs,
    "prim::Enter": _nothing,
    "prim::Exit": _nothing,
}
"""Functions by the kinds of nodes; ``NotImplemented`` as a result leaves the call to the operator."""
