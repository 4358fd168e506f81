"""Gradients of functions by reverse mode, through calls, conditions and loops.

The result is a Core function, which can be simplified, exported, compiled, and differentiated again. A branch and a
call are differentiated in place, and recompute the values needed by their gradient. A loop saves its carried values in
every iteration, and as many products and transcendental functions as memory in proportion to the state permits; its
gradient is a loop over the saved values, from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least, equal
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.eval.substitution import substitute_values
from sardonyx.core.eval.tensor import apply, get
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import (
    CLOSED,
    Function,
    Value,
    defined_by,
    fresh_symbol,
    scope,
    sort_topologically,
    symbols_in,
)
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.language import Tensor
from sardonyx.core.transform.gradients import (
    FLAT,
    GRADIENTS,
    gradient_rule,
    logistic_cotangents,
    power_of_logistic,
    softmax_axes,
    softmax_cotangent,
)
from sardonyx.core.transform.loop_sums import move_sums_out
from sardonyx.core.transform.registered_gradients import registered_cotangents
from sardonyx.errors import RuleError, UnsupportedError

_SAVED = ({"contract", "convolve"}, {"cos", "div", "erf", "exp", "log", "pow", "sin", "tanh"})
"""Primitives whose results a loop saves for its gradient, the most expensive ones first."""

_MOST_SAVED = 8
"""Elements that an iteration saves for each element of the state; the gates of an LSTM and their functions are 5."""


def is_differentiable(type: Type) -> bool:
    """Return True if values of the type have cotangents: floating-point and complex tensors."""
    return isinstance(type, TensorType) and t.kind(type.dtype) in ("float", "complex")


def gradient(function: Function, wrt: Sequence[int] | None = None) -> Function:
    """Return a function of the same inputs for the results, and the gradients of the sum of the first.

    Args:
        function: The function to differentiate.
        wrt: Positions of the inputs to differentiate by; all differentiable ones by default.

    Raises:
        UnsupportedError: The result depends on a value without gradient: a host function, a loop whose state changes
            its sizes. The message names the value.
        RuleError: The first result or an input is not a floating-point tensor.
    """
    positions = _select_inputs(function, wrt)
    if not function.results or not is_differentiable(function.results[0].type):
        raise RuleError("only floating-point results have gradients.", where=function.name)

    def body(*inputs: Value) -> list[Value]:
        results = inline(function, inputs)
        first: Tensor = results[0]  # type: ignore[assignment]
        return _backpropagate(results[:1], [L.ones_like(first)], [inputs[i] for i in positions], results)

    return trace(f"gradient of {function.name}", body, [value.type for value in function.inputs])


def vjp(function: Function, wrt: Sequence[int] | None = None, reused: Sequence[Value] = ()) -> Function:
    """Return the vector-Jacobian product, of the inputs, then a cotangent per differentiable result.

    Args:
        function: The function.
        wrt: Positions of the inputs to differentiate by; all differentiable ones by default.
        reused: Values of the function that the result has as further inputs, and does not compute.

    Returns:
        A function for the cotangents of the inputs, zeros for inputs without influence.

    Raises:
        UnsupportedError: See :func:`gradient`.
        RuleError: An input is not a floating-point tensor.
    """
    positions = _select_inputs(function, wrt)
    count = len(function.inputs)
    own = function.defined_symbols
    types = [_rename_own_symbols(r.type, own) for r in function.results if is_differentiable(r.type)]
    extended = _with_results(function, reused)

    def body(*inputs: Value) -> list[Value]:
        values = inline(extended, inputs[:count])
        end = len(function.results)
        results = [r for r in values[:end] if is_differentiable(r.type)]
        ends = inputs[count : count + len(results)]
        cotangents = [_match_shape(dy, r) for r, dy in zip(results, ends, strict=True)]  # type: ignore[arg-type]
        roots = _backpropagate(results, cotangents, [inputs[i] for i in positions])
        stored = zip(values[end:], _last(inputs, len(reused)), strict=True)
        replaced = {x: known for x, known in stored if x.op != "input"}
        return _replaced(roots, replaced, {}) if replaced else roots

    every = [*(value.type for value in function.inputs), *types, *(value.type for value in reused)]
    return trace(f"vjp of {function.name}", body, every)


def jvp(function: Function, wrt: Sequence[int] | None = None) -> Function:
    """Return the Jacobian-vector product, of the inputs, then a tangent per differentiated input.

    The product is the derivative of the vector-Jacobian product, which is linear, by its cotangents.

    Returns:
        A function for the tangents of the differentiable results.

    Raises:
        UnsupportedError: See :func:`gradient`.
        RuleError: An input is not a floating-point tensor.
    """
    positions = _select_inputs(function, wrt)
    pull = vjp(function, positions)
    count = len(function.inputs)
    cotangents = range(count, len(pull.inputs))
    push = vjp(pull, cotangents)
    types = [value.type for value in (*function.inputs, *(function.inputs[i] for i in positions))]

    def body(*inputs: Value) -> list[Value]:
        results = [r for r in inline(function, inputs[:count]) if is_differentiable(r.type)]
        zeros = [L.zeros_like(r) for r in results]  # type: ignore[arg-type]
        return inline(push, [*inputs[:count], *zeros, *inputs[count:]])

    return trace(f"jvp of {function.name}", body, types)


def hessian_vector_product(function: Function, wrt: Sequence[int] | None = None) -> Function:
    """Return the product of the Hessian of the sum of the first result, of the inputs, then a vector per ``wrt``.

    Raises:
        UnsupportedError: See :func:`gradient`.
        RuleError: The first result or an input is not a floating-point tensor.
    """
    positions = _select_inputs(function, wrt)
    derived = gradient(function, positions)
    results = len(function.results)

    def gradients(*inputs: Value) -> list[Value]:
        return inline(derived, inputs)[results:]

    return vjp(trace(f"gradients of {function.name}", gradients, [x.type for x in function.inputs]), positions)


def pull_back(results: Sequence[Value], cotangents: Sequence[Tensor], wrt: Sequence[Value]) -> list[Value]:
    """Return the cotangents of any values that are part of the results' computation, while tracing.

    Args:
        results: Values of the function being traced.
        cotangents: A cotangent for each result.
        wrt: The values to differentiate by; zeros for values without influence.
    """
    return _backpropagate(results, cotangents, wrt)


def _select_inputs(function: Function, wrt: Sequence[int] | None) -> list[int]:
    if wrt is None:
        return [i for i, value in enumerate(function.inputs) if is_differentiable(value.type)]
    for i in wrt:
        if not is_differentiable(function.inputs[i].type):
            raise RuleError(f"input {i} is {function.inputs[i].type} and has no gradient.", where=function.name)
    return list(wrt)


def _rename_own_symbols(type: Type, own: frozenset[str]) -> Type:
    """Return the type of a cotangent, with fresh symbols for sizes local to the function."""
    assert isinstance(type, TensorType) and type.shape is not None
    sizes = [Dim.symbol(fresh_symbol()) if not own.isdisjoint(symbols_in(size)) else size for size in type.shape]
    return TensorType(type.dtype, tuple(sizes))


def _match_shape(dy: Tensor, y: Value) -> Tensor:
    """Return the cotangent with sizes written as in the value's type."""
    return L.reshape(dy, y.type.shape)  # type: ignore[union-attr,arg-type]


