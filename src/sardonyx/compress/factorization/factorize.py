"""`factorize`: products and convolutions as two of low rank, with measured evidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.base.option_checks import require_names
from sardonyx.compiler.target.description import host
from sardonyx.compress.evidence import (
    CompressionResult,
    Evaluate,
    Evidence,
    judge,
    require_metric,
    store,
)
from sardonyx.compress.factorization.low_rank import Spectrum
from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.placement import (
    NOT_FINITE,
    WeightSite,
    find_placement,
    recurrent_notes,
    without_layers,
)
from sardonyx.compress.quantization.plain_forms import write_plain_forms
from sardonyx.compress.quantization.preparation import prepare_layers, weight_bytes
from sardonyx.compress.quantization.site_inputs import Needs
from sardonyx.compress.recovery import reconstruct
from sardonyx.compress.samples import Data, Preprocess, read_samples, split_samples
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.analysis.names import Names, node_names, value_names

ENERGY = 0.99
"""The share of the energy of products that remains, unless the caller states a share or a rank."""

_MOST_SAMPLES = 512

_MOST_ELEMENTS = 1 << 26
"""Elements of a weight above which a decomposition would take minutes and gigabytes."""

_OPTIONAL_BIAS = 11
"""The operator set from which Gemm needs no bias."""


@dataclass(frozen=True)
class FactorizedLayer:
    """A layer with a weight.

    Attributes:
        name: The name of the node.
        op_type: The operator.
        full: The full rank.
        rank: The rank of the result; the full one if the layer is unchanged.
        weights: Elements of the weight before and after.
        reason: The reason why the layer is unchanged; empty if factorized.
    """

    name: str
    op_type: str
    full: int
    rank: int
    weights: tuple[int, int]
    reason: str


@dataclass(frozen=True)
class FactorizationReport:
    """The evidence of a factorization.

    Attributes:
        layers: The layers with weights.
        weight_bytes: Bytes of weights, before and after.
        evidence: The samples, the errors of the outputs, the metric and the verdict.
        notes: Sentences for the user.
    """

    layers: tuple[FactorizedLayer, ...]
    weight_bytes: tuple[int, int]
    evidence: Evidence
    notes: tuple[str, ...]


class Factorized(CompressionResult[FactorizationReport]):
    """A factorized model."""


def factorize(
    model: Loadable,
    data: Data | None = None,
    *,
    rank: float | None = None,
    energy: float | None = None,
    preprocess: Preprocess | None = None,
    evaluate: Evaluate | None = None,
    drop: float | None = None,
    exclude: Collection[str] = (),
    seed: int = 0,
) -> Factorized:
    """Replace MatMul, Gemm and Conv by two layers of low rank where that has fewer weights.

    A k×k convolution becomes one with few outputs and a 1×1 convolution. With data, the factors have the least error of
    the products on real inputs, and layers are then refitted by least squares; every fourth sample judges the result.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        data: Samples of real inputs, as for :func:`sardonyx.quantize`.
        rank: The rank over the full rank, above 0 and below 1.
        energy: The share of the energy of the products that remains, in place of `rank`; 0.99 by default.
        preprocess: A function or a model that computes feeds from the items of the data.
        evaluate: A function of a session that returns the metric, higher is better; see ``compress.evidence``.
        drop: The largest permitted loss of the metric, for the verdict.
        exclude: Names of nodes, or operators, that stay.
        seed: The seed of draws.

    Returns:
        The model and the evidence.

    Raises:
        OptionError: An option is impossible, or the data hold no sample or samples that do not fit.
        UnsupportedError: No layer has fewer weights as two; the message has the reasons.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> result = sardonyx.factorize("model.onnx", data="real.npz", energy=0.98)
        >>> result.save("small.onnx")
    """
    _require_share("rank", rank)
    _require_share("energy", energy)
    if rank is not None and energy is not None:
        raise OptionError("expected one of `rank` and `energy`, got both.", where="rank, energy")
    require_metric(drop, evaluate)
    source = load(model)
    prepared = prepare_layers(source)
    infer_shapes(prepared)
    notes = write_plain_forms(prepared)
    infer_shapes(prepared)
    result = copy_model(prepared)
    placement = find_placement(result, require_names(exclude, "exclude"))
    split = None if data is None else split_samples(read_samples(data, result, preprocess))
    moments: dict[str, np.ndarray] = {}
    samples: list[Mapping[str, Any]] = []
    if split is not None:
        samples = list(itertools.islice(fitting := split.fitting(), _MOST_SAMPLES))
        stream = itertools.chain(samples, fitting)
        inputs = Observation(result, [], stream, placement.sites, Needs(second_moments=True)).inputs
        second = {label: one.second_moment for label, one in inputs.items()}
        # Values that stand for infinity, for example in masks, have no finite moments.
        moments = {label: one[0] for label, one in second.items() if one is not None and np.isfinite(one).all()}
    names, labels = Names(value_names(result)), Names(node_names(result))
    layers = tuple(
        _factorized(result, site, moments.get(site.label), rank, energy or ENERGY, names, labels)
        for site in placement.sites
    )
    layers += tuple(
        FactorizedLayer(one.name, one.op_type, 0, 0, (0, 0), one.reason)
        for one in placement.floats
        if one.reason == NOT_FINITE
    )
    if all(layer.reason for layer in layers):
        stated = [f"{layer.name}: {layer.reason}" for layer in layers[:3]]
        reasons = without_layers(result, stated)
        raise UnsupportedError(f"no layer is smaller as two ({reasons}).", where=str(source.graph.name or "model"))
    notes += recurrent_notes(result)
    infer_shapes(result)
    if samples:
        count = reconstruct(prepared, result, samples, {}, seed=seed)
        notes.append(f"{count} layers are refitted to the results of the original, by least squares.")
    evidence = judge(source, result, split, evaluate, drop)
    report = FactorizationReport(layers, (weight_bytes(prepared), weight_bytes(result)), evidence, tuple(notes))
    store(result, "factorize", report)
    return Factorized(result, report)


def _require_share(name: str, share: float | None) -> None:
    if share is None:
        return
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not math.isfinite(share) or not 0 < share < 1:
        raise OptionError(f"expected a share above 0 and below 1, got {share!r}.", where=name)


def _factorized(
    model: ir.Model, site: WeightSite, moment: np.ndarray | None, share: float | None, energy: float, names: Names,
    labels: Names,
) -> FactorizedLayer:  # fmt: skip
    """Replace one layer by two if these have fewer weights, and report the layer."""
    raise_if_cancelled()
    node, weight = site.node, site.weight
    full, size = min(site.matrix().shape[1:]), weight.size
    unchanged = FactorizedLayer(site.label, node.op_type, full, full, (size, size), "")
    reason, old = "", node.inputs[1]
    if node.op_type == "ConvTranspose":
        reason = "a transposed convolution"
    elif site.groups > 1:
        reason = "a convolution with groups"
    elif site.is_batched:
        reason = "a product of several matrices"
    elif old is not None and (len(old.uses()) > 1 or old.is_graph_output()):
        reason = "others read the weight, of which each would have factors of its own"
    elif size > _MOST_ELEMENTS:
        reason = f"the weight has {size:,} elements, more than {_MOST_ELEMENTS:,}"
    if reason:
        return FactorizedLayer(**{**vars(unchanged), "reason": reason})
    matrix = site.matrix(weight.astype(np.float32))[0]
    outputs, depth = matrix.shape
    most = (size - 1) // (outputs + depth)
    lanes = host().lanes(32)
    if most < 1:
        return FactorizedLayer(**{**vars(unchanged), "reason": "two factors of any rank have no fewer weights"})
    spectrum = Spectrum.of(matrix, moment)
    rank = max(round(share * full), 1) if share is not None else spectrum.rank_of(energy)
    # A rank between multiples of a vector takes the time of the next multiple.
    rank = -(-rank // lanes) * lanes if -(-rank // lanes) * lanes <= most else rank
    if rank > most:
        reason = f"the rank {rank} has no fewer weights: at most {most} has"
        return FactorizedLayer(**{**vars(unchanged), "reason": reason})
    _write(model, site, *spectrum.factors(rank), names, labels)
    return FactorizedLayer(site.label, node.op_type, full, rank, (size, rank * (outputs + depth)), "")


def _write(model: ir.Model, site: WeightSite, left: np.ndarray, right: np.ndarray, names: Names, labels: Names) -> None:
    """Write the first factor as a new layer ahead of the node, which gets the second one."""
    node, rank = site.node, len(right)
    source, old, result = node.inputs[0], node.inputs[1], node.outputs[0]
    attributes = [attribute for attribute in node.attributes.values() if attribute.name != "transB"]
    if node.op_type == "Conv":
        first, second = right.reshape(rank, *site.shape[1:]), left.reshape(*left.shape, *[1] * (len(site.shape) - 2))
    elif node.op_type == "MatMul":
        first, second = right.T, left.T
    else:
        first, second = right, left
        attributes.append(ir.AttrInt64("transB", 1))
    arrays = [("first", first), ("second", second)]
    if node.op_type == "Gemm" and model.opset_imports.get("", 0) < _OPTIONAL_BIAS:
        arrays.append(("bias", np.zeros(rank)))
    values = []
    for suffix, array in arrays:
        name = names.fresh(f"{old.name if old is not None else site.label}_{suffix}")
        tensor = ir.Tensor(np.ascontiguousarray(array, site.weight.dtype), dtype=site.tensor.dtype, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        model.graph.register_initializer(value)
        values.append(value)
    reduced = ir.Node(
        "",
        node.op_type,
        [source, values[0], *values[2:]],
        attributes,
        num_outputs=1,
        name=labels.fresh(f"{site.label}_factor"),
    )
    reduced.outputs[0].name, reduced.outputs[0].type = names.fresh(f"{result.name}_factor"), result.type
    model.graph.insert_before(node, [reduced])
    node.replace_input_with(0, reduced.outputs[0])
    node.replace_input_with(1, values[1])
    if node.op_type == "Gemm":
        node.attributes["transB"] = ir.AttrInt64("transB", 1)
    if node.op_type == "Conv":
        for name in ("pads", "strides", "dilations", "auto_pad"):
            node.attributes.pop(name, None)
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", [1] * (len(site.shape) - 2))
    if old is not None and not old.uses() and old.is_initializer() and not old.is_graph_output():
        model.graph.initializers.pop(str(old.name), None)
