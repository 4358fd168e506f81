"""Sizes as values, assertions, and control flow."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.convert.torch.operators.promotion import cast, promoted, tensor_of
from sardonyx.convert.torch.operators.registry import IGNORED, aten, site, translation_of
from sardonyx.convert.torch.operators.sizes import predicted
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least, dim_max, dim_min, equal, floor_div
from sardonyx.core.eval.tensor import Tensor, bind
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError


@aten("sym_size.int")
def _size(x: Tensor, dim: int) -> Size:
    return x.shape[dim]


@aten("sym_numel.default")
def _numel(x: Tensor) -> Size:
    return L.product(x.shape)


@aten("sym_stride.int")
def _stride(x: Tensor, dim: int) -> Size:
    return L.product(x.shape[L.normalized_axis(dim, x.rank) + 1 :])


@aten("sym_storage_offset.default")
def _storage_offset(x: Tensor) -> int:
    return 0


@aten("_local_scalar_dense.default", "item.default")
def _item(x: Tensor) -> Any:
    """Return an element as a number: a size if torch knows that it is none below 0, else a scalar."""
    x = L.reshape(x, ())
    elements = L.elements(x)
    if elements is not None:
        return elements[0]
    result = site.get().result
    if t.is_integer(x.dtype) and _is_size(result):
        return bind(cast(x, t.INT64), ())
    # Numbers of Python have 64 bits.
    return cast(x, t.INT64 if t.is_integer(x.dtype) else t.DOUBLE) if x.dtype != t.BOOL else x


def _is_size(result: Any) -> bool:
    node = getattr(result, "node", None)
    if node is None or node.shape_env is None:
        return False
    low = node.shape_env.bound_sympy(node.expr).lower
    return bool(low >= 0)


@aten(
    "sym_constrain_range.default",
    "sym_constrain_range_for_size.default",
    "_assert_async.default",
    "_assert_async.msg",
    "_assert_scalar.default",
    "_assert_tensor_metadata.default",
    "_functional_assert_async.msg",
    "_functional_assert_scalar.default",
    "_functional_sym_constrain_range.default",
    "_functional_sym_constrain_range_for_size.default",
    "python._assert.default",
    "_print.default",
)
def _check(*_: Any, **__: Any) -> None:
    """Do nothing: torch decided the check when it captured the program, or the proof's inputs satisfy it."""
    return


@aten("_make_dep_token.default")
def _token(*_: Any, **__: Any) -> Tensor:
    return L.constant(0.0, t.FLOAT)


# Arithmetic of sizes and numbers.


def _arithmetic(name: str, plain: Callable[..., Any]) -> None:
    """Register an operator of Python: exact for sizes, else of scalars at run time."""

    def function(*xs: Any) -> Any:
        if any(isinstance(x, Tensor) for x in xs):
            return plain(*numbers(*xs))
        return plain(*xs)

    aten(f"python.{name}.default")(function)


def numbers(*xs: Any) -> list[Tensor]:
    """Return numbers of Python as scalars of one type, with 64 bits."""
    return promoted(*(tensor_of(x, t.DOUBLE if isinstance(x, float) else None) for x in xs))


for _name in ("add", "sub", "mul", "neg"):
    _arithmetic(_name, getattr(operator, _name))


@aten("python.abs.default")
def _absolute(x: Any) -> Any:
    return dim_max(x, -x) if isinstance(x, Dim) else abs(x) if not isinstance(x, Tensor) else L.abs_(x)


