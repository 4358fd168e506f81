"""The torch form of every primitive without bodies: an expression over the expressions of the operands.

:mod:`.control` has the forms of control flow, :mod:`.hosts` those of host functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import DType, Shape, TensorType
from sardonyx.errors import UnsupportedError
from sardonyx.export.torch.element_types import SPELLINGS, WIDENED, WRAPPED
from sardonyx.export.torch.source import Source

TorchRule = Callable[..., str]

TORCH_FORMS: dict[str, TorchRule] = {}


def torch_form(*names: str) -> Callable[[TorchRule], TorchRule]:
    """Register the torch form of primitives."""

    def register(rule: TorchRule) -> TorchRule:
        TORCH_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return register


def dtype_of(value: Value) -> DType:
    """Return the element type of a tensor value."""
    return value.type.dtype  # type: ignore[union-attr]


def shape_of(value: Value) -> Shape:
    """Return the sizes of a tensor value."""
    return value.type.shape  # type: ignore[union-attr,return-value]


def spelled_dtype(dtype: DType, where: str = "") -> str:
    """Return the torch type that holds a Core type.

    Raises:
        UnsupportedError: torch has no such type.
    """
    spelling = SPELLINGS.get(dtype)
    if spelling is None:
        raise UnsupportedError(f"torch has no tensors of {dtype.name.lower()}.", where=where)
    return spelling


# Operands of elementwise primitives: torch broadcasts by itself.


def elementwise_operands(s: Source, value: Value, operands: Sequence[Value]) -> list[str]:
    """Return the operands without explicit broadcasts where torch broadcasts to the same sizes; numbers as literals."""
    shape = shape_of(value)
    chosen = [_bare(operand) for operand in operands]
    literals = _literals(s, chosen)
    tensors = [one for one, text in zip(chosen, literals, strict=True) if text is None]
    covered = max(len(shape_of(one)) for one in tensors) == len(shape) and all(
        size == 1 or any(_size_at(one, axis - len(shape)) == size for one in tensors) for axis, size in enumerate(shape)
    )
    if not covered:
        chosen = list(operands)
        literals = _literals(s, chosen)
        if max(len(shape_of(one)) for one, text in zip(chosen, literals, strict=True) if text is None) < len(shape):
            literals = [None] * len(chosen)
    return [
        expression(s, one) if text is None or dtype_of(one) in WRAPPED else text
        for one, text in zip(chosen, literals, strict=True)
    ]


def _literals(s: Source, operands: Sequence[Value]) -> list[str | None]:
    """Return the operands that are one number as Python writes it, and None for tensors: at least one."""
    literals = [s.literal(one) for one in operands]
    if all(text is not None for text in literals):
        literals[0] = None
    return literals


def _bare(value: Value) -> Value:
    """Return the value before broadcasts along axes of size 1, and before reshapes that add such axes in front."""
    while value.op in ("broadcast", "reshape") and isinstance(value.operands[0].type, TensorType):
        inner = value.operands[0]
        old, new = shape_of(inner), shape_of(value)
        if value.op == "reshape" and not (len(old) <= len(new) and new == (1,) * (len(new) - len(old)) + old):
            break
        value = inner
    return value


def _size_at(value: Value, axis: int) -> Size:
    shape = shape_of(value)
    return shape[axis] if -axis <= len(shape) else 1


def expression(s: Source, value: Value) -> str:
    """Return the expression of a value; constants and broadcasts are written where they are read."""
    known = s.expressions.get(value)
    if known is None and value.op == "bind":
        return expression(s, value.operands[0])
    if known is None:
        if value.op == "constant" and isinstance(value.type, TensorType):
            spelled_dtype(dtype_of(value), value.origin)
            known = s.constant(value)
            if known.startswith("torch."):
                known = s.assign(value.origin or "constant", known)
        else:
            known = s.assign(value.origin or "v", form_of(s, value))
        s.expressions[value] = known
    return str(known)


LAZY = ("constant", "broadcast", "dims", "iota")
"""Primitives that are written at their first reader, because readers often need none of them."""


def form_of(s: Source, value: Value) -> str:
    """Return the expression that computes a value without bodies.

    Raises:
        UnsupportedError: torch has no form for the primitive or the type.
    """
    if isinstance(value.type, TensorType):
        spelled_dtype(dtype_of(value), value.origin)
    if PRIMITIVES[value.op].kind in ("unary", "binary", "ternary"):
        operands = elementwise_operands(s, value, value.operands)
    else:
        operands = [expression(s, operand) for operand in value.operands]
    try:
        return TORCH_FORMS[value.op](s, value, *operands, **value.params)
    except UnsupportedError as error:
        raise UnsupportedError(error.problem, where=error.where or value.origin, remedy=error.remedy) from error


# Elementwise.

_FUNCTIONS = {"max": "torch.maximum", "min": "torch.minimum"}
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "equal": "==", "less": "<"}


_UNSIGNED = {
    "less": "unsigned_less", "div": "unsigned_quotient", "rem": "unsigned_remainder", "max": "unsigned_max",
    "min": "unsigned_min", "shift_right": "unsigned_shift",
}  # fmt: skip
"""Functions of uint64, whose bits are in int64."""


def _computed(s: Source, value: Value, operands: Sequence[str], compute: Callable[[Sequence[str]], str]) -> str:
    """Return an elementwise computation in a type that torch computes in, reduced to the result's type."""
    source, result = dtype_of(value.operands[-1]), dtype_of(value)
    if source in WIDENED:
        wide = [f"{_postfix(x)}.to({WIDENED[source]})" for x in operands]
        text = compute(wide)
        return f"({text}).to({SPELLINGS[result]})" if result == source else text
    text = compute(operands)
    if result in WRAPPED and value.op not in ("max", "min", "and", "or", "xor", "select"):
        bits, offset = WRAPPED[result]
        return f"{s.helper('wrap')}({text}, {bits}, {offset})"
    return text