# Reverse mode.


class _Pass:
    """One backward pass: the values dependent on ``wrt``, and the current cotangents.

    Attributes:
        active: Values dependent on ``wrt``.
        replaced: Replacements of the results of loops, from loops with saved states.
        sizes: Replacements of the symbols defined by the original loops.
    """

    def __init__(self, results: Sequence[Value], wrt: Sequence[Value]) -> None:
        self.order = list(sort_topologically(results))
        self.active = active_values(self.order, wrt)
        self.cotangents: dict[Value, Tensor] = {}
        self._parts: dict[Value, list[tuple[Value, Tensor]]] = {}
        self.replaced: dict[Value, Value] = {}
        self.sizes: dict[str, Size] = {}

    def add(self, value: Value, dx: Tensor | None) -> None:
        """Add to the cotangent of a value."""
        if dx is not None and value in self.active and is_differentiable(value.type):
            dx = _match_shape(dx, value)
            before = self.cotangents.get(value)
            self.cotangents[value] = dx if before is None else before + dx

    def run(self) -> None:
        """Visit the values from the last to the first."""
        for value in reversed(self.order):
            if value not in self.active:
                continue
            self._join_parts(value)
            if not value.operands:
                continue
            if isinstance(value.type, t.TupleType):
                contributions = self._backpropagate_results(value)
            elif value.op != "get" and value in self.cotangents:
                if value.op == "slice" and _sliced_axis(value) is not None:
                    self._parts.setdefault(value.operands[0], []).append((value, self.cotangents[value]))
                    continue
                if (power := power_of_logistic(value)) is not None:
                    a, b = value.operands
                    shares = logistic_cotangents(value, self.cotangents[value], a, b, power)  # type: ignore[arg-type]
                    self.add(value.operands[0], shares[0])
                    self.add(power.operands[0], shares[1])
                    continue
                if (axes := softmax_axes(value)) is not None:
                    self.add(value.operands[0].operands[0], softmax_cotangent(value, self.cotangents[value], axes))  # type: ignore[arg-type]
                    continue
                contributions = GRADIENTS[value.op](value, self.cotangents[value], *value.operands, **value.params)
            else:
                continue
            for operand, dx in zip(value.operands, contributions, strict=True):
                self.add(operand, dx)

    def _join_parts(self, value: Value) -> None:
        """Add the cotangents of the slices of a value: their concatenation if no two slices overlap."""
        waiting = self._parts.pop(value, [])
        while waiting:
            axis = _sliced_axis(waiting[0][0])
            assert axis is not None
            joined: list[tuple[Value, Tensor]] = []
            for part in sorted(
                (part for part in waiting if _sliced_axis(part[0]) == axis), key=lambda p: p[0].params["starts"][axis]
            ):
                if not joined or joined[-1][0].params["limits"][axis] <= part[0].params["starts"][axis]:
                    joined.append(part)
            waiting = [part for part in waiting if part not in joined]
            self.add(value, _concatenated(value, joined, axis))

    def _backpropagate_results(self, value: Value) -> Sequence[Tensor | None]:
        """Return the cotangents of the operands of a primitive with several results."""
        cotangents = [self.cotangents.get(get(value, i)) for i in range(len(value.type.results))]  # type: ignore[union-attr]
        if all(dy is None for dy in cotangents):
            return (None,) * len(value.operands)
        return GRADIENTS[value.op](self, value, cotangents)  # type: ignore[no-any-return]


