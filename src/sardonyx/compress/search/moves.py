"""The moves of a search, as a table: functions from a model to a smaller or faster one, each with a strength.

A plan is a tuple of steps, applied in order. Strength 1 changes every layer that a move can change; a
smaller strength changes a share of the layers, in the order of their harm. The strength of a *graded* move is the share
of what the move removes at most, over all layers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import onnx_ir as ir

from sardonyx.compress.clustering.cluster import cluster
from sardonyx.compress.factorization.factorize import factorize
from sardonyx.compress.float16 import convert_float16
from sardonyx.compress.pruning.prune import prune
from sardonyx.compress.quantization.placement import RECURRENT
from sardonyx.compress.quantization.quantize import quantize
from sardonyx.compress.search.short_names import shorten_names
from sardonyx.errors import UnsupportedError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

Feeds = Mapping[str, Any]
Family = Literal["pruning", "factorization", "precision", "names"]

QUANTIZATION_TARGETS = {"native": "portable", "onnxruntime": "onnxruntime"}
"""The target of quantization for each target of a search; the native engine needs no operators of its own."""

FEWEST_WEIGHTS = 64
"""Elements from which a weight is worth a decision of its own."""

MOST_LOST_ENERGY = 0.2
"""The share of the energy of products that the strongest factorization loses."""

MOST_TUNED_WEIGHTS = 1.2e7
LEAST_STEPS, MOST_STEPS = 24, 300
"""Weights times steps of fine-tuning in one trial, within the least and the most steps."""

_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_STORED = (*_PRODUCTS, *RECURRENT)
WEIGHTED = (*_STORED, "Gather")
"""Operators with weights that moves change."""


@dataclass(frozen=True)
class Fitting:
    """The inputs of moves.

    Attributes:
        samples: Samples to learn from, which can be read any number of times; None without data.
        target: The target of the search.
        strength: The strength of the step, for graded moves.
        seed: The seed of the search.
    """

    samples: Iterable[Feeds] | None
    target: str
    strength: float = 1.0
    seed: int = 0


Apply = Callable[[ir.Model, Collection[str], Fitting], ir.Model]
"""A function from a model, the names of the layers that stay, and the inputs to a new model."""


@dataclass(frozen=True)
class Move:
    """A move.

    Attributes:
        name: The name in plans and reports.
        family: Moves of one family exclude each other on a layer.
        operators: The operators that the move changes; empty for moves on the whole model.
        apply: The function.
        needs_data: True if the move learns from samples.
        is_lossless: True if the outputs stay.
        is_graded: True if the strength is no share of layers.
        ends: True if no move but lossless ones can follow.
    """

    name: str
    family: Family
    operators: tuple[str, ...]
    apply: Apply
    needs_data: bool = False
    is_lossless: bool = False
    is_graded: bool = False
    ends: bool = False


@dataclass(frozen=True)
class Step:
    """A step of a plan.

    Attributes:
        move: The name of the move.
        strength: The share of the layers that change, above 0, at most 1.
    """

    move: str
    strength: float = 1.0

    def __str__(self) -> str:
        if self.strength == 1:
            return self.move
        return f"{self.move} ({self.strength:.0%}{'' if BY_NAME[self.move].is_graded else ' of layers'})"


Plan = tuple[Step, ...]


def layers(model: ir.Model, operators: Collection[str]) -> list[str]:
    """Return the names of the nodes of the main graph with these operators and a large constant float weight."""
    return [node_label(node) for node, _ in _weighted(model, operators)]


def _weighted(model: ir.Model, operators: Collection[str]) -> Iterator[tuple[ir.Node, int]]:
    """Yield the nodes of :func:`layers`, with the number of their weights."""
    for node in model.graph:
        if node.domain or node.op_type not in operators or len(node.inputs) < 2:
            continue
        value = node.inputs[0 if node.op_type == "Gather" else 1]
        tensor = None if value is None else value.const_value
        if facts.is_constant(value) and tensor is not None and tensor.dtype == ir.DataType.FLOAT:
            count = math.prod(tensor.shape.numpy())
            if count >= FEWEST_WEIGHTS:
                yield node, count


def layer_shares(model: ir.Model) -> dict[str, float]:
    """Return the share of each layer in the weights plus its share in the multiplications; open sizes count as 1."""
    bytes_of, work = Counter[str](), Counter[str]()
    for node, count in _weighted(model, WEIGHTED):
        label, shape = node_label(node), node.outputs[0].shape or ()
        bytes_of[label] += count
        if node.op_type != "Gather":
            channels = max(facts.static_shape(node.inputs[1]) or (1,))
            results = math.prod(size for size in shape if isinstance(size, int))
            work[label] += results * max(count // channels, 1)
    weights, products = max(bytes_of.total(), 1), max(work.total(), 1)
    return {label: count / weights + work[label] / products for label, count in bytes_of.items()}


def _quantized(**options: Any) -> Apply:
    def apply(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
        is_dynamic = options.get("mode") == "dynamic"
        data = None if is_dynamic else fitting.samples
        present = {node_label(node) for node in model.graph}
        # The layers that are quantized in each call depend on the engine, in standard operators.
        target = fitting.target if is_dynamic else QUANTIZATION_TARGETS[fitting.target]
        excluded = [name for name in staying if name in present]
        result = quantize(model, data, exclude=excluded, target=target, **options).model
        return without_reports(result)

    return apply


def without_reports(model: ir.Model) -> ir.Model:
    """Remove the reports of single steps from a model, and return the model: the report of the search replaces them."""
    for name in [name for name in model.metadata_props if name.startswith("sardonyx.")]:
        del model.metadata_props[name]
    return model


def _pruned(kind: str, most: float) -> Apply:
    def apply(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
        share: dict[str, Any] = {kind: most * fitting.strength}
        steps = tuning_steps(model)
        result = prune(
            model, list(fitting.samples or ()), recover="finetune", steps=steps, seed=fitting.seed, align=True, **share
        )
        if not result.report.removed:
            raise UnsupportedError(f"no {kind} can be removed at this strength.")
        return without_reports(result.model)

    return apply


def _factorized(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
    energy = 1 - MOST_LOST_ENERGY * fitting.strength
    return without_reports(factorize(model, fitting.samples, energy=energy, seed=fitting.seed).model)


def _clustered(bits: int) -> Apply:
    def apply(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
        present = {node_label(node) for node in model.graph}
        excluded = [name for name in staying if name in present]
        return without_reports(cluster(model, fitting.samples, bits=bits, exclude=excluded).model)

    return apply


def tuning_steps(model: ir.Model) -> int:
    """Return the steps of fine-tuning, from the number of weights alone: larger models get fewer."""
    weights = sum(math.prod(value.shape.numpy()) for value in model.graph.initializers.values() if value.shape)
    return int(min(max(MOST_TUNED_WEIGHTS / max(weights, 1), LEAST_STEPS), MOST_STEPS))


def _short_names(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
    return shorten_names(model)


def _halved(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
    return convert_float16(model, keep_io_types=True, node_block_list=list(staying) or None).model


MOVES = (
    Move("int8", "precision", WEIGHTED, _quantized(), needs_data=True),
    Move("int8 with int4 weights", "precision", WEIGHTED, _quantized(scheme="w4a8"), needs_data=True),
    Move("dynamic int8", "precision", ("Conv", "MatMul", "Gemm", *RECURRENT, "Gather"), _quantized(mode="dynamic")),
    Move("int4 weights", "precision", ("MatMul", "Gemm", *RECURRENT, "Gather"), _quantized(weights="int4")),
    Move("int8 weights", "precision", WEIGHTED, _quantized(mode="weights")),
    Move("int8 with int16 activations", "precision", _STORED, _quantized(scheme="w8a16"), needs_data=True),
    Move("float16", "precision", _STORED, _halved),
    Move("pruned channels", "pruning", _PRODUCTS, _pruned("channels", 0.75), needs_data=True, is_graded=True),
    Move("pruned heads", "pruning", ("MatMul", "Gemm"), _pruned("heads", 0.75), needs_data=True, is_graded=True),
    Move("removed layers", "pruning", _PRODUCTS, _pruned("layers", 0.75), needs_data=True, is_graded=True),
    Move("low rank", "factorization", ("Conv", "MatMul", "Gemm"), _factorized, needs_data=True, is_graded=True),
    Move("shared weights of 4 bits", "precision", _STORED, _clustered(4), ends=True),
    Move("shared weights of 8 bits", "precision", _STORED, _clustered(8), ends=True),
    Move("short names", "names", (), _short_names, is_lossless=True),
)
"""The moves."""

FAMILIES: tuple[Family, ...] = ("pruning", "factorization", "precision", "names")
"""The families in the order in which a plan applies them."""

BY_NAME = {move.name: move for move in MOVES}


def applied(model: ir.Model, step: Step, harm: Sequence[str], fitting: Fitting) -> ir.Model:
    """Return a model after one step.

    Args:
        model: The model, which is not changed.
        step: The step.
        harm: The layers of the move, the least harmful first.
        fitting: The inputs of moves.

    Raises:
        UnsupportedError: The move changes nothing.
        SardonyxError: The move failed.
    """
    move = BY_NAME[step.move]
    if move.needs_data and fitting.samples is None:
        raise UnsupportedError("the move needs data.", remedy="Give samples of real inputs.")
    if move.operators and not harm:
        raise UnsupportedError(f"no layer has a constant float weight of {', '.join(move.operators)}.")
    if move.is_graded:
        return move.apply(model, (), replace(fitting, strength=step.strength))
    changed = set(chosen(step, harm))
    staying = [name for name in layers(model, WEIGHTED) if name not in changed] if move.operators else []
    return move.apply(model, staying, fitting)


def chosen(step: Step, harm: Sequence[str]) -> Sequence[str]:
    """Return the layers that a step changes, of the layers of its move with the least harmful first."""
    if BY_NAME[step.move].is_graded:
        return harm
    return harm[: math.ceil(step.strength * len(harm))]


def ordered(plan: Sequence[Step]) -> Plan:
    """Return the steps in the order of their families; steps of one family stay in their order."""
    return tuple(sorted(plan, key=lambda step: FAMILIES.index(BY_NAME[step.move].family)))
