"""Matrix products, einsum and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.convert.torch.operators.elementwise import add_, like, mul_
from sardonyx.convert.torch.operators.promotion import cast, core_dtype, promoted
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import aligned, common_shape, reshaped
from sardonyx.core import language as L
from sardonyx.core.dim import Size, floor_div
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx

_NODES = (t.FLOAT, t.DOUBLE, t.FLOAT16, t.BFLOAT16, t.INT32, t.INT64)
"""Element types of ONNX MatMul."""


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Return the matrix product; leading axes broadcast."""
    x, y = _with_equal_sums(x, y)
    if x.dtype not in _NODES:
        if t.is_integer(x.dtype):
            return cast(L.matmul(cast(x, t.INT64), cast(y, t.INT64)), x.dtype)
        return L.matmul(x, y)

    def body(a: Tensor, b: Tensor) -> list[Tensor]:
        if a.rank > 2 and b.rank > 2:
            shared = common_shape(_leading(a), _leading(b))
            a = aligned(a, (*shared, *a.shape[-2:]))
            b = aligned(b, (*shared, *b.shape[-2:]))
        return [L.matmul(*_with_equal_sums(a, b))]

    return onnx.MatMul(x, y, body=body)  # type: ignore[no-any-return]


def _leading(x: Tensor) -> Tensor:
    """Return a tensor of the leading sizes of stacked matrices."""
    return L.full(x.shape[:-2], 0, x.dtype)