def _sliced_axis(value: Value) -> int | None:
    """Return the only axis along which a slice of known ends and stride 1 leaves elements out; None for others."""
    starts, limits, strides = (value.params[name] for name in ("starts", "limits", "strides"))
    shape = value.operands[0].type.shape  # type: ignore[union-attr]
    cut = [axis for axis, limit in enumerate(limits) if starts[axis] != 0 or limit != shape[axis]]  # type: ignore[index]
    if len(cut) != 1 or any(stride != 1 for stride in strides):
        return None
    ends = starts[cut[0]], limits[cut[0]], shape[cut[0]]  # type: ignore[index]
    return cut[0] if all(isinstance(end, int) for end in ends) else None


def _concatenated(whole: Value, parts: Sequence[tuple[Value, Tensor]], axis: int) -> Tensor:
    """Return cotangents of disjoint slices, in order along an axis, with zeros between."""
    shape: tuple[Size, ...] = whole.type.shape  # type: ignore[union-attr,assignment]
    pieces: list[Tensor] = []
    end = 0

    def fill(until: int) -> None:
        if until > end:
            pieces.append(L.full((*shape[:axis], until - end, *shape[axis + 1 :]), 0, whole.type.dtype))  # type: ignore[union-attr]

    for part, cotangent in parts:
        fill(part.params["starts"][axis])
        pieces.append(_match_shape(cotangent, part))
        end = part.params["limits"][axis]
    fill(shape[axis])  # type: ignore[arg-type]
    return pieces[0] if len(pieces) == 1 else L.concat(pieces, axis)


