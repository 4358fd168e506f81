"""Errors of a computation against another: by output, and the first layer out of tolerance.

The two sides are two models (before and after, float32 and float16), or two providers. Tensors are paired by name, and
by corresponding nodes (:mod:`.node_matching`). Layers are computed by slices of the graph: a slice turns as many
tensors into outputs as fit a memory budget, and only the errors are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.base.option_checks import require_count
from sardonyx.errors import OptionError
from sardonyx.model import Loadable
from sardonyx.report.node_matching import Matching, operator
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.surgery.extraction import extract
from sardonyx.rewrite.verify import compare as measure
from sardonyx.rewrite.verify.inputs import required_inputs
from sardonyx.runtime import Session
from sardonyx.runtime.profiling.profile import drawn_feeds

TOLERANCE = 1e-3
"""Largest difference of a tensor within tolerance, relative to its largest element."""

BUDGET = 256 << 20
"""Bytes of tensors of a slice, on each side."""

_UNKNOWN = 1 << 20
"""Assumed bytes of a tensor of unknown size."""


@dataclass(frozen=True)
class Side:
    """One of the two computations.

    Attributes:
        model: The model.
        provider: The provider that runs the model.
    """

    model: ir.Model
    provider: str

    def session(self, part: ir.Model) -> Session:
        """Return a session that runs a part of the model on the provider."""
        return Session(part, providers=list(dict.fromkeys((self.provider, "reference"))), compile="wait")

    def run(self, part: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of a part of the model, by name."""
        session = self.session(part)
        results = session.run(None, {info.name: feeds[info.name] for info in session.get_inputs()})
        return dict(zip((info.name for info in session.get_outputs()), results, strict=True))


@dataclass(frozen=True)
class TensorError:
    """Difference between a tensor of one side and its counterpart.

    Attributes:
        tensor: Name in the first model.
        other: Name in the second model.
        node: Node of the first model that computes the tensor.
        operator: Operator of the node.
        error: Largest absolute difference over the first side's largest magnitude; infinite if shapes, the positions of
            NaN and infinity, or integers differ.
        mean: Mean absolute difference over the same magnitude; None if undefined.
        detail: The difference in words, if numbers do not describe it.
    """

    tensor: str
    other: str
    node: str
    operator: str
    error: float
    mean: float | None
    detail: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        outputs: Errors of the outputs.
        layers: Errors of inner tensors, in the first model's order, up to the first beyond the tolerance or all.
        first: The first layer beyond the tolerance, or None.
        unpaired: Number of tensors of the first model without a counterpart in the second.
        tolerance: The tolerance.
    """

    outputs: tuple[TensorError, ...]
    layers: tuple[TensorError, ...]
    first: TensorError | None
    unpaired: int
    tolerance: float

    @property
    def equal(self) -> bool:
        """True if all outputs are within the tolerance."""
        return all(output.error <= self.tolerance for output in self.outputs)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {**asdict(self), "equal": self.equal}


def require_tolerance(tolerance: float) -> None:
    """Check that a tolerance is a number of 0 or more; infinity accepts every difference.

    Raises:
        OptionError: The number is negative or NaN.
    """
    if not tolerance >= 0:
        raise OptionError(f"expected a number of 0 or more, got {tolerance}.", where="tolerance")


def compare(
    a: Loadable,
    b: Loadable | None = None,
    *,
    providers: Sequence[str] = ("native",),
    inputs: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    tolerance: float = TOLERANCE,
    budget: int = BUDGET,
    all_layers: bool = False,
) -> Comparison:
    """Compare two models, or two providers on one.

    Args:
        a: The first model, assumed to be right.
        b: The second model; if None, the first again, with two providers.
        providers: Provider of the first and of the second; one for both.
        inputs: Arrays by name; random if None. The second model's are converted to its element types.
        sizes: Values of open sizes of random inputs, by name.
        tolerance: Largest difference relative to a tensor's largest element.
        budget: Bytes of tensors of each side in memory at a time.
        all_layers: Compare all layers; otherwise only if an output is beyond the tolerance, up to the first such layer.

    Raises:
        OptionError: Nothing to compare, the models have no common interface, both inputs and sizes, or a number is out
            of range.
        EvaluationError: A side does not run.
    """
    require_tolerance(tolerance)
    require_count(budget, "budget")
    if not 1 <= len(providers) <= 2 or (b is None and len(set(providers)) < 2):
        raise OptionError(
            "nothing to compare: one model on one provider", where="providers",
            remedy="Give two models, or two providers.",
        )  # fmt: skip
    first = Side(model_io.load(a), providers[0])
    second = Side(first.model if b is None else model_io.load(b), providers[-1])
    if inputs is not None and sizes:
        raise OptionError("the inputs determine the sizes", where="sizes", remedy="Give sizes or inputs.")
    feeds = draw_feeds(first, sizes) if inputs is None else dict(inputs)
    converted = convert_feeds(second.model, feeds)
    inference.infer_shapes(first.model, strict=False)
    pairs, unpaired = pair_tensors(first.model, second.model)
    partner = dict(pairs)
    outputs = [(value, partner[value]) for value in first.model.graph.outputs if value in partner]
    if not outputs:
        raise OptionError("the models have no output in common", remedy="Rename outputs with `sardonyx rename`.")
    output_errors = tuple(_errors(first, second, outputs, feeds, converted))
    layers: list[TensorError] = []
    beyond = None
    between = [(x, y) for x, y in pairs if not x.is_graph_output()]
    if not all_layers and all(output.error <= tolerance for output in output_errors):
        between = []
    for part in slices(between, feeds, budget):
        raise_if_cancelled()
        for layer in _errors(first, second, part, feeds, converted):
            layers.append(layer)
            if beyond is None and layer.error > tolerance:
                beyond = layer
                if not all_layers:
                    break
        if beyond is not None and not all_layers:
            break
    return Comparison(output_errors, tuple(layers), beyond, unpaired, tolerance)


def draw_feeds(side: Side, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return seeded random inputs on which a side runs.

    Args:
        side: The side.
        sizes: Values of open sizes, 1 for missing names; by default sizes on which the side runs.

    Raises:
        OptionError: Unknown open size.
        EvaluationError: The model runs on none of the random inputs.
    """
    feeds, _ = drawn_feeds(side.model, side.session(side.model), sizes)
    return feeds