def _with_equal_sums(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return operands whose summed sizes have one form: torch proved these equal."""
    at = -2 if y.rank > 1 else -1
    a, b = x.shape[-1], y.shape[at]
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return x, y
    if isinstance(a, int):
        shape = list(y.shape)
        shape[at] = a
        return x, L.reshape(y, shape)
    return L.reshape(x, [*x.shape[:-1], b]), y


@aten(
    "matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default", "vdot.default", "linalg_matmul.default"
)
def _matmul(x: Tensor, y: Tensor) -> Tensor:
    return matmul(x, y)


@aten("mm.dtype", "bmm.dtype")
def _matmul_dtype(x: Tensor, y: Tensor, out_dtype: Any) -> Tensor:
    dtype = core_dtype(out_dtype)
    return matmul(cast(x, dtype), cast(y, dtype))


@aten("_int_mm.default")
def _integer_matmul(x: Tensor, y: Tensor) -> Tensor:
    return onnx.MatMulInteger(x, y)  # type: ignore[no-any-return]


@aten("linear.default")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias."""
    if x.rank == 2 and weight.rank == 2 and bias is not None and bias.rank == 1 and t.is_float(x.dtype):
        return onnx.Gemm(x, weight, bias, transB=1)  # type: ignore[no-any-return]
    product = matmul(x, L.permute(weight, [1, 0]) if weight.rank == 2 else weight)
    return product if bias is None else add_(product, bias)


def _scaled(x: Tensor, factor: Any) -> Tensor:
    return x if factor == 1 else mul_(x, like(x, factor))


@aten("addmm.default")
def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if c.rank <= 2 and t.is_float(a.dtype) and a.dtype == b.dtype == c.dtype:
        a, b = _with_equal_sums(a, b)
        return onnx.Gemm(  # type: ignore[no-any-return]
            a,
            b,
            c if beta != 0 else None,
            alpha=float(alpha) if alpha != 1 else None,
            beta=float(beta) if beta not in (0, 1) else None,
        )
    product = _scaled(matmul(a, b), alpha)
    return product if beta == 0 else add_(*promoted(_scaled(c, beta), product))


@aten("addbmm.default")
def _addbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = _scaled(L.reduce_sum(matmul(a, b), [0]), alpha)
    return product if beta == 0 else add_(_scaled(c, beta), product)


@aten("baddbmm.default", "addmv.default")
def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = _scaled(matmul(a, b), alpha)
    return product if beta == 0 else add_(_scaled(c, beta), product)


@aten("addr.default")
def _addr(c: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = _scaled(outer(x, y), alpha)
    return product if beta == 0 else add_(*promoted(_scaled(c, beta), product))


@aten("outer.default", "ger.default")
def outer(x: Tensor, y: Tensor) -> Tensor:
    """Return all products of two vectors' elements."""
    return mul_(*promoted(reshaped(x, [*x.shape, 1]), reshaped(y, [1, *y.shape])))


@aten("inner.default")
def _inner(x: Tensor, y: Tensor) -> Tensor:
    if x.rank == 0 or y.rank == 0:
        return mul_(x, y)
    return L.contract(x, y, left=[x.rank - 1], right=[y.rank - 1])


@aten("tensordot.default")
def _tensordot(x: Tensor, y: Tensor, dims_x: Sequence[int], dims_y: Sequence[int]) -> Tensor:
    left, right = L.normalized_axes(dims_x, x.rank), L.normalized_axes(dims_y, y.rank)
    return L.contract(x, y, left=left, right=right)


@aten("linalg_vecdot.default")
def _vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    return L.reduce_sum(mul_(x, y), [dim])


@aten("chain_matmul.default", "linalg_multi_dot.default")
def _multi_dot(xs: Sequence[Tensor]) -> Tensor:
    result = xs[0]
    for x in xs[1:]:
        result = matmul(result, x)
    return result


@aten("kron.default")
def _kron(x: Tensor, y: Tensor) -> Tensor:
    rank = max(x.rank, y.rank)
    x = reshaped(x, [1] * (rank - x.rank) + list(x.shape))
    y = reshaped(y, [1] * (rank - y.rank) + list(y.shape))
    wide = mul_(
        reshaped(x, [s for size in x.shape for s in (size, 1)]), reshaped(y, [s for size in y.shape for s in (1, size)])
    )
    return reshaped(wide, [a * b for a, b in zip(x.shape, y.shape, strict=True)])


@aten("cross.default")
def _cross_of_first(x: Tensor, y: Tensor, dim: int | None = None) -> Tensor:
    """Return cross products over an axis, by default the first of size 3."""
    return _cross(x, y, dim=next(i for i, size in enumerate(x.shape) if size == 3) if dim is None else dim)


@aten("linalg_cross.default")
def _cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    axis = L.normalized_axis(dim, x.rank)

    def rotated(v: Tensor, by: int) -> Tensor:
        return L.take(v, constant([(by + i) % 3 for i in range(3)]), axis)

    return rotated(x, 1) * rotated(y, 2) - rotated(x, 2) * rotated(y, 1)


@aten("einsum.default")
def _einsum(equation: str, xs: Sequence[Tensor], *, path: Any = None) -> Tensor:
    operands = promoted(*xs)
    explicit = _explicit(equation, operands)
    sizes: dict[str, Size] = {}
    for term, x in zip(explicit.split("->")[0].split(","), operands, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            if letter not in sizes or sizes[letter] == 1 or (isinstance(size, int) and size != 1):
                sizes[letter] = size

    def body(*ys: Tensor) -> list[Tensor]:
        same = []
        for term, y in zip(explicit.split("->")[0].split(","), ys, strict=True):
            same.append(aligned(y, tuple(sizes[letter] for letter in term)))
        return [L.einsum(explicit, *same)]

    if t.kind(operands[0].dtype) == "complex" or any(
        len(set(term)) != len(term) for term in explicit.split("->")[0].split(",")
    ):
        return body(*operands)[0]
    return onnx.Einsum(*operands, equation=explicit, body=body)  # type: ignore[no-any-return]


def _explicit(equation: str, xs: Sequence[Tensor]) -> str:
    """Return an equation with a result, and letters in the place of an ellipsis."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    used = set(equation)
    free = [chr(code) for code in (*range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1))]
    spare = [letter for letter in free if letter not in used]
    pairs = list(zip(terms, xs, strict=True))
    widest = max((x.rank - len(term.replace("...", "")) for term, x in pairs if "..." in term), default=0)
    dots = "".join(spare[:widest])
    terms = [
        term.replace("...", dots[widest - (x.rank - len(term.replace("...", ""))) :] if "..." in term else "")
        for term, x in pairs
    ]
    if arrow:
        right = right.replace("...", dots)
    else:
        letters = "".join(terms)
        right = dots + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots))
    return ",".join(terms) + "->" + right


# Convolutions.


def _spread(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


@aten("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Tensor:
    """Return a convolution of real numbers."""
    rank = weight.rank - 2
    unbatched = x.rank == rank + 1
    if unbatched:
        x = reshaped(x, [1, *x.shape])
    kernel = list(weight.shape[2:])
    dilations = _spread(dilation, rank)
    pads: Sequence[Size]
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
        pads = [floor_div(n, 2) for n in total] + [n - floor_div(n, 2) for n in total]
    else:
        pads = _spread(padding, rank) * 2
    if x.dtype not in (t.FLOAT, t.DOUBLE, t.FLOAT16, t.BFLOAT16):
        raise UnsupportedError(f"a convolution of {x.dtype} has no ONNX form.")
    strides = _spread(stride, rank)
    if all(isinstance(size, int) for size in (*kernel, *pads, groups)):
        result = onnx.Conv(
            x, weight, bias, kernel_shape=kernel, strides=strides, pads=pads, dilations=dilations, group=groups
        )
    else:
        result = _open_convolution(x, weight, bias, strides, pads, dilations, groups)
    return reshaped(result, result.shape[1:]) if unbatched else result


def _open_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    strides: Sequence[int],
    pads: Sequence[Size],
    dilations: Sequence[int],
    groups: Size,
) -> Tensor:
    """Return a convolution with an open number of groups or an open kernel, which no attribute of Conv holds.

    Kernels that depend on the sample have a group for each sample; the kernel of a correlation is another image. The
    windows are gathered axis by axis: products of ``[batch, groups, windows, channels * kernel]`` with the weights.
    """
    rank = len(strides)
    filters, channels, *kernel = weight.shape
    own = floor_div(filters, groups)
    if any(pad != 0 for pad in pads):
        x = L.pad(x, [0, 0, *pads[:rank]], [0, 0, *pads[rank:]])
    windows = L.reshape(x, [x.shape[0], groups, channels, *x.shape[2:]])
    counts: list[Size] = []
    for i, (size, stride, dilation, length) in enumerate(zip(kernel, strides, dilations, x.shape[2:], strict=True)):
        counts.append(floor_div(length - dilation * (size - 1) - 1, stride) + 1)
        first = L.unsqueeze(L.arange(counts[-1]) * stride, [1])
        # [batch, groups, channels, windows, kernel, windows, kernel, …]
        windows = L.take(windows, first + L.arange(size) * dilation, 3 + 2 * i)
    order = [0, 1, *(3 + 2 * i for i in range(rank)), 2, *(4 + 2 * i for i in range(rank))]
    length = L.product([channels, *kernel])
    rows = L.reshape(L.permute(windows, order), [x.shape[0], groups, L.product(counts), length])
    matrices = L.permute(L.reshape(weight, [groups, own, length]), [0, 2, 1])
    result = L.reshape(L.permute(matmul(rows, matrices), [0, 1, 3, 2]), [x.shape[0], filters, *counts])
    return result if bias is None else add_(result, reshaped(bias, [1, filters, *[1] * rank]))


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Size = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return a transposed convolution of real numbers."""
    rank = weight.rank - 2
    unbatched = x.rank == rank + 1
    if unbatched:
        x = reshaped(x, [1, *x.shape])
    kernel = list(weight.shape[2:])
    strides, dilations = _spread(stride, rank), _spread(dilation, rank)
    pads, more = _spread(padding, rank), _spread(output_padding, rank)
    if all(isinstance(size, int) for size in (*kernel, *pads, groups)):
        result = onnx.ConvTranspose(
            x,
            weight,
            bias,
            kernel_shape=kernel,
            strides=strides,
            pads=pads * 2,
            dilations=dilations,
            output_padding=more,
            group=groups,
        )
    else:
        # A convolution of the elements with zeros between them; filters and channels of a group change places.
        spread = L.pad(x, [0] * x.rank, [0] * x.rank, interior=[0, 0, *(one - 1 for one in strides)])
        own = floor_div(weight.shape[0], groups)
        parts = L.swap_axes(L.reshape(weight, [groups, own, *weight.shape[1:]]), 1, 2)
        swapped = L.reshape(parts, [L.product([groups, weight.shape[1]]), own, *kernel])
        swapped = L.reverse(swapped, list(range(2, 2 + rank)))
        before = [d * (size - 1) - pad for size, pad, d in zip(kernel, pads, dilations, strict=True)]
        around = [*before, *(one + extra for one, extra in zip(before, more, strict=True))]
        result = _open_convolution(spread, swapped, bias, [1] * rank, around, dilations, groups)
    return reshaped(result, result.shape[1:]) if unbatched else result


@aten("convolution.default", "_convolution.default")
def any_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Tensor:
    """Return a convolution or a transposed one, of real numbers."""
    if transposed:
        return transposed_convolution(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolution(x, weight, bias, stride, padding, dilation, groups)


@aten("conv_tbc.default")
def _conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    result = convolution(L.permute(x, [1, 2, 0]), L.permute(weight, [2, 1, 0]), bias, 1, pad, 1, 1)
    return L.permute(result, [2, 0, 1])


@aten("bilinear.default", "_trilinear.default")
def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    lead = x.shape[:-1]
    flat = [reshaped(v, [L.product(lead), v.shape[-1]]) for v in (x, y)]
    result = onnx.Einsum(flat[0], weight, flat[1], equation="bi,oij,bj->bo")
    result = reshaped(result, [*lead, weight.shape[0]])
    return result if bias is None else add_(result, bias)
