"""Gradients of single operators in float64, compared with central differences along random directions.

The cases are those of the generators of operators: every operator, with random attributes and sizes. Floating-point
inputs are doubles with distinct elements; all other inputs are constants of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.core import language as L
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.differentiation import gradient, hessian_vector_product, is_differentiable, jvp
from sardonyx.errors import SardonyxError
from sardonyx.ops.signatures import Signature
from sardonyx.train.step.forward import trace_graph
from tests.core.programs import computed
from tests.ops.generators import GENERATORS
from tests.ops.generators.draw import Case, Draw

STEP = 1e-5
TOLERANCE = 2e-5

NOT_DIFFERENTIATED: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (),
    "Dropout": (1, 2),
    "Loop": (0,),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "Upsample": (1,),
    "OneHot": (0, 1),
}
"""Inputs that are sizes, counts or flags; gradients by them are zero or undefined."""

POSITIVE: Mapping[str, tuple[int, ...]] = {
    "Acosh": (0,),
    "BatchNormalization": (4,),
    "Log": (0,),
    "Pow": (0,),
    "Sqrt": (0,),
    "ReduceLogSum": (0,),
}
"""Inputs that must be positive: beyond 1, for the inverse hyperbolic cosine."""

SINGLE = frozenset({"CausalConvWithState", "DequantizeLinear", "LinearAttention"})
"""Operators that compute in float32 inside: differences are longer and less exact."""

WITHIN_ONE: Mapping[str, tuple[int, ...]] = {"Acos": (0,), "Asin": (0,), "Atanh": (0,), "NegativeLogLikelihoodLoss": ()}
"""Inputs with elements from -1 to 1."""


@dataclass
class GradientTally:
    """Results of the cases of an operator.

    Attributes:
        is_single: True if the operator computes in float32.
        cases: Number of cases.
        checked: Number of gradients that were compared.
        kinks: Number of comparisons left out, because differences of two lengths disagree.
        flat: Cases without a floating-point input or result.
        failures: Differences.
    """

    is_single: bool = False
    cases: int = 0
    checked: int = 0
    kinks: int = 0
    flat: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def tolerance(self) -> float:
        """The largest relative difference of gradients and differences."""
        return 3e-3 if self.is_single else TOLERANCE


def doubled(case: Case, rng: np.random.Generator) -> Case:
    """Return the case with doubles for floating-point inputs, finite and without ties."""

    def distinct(position: int, x: Any) -> Any:
        if isinstance(x, list):
            return [distinct(position, one) for one in x]
        if not is_real(x):
            return x
        if position in NOT_DIFFERENTIATED.get(case.name, ()):
            return x.astype(np.float64) if x.dtype != np.float32 or case.name not in ("Resize", "Upsample") else x
        y = np.nan_to_num(x.astype(np.float64), nan=0.5, posinf=1.5, neginf=-1.5)
        y = y + rng.uniform(0.01, 0.1, y.shape) * np.where(rng.random(y.shape) < 0.5, -1, 1)
        if position in POSITIVE.get(case.name, ()):
            y = np.abs(y) + 1.1
        if position in WITHIN_ONE.get(case.name, ()):
            y = np.tanh(y) * 0.9
        return y

    attributes = dict(case.attributes)
    if case.name in ("LayerNormalization", "RMSNormalization"):
        attributes["stash_type"] = int(onnx.TensorProto.DOUBLE)
    return replace(case, inputs=[distinct(i, x) for i, x in enumerate(case.inputs)], attributes=attributes)


def is_real(x: Any) -> bool:
    """Return True for floating-point arrays, those of small formats included."""
    return isinstance(x, np.ndarray) and (x.dtype.kind == "f" or x.dtype.name in ("bfloat16",))


def model_of(case: Case, open_integers: bool = False) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model of a case and the names of the inputs to differentiate by.

    Args:
        case: The case.
        open_integers: If True, integer inputs stay inputs of the model.
    """
    model = case.model()
    feeds, flat = case.feeds(), NOT_DIFFERENTIATED.get(case.name, ())
    names = [name for name, x in feeds.items() if int(name[1:]) not in flat and is_real(x)]
    for name, x in feeds.items():
        if name in names or not isinstance(x, np.ndarray) or x.dtype == object or open_integers:
            continue
        value = next(value for value in model.graph.input if value.name == name)
        model.graph.input.remove(value)
        model.graph.initializer.append(numpy_helper.from_array(x, name))
    return model, names


def total_of(function: Function) -> Function | None:
    """Return the weighted sum of the floating-point results; None without such a result."""
    if not any(_is_real_type(value) for value in function.results):
        return None

    def body(*inputs: Value) -> list[Value]:
        total = L.constant(0.0, t.DOUBLE)
        for number, y in enumerate(inline(function, inputs)):
            if _is_real_type(y):
                tensor = cast("L.Tensor", y)
                count = L.reshape(L.arange(L.product(tensor.shape)), tensor.shape)
                total = total + L.reduce_sum(L.cast(tensor, t.DOUBLE) * L.cos(L.cast(count, t.DOUBLE) + number))
        return [total]

    return trace("total", body, [value.type for value in function.inputs])


