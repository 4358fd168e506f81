"""Random programs over Core: what the laws of tracing, text, simplification and export are tried on.

A program is a list of steps on values made before, each a closure that is right for any sizes. It is accepted step by
step: only what computes at two sets of sizes and traces at open ones stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.host_function import HostFunction, host, unknown_size
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import apply, constant, function_input
from sardonyx.core.eval.trace import nested, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import SardonyxError

Compute = Callable[..., "Tensor"]
Sizes = dict[str, int]
AT: tuple[Sizes, Sizes] = ({"N": 3, "M": 4, "K": 2}, {"N": 2, "M": 5, "K": 3})
"""The sizes that programs are accepted at."""

MOST_ELEMENTS = 2000


class Step(NamedTuple):
    primitive: str
    compute: Compute
    operands: tuple[int, ...]


class Program:
    """A function of tensors that can be computed, or traced.

    ``arrays`` are the arguments that it was accepted with, one list for each set of sizes: with others, it may take a
    branch that does not fit.
    """

    def __init__(
        self,
        inputs: Sequence[TensorType],
        steps: Sequence[Step],
        results: Sequence[int],
        arrays: Sequence[Sequence[np.ndarray]],
    ) -> None:
        self.inputs = tuple(inputs)
        self.steps = tuple(steps)
        self.results = tuple(results)
        self.arrays = arrays

    def __call__(self, *inputs: Value) -> list[Value]:
        created = list(inputs)
        for step in self.steps:
            created.append(step.compute(*[created[i] for i in step.operands]))
        return [created[i] for i in self.results]

    def traced(self) -> Function:
        return trace("program", self, self.inputs)


def random_array(rng: np.random.Generator, type: TensorType, sizes: Sizes) -> np.ndarray:
    """Values of a type: numbers around 0 without ties, or small integers."""
    shape = tuple(size.evaluate(sizes) if isinstance(size, Dim) else size for size in type.shape or ())
    if t.is_float(type.dtype):
        return (rng.standard_normal(shape) + 0.01).astype(t.numpy_dtype(type.dtype))
    if type.dtype == t.BOOL:
        return rng.random(shape) < 0.5
    return rng.integers(0, 4, shape).astype(t.numpy_dtype(type.dtype))


def computed(function: Function, arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
    """The results of a function on arrays."""
    with running(RunContext()):
        return [value.known for value in evaluate(function, [constant(array) for array in arrays])]


def eagerly(program: Callable[..., Sequence[Value]], arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
    """What a Python function gives on arrays, computed at once."""
    with running(RunContext()):
        return [value.known for value in program(*[constant(array) for array in arrays])]


def assert_same(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Equal in element type, sizes and bits but for NaN."""
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, a.shape, b.dtype, b.shape)
        assert a.tobytes() == b.tobytes() or np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


# What a step may be: by primitive, a choice of operands among the values made so far and of parameters.

Choice = Callable[[np.random.Generator, "Sequence[Tensor]"], "tuple[Compute, Sequence[int]] | None"]
CHOICES: dict[str, Choice] = {}


def _pick(rng: np.random.Generator, pool: Sequence[Tensor], fits: Callable[[Tensor], bool]) -> int | None:
    actual = [i for i, x in enumerate(pool) if fits(x)]
    return int(rng.choice(actual)) if actual else None


def _is_float(x: Tensor, rank: int = 0) -> bool:
    return t.is_float(x.dtype) and x.rank >= rank


def _choice(*names: str) -> Callable[[Choice], Choice]:
    def register(choice: Choice) -> Choice:
        CHOICES.update(dict.fromkeys(names, choice))
        return choice

    return register


def _on_one(compute: Callable[[np.random.Generator, Tensor], Compute], rank: int = 0) -> Choice:
    """A choice of one floating operand of at least a rank."""

    def choose(rng: np.random.Generator, pool: Sequence[Tensor]) -> tuple[Compute, Sequence[int]] | None:
        i = _pick(rng, pool, lambda x: _is_float(x, rank))
        return None if i is None else (compute(rng, pool[i]), [i])

    return choose


