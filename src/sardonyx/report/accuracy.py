"""How far two computations of one model are apart: output by output, and the first layer where they part.

The two sides are two models (as it was and as it is, float32 and float16), or two providers. Tensors are paired by
name, and where a node of one model is a node of the other (:mod:`.match`). Layers are computed by slices of the graph:
a slice makes as many tensors into outputs as fit a budget of memory, and only their errors are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, OptionError, SardonyxError
from sardonyx.model import Loadable
from sardonyx.report.match import Matching, operator
from sardonyx.rewrite import inference
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.surgery.extraction import extract
from sardonyx.rewrite.verify import compare as measure
from sardonyx.rewrite.verify.inputs import required_inputs
from sardonyx.runtime import Session

TOLERANCE = 1e-3
"""Largest difference of a tensor, relative to its largest element, before the two sides have parted."""

BUDGET = 256 << 20
"""Bytes of tensors of a slice, of each side."""

_UNKNOWN = 1 << 20
"""Bytes that a tensor of unknown size is taken for."""


@dataclass(frozen=True)
class Side:
    """One of the two computations.

    Attributes:
        model: The model.
        provider: What runs it.
    """

    model: ir.Model
    provider: str

    def run(self, part: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of a part of the model, by name."""
        providers = dict.fromkeys((self.provider, "reference"))
        session = Session(part, providers=list(providers), compile="wait")
        given = {info.name: feeds[info.name] for info in session.get_inputs()}
        found = session.run(None, given)
        return dict(zip((info.name for info in session.get_outputs()), found, strict=True))


@dataclass(frozen=True)
class TensorError:
    """How far a tensor of one side is from the other's.

    Attributes:
        tensor: Its name in the first model.
        other: Its name in the second.
        node: The node of the first model that makes it.
        operator: That node's operator.
        error: Largest absolute difference over the first side's largest magnitude; infinite where shapes or the places
            of NaN and infinity differ, or integers do.
        mean: Mean absolute difference over the same; None where there is no number for it.
        detail: What differs, in words, where numbers do not say it.
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
    """What was found.

    Attributes:
        outputs: The outputs of both sides.
        layers: Tensors in between, in the first model's order, up to the first beyond the tolerance or all.
        first: The first layer beyond the tolerance; None where none is.
        unpaired: Tensors of the first model that the second has no counterpart of.
        tolerance: The tolerance.
    """

    outputs: tuple[TensorError, ...]
    layers: tuple[TensorError, ...]
    first: TensorError | None
    unpaired: int
    tolerance: float

    @property
    def equal(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(found.error <= self.tolerance for found in self.outputs)

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "equal": self.equal}


def compare(
    a: Loadable,
    b: Loadable | None = None,
    *,
    providers: Sequence[str] = ("native",),
    inputs: Mapping[str, Any] | None = None,
    tolerance: float = TOLERANCE,
    budget: int = BUDGET,
    all_layers: bool = False,
) -> Comparison:
    """Compare two models, or two providers on one.

    Args:
        a: The first model: the one that is taken to be right.
        b: The second; the first again where None, and two providers are needed.
        providers: What runs the first, and the second; one for both.
        inputs: Arrays by name; drawn where None. The second model's are converted to its element types.
        tolerance: Largest difference relative to a tensor's largest element.
        budget: Bytes of tensors that are kept of each side at a time.
        all_layers: Compare all layers; without it, only where an output is beyond the tolerance, and up to the first
            layer that is.

    Raises:
        OptionError: There is nothing to compare, or the models' interfaces have nothing in common.
        EvaluationError: A side does not run.
    """
    if not 1 <= len(providers) <= 2 or (b is None and len(set(providers)) < 2):
        raise OptionError(
            "one model on one provider is nothing to compare.", where="providers",
            remedy="Give two models, or two providers.",
        )  # fmt: skip
    first = Side(model_io.load(a), providers[0])
    second = Side(first.model if b is None else model_io.load(b), providers[-1])
    feeds = drawn(first) if inputs is None else dict(inputs)
    given = converted(second.model, feeds)
    inference.infer_shapes(first.model, strict=False)
    pairs, unpaired = paired(first.model, second.model)
    named = dict(pairs)
    outputs = [(value, named[value]) for value in first.model.graph.outputs if value in named]
    if not outputs:
        raise OptionError("the models have no output in common.", remedy="`sardonyx rename` gives outputs other names.")
    of_outputs = tuple(_errors(first, second, outputs, feeds, given))
    layers: list[TensorError] = []
    beyond = None
    between = [(x, y) for x, y in pairs if not x.is_graph_output()]
    if not all_layers and all(found.error <= tolerance for found in of_outputs):
        between = []
    for part in _slices(between, feeds, budget):
        for found in _errors(first, second, part, feeds, given):
            layers.append(found)
            if beyond is None and found.error > tolerance:
                beyond = found
                if not all_layers:
                    break
        if beyond is not None and not all_layers:
            break
    return Comparison(of_outputs, tuple(layers), beyond, unpaired, tolerance)


def drawn(side: Side) -> dict[str, Any]:
    """Seeded inputs on which a side runs."""
    from sardonyx.rewrite.verify.search import Search

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return side.run(side.model, feeds)
        except SardonyxError as error:
            raise EvaluationError(error.problem, where=error.where) from error

    search = Search(side.model, run, seed=0, wanted=1)
    found = search.samples() or search.dull
    if not found:
        raise EvaluationError(f"it runs on none of the inputs drawn: {'; '.join(search.reasons)[:400]}")
    return dict(found[0].feeds)


def converted(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs as a model declares them: of another precision, they are rounded to it.

    Raises:
        OptionError: An input is missing.
    """
    found = {}
    for value in required_inputs(model):
        name = str(value.name)
        if name not in feeds:
            raise OptionError(f"the input '{name}' of the second model is not fed.", where="inputs")
        array = feeds[name]
        dtype = value.dtype.numpy() if value.dtype is not None else None
        if dtype is not None and isinstance(array, np.ndarray) and _are_floats(array.dtype, dtype):
            array = array.astype(dtype)
        found[name] = array
    return found


