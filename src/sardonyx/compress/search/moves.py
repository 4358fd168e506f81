"""The moves of a search, as a table: functions from a model to a smaller or faster one, each with a strength.

A plan is a tuple of steps, applied in order. Strength 1 changes every layer that a move can change; a
smaller strength changes a share of the layers, in the order of their harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir

from sardonyx.compress.float16 import convert_float16
from sardonyx.compress.quantization.quantize import quantize
from sardonyx.compress.search.short_names import shorten_names
from sardonyx.errors import UnsupportedError
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import node_label

Feeds = Mapping[str, Any]
Family = Literal["precision", "names"]

QUANTIZATION_TARGETS = {"native": "portable", "onnxruntime": "onnxruntime"}
"""The target of quantization for each target of a search; the native engine needs no operators of its own."""

FEWEST_WEIGHTS = 64
"""Elements from which a weight is worth a decision of its own."""

_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
WEIGHTED = (*_PRODUCTS, "Gather")
"""Operators with weights that moves change."""


@dataclass(frozen=True)
class Fitting:
    """The inputs of moves.

    Attributes:
        samples: Samples to learn from, which can be read any number of times; None without data.
        target: The target of the search.
    """

    samples: Iterable[Feeds] | None
    target: str


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
    """

    name: str
    family: Family
    operators: tuple[str, ...]
    apply: Apply
    needs_data: bool = False
    is_lossless: bool = False


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
        return self.move if self.strength == 1 else f"{self.move} ({self.strength:.0%} of layers)"


Plan = tuple[Step, ...]


def layers(model: ir.Model, operators: Collection[str]) -> list[str]:
    """Return the names of the nodes of the main graph with these operators and a large constant float weight."""
    names = []
    for node in model.graph:
        if node.domain or node.op_type not in operators or len(node.inputs) < 2:
            continue
        value = node.inputs[0 if node.op_type == "Gather" else 1]
        tensor = None if value is None else value.const_value
        if facts.is_constant(value) and tensor is not None and tensor.dtype == ir.DataType.FLOAT:
            names += [node_label(node)] if math.prod(tensor.shape.numpy()) >= FEWEST_WEIGHTS else []
    return names


def _quantized(**options: Any) -> Apply:
    def apply(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
        data = None if options.get("mode") == "dynamic" else fitting.samples
        present = {node_label(node) for node in model.graph}
        target = QUANTIZATION_TARGETS[fitting.target]
        excluded = [name for name in staying if name in present]
        result = quantize(model, data, exclude=excluded, target=target, **options).model
        return without_reports(result)

    return apply


def without_reports(model: ir.Model) -> ir.Model:
    """Remove the reports of single steps from a model, and return the model: the report of the search replaces them."""
    for name in [name for name in model.metadata_props if name.startswith("sardonyx.")]:
        del model.metadata_props[name]
    return model


def _short_names(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
    return shorten_names(model)


def _halved(model: ir.Model, staying: Collection[str], fitting: Fitting) -> ir.Model:
    return convert_float16(model, keep_io_types=True, node_block_list=list(staying) or None).model


MOVES = (
    Move("int8", "precision", _PRODUCTS, _quantized(), needs_data=True),
    Move("int8 with int4 weights", "precision", _PRODUCTS, _quantized(scheme="w4a8"), needs_data=True),
    Move("dynamic int8", "precision", ("MatMul", "Gemm"), _quantized(mode="dynamic")),
    Move("int4 weights", "precision", ("MatMul", "Gemm", "Gather"), _quantized(weights="int4")),
    Move("int8 weights", "precision", (*_PRODUCTS, "Gather"), _quantized(mode="weights")),
    Move("int8 with int16 activations", "precision", _PRODUCTS, _quantized(scheme="w8a16"), needs_data=True),
    Move("float16", "precision", _PRODUCTS, _halved),
    Move("short names", "names", (), _short_names, is_lossless=True),
)
"""The moves."""

FAMILIES: tuple[Family, ...] = ("precision", "names")
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
    changed = set(chosen(step, harm))
    staying = [name for name in layers(model, WEIGHTED) if name not in changed] if move.operators else []
    return move.apply(model, staying, fitting)


def chosen(step: Step, harm: Sequence[str]) -> Sequence[str]:
    """Return the layers that a step changes, of the layers of its move with the least harmful first."""
    return harm[: math.ceil(step.strength * len(harm))]


def ordered(plan: Sequence[Step]) -> Plan:
    """Return the steps in the order of their families; steps of one family stay in their order."""
    return tuple(sorted(plan, key=lambda step: FAMILIES.index(BY_NAME[step.move].family)))