# Maps into the domain of a function, away from where it is steep or broken.
_DOMAIN: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("log", "sqrt"), lambda x: x * x + 0.5),
    **dict.fromkeys(("asin", "acos", "atanh"), lambda x: L.tanh(x) * 0.8),
    **dict.fromkeys(("tan", "exp", "sinh", "cosh"), L.tanh),
    "acosh": lambda x: x * x + 1.5,
}
UNARY = [p.name for p in PRIMITIVES.values() if p.kind == "unary" and p.name != "not"]
for _name in UNARY:
    CHOICES[_name] = _on_one(
        lambda rng, x, name=_name: lambda x: apply(name, _DOMAIN[name](x) if name in _DOMAIN else x)
    )

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 0.5),
    "rem": lambda a, b: L.remainder(a, b * b + 1.5),
    "pow": lambda a, b: (a * a + 0.5) ** L.tanh(b),
    "max": L.maximum,
    "min": L.minimum,
}
for _name in _BINARY:

    @_choice(_name)
    def _binary(rng: np.random.Generator, pool: Sequence[Tensor], name: str = _name):
        i = _pick(rng, pool, _is_float)
        j = _pick(rng, pool, lambda x: i is not None and x.dtype == pool[i].dtype)
        return None if i is None or j is None else (_BINARY[name], [i, j])


for _name, _compute in {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shift_left": L.shift_left,
    "shift_right": L.shift_right,
}.items():

    @_choice(_name)
    def _bits(rng: np.random.Generator, pool: Sequence[Tensor], compute: Compute = _compute):
        i = _pick(rng, pool, lambda x: x.dtype == t.INT64)
        j = _pick(rng, pool, lambda x: x.dtype == t.INT64)
        return None if i is None or j is None else (lambda a, b: compute(a, L.remainder(L.abs_(b), 7)), [i, j])


@_choice("not", "select", "less", "equal")
def _select(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, _is_float)
    j = _pick(rng, pool, lambda x: i is not None and x.dtype == pool[i].dtype)
    flip = bool(rng.random() < 0.5)

    def compute(a: Tensor, b: Tensor) -> Tensor:
        chosen = ~(a < b) if flip else L.equal(a, b) | (b < a)
        return L.where(chosen, L.sin(a), b * 0.5)

    return None if i is None or j is None else (compute, [i, j])


@_choice("convert")
def _convert(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = int(rng.integers(len(pool)))
    dtype = pool[i].dtype
    if t.is_float(dtype) and rng.random() < 0.3:
        return (lambda x: L.cast(L.clip(x * 2, -50, 50), t.INT64)), [i]
    return (lambda x: L.cast(x, t.DOUBLE if dtype != t.DOUBLE else t.FLOAT)), [i]


def _bits(x: Tensor) -> Tensor:
    """The bits of numbers away from zero, where they change as little as the numbers do."""
    return L.cast(L.bitcast(L.abs_(L.cast(x, t.FLOAT)) + 1.0, t.INT32), t.DOUBLE) * 1e-9


CHOICES["bitcast"] = _on_one(lambda rng, x: _bits)


@_choice("reduce")
def _reduce(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 1))
    if i is None:
        return None
    kind = str(rng.choice(["add", "mul", "max", "min", "argmax", "argmin"]))
    axes = sorted(rng.choice(pool[i].rank, size=int(rng.integers(1, pool[i].rank + 1)), replace=False).tolist())
    if kind.startswith("arg"):
        return (lambda x: apply("reduce", x, kind=kind, axes=(axes[0],))), [i]
    return (lambda x: apply("reduce", x, kind=kind, axes=tuple(axes))), [i]