def active_values(order: Sequence[Value], wrt: Sequence[Value]) -> set[Value]:
    """Return the values that depend on ``wrt`` by operations with a gradient.

    Args:
        order: Values in topological order.
        wrt: The values to differentiate by.
    """
    active = set(wrt)
    for value in order:
        if value.op not in FLAT and _may_flow(value.type) and not active.isdisjoint(value.operands):
            active.add(value)
    return active


def _may_flow(type: Type) -> bool:
    return isinstance(type, t.TupleType) or is_differentiable(type) or not isinstance(type, TensorType)


def _backpropagate(
    results: Sequence[Value], cotangents: Sequence[Tensor], wrt: Sequence[Value], outputs: Sequence[Value] = ()
) -> list[Value]:
    """Return ``outputs``, then the cotangents of ``wrt``."""
    backward = _Pass(results, wrt)
    for result, dy in zip(results, cotangents, strict=True):
        backward.add(result, dy)
    backward.run()
    gradients = [backward.cotangents.get(x) for x in wrt]
    roots = [*outputs, *(L.zeros_like(x) if dx is None else dx for x, dx in zip(wrt, gradients, strict=True))]  # type: ignore[arg-type]
    return _replaced(roots, backward.replaced, backward.sizes) if backward.replaced else roots


def _replaced(roots: Sequence[Value], replaced: Mapping[Value, Value], sizes: Mapping[str, Size]) -> list[Value]:
    inner = scope.get()
    if inner is None:
        return substitute_values(roots, replaced, sizes, level=CLOSED)
    values = inner.values  # A loop outside defines the number of its rows, which the replaced values have.
    return substitute_values(
        roots, replaced, sizes, level=inner.level, inside=lambda x: x.level == CLOSED or x in values
    )


# Primitives that call functions.


def _fill_zeros(results: Iterable[Value], cotangents: Sequence[Tensor | None]) -> list[Tensor]:
    """Return a cotangent for every differentiable result, zeros for missing ones."""
    return [
        L.zeros_like(y) if dy is None else dy  # type: ignore[arg-type]
        for y, dy in zip(results, cotangents, strict=True)
        if is_differentiable(y.type)
    ]


def _results_of(value: Value) -> list[Value]:
    return [get(value, i) for i in range(len(value.type.results))]  # type: ignore[union-attr]


def _scatter_cotangents(
    count: int, positions: Sequence[int], cotangents: Sequence[Value | None]
) -> list[Tensor | None]:
    """Return the cotangents of all operands, from those at ``positions``."""
    by_position = dict(zip(positions, cotangents, strict=True))
    return [by_position.get(i) for i in range(count)]  # type: ignore[misc]


def _positions(backward: _Pass, operands: Sequence[Value]) -> list[int]:
    """Return the positions of the operands that need cotangents.

    Raises:
        UnsupportedError: One of the operands is a sequence or an optional of values that need cotangents.
    """
    for x in operands:
        if x in backward.active and not isinstance(x.type, TensorType):
            raise UnsupportedError(
                f"a value of type {x.type} has no gradient.",
                where=x.origin or x.op,
                remedy="Use tensors: sequences of known tensors are replaced by `sardonyx optimize`.",
            )
    return [i for i, x in enumerate(operands) if x in backward.active and is_differentiable(x.type)]


@gradient_rule("get")
def _get(y: Tensor, dy: Tensor, results: Value, *, index: int) -> Any:
    message = "internal: `get` has no gradient rule of its own; differentiate the multi-result primitive."
    raise RuleError(message, where=y.origin)