def _is_real_type(value: Value) -> bool:
    return is_differentiable(value.type) and t.kind(value.type.dtype) == "float"  # type: ignore[union-attr]


def check_case(case: Case, tally: GradientTally, label: str, rng: np.random.Generator, *, second: bool) -> None:
    """Compare the gradient of a case, and if ``second``, the products with the Jacobian and the Hessian too."""
    tally.cases += 1
    model, names = model_of(case)
    try:
        with _doubles_everywhere():
            forward = _traced(model, case)
    except SardonyxError as error:
        tally.failures.append(f"{label}: {case}: trace: {error}")
        return
    order = [str(value.name) for value in model.graph.input]
    total = total_of(forward)
    if total is None or not names:
        tally.flat += 1
        return
    feeds = case.feeds()
    arrays = [feeds[name] for name in order]
    positions = [order.index(name) for name in names]
    try:
        derived = gradient(total, positions)
        actual = computed(derived, arrays)[1:]
        d = [rng.standard_normal(arrays[i].shape) for i in positions]
        products = computed(jvp(total, positions), [*arrays, *d]) if second else []
        curved = computed(hessian_vector_product(total, positions), [*arrays, *d]) if second else []
    except SardonyxError as error:
        tally.failures.append(f"{label}: {case}: {error}")
        return

    def value(at: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(computed(total, at)[0])]

    for position, dx in zip(positions, actual, strict=True):
        if dx.shape != arrays[position].shape:
            tally.failures.append(f"{label}: {case}: gradient of shape {dx.shape}")
            return
        for _ in range(2):
            v = rng.standard_normal(arrays[position].shape)
            (expected,) = _difference(value, arrays, {position: v}, tally)
            if expected is not None:
                _compare(float((dx * v).sum()), expected, f"{label}: {case}: input {position}", tally)
    if second:
        move = dict(zip(positions, d, strict=True))
        (expected,) = _difference(value, arrays, move, tally)
        if expected is not None:
            _compare(float(products[0]), expected, f"{label}: {case}: Jacobian", tally)
        slopes = _difference(lambda at: computed(derived, at)[1:], arrays, move, tally)
        for position, product, slope in zip(positions, curved, slopes, strict=True):
            if slope is not None:
                _compare(product, slope, f"{label}: {case}: Hessian, input {position}", tally, 25)


def _traced(model: onnx.ModelProto, case: Case) -> Function:
    """Return the traced model: for the sizes at hand if ranks or sizes depend on values."""
    try:
        return trace_graph(sardonyx.load(model))
    except SardonyxError:
        return trace_graph(sardonyx.load(_sized(model, case)))


@contextlib.contextmanager
def _doubles_everywhere() -> Iterator[None]:
    """Let every operator accept doubles: some are of float32 and smaller formats by the standard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Signature, "check", lambda self, inputs: None)
        yield


def _sized(model: onnx.ModelProto, case: Case) -> onnx.ModelProto:
    """Return the model with declared sizes."""
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    feeds = case.feeds()
    for value in sized.graph.input:
        if value.type.HasField("tensor_type"):
            del value.type.tensor_type.shape.dim[:]
            for size in feeds[value.name].shape:
                value.type.tensor_type.shape.dim.add().dim_value = size
    return sized


def _difference(
    f: Callable[[Sequence[np.ndarray]], list[np.ndarray]], at: Sequence[np.ndarray],
    move: Mapping[int, np.ndarray], tally: GradientTally,
) -> list[Any]:  # fmt: skip
    """Return central differences; None for each that differs between two lengths of step, at a kink or a jump."""

    def slope(step: float) -> list[np.ndarray]:
        ends = []
        for sign in (1, -1):
            moved = [x + sign * step * move[i] if i in move else x for i, x in enumerate(at)]
            ends.append(f(moved))
        return [(a - b) / (2 * step) for a, b in zip(*ends, strict=True)]

    with np.errstate(all="ignore"):
        step = STEP * 500 if tally.is_single else STEP
        long, short = slope(step), slope(step / 3)
        results: list[Any] = []
        for a, b in zip(long, short, strict=True):
            scale = max(1.0, float(np.abs(a).max(initial=0)))
            smooth = np.isfinite(a).all() and np.abs(a - b).max(initial=0) <= 20 * tally.tolerance * scale
            tally.kinks += not smooth
            results.append(b if smooth else None)
    return results


def _compare(actual: Any, expected: np.ndarray, label: str, tally: GradientTally, factor: float = 5) -> None:
    tally.checked += 1
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    error = np.abs(np.asarray(actual) - expected).max(initial=0) / scale
    if not error <= factor * tally.tolerance:
        tally.failures.append(f"{label}: gradient {actual!r}, difference {expected!r}")


def check_operator(name: str, seeds: Sequence[int], *, second: bool = False) -> GradientTally:
    """Check the gradient of an operator for cases of these seeds."""
    tally = GradientTally(name in SINGLE)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        case = doubled(GENERATORS[name](Draw(f"{name} {seed}"), name), rng)
        check_case(case, tally, f"{name} seed {seed}", rng, second=second)
    return tally