@_choice("contract")
def _contract(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 1))
    if i is None:
        return None
    x = pool[i]
    pairs = [
        (j, a, b)
        for j, y in enumerate(pool)
        if y.dtype == x.dtype
        for a in range(x.rank)
        for b in range(y.rank)
        if x.shape[a] == y.shape[b]
    ]
    j, a, b = pairs[int(rng.integers(len(pairs)))]
    batch = [
        (p, q)
        for p in range(x.rank)
        for q in range(pool[j].rank)
        if p != a and q != b and x.shape[p] == pool[j].shape[q]
    ][: int(rng.integers(2))]
    return (lambda x, y: L.contract(x, y, batch=batch, left=[a], right=[b])), [i, j]


@_choice("convolve")
def _convolve(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 2))
    if i is None:
        return None
    stride, dilation, base = (int(k) for k in rng.integers(1, 3, 3))
    low, high = (int(k) for k in rng.integers(-1, 3, 2))
    weights = rng.standard_normal((2, 3, 1, 2))

    def compute(x: Tensor) -> Tensor:
        rows = L.reshape(x, (1, L.product(x.shape[:-1]), 1, x.shape[-1]))
        doubled = L.concat([rows, L.sin(rows)], 0)
        filters = constant(weights.astype(t.numpy_dtype(x.dtype)))
        return apply(
            "convolve",
            doubled,
            filters,
            strides=(stride,),
            padding=((low, high),),
            base_dilation=(base,),
            kernel_dilation=(dilation,),
            dtype=x.dtype,
        )

    return compute, [i]


@_choice("reduce_window")
def _reduce_window(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 1))
    if i is None:
        return None
    kind = str(rng.choice(["add", "max", "min", "argmax", "argmin"]))
    count = min(pool[i].rank, int(rng.integers(1, 3)))
    strides, dilation = (rng.integers(1, 3, count).tolist() for _ in range(2))
    return (
        lambda x: L.reduce_window(kind, x, [2] * count, strides=strides, padding=[(1, 1)] * count, dilation=dilation)
    ), [i]


@_choice("reshape")
def _reshape(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: x.rank >= 2)
    return (lambda x: L.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), [i]) if i is not None else None


@_choice("permute")
def _permute(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = int(rng.integers(len(pool)))
    axes = rng.permutation(pool[i].rank).tolist()
    return (lambda x: L.permute(x, axes)), [i]


@_choice("broadcast")
def _broadcast(rng: np.random.Generator, pool: Sequence[Tensor]):
    i, j = (int(k) for k in rng.integers(len(pool), size=2))
    return (lambda x, y: L.broadcast_to(L.unsqueeze(x, [0]), (y.shape[0] if y.rank else 2, *x.shape))), [i, j]


@_choice("slice")
def _slice(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: x.rank >= 1)
    if i is None:
        return None
    axis, start, stride = int(rng.integers(pool[i].rank)), int(rng.integers(2)), int(rng.integers(1, 3))
    return (lambda x: L.slice_(x, axis, start, x.shape[axis], stride)), [i]


@_choice("pad")
def _pad(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 1))
    if i is None:
        return None
    low, high = (rng.integers(-1, 3, pool[i].rank).tolist() for _ in range(2))
    interior = rng.integers(0, 2, pool[i].rank).tolist()
    return (lambda x: L.pad(x, low, high, L.reduce_sum(x) * 0.1, interior)), [i]


@_choice("concat")
def _concat(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: x.rank >= 1)
    if i is None:
        return None
    axis = int(rng.integers(pool[i].rank))
    rest = [size for a, size in enumerate(pool[i].shape) if a != axis]
    j = _pick(
        rng,
        pool,
        lambda y: (
            y.dtype == pool[i].dtype
            and y.rank == pool[i].rank
            and [size for a, size in enumerate(y.shape) if a != axis] == rest
        ),
    )
    return (lambda x, y: L.concat([x, y, x], axis)), [i, j]