def _postfix(text: str) -> str:
    return text if all(c.isalnum() or c in "_.[]" for c in text) else f"({text})"


def _unary(op: str) -> TorchRule:
    def rule(s: Source, value: Value, x: str) -> str:
        kind = t.kind(dtype_of(value))
        if op in ("floor", "ceil", "round") and kind in ("int", "uint"):
            return x
        if op == "sign" and kind == "float":
            return _computed(s, value, [x], lambda xs: f"{s.helper('sign')}({xs[0]})")
        if op == "abs" and kind == "uint":
            return x
        prefix = {"neg": "-", "not": "~"}.get(op)
        if prefix:
            return _computed(s, value, [x], lambda xs: f"{prefix}{_postfix(xs[0])}")
        name = _FUNCTIONS.get(op, f"torch.{op}")
        return _computed(s, value, [x], lambda xs: f"{name}({xs[0]})")

    return rule


def _binary(op: str) -> TorchRule:
    def rule(s: Source, value: Value, x: str, y: str) -> str:
        dtype = dtype_of(value.operands[0])
        if dtype == t.UINT64 and op in _UNSIGNED:
            return f"{s.helper(_UNSIGNED[op])}({_tensor(s, value, 0, x)}, {_tensor(s, value, 1, y)})"
        whole = t.is_integer(dtype)

        def compute(xs: Sequence[str]) -> str:
            a, b = xs
            if op in _SYMBOLS:
                return f"{a} {_SYMBOLS[op]} {b}"
            if op in ("max", "min"):
                return f"{_FUNCTIONS[op]}({_tensor(s, value, 0, a)}, {_tensor(s, value, 1, b)})"
            if op == "div":
                if not whole:
                    return f"{a} / {b}"
                return f'torch.div({_tensor(s, value, 0, a)}, {b}, rounding_mode="trunc")'
            if op == "rem":
                return f"torch.fmod({_tensor(s, value, 0, a)}, {b})"
            if op == "pow":
                if whole:
                    x_, y_ = _tensor(s, value, 0, a), _tensor(s, value, 1, b)
                    return f"{s.helper('integer_power')}({x_}, {y_})"
                return f"torch.pow({a}, {b})"
            left = op == "shift_left"
            x_, y_ = _tensor(s, value, 0, a), _tensor(s, value, 1, b)
            return f"{s.helper('shift')}({x_}, {y_}, {dtype.bitwidth}, {left})"

        return _computed(s, value, [x, y], compute)

    return rule