def _are_floats(*dtypes: np.dtype) -> bool:
    return all(dtype.kind == "f" or dtype.name == "bfloat16" for dtype in dtypes)


def paired(a: ir.Model, b: ir.Model) -> tuple[list[tuple[ir.Value, ir.Value]], int]:
    """Tensors of both main graphs that stand for the same, in the first one's order, and how many have no partner."""
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


def _slices(pairs: Sequence[Pair], feeds: Mapping[str, Any], budget: int) -> Iterator[list[Pair]]:
    """Tensors in order, as many at a time as fit the budget."""
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
    """The bytes of a tensor, as far as its shape is known."""
    if value.shape is None or value.dtype is None or not all(isinstance(dim, int) for dim in value.shape):
        return unknown
    return int(np.prod([int(dim) for dim in value.shape])) * max(1, value.dtype.bitwidth // 8)  # type: ignore[arg-type]


def _errors(
    first: Side, second: Side, pairs: Sequence[Pair], feeds: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[TensorError]:
    """The errors of some tensors."""
    want = _values(first, [str(x.name) for x, _ in pairs], feeds)
    got = _values(second, [str(y.name) for _, y in pairs], given)
    for x, y in pairs:
        node = x.producer()
        label, kind = ("", "") if node is None else (node_label(node), operator(node))
        right, other = _comparable(want[str(x.name)], got[str(y.name)])
        found = measure.difference(str(x.name), right, other)
        yield TensorError(str(x.name), str(y.name), label, kind, found.error, _mean(right, other), found.detail)


def _values(side: Side, names: Sequence[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
    return side.run(extract(side.model, list(dict.fromkeys(names))), feeds)


def _comparable(want: Any, got: Any) -> tuple[Any, Any]:
    """Floating-point numbers of different precision in the wider one."""
    arrays = isinstance(want, np.ndarray) and isinstance(got, np.ndarray)
    if arrays and want.dtype != got.dtype and _are_floats(want.dtype, got.dtype):
        return want.astype(np.float64), got.astype(np.float64)
    return want, got


def _mean(want: Any, got: Any) -> float | None:
    """The mean difference over the largest magnitude."""
    arrays = isinstance(want, np.ndarray) and isinstance(got, np.ndarray)
    if not arrays or want.shape != got.shape or not want.size or not _are_floats(want.dtype, got.dtype):
        return None
    wide, other = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(other)
    if not finite.any():
        return None
    largest = float(np.abs(wide[finite]).max())
    return float(np.abs(wide[finite] - other[finite]).mean()) / (largest or 1.0)