def convert_feeds(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs in the element types that a model declares; floats are rounded to another precision.

    Raises:
        OptionError: An input is missing.
    """
    arrays = {}
    for value in required_inputs(model):
        name = str(value.name)
        if name not in feeds:
            raise OptionError(f"missing input '{name}'", where="inputs")
        array = feeds[name]
        dtype = value.dtype.numpy() if value.dtype is not None else None
        if dtype is not None and isinstance(array, np.ndarray) and _are_floats(array.dtype, dtype):
            array = array.astype(dtype)
        arrays[name] = array
    return arrays


def _are_floats(*dtypes: np.dtype) -> bool:
    return all(dtype.kind == "f" or dtype.name == "bfloat16" for dtype in dtypes)


def pair_tensors(a: ir.Model, b: ir.Model) -> tuple[list[tuple[ir.Value, ir.Value]], int]:
    """Return corresponding tensors of both main graphs, in the first one's order, and the number unpaired."""
    theirs = {value.name: value for node in b.graph for value in node.outputs if value.name}
    theirs |= {value.name: value for value in b.graph.outputs if value.name}
    partner = {} if a is b else {x.node: y.node for x, y in Matching(a, b).pairs.items() if not x.path and not y.path}
    pairs, unpaired = [], 0
    for node in a.graph:
        of_node = dict(zip(node.outputs, partner[node].outputs, strict=False)) if node in partner else {}
        for value in node.outputs:
            if not value.name:
                continue
            other = theirs.get(value.name) or of_node.get(value)
            if other is None or not other.name:
                unpaired += 1
            else:
                pairs.append((value, other))
    return pairs, unpaired


Pair = tuple[ir.Value, ir.Value]


def slices(pairs: Sequence[Pair], feeds: Mapping[str, Any], budget: int) -> Iterator[list[Pair]]:
    """Yield tensors in order, as many at a time as fit the budget."""
    largest = max((array.nbytes for array in feeds.values() if isinstance(array, np.ndarray)), default=0)
    part: list[Pair] = []
    used = 0
    for pair in pairs:
        size = _bytes(pair[0], max(largest, _UNKNOWN))
        if part and used + size > budget:
            yield part
            part, used = [], 0
        part.append(pair)
        used += size
    if part:
        yield part


def _bytes(value: ir.Value, unknown: int) -> int:
    """Return the bytes of a tensor, or ``unknown`` if its shape is not static."""
    shape = facts.static_shape(value)
    if shape is None or value.dtype is None:
        return unknown
    return math.ceil(math.prod(shape) * facts.element_bytes(value.dtype))


def _errors(
    first: Side, second: Side, pairs: Sequence[Pair], feeds: Mapping[str, Any], converted: Mapping[str, Any]
) -> Iterator[TensorError]:
    expected = computed_values(first, [str(x.name) for x, _ in pairs], feeds)
    actual = computed_values(second, [str(y.name) for _, y in pairs], converted)
    for x, y in pairs:
        node = x.producer()
        label, kind = ("", "") if node is None else (node_label(node), operator(node))
        right, other = in_wider_type(expected[str(x.name)], actual[str(y.name)])
        worst = measure.difference(str(x.name), right, other)
        yield TensorError(str(x.name), str(y.name), label, kind, worst.error, _mean(right, other), worst.detail)


def computed_values(side: Side, names: Sequence[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of the main graph, by name."""
    return side.run(extract(side.model, list(dict.fromkeys(names))), feeds)


def in_wider_type(expected: Any, actual: Any) -> tuple[Any, Any]:
    """Return both arrays as float64 if they are floats of different precision."""
    arrays = isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray)
    if arrays and expected.dtype != actual.dtype and _are_floats(expected.dtype, actual.dtype):
        return expected.astype(np.float64), actual.astype(np.float64)
    return expected, actual


def _mean(expected: Any, actual: Any) -> float | None:
    """Return the mean difference over the largest magnitude."""
    arrays = isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray)
    if (
        not arrays
        or expected.shape != actual.shape
        or not expected.size
        or not _are_floats(expected.dtype, actual.dtype)
    ):
        return None
    wide, other = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(other)
    if not finite.any():
        return None
    largest = float(np.abs(wide[finite]).max())
    return float(np.abs(wide[finite] - other[finite]).mean()) / (largest or 1.0)