@_choice("gather")
def _gather(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: x.rank >= 1)
    k = _pick(rng, pool, lambda x: x.dtype == t.INT64)
    if i is None or k is None:
        return None
    axis = int(rng.integers(pool[i].rank))
    return (lambda x, at: L.take(x, L.remainder(L.abs_(at), L.size_tensor([x.shape[axis]], ())), axis)), [i, k]


@_choice("scatter")
def _scatter(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 1))
    k = _pick(rng, pool, lambda x: x.dtype == t.INT64)
    if i is None or k is None:
        return None
    kind = str(rng.choice(["set", "add", "mul", "min", "max"]))
    batch = int(pool[i].rank > 1 and rng.random() < 0.4)

    def compute(x: Tensor, at: Tensor) -> Tensor:
        rows = L.remainder(L.abs_(L.reshape(at, (L.product(at.shape),))), L.size_tensor([x.shape[batch]], ()))
        positions = L.broadcast_to(L.unsqueeze(rows, [-1]), (*x.shape[:batch], *rows.shape, 1))
        shape = (*x.shape[:batch], *rows.shape, *x.shape[batch + 1 :])
        by_row = L.broadcast_to(L.reshape(rows, (*rows.shape, *(1,) * (x.rank - batch - 1))), shape)
        updates = L.sin(L.cast(L.iota(shape, batch), x.dtype)) + L.cast(by_row, x.dtype) * L.reduce_sum(x)
        return apply("scatter", x, positions, updates, kind=kind, batch=batch)

    return compute, [i, k]


@_choice("reverse")
def _reverse(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: x.rank >= 1)
    return (lambda x: L.reverse(x, [0]), [i]) if i is not None else None


@_choice("iota", "dims")
def _iota(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: x.rank >= 1)
    if i is None:
        return None
    if rng.random() < 0.5:
        return (lambda x: L.iota(x.shape, x.rank - 1) * L.size_tensor([x.shape[0]], ())), [i]
    return (lambda x: L.shape_tensor(x) * 2 + 1), [i]


@_choice("bind")
def _bind(rng: np.random.Generator, pool: Sequence[Tensor]):
    k = _pick(rng, pool, lambda x: x.dtype == t.INT64)
    if k is None:
        return None

    def compute(at: Tensor) -> Tensor:
        (size,) = L.sizes(L.remainder(L.reduce_sum(L.abs_(at)), 3) + 1)
        return L.iota((size, 2), 0)

    return compute, [k]


@_choice("sort", "top_k")
def _sort(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 1))
    if i is None:
        return None
    axis, flag = int(rng.integers(pool[i].rank)), bool(rng.random() < 0.5)
    if rng.random() < 0.5:
        return (lambda x: L.gather_elements(x, L.sort(x, axis, flag), axis)), [i]
    return (lambda x: L.gather_elements(x, L.top_k(x, axis, 1, flag), axis)), [i]


@_choice("scan")
def _scan(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x, 1))
    if i is None:
        return None
    kind, axis = str(rng.choice(["add", "mul", "max", "min"])), int(rng.integers(pool[i].rank))
    return (lambda x: L.cumulative(kind, x, axis)), [i]


def spectrum(x: Tensor) -> Tensor:
    """The transform of real numbers, as pairs of real numbers on a last axis; what cancels out is not at a step."""
    pairs = L.concat([L.unsqueeze(x, [-1]), L.unsqueeze(L.sin(x), [-1])], -1)
    return L.bitcast(L.fft(L.bitcast(pairs, t.COMPLEX128 if x.dtype == t.DOUBLE else t.COMPLEX64)), x.dtype) + 0.3


CHOICES["fft"] = _on_one(lambda rng, x: spectrum, rank=1)


def _determinant_of(x: Tensor) -> Tensor:
    """Of a square matrix of products of rows."""
    rows = L.reshape(x, (x.shape[0], L.product(x.shape[1:])))
    return L.determinant(L.contract(rows, L.sin(rows), left=[1], right=[1]))