def _tensor(s: Source, value: Value, index: int, text: str) -> str:
    """Return an operand as a tensor: some functions of torch accept no numbers."""
    operand = _bare(value.operands[index])
    return expression(s, operand) if s.literal(operand) is not None else text


for _primitive in PRIMITIVES.values():
    if _primitive.kind == "unary":
        TORCH_FORMS[_primitive.name] = _unary(_primitive.name)
    elif _primitive.kind == "binary":
        TORCH_FORMS[_primitive.name] = _binary(_primitive.name)


@torch_form("select")
def _select(s: Source, value: Value, condition: str, x: str, y: str) -> str:
    condition = _tensor(s, value, 0, condition)
    if s.literal(_bare(value.operands[1])) is not None and s.literal(_bare(value.operands[2])) is not None:
        x = _tensor(s, value, 1, x)
    return f"torch.where({condition}, {x}, {y})"


# Conversions.


@torch_form("convert")
def _convert(s: Source, value: Value, x: str, *, dtype: DType, saturate: bool, rounding: str) -> str:
    source = dtype_of(value.operands[0])
    spelling = spelled_dtype(dtype)
    if t.STRING in (source, dtype):
        raise UnsupportedError("torch has no texts.")
    if dtype == t.BOOL:
        return f"{_postfix(x)}.to(torch.float32) != 0" if source in WIDENED else f"{x} != 0"
    if dtype in t.FLOAT8:
        return f"{s.helper('to_float8')}({x}, {spelling}, {bool(saturate)})"
    if t.kind(source) == "complex" and t.kind(dtype) != "complex":
        x = f"{_postfix(x)}.real"
    if dtype in WRAPPED:
        bits, offset = WRAPPED[dtype]
        return f"{s.helper('wrap')}({_postfix(x)}.to(torch.int64), {bits}, {offset}).to({spelling})"
    if source == t.UINT64 and t.is_float(dtype):
        return f"{s.helper('unsigned_to_float')}({x}, {spelling})"
    return f"{_postfix(x)}.to({spelling})"


@torch_form("bitcast")
def _bitcast(s: Source, value: Value, x: str, *, dtype: DType) -> str:
    source = dtype_of(value.operands[0])
    if source in WRAPPED or dtype in WRAPPED:
        raise UnsupportedError(f"torch does not reinterpret {source.name.lower()} as {dtype.name.lower()}.")
    spelling, narrow = spelled_dtype(dtype), dtype.bitwidth < source.bitwidth
    x = f"{_postfix(x)}.contiguous()"
    if narrow:
        return f"{x}.unsqueeze(-1).view({spelling})"
    if dtype.bitwidth > source.bitwidth:
        return f"{x}.view({spelling}).squeeze(-1)"
    return f"{x}.view({spelling})"


# Contractions.


@torch_form("reduce")
def _reduce(s: Source, value: Value, x: str, *, kind: str, axes: tuple[int, ...]) -> str:
    source = dtype_of(value.operands[0])
    if not axes:
        return x
    if source in WIDENED:
        raise UnsupportedError(f"torch reduces no tensors of {source.name.lower()}.")
    if kind in ("argmax", "argmin"):
        x = f"{x}.to(torch.uint8)" if source == t.BOOL else x
        return f"torch.{kind}({x}, dim={axes[0]})"
    spelled = axes[0] if len(axes) == 1 else axes
    if kind == "add":
        text = f"torch.sum({x}, dim={spelled}, dtype={SPELLINGS[source]})"
    elif kind == "mul":
        text = f"{s.helper('product_over')}({x}, {axes!r})"
    elif kind in ("max", "min") or source == t.BOOL:
        name = {"max": "amax", "min": "amin", "or": "amax", "and": "amin"}[kind]
        if all(isinstance(size, int) and size for size in (shape_of(value.operands[0])[axis] for axis in axes)):
            return f"torch.{name}({x}, dim={spelled})"
        s.module.helpers |= {"lowest"}
        return f"{s.helper('extremum')}({x}, {axes!r}, {name == 'amax'})"
    else:
        raise UnsupportedError(f"torch has no reduction of the bits of integers ({kind}).")
    if source in WRAPPED:
        bits, offset = WRAPPED[source]
        return f"{s.helper('wrap')}({text}, {bits}, {offset})"
    return text