@gradient_rule("call")
def _call(backward: _Pass, value: Value, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    positions = _positions(backward, value.operands)
    pull = vjp(value.params["function"], positions)
    contributions = apply_call(pull, [*value.operands, *_fill_zeros(_results_of(value), cotangents)])
    return _scatter_cotangents(len(value.operands), positions, contributions)


def apply_call(function: Function, operands: Sequence[Value]) -> list[Value]:
    """Record a call of a function and return its results."""
    results = apply("call", *operands, function=function)
    return [get(results, i) for i in range(len(function.results))]


@gradient_rule("cond")
def _cond(backward: _Pass, value: Value, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    condition, *operands = value.operands
    positions = _positions(backward, operands)
    arguments = [*operands, *_fill_zeros(_results_of(value), cotangents)]

    def pull_branch(branch: Function) -> Callable[[], list[Value]]:
        return lambda: inline(vjp(branch, positions), arguments)

    contributions = L.cond(condition, pull_branch(value.params["then"]), pull_branch(value.params["otherwise"]))  # type: ignore[arg-type]
    return [None, *_scatter_cotangents(len(operands), positions, contributions)]


@gradient_rule("loop")
def _loop(backward: _Pass, value: Value, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Iterate backward: cotangents of the state flow to the previous iteration; all others are summed."""
    body, carried = value.params["body"], value.params["carried"]
    operands = value.operands[2:]
    states = [i for i in range(carried) if is_differentiable(operands[i].type)]
    others = [i for i in _positions(backward, operands) if i >= carried]
    pull, reused = _pull_of_saved(value, [2 + i for i in (*states, *others)])
    used = [i for i in range(carried) if pull.inputs[2 + i] in set(pull.values)]
    trips, saved = _save_states(backward, value, used, reused)
    rows = {i: dy for i, dy in enumerate(cotangents) if i >= carried and dy is not None}

    def step(k: Tensor, *state: Value) -> tuple[None, list[Value], list[Value]]:
        at = L.reshape(L.size_tensor([trips - 1], ()) - k, (1,))
        rows_at = [apply("gather", x, at, batch=0) for x in saved]
        before: dict[int, Value] = dict(zip(used, rows_at, strict=False))
        arguments = [before.get(i, operands[i]) for i in range(len(operands))]
        after: dict[int, Tensor] = dict(zip(states, state, strict=False))  # type: ignore[arg-type]
        after |= {i: apply("gather", dy, at, batch=0) for i, dy in rows.items()}
        after_cotangents = [
            after[i] if i in after else _zeros_of(result.type, body, arguments)
            for i, result in enumerate(body.results[1:])
            if is_differentiable(result.type)
        ]
        going = L.constant(True, t.BOOL)
        gradients = inline(pull, [L.reshape(at, ()), going, *arguments, *after_cotangents, *rows_at[len(used) :]])
        summed = [a + b for a, b in zip(state[len(states) :], gradients[len(states) :], strict=True)]  # type: ignore[operator]
        return None, [*gradients[: len(states)], *summed], []

    final: list[Tensor] = _results_of(value)[:carried]  # type: ignore[assignment]
    start = [_match_shape(cotangents[i] or L.zeros_like(final[i]), operands[i]) for i in states]
    none = [L.zeros_like(operands[i]) for i in others]  # type: ignore[arg-type]
    first, _ = L.loop(L.size_tensor([trips], ()), None, [*start, *none], step)
    backward_loop = first[0].operands[0] if first and first[0].op == "get" else None
    is_loop = backward_loop is not None and backward_loop.op == "loop"
    gradients = move_sums_out(backward_loop) if backward_loop is not None and is_loop else list(first)
    return [None, None, *_scatter_cotangents(len(operands), [*states, *others], gradients)]


def _zeros_of(row: Type, body: Function, arguments: Sequence[Value]) -> Tensor:
    """Return zeros for a collected value without cotangent."""
    assert isinstance(row, TensorType) and row.shape is not None
    if not body.defined_symbols.isdisjoint(symbols_in(row)):
        raise UnsupportedError(
            f"a loop collects {row}, whose size only the iteration tells: it has no gradient.", where=body.name
        )
    sizes: dict[str, Size] = {}
    for declared, argument in zip(body.inputs[2:], arguments, strict=True):
        if isinstance(declared.type, TensorType) and isinstance(argument.type, TensorType):
            for old, new in zip(declared.type.shape or (), argument.type.shape or (), strict=True):
                if isinstance(old, Dim) and old.atom is not None and old.atom.kind == "symbol":
                    sizes.setdefault(old.atom.name, new)
    shape = [size.substitute(sizes) if isinstance(size, Dim) else size for size in row.shape]
    return L.full(shape, 0, row.dtype)


def _pull_of_saved(loop: Value, positions: Sequence[int]) -> tuple[Function, list[Value]]:
    """Return the vector-Jacobian product of a body, and the values of the body that it has as its last inputs.

    Args:
        loop: The loop.
        positions: The inputs of the body to differentiate by.
    """
    body: Function = loop.params["body"]
    around = scope.get()
    key = (tuple(positions), loop.params["carried"], CLOSED if around is None else around.level)
    known = _pulls.setdefault(body, {})
    if key not in known:
        known[key] = _find_pull(body, loop.params["carried"], positions)
    return known[key]


_pulls: WeakKeyDictionary[Function, dict[tuple[tuple[int, ...], int, int], tuple[Function, list[Value]]]] = (
    WeakKeyDictionary()
)
"""Products of bodies that are known: each is found by several products, and each of them differentiates inner loops."""


def _find_pull(body: Function, carried: int, positions: Sequence[int]) -> tuple[Function, list[Value]]:
    plain = vjp(body, positions)
    read = set(plain.values)
    states = [x for x, own in zip(body.inputs, plain.inputs, strict=False) if own in read]
    reused = _worth_saving(body, carried, states)
    if not reused:
        return plain, []
    pull = vjp(body, positions, reused)
    read = set(pull.values)
    used = [x for x, own in zip(reused, _last(pull.inputs, len(reused)), strict=True) if own in read]
    return (pull, reused) if len(used) == len(reused) else (vjp(body, positions, used), used)


def _worth_saving(body: Function, carried: int, saved: Sequence[Value]) -> list[Value]:
    """Return the values of a body that take longer to compute again than to read, as far as memory permits.

    Args:
        body: The body of a loop.
        carried: The number of states.
        saved: The inputs of the body that are saved anyway; memory may grow in proportion to the states among them.
    """
    inputs = body.inputs[2 : 2 + carried]
    states = [x.type for x in inputs if is_differentiable(x.type) and x in saved]
    if any(_changes_sizes(body, i) for i in range(carried) if isinstance(inputs[i].type, TensorType)):
        return []
    varying = set(body.inputs[: 2 + carried])
    for value in body.values:
        if not varying.isdisjoint(value.operands):
            varying.add(value)
    budget: Size = 0
    for type in states:
        budget = budget + _MOST_SAVED * L.product(type.shape)  # type: ignore[union-attr,arg-type]
    chosen: list[Value] = []
    for names in _SAVED:
        for value in body.values:
            if value.op in names and value in varying and is_differentiable(value.type):
                shape = value.type.shape  # type: ignore[union-attr]
                if shape is not None and all(body.defined_symbols.isdisjoint(symbols_in(size)) for size in shape):
                    rest = budget - L.product(shape)
                    if at_least(rest, 0) is True:
                        budget = rest
                        chosen.append(value)
    return chosen


def _last(values: Sequence[Value], count: int) -> Sequence[Value]:
    return values[len(values) - count :]


def _with_results(function: Function, values: Sequence[Value]) -> Function:
    """Return a function that also gives some of its values."""
    if not values:
        return function
    extended = Function(function.name, function.inputs, [*function.results, *values], function.level)
    extended.conditions = function.conditions
    return extended


def _save_states(
    backward: _Pass, value: Value, used: Sequence[int], reused: Sequence[Value]
) -> tuple[Size, list[Tensor]]:
    """Rebuild the loop to collect carried and other values, and return the number of iterations.

    The new loop replaces the original.
    """
    body, carried = value.params["body"], value.params["carried"]
    count, go, *operands = value.operands
    for i in used:
        declared = body.inputs[2 + i].type
        if not isinstance(declared, TensorType) or _changes_sizes(body, i):
            raise UnsupportedError(
                f"the gradient of a loop needs its state {i} of every iteration, and its sizes change ({declared}).",
                where=value.origin or body.name,
                remedy="Carry values of one size.",
            )

    extended = _with_results(body, reused)

    def once(i: Tensor, *state: Value) -> tuple[Tensor, Sequence[Value], Sequence[Value]]:
        again, *after = inline(extended, [i, L.constant(True, t.BOOL), *state, *operands[carried:]])
        saved = [_of_first_sizes(state[k], operands[k], k) for k in used]
        rows, values = after[carried : len(after) - len(reused)], _last(after, len(reused))
        return again, after[:carried], [*rows, i, *saved, *values]  # type: ignore[return-value]

    final, collected = L.loop(count, go, operands[:carried], once)  # type: ignore[arg-type]
    rows = len(value.type.results) - carried  # type: ignore[union-attr]
    new = [*final, *collected[:rows]]
    backward.replaced.update(zip(_results_of(value), new, strict=True))
    backward.sizes.update(_sizes_of_symbols(value, new))
    return collected[rows].shape[0], list(collected[rows + 1 :])


def _changes_sizes(body: Function, i: int) -> bool:
    """Return True if the state after an iteration is proven to have other sizes than before."""
    before, after = body.inputs[2 + i].type, body.results[1 + i].type
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return before != after
    pairs = zip(before.shape or (), after.shape or (), strict=False)
    return len(before.shape or ()) != len(after.shape or ()) or any(equal(a, b) is False for a, b in pairs)


def _of_first_sizes(state: Value, first: Value, i: int) -> Value:
    """Return the state of an iteration after checking that its sizes are those of the first iteration."""
    if not isinstance(state, Tensor) or not isinstance(first, Tensor) or state.type == first.type:
        return state
    return L.of_shape(state, first.shape, f"the state {i} of a loop, whose gradient needs one size for all iterations")


def _sizes_of_symbols(value: Value, new: Sequence[Value]) -> Mapping[str, Size]:
    """Return the sizes of the symbols that a loop defines, from the results of its replacement."""
    own, sizes = set(defined_by(value)), {}
    for old, other in zip(value.type.results, new, strict=True):  # type: ignore[union-attr]
        if isinstance(old, TensorType) and isinstance(other.type, TensorType):
            for a, b in zip(old.shape or (), other.type.shape or (), strict=True):
                if isinstance(a, Dim) and a.atom is not None and a.atom.name in own:
                    sizes[a.atom.name] = b
    return sizes


@gradient_rule("host")
def _host(backward: _Pass, value: Value, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    function: HostFunction = value.params["function"]
    positions = _positions(backward, value.operands)
    if not positions:
        return [None] * len(value.operands)
    if function.gradient is None:
        raise UnsupportedError(
            f"the host function {function.name} has no gradient.",
            where=value.origin,
            remedy="Register one (`host_operator(..., gradient=)`), stop the gradient ahead, or write it over Core.",
        )
    results = _results_of(value)
    complete = [
        dy if dy is not None or not is_differentiable(y.type) else L.zeros_like(y)  # type: ignore[arg-type]
        for y, dy in zip(results, cotangents, strict=True)
    ]
    contributions = registered_cotangents(value, results, complete, positions)
    return _scatter_cotangents(len(value.operands), positions, contributions)


__all__ = [
    "FLAT",
    "GRADIENTS",
    "active_values",
    "gradient",
    "hessian_vector_product",
    "is_differentiable",
    "jvp",
    "pull_back",
    "vjp",
]