CHOICES["determinant"] = _on_one(lambda rng, x: _determinant_of, rank=1)
CHOICES["stop_gradient"] = _on_one(lambda rng, x: lambda x: L.stop_gradient(x) * x)
CHOICES["random"] = _on_one(lambda rng, x: lambda x: x + L.normal(x.shape, x.dtype, seed=3.0, identity="here"))


@_choice("cond", "get")
def _cond(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, lambda x: _is_float(x))
    j = _pick(rng, pool, lambda y: i is not None and y.dtype == pool[i].dtype and y.rank == pool[i].rank)
    if i is None:
        return None
    return (
        lambda x, y: L.cond(L.reduce_sum(x) < 0, lambda: [L.sin(x) * y], lambda: [L.cond(
            L.reduce_sum(y) < 0, lambda: [L.concat([y, x], 0) if x.rank else y], lambda: [L.tanh(x + y)])[0]])[0]
    ), [i, j]  # fmt: skip


@_choice("loop")
def _loop(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, _is_float)
    k = _pick(rng, pool, lambda x: x.dtype == t.INT64)
    if i is None or k is None:
        return None

    def compute(x: Tensor, at: Tensor) -> Tensor:
        count = L.remainder(L.reduce_sum(L.abs_(at)), 4)

        def once(i: Tensor, state: Tensor):
            state = L.tanh(state * 0.5 + L.cos(x) * L.cast(i + 1, x.dtype))
            return L.reduce_sum(state) < 100.0, [state], [L.reduce_sum(state * x)]

        (state,), (sums,) = L.loop(count, None, [x * 1.5], once)
        return state + L.reduce_sum(sums)

    return compute, [i, k]


POSITIVES = HostFunction(
    "positives", lambda x: (TensorType(x.dtype, (unknown_size(),)),), lambda x: (x[x > 0].reshape(-1),)
)


@_choice("host")
def _host(rng: np.random.Generator, pool: Sequence[Tensor]):
    i = _pick(rng, pool, _is_float)
    return None if i is None else ((lambda x: host(POSITIVES, x)[0] * 2.0), [i])


# Programs.


def random_program(
    rng: np.random.Generator,
    length: int = 12,
    *,
    dtype: t.DType = t.FLOAT,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Program:
    """A program of ``length`` steps at most, by the primitives of ``CHOICES``."""
    names = [name for name in CHOICES if name not in without and (not only or name in only)]
    symbols = [Dim.symbol(name) for name in AT[0]]
    inputs = [
        TensorType(dtype, tuple(symbols[k] for k in rng.integers(len(symbols), size=int(rng.integers(1, 4)))))
        for _ in range(2)
    ]
    inputs += [TensorType(dtype, ()), TensorType(t.INT64, (symbols[0],))]
    arrays = [[random_array(rng, type, sizes) for type in inputs] for sizes in AT]
    steps: list[Step] = []
    with nested() as level:
        traced: list[Value] = [function_input(level, i, type) for i, type in enumerate(inputs)]
        with running(RunContext()):
            created: list[list[Value]] = [[constant(array) for array in item] for item in arrays]
        for _ in range(3 * length):
            name = str(rng.choice(names))
            chosen = CHOICES[name](rng, created[0])  # type: ignore[arg-type]
            if chosen is None or len(steps) >= length or any(i is None for i in chosen[1]):
                continue
            compute, operands = chosen
            try:
                with running(RunContext()):
                    new = [compute(*[item[i] for i in operands]) for item in created]
                symbolic = compute(*[traced[i] for i in operands])
            except SardonyxError:
                continue
            if all(x.known.size <= MOST_ELEMENTS for x in new):
                for item, x in zip(created, new, strict=True):
                    item.append(x)
                traced.append(symbolic)
                steps.append(Step(name, compute, tuple(operands)))
    count = len(inputs) + len(steps)
    read = {i for step in steps for i in step.operands}
    return Program(inputs, steps, [i for i in range(len(inputs), count) if i not in read] or [0], arrays)