@torch_form("contract")
def _contract(
    s: Source,
    value: Value,
    x: str,
    y: str,
    *,
    batch: tuple[tuple[int, int], ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: DType,
) -> str:
    spelling = spelled_dtype(dtype)
    x, y = (
        text if dtype_of(operand) == dtype else f"{_postfix(text)}.to({spelling})"
        for text, operand in zip((x, y), value.operands, strict=True)
    )
    ranks = [len(shape_of(operand)) for operand in value.operands]
    n = len(batch)
    plain = list(batch) == [(i, i) for i in range(n)] and right == (n,) and ranks[1] == n + 2
    if plain and left == (ranks[0] - 1,) and (ranks[0] == n + 2 or not n):
        return f"torch.matmul({x}, {y})"
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    first = [next(letters) for _ in range(ranks[0])]
    pairs = {j: first[i] for i, j in (*batch, *zip(left, right, strict=True))}
    second = [pairs.get(j) or next(letters) for j in range(ranks[1])]
    shared = [first[i] for i, _ in batch]
    free = [c for i, c in enumerate(first) if i not in left and c not in shared]
    other = [c for c in second if c not in first]
    equation = f"{''.join(first)},{''.join(second)}->{''.join((*shared, *free, *other))}"
    return f'torch.einsum("{equation}", {x}, {y})'


def _pairs(s: Source, padding: Sequence[tuple[Size, Size]]) -> str:
    return "(" + "".join(f"({s.size(low)}, {s.size(high)}), " for low, high in padding).rstrip() + ")"


@torch_form("convolve")
def _convolve(
    s: Source, value: Value, x: str, w: str, *, strides: Any, padding: Any, dtype: DType, **params: Any
) -> str:
    if len(strides) > 3:
        raise UnsupportedError("torch convolves at most three axes.")
    s.module.helpers |= {"spread"}
    spelling = spelled_dtype(dtype)
    x, w = (
        text if dtype_of(operand) == dtype else f"{_postfix(text)}.to({spelling})"
        for text, operand in zip((x, w), value.operands, strict=True)
    )
    dilations = f"{params['base_dilation']!r}, {params['kernel_dilation']!r}"
    return f"{s.helper('convolve')}({x}, {w}, {strides!r}, {_pairs(s, padding)}, {dilations})"


@torch_form("reduce_window")
def _reduce_window(
    s: Source, value: Value, x: str, *, kind: str, window: Any, strides: Any, padding: Any, dilation: Any
) -> str:
    s.module.helpers |= {"spread", "windows"}
    arguments = f"{window!r}, {strides!r}, {_pairs(s, padding)}, {dilation!r}"
    source = dtype_of(value.operands[0])
    if kind.startswith("arg"):
        s.module.helpers |= {"lowest"}
        return f"{s.helper('window_indices')}({x}, {kind == 'argmax'}, {arguments})"
    if kind == "add":
        filler = f"torch.zeros((), dtype={SPELLINGS[source]}, device=device)"
        return f"torch.sum(windows({x}, {arguments}, {filler}), dim=-1, dtype={SPELLINGS[source]})"
    filler = f"{s.helper('lowest')}({x}, {kind == 'max'})"
    return f"torch.{'amax' if kind == 'max' else 'amin'}(windows({x}, {arguments}, {filler}), dim=-1)"


# Movement.


@torch_form("reshape")
def _reshape(s: Source, value: Value, x: str, *, shape: Shape) -> str:
    return f"{_postfix(x)}.reshape({s.shape(shape)})"


@torch_form("permute")
def _permute(s: Source, value: Value, x: str, *, axes: tuple[int, ...]) -> str:
    return f"{_postfix(x)}.permute({axes!r})" if axes else x


@torch_form("broadcast")
def _broadcast(s: Source, value: Value, x: str, *, shape: Shape) -> str:
    return f"{_postfix(x)}.expand({s.shape(shape)})"


@torch_form("slice")
def _slice(s: Source, value: Value, x: str, *, starts: Shape, limits: Shape, strides: tuple[int, ...]) -> str:
    parts = []
    for start, limit, stride, size in zip(starts, limits, strides, shape_of(value.operands[0]), strict=True):
        first = "" if start == 0 else s.size(start)
        last = "" if limit == size else s.size(limit)
        parts.append(f"{first}:{last}" + (f":{stride}" if stride != 1 else ""))
    while parts and parts[-1] == ":":
        parts.pop()
    return f"{_postfix(x)}[{', '.join(parts)}]" if parts else x


@torch_form("pad")
def _pad(s: Source, value: Value, x: str, filler: str, *, low: Shape, high: Shape, interior: tuple[int, ...]) -> str:
    return f"{s.helper('spread')}({x}, {s.shape(low)}, {s.shape(high)}, {interior!r}, {filler})"


@torch_form("concat")
def _concat(s: Source, value: Value, *xs: str, axis: int) -> str:
    return f"torch.cat([{', '.join(xs)}], dim={axis})"


@torch_form("gather")
def _gather(s: Source, value: Value, x: str, indices: str, *, batch: int) -> str:
    return f"{s.helper('gather_vectors')}({x}, {indices}, {batch})"


@torch_form("scatter")
def _scatter(s: Source, value: Value, x: str, indices: str, updates: str, *, kind: str, batch: int) -> str:
    return f'{s.helper("scatter_vectors")}({x}, {indices}, {updates}, "{kind}", {batch})'


@torch_form("reverse")
def _reverse(s: Source, value: Value, x: str, *, axes: tuple[int, ...]) -> str:
    return f"torch.flip({x}, {axes!r})"


# Sources.


@torch_form("iota")
def _iota(s: Source, value: Value, *, shape: Shape, axis: int, dtype: DType) -> str:
    line = f"torch.arange({s.size(shape[axis])}, dtype={spelled_dtype(dtype)}, device=device)"
    if len(shape) == 1:
        return line
    column = ["1"] * len(shape)
    column[axis] = s.size(shape[axis])
    return f"{line}.reshape(({', '.join(column)})).expand({s.shape(shape)})"


@torch_form("dims")
def _dims(s: Source, value: Value, *, sizes: Shape, shape: tuple[int, ...], dtype: DType) -> str:
    parts = ", ".join(s.size(size) for size in sizes)
    if not shape:
        return f"torch.tensor({parts}, dtype={spelled_dtype(dtype)}, device=device)"
    text = f"torch.tensor([{parts}], dtype={spelled_dtype(dtype)}, device=device)"
    return text if len(shape) == 1 else f"{text}.reshape({shape!r})"


@torch_form("random")
def _random(s: Source, value: Value, *, kind: str, shape: Shape, dtype: DType, **params: Any) -> str:
    function = "torch.rand" if kind == "uniform" else "torch.randn"
    return f"{function}({s.shape(shape)}, dtype={spelled_dtype(dtype)}, device=device)"


# Order.


@torch_form("sort")
def _sort(s: Source, value: Value, x: str, *, axis: int, descending: bool) -> str:
    return f"torch.argsort({x}, dim={axis}, descending={descending}, stable=True)"


@torch_form("top_k")
def _top_k(s: Source, value: Value, x: str, *, axis: int, k: Size, largest: bool) -> str:
    order = f"torch.argsort({x}, dim={axis}, descending={largest}, stable=True)"
    return f"{order}.narrow({axis}, 0, {s.size(k)})"


@torch_form("scan")
def _scan(s: Source, value: Value, x: str, *, kind: str, axis: int) -> str:
    dtype = dtype_of(value)
    if kind in ("max", "min"):
        return f"torch.cum{kind}({x}, dim={axis}).values"
    text = f"torch.cum{'sum' if kind == 'add' else 'prod'}({x}, dim={axis}, dtype={SPELLINGS[dtype]})"
    if dtype in WRAPPED:
        bits, offset = WRAPPED[dtype]
        return f"{s.helper('wrap')}({text}, {bits}, {offset})"
    return text


# Special.


@torch_form("fft")
def _fft(s: Source, value: Value, x: str, *, inverse: bool) -> str:
    return f'torch.fft.ifft({x}, norm="forward")' if inverse else f"torch.fft.fft({x})"


@torch_form("determinant")
def _determinant(s: Source, value: Value, x: str) -> str:
    return f"torch.linalg.det({x})"


@torch_form("stop_gradient")
def _stop_gradient(s: Source, value: Value, x: str) -> str:
    return f"{_postfix(x)}.detach()"