@aten("python.floordiv.default", "python.sym_floordiv.default")
def _floordiv(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        a, b = numbers(a, b)
        return (a - L.floor_mod(a, b)) / b
    return floor_div(a, b)


@aten("python.mod.default")
def _mod(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return L.floor_mod(*numbers(a, b))
    return a % b


@aten("python.truediv.default")
def _truediv(a: Any, b: Any) -> Any:
    if not any(isinstance(x, (Tensor, Dim)) for x in (a, b)):
        return a / b
    return tensor_of(a, t.DOUBLE) / tensor_of(b, t.DOUBLE)


@aten("python.pow.default", "python.pow_by_natural.default")
def _pow(a: Any, b: Any) -> Any:
    if isinstance(b, int) and b >= 0 and not isinstance(a, Tensor):
        return L.product([a] * b) if isinstance(a, Dim) else a**b
    if not any(isinstance(x, (Tensor, Dim)) for x in (a, b)):
        return a**b
    return tensor_of(a, t.DOUBLE) ** tensor_of(b, t.DOUBLE)


def _rounded(name: str, core: Callable[[Tensor], Tensor], plain: Callable[[float], int]) -> None:
    def function(x: Any, ndigits: int | None = None) -> Any:
        if isinstance(x, (int, Dim)):
            return x
        if not isinstance(x, Tensor):
            return plain(x) if ndigits is None else round(x, ndigits)
        if ndigits is not None:
            scale = L.constant(10.0 ** abs(ndigits), t.DOUBLE)
            x = tensor_of(x, t.DOUBLE)
            return L.round_(x * scale) / scale if ndigits >= 0 else L.round_(x / scale) * scale
        known = predicted(site.get().result)
        if known is not None:
            return known
        whole = cast(core(x), t.INT64)
        return bind(whole, ()) if _is_size(site.get().result) else whole

    aten(f"python.{name}.default")(function)


_rounded("ceil", L.ceil, math.ceil)
_rounded("floor", L.floor, math.floor)
_rounded("trunc", lambda x: cast(cast(x, t.INT64), x.dtype), math.trunc)
_rounded("round", L.round_, round)
_rounded("sym_int", lambda x: cast(cast(x, t.INT64), x.dtype), int)


@aten("python.sym_float.default", "python._sym_float.default")
def _sym_float(x: Any) -> Any:
    return tensor_of(x, t.DOUBLE) if isinstance(x, (Tensor, Dim)) else float(x)


@aten("python.sym_sqrt.default", "python._sym_sqrt.default", "python.sqrt.default")
def _sym_sqrt(x: Any) -> Any:
    return L.sqrt(tensor_of(x, t.DOUBLE)) if isinstance(x, (Tensor, Dim)) else math.sqrt(x)


@aten("python.sym_max.default", "python._sym_max.default", "python.max.default")
def _sym_max(*xs: Any) -> Any:
    return L.maximum(*numbers(*xs)) if any(isinstance(x, Tensor) for x in xs) else dim_max(*xs)


@aten("python.sym_min.default", "python._sym_min.default", "python.min.default")
def _sym_min(*xs: Any) -> Any:
    return L.minimum(*numbers(*xs)) if any(isinstance(x, Tensor) for x in xs) else dim_min(*xs)


@aten("python.sym_sum.default")
def _sym_sum(xs: Sequence[Any]) -> Any:
    result = xs[0]
    for x in xs[1:]:
        result = result + x
    return result


def _comparison(name: str, decide: Callable[[Any, Any], bool | None], core: Callable[[Tensor, Tensor], Tensor]) -> None:
    def function(a: Any, b: Any) -> Any:
        if not any(isinstance(x, (Tensor, Dim, float)) for x in (a, b)):
            return getattr(operator, name)(a, b)
        if all(isinstance(x, (int, Dim)) for x in (a, b)):
            answer = decide(a, b)
            if answer is not None:
                return answer
        return core(*numbers(a, b))

    aten(f"python.{name}.default")(function)


def _negated(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


_comparison("eq", equal, L.equal)
_comparison("ne", lambda a, b: _negated(equal(a, b)), L.not_equal)
_comparison("ge", at_least, lambda a, b: a >= b)
_comparison("le", lambda a, b: at_least(b, a), lambda a, b: a <= b)
_comparison("lt", lambda a, b: _negated(at_least(a, b)), lambda a, b: a < b)
_comparison("gt", lambda a, b: _negated(at_least(b, a)), lambda a, b: a > b)


@aten("python.and_.default")
def _and(a: Any, b: Any) -> Any:
    return tensor_of(a) & tensor_of(b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a and b


@aten("python.or_.default")
def _or(a: Any, b: Any) -> Any:
    return tensor_of(a) | tensor_of(b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a or b


@aten("python.sym_not.default", "python._sym_not.default", "python.not_.default", "python.invert.default")
def _not(a: Any) -> Any:
    return ~a if isinstance(a, Tensor) else not a


@aten("python.sym_ite.default")
def _ite(condition: Any, a: Any, b: Any) -> Any:
    return L.where(condition, *promoted(a, b)) if isinstance(condition, Tensor) else a if condition else b


# Control flow.


def _values(items: Sequence[Any]) -> list[Tensor]:
    return [tensor_of(item) for item in items]


@aten("python.cond.default")
def _cond(condition: Any, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> Any:
    if isinstance(condition, bool):
        return tuple((then if condition else otherwise)(*operands))
    results: dict[str, list[Any]] = {}

    def branch(name: str, body: Any) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            results[name] = body(*operands)
            return _values([item for item in results[name] if item is not None])

        return run

    chosen = L.cond(L.reshape(tensor_of(condition), ()), branch("then", then), branch("else", otherwise))
    return tuple(chosen)


@aten("python.while_loop.default")
def _while_loop(condition: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> Any:
    def go(state: Sequence[Any]) -> Tensor:
        return L.reshape(tensor_of(condition(*state, *more)[0]), ())

    state = _values(carried)

    def step(i: Tensor, *current: Any) -> Any:
        after = _values(body(*current, *more))
        return go(after), after, []

    final, _ = L.loop(None, go(state), state, step)
    return tuple(final)


@aten("python.scan.default")
def _scan(body: Any, initial: Sequence[Any], xs: Sequence[Tensor], more: Sequence[Any] = ()) -> Any:
    carried = len(initial)
    count = L.size_tensor([xs[0].shape[0]], ())

    def step(i: Tensor, *current: Any) -> Any:
        rows = [L.take(x, i, 0) for x in xs]
        results = _values(body(*current, *rows, *more))
        return None, results[:carried], results[carried:]

    final, collected = L.loop(count, None, _values(initial), step)
    return (*final, *(_rows(y, xs[0].shape[0]) for y in collected))


def _rows(y: Tensor, count: Size) -> Tensor:
    return L.reshape(y, [count, *y.shape[1:]])


@aten("python.map_impl.default", "python.map.default")
def _map(body: Any, xs: Sequence[Tensor], more: Sequence[Any] = ()) -> Any:
    return _scan(lambda *values: body(*values), [], xs, more)


@aten("python.wrap_with_set_grad_enabled.default", "python.wrap_with_autocast.default")
def _wrapped(*args: Any) -> Any:
    at = next(i for i, arg in enumerate(args) if callable(arg) and not isinstance(arg, Tensor))
    return tuple(args[at](*args[at + 1 :]))


@aten("python.invoke_subgraph.default")
def _subgraph(body: Any, name: Any, *operands: Any) -> Any:
    return tuple(body(*operands))


@aten("python.hints_wrapper.default", "python.tag_activation_checkpoint.default", "python.wrap.default")
def _hinted(body: Any, *operands: Any, **_: Any) -> Any:
    if len(operands) and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    return tuple(body(*operands))


@aten("python.with_effects.default")
def _with_effects(token: Any, target: Any, *operands: Any, **options: Any) -> Any:
    """Call an operator whose order torch records with a token."""
    name = f"{target.namespace}.{target._schema.name.partition('::')[2]}.{target._overloadname}"
    function = translation_of(name)
    if function is None:
        raise UnsupportedError(f"{name} has no translation")
    result = function(*operands, **{key: value for key, value in options.items() if key not in IGNORED})
    return (token, *result) if isinstance(result, (tuple, list)) else (token, result)
