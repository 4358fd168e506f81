"""The primitives of Core, by name: a closed list. Adding one needs a reason in the design page.

Each is a row here and one rule in each table: type (:mod:`~sardonyx.core.rules.type_rules`), value
(:mod:`~sardonyx.core.rules.numpy_rules`), cost (:mod:`~sardonyx.core.transform.cost`), gradient
(:mod:`~sardonyx.core.transform.gradients`), ONNX form (:mod:`~sardonyx.core.export.primitive_forms`). Primitives do
not broadcast or convert implicitly: operands of an elementwise one have equal types, by ``broadcast`` and ``convert``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

PrimitiveKind = Literal["unary", "binary", "ternary", "conversion", "contraction", "movement", "source", "order",
                        "special", "control"]  # fmt: skip


class Primitive(NamedTuple):
    """A row of the list.

    Attributes:
        name: The operation's name in the graph.
        kind: The family.
        params: Names of the parameters, in order.
        about: Description of the result.
    """

    name: str
    kind: PrimitiveKind
    params: tuple[str, ...]
    about: str


def _rows(kind: PrimitiveKind, *rows: tuple[str, str, str]) -> dict[str, Primitive]:
    return {name: Primitive(name, kind, tuple(params.split()), about) for name, params, about in rows}


_UNARY_NAMES = (
    "neg abs sign floor ceil round exp log sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf not"
)
_BINARY_NAMES = "add sub mul div rem pow max min and or xor shift_left shift_right equal less"

PRIMITIVES: dict[str, Primitive] = {
    **_rows("unary", *((name, "", f"`{name}` of every element; `round` to even, `not` bitwise")
                       for name in _UNARY_NAMES.split())),
    **_rows("binary", *((name, "", "elementwise; integer `div` rounds toward zero, `rem` has the sign of the dividend, "
                                   "`max` and `min` propagate NaN") for name in _BINARY_NAMES.split())),
    **_rows("ternary", ("select", "", "elementwise: the second where the first is true, else the third")),
    **_rows(
        "conversion",
        ("convert", "dtype saturate rounding", "to another element type, as ONNX Cast does"),
        ("bitcast", "dtype",
         "the same bits as another element type; where widths differ, the last axis is split or joined"),
    ),
    **_rows(
        "contraction",
        ("reduce", "kind axes", "over axes, which go away: add mul max min and or argmax argmin (first of equals)"),
        ("contract", "batch left right dtype", "sum of products over named axes: batch axes (pairs), then free axes of "
                                               "the first, then of the second; computed and returned as `dtype`"),
        ("convolve", "strides padding base_dilation kernel_dilation dtype",
         "[G, N, C, *spatial] with [G, M, C, *kernel] to [G, N, M, *spatial]: every group by itself"),
        ("reduce_window", "kind window strides padding dilation",
         "over windows of the last axes: add max min, or argmax argmin (flat index into those axes, padding left out)"),
    ),
    **_rows(
        "movement",
        ("reshape", "shape", "the same elements in order, other sizes"),
        ("permute", "axes", "axes in another order"),
        ("broadcast", "shape", "repeat along axes of size 1"),
        ("slice", "starts limits strides", "a box, by positive strides"),
        ("pad", "low high interior", "with the second operand around and between elements; negative crops"),
        ("concat", "axis", "end to end"),
        ("gather", "batch", "of an operand at index vectors (the last axis of the second), after `batch` shared axes"),
        ("scatter", "kind batch", "into a copy, at index vectors, in order: set add mul min max"),
        ("reverse", "axes", "back to front"),
    ),
    **_rows(
        "source",
        ("iota", "shape axis dtype", "0, 1, 2 … along an axis"),
        ("constant", "value", "a value that is known"),
        ("input", "level position type", "what a function is given"),
        ("dims", "sizes shape dtype", "sizes as an integer tensor"),
        ("bind", "element symbol", "an element of an integer tensor as a symbol, read at run time"),
    ),
    **_rows(
        "order",
        ("sort", "axis descending", "the indices that sort along an axis, equal ones in order"),
        ("top_k", "axis k largest", "the indices of the k first along an axis, sorted, equal ones in order"),
        ("scan", "kind axis", "cumulative along an axis: add mul max min"),
    ),
    **_rows(
        "special",
        ("fft", "inverse", "of complex numbers along the last axis, unscaled either way"),
        ("determinant", "", "of the matrices in the last two axes"),
        ("random", "kind shape dtype seed identity",
         "uniform in [0, 1) or normal; by seed, or by the node's identity and the run's number"),
        ("stop_gradient", "", "the same; no gradient flows through"),
    ),
    **_rows(
        "control",
        ("cond", "then otherwise results symbols",
         "one of two functions of the operands after the first, by the first"),
        ("loop", "body carried results symbols",
         "while it asks for more and the count lasts: body(i, go, carried…, captured…) -> (go, carried…, scanned…); "
         "the carried values at the end, and the scanned ones stacked"),
        ("call", "function", "a named function of the operands"),
        ("host", "function attributes symbols", "a Python function of the operands, with a type rule"),
        ("get", "index", "one result of a primitive that has several"),
    ),
}  # fmt: skip
