"""`prune`: fewer channels or fewer nonzero weights, with measured evidence."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx.compress.evidence import (
    HELD_OUT,
    ON_FITTED,
    WITHOUT_DATA,
    Evaluate,
    Evidence,
    OutputError,
    compare_metrics,
    output_errors,
    store,
)
from sardonyx.compress.pruning.channels import ChannelGraph, Cut
from sardonyx.compress.pruning.compensation import correct_bias
from sardonyx.compress.pruning.masks import MaskedLayer, mask_weights, weighted_nodes
from sardonyx.compress.pruning.operators import find_channels
from sardonyx.compress.pruning.shrink import (
    LayerChannels,
    choose_channels,
    has_free_channels,
    layer_channels,
    remove_channels,
    score_channels,
    stays_after,
)
from sardonyx.compress.samples import Data, Preprocess, read_samples, split_samples
from sardonyx.errors import EvaluationError, OptionError, UnsupportedError
from sardonyx.model import Loadable, load, save
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import facts
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.pipeline import exact_passes
from sardonyx.runtime.session import Session

CRITERIA = ("auto", "magnitude", "activation")


@dataclass(frozen=True)
class PruningReport:
    """The evidence of a pruning.

    Attributes:
        kind: ``"channels"`` for smaller shapes, ``"sparsity"`` for zeros.
        criterion: The importance of channels or weights: ``"magnitude"`` or ``"activation"``.
        share: The share that the caller stated.
        pattern: The pattern of zeros; empty for none.
        removed: The number of removed channels (channels that are summed count once), or of zeros.
        candidates: The number of channels that can be removed, or of weights.
        layers: The layers, with the reasons of those that stay.
        weight_bytes: Bytes of weights, before and after.
        evidence: The samples, the errors of the outputs, the metric and the verdict.
        notes: Sentences for the user.
    """

    kind: Literal["channels", "sparsity"]
    criterion: str
    share: float
    pattern: str
    removed: int
    candidates: int
    layers: tuple[LayerChannels | MaskedLayer, ...]
    weight_bytes: tuple[int, int]
    evidence: Evidence
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Pruned:
    """A pruned model.

    Attributes:
        model: The model.
        report: The evidence.
    """

    model: ir.Model
    report: PruningReport

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file; see :func:`sardonyx.save`."""
        save(self.model, path)


def prune(
    model: Loadable,
    data: Data | None = None,
    *,
    channels: float | None = None,
    sparsity: float | None = None,
    pattern: str | None = None,
    criterion: str = "auto",
    preprocess: Preprocess | None = None,
    evaluate: Evaluate | None = None,
    drop: float | None = None,
    exclude: Collection[str] = (),
) -> Pruned:
    """Remove channels from the shapes of a model, or set weights to zero, and measure the error of the outputs.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        data: Samples of real inputs, as for :func:`sardonyx.quantize`. Biases are corrected by the mean of
            the removed products; every fourth sample judges the result.
        channels: The share of channels to remove, of the channels that can be removed; above 0 and below 1.
        sparsity: The share of weights to set to zero in every layer, in place of `channels`.
        pattern: ``"2:4"`` for two zeros of four consecutive input channels; needs a sparsity of 0.5.
        criterion: The importance: ``"magnitude"`` of weights, ``"activation"`` (mean absolute activation times the norm
            of the weight, needs data), or ``"auto"``: ``"activation"`` for zeros with data, else ``"magnitude"``.
        preprocess: A function or a model that computes feeds from the items of the data.
        evaluate: A function of a session that returns the metric, higher is better; see ``compress.evidence``.
        drop: The largest permitted loss of the metric, for the verdict.
        exclude: Names of nodes, or operators, whose channels and weights stay.

    Returns:
        The model and the evidence.

    Raises:
        OptionError: An option is impossible, a name in `exclude` is unknown, or the data hold no sample or
            samples that do not fit.
        UnsupportedError: No channel or weight of the model can be pruned; the message has the reasons.
        EvaluationError: A weight or an activation is not finite, or the evaluate function raised.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> result = sardonyx.prune("model.onnx", data="real.npz", channels=0.3)
        >>> result.save("small.onnx")
    """
    share = _share(channels, sparsity, pattern)
    criterion = _criterion(criterion, has_data=data is not None, masks=sparsity is not None)
    if drop is not None and evaluate is None:
        raise OptionError("a permitted loss needs an evaluate function.", where="drop", remedy="Give `evaluate`.")
    source = load(model)
    result = copy_model(optimize(source, verify=False, passes=[*exact_passes(), "inline_functions"]).model)
    infer_shapes(result)
    _require_known(exclude, source, result)
    before = _weight_bytes(result)
    split = None if data is None else split_samples(read_samples(data, result, preprocess))
    graph = find_channels(result, exclude) if channels is not None else None
    if graph is not None:
        fixed = graph.fixed_roots()
        if not has_free_channels(graph):
            reasons = "; ".join(dict.fromkeys(fixed.values())) or "no layer has a constant weight"
            raise UnsupportedError(f"no channel can be removed: {reasons}.", where=str(source.graph.name or "model"))
    elif not weighted_nodes(result):
        raise UnsupportedError("no layer has a constant weight.", where=str(source.graph.name or "model"))
    activations: dict[ir.Value, np.ndarray] | None = None
    means: dict[ir.Value, np.ndarray] = {}
    if split is not None:
        readers: dict[ir.Value, int]
        if graph is not None:
            readers = {
                value: graph.axes[value].index
                for cut in graph.cuts
                if cut.role == "consumer" and (value := cut.node.inputs[0]) is not None
            }
        else:
            readers = {v: _channel_axis(n) for n in weighted_nodes(result) if (v := n.inputs[0]) is not None}
        stream = split.fitting()
        magnitudes, means = _activations(result, readers, stream)
        activations = magnitudes if criterion == "activation" else None
    layers: tuple[LayerChannels | MaskedLayer, ...]
    notes: list[str] = []
    if graph is not None:
        removed_roots, candidates = choose_channels(graph, score_channels(graph, activations), share)
        layers = layer_channels(graph, removed_roots)
        corrected = _correct_readers(result, graph, removed_roots, means)
        remove_channels(result, graph, removed_roots)
        infer_shapes(result)
        removed = len(removed_roots)
        if removed < round(share * candidates):
            notes.append(f"{removed} of {candidates} channels were removed: every layer keeps at least one.")
        elif not removed:
            notes.append(f"No channel was removed: the share {share:g} of {candidates} is less than one.")
    else:
        masks, corrected = mask_weights(result, share, pattern, activations, means, exclude)
        if all(layer.fixed for layer in masks):
            reasons = "; ".join(f"{layer.name}: {layer.fixed}" for layer in masks[:3])
            raise UnsupportedError(f"no weight can be masked ({reasons}).", where=str(source.graph.name or "model"))
        layers = masks
        removed, candidates = sum(layer.zeros for layer in masks), sum(layer.weights for layer in masks)
        notes.append("Zeros save neither bytes nor time here: weights are stored and multiplied densely. A compressed "
                     "file is smaller, and engines with sparse kernels may be faster.")  # fmt: skip
    if corrected:
        notes.append(f"The biases of {corrected} layers are corrected by the mean of the removed products.")
    outputs: tuple[OutputError, ...] = ()
    if split is not None:
        outputs = output_errors(source, result, split.judged)
    change = None if evaluate is None else compare_metrics(source, result, evaluate, drop)
    judged = WITHOUT_DATA if split is None else HELD_OUT if split.is_held_out else ON_FITTED
    report = PruningReport(
        "channels" if graph is not None else "sparsity", criterion, share, pattern or "", removed, candidates, layers,
        (before, _weight_bytes(result)), Evidence(0 if split is None else split.count, judged, outputs, change),
        tuple(notes),
    )  # fmt: skip
    store(result, "prune", report)
    return Pruned(result, report)


def _share(channels: float | None, sparsity: float | None, pattern: str | None) -> float:
    """Return the share of channels or weights to remove."""
    if pattern is not None and pattern != "2:4":
        raise OptionError(f"expected '2:4', got {pattern!r}.", where="pattern")
    if pattern is not None and sparsity is None:
        raise OptionError("a pattern needs a sparsity.", where="pattern", remedy="Give sparsity=0.5.")
    if (channels is None) == (sparsity is None):
        raise OptionError(
            "expected one of `channels` and `sparsity`, got " + ("none." if channels is None else "both."),
            where="channels, sparsity",
            remedy="Give channels=0.3 for smaller shapes, or sparsity=0.5 for zeros.",
        )
    name, share = ("channels", channels) if channels is not None else ("sparsity", sparsity)
    if not isinstance(share, (int, float)) or not math.isfinite(share) or not 0 < share < 1:
        raise OptionError(f"expected a share above 0 and below 1, got {share!r}.", where=name)
    if pattern is not None and share != 0.5:
        raise OptionError(f"the pattern 2:4 has a sparsity of 0.5, got {share:g}.", where="sparsity")
    return float(share)


def _criterion(criterion: str, *, has_data: bool, masks: bool) -> str:
    if criterion == "taylor":
        raise OptionError(
            "scores by Taylor expansion need gradients of a loss on labelled data, which pruning does not compute.",
            where="criterion", remedy="Use 'activation' with data, or 'magnitude'.",
        )  # fmt: skip
    if criterion not in CRITERIA:
        raise OptionError(f"expected one of {', '.join(CRITERIA)}, got {criterion!r}.", where="criterion")
    if criterion == "activation" and not has_data:
        raise OptionError("scores of activations need data.", where="criterion", remedy="Give samples of real inputs.")
    return criterion if criterion != "auto" else "activation" if has_data and masks else "magnitude"


def _require_known(exclude: Collection[str], *models: ir.Model) -> None:
    """Raise OptionError for a name that is neither a node nor an operator of the models."""
    nodes = [node for model in models for graph in facts.graphs_of(model.graph) for node in graph]
    labels = {label for node in nodes for label in (node_label(node), node.op_type)}
    unknown = [name for name in exclude if name not in labels]
    if unknown:
        raise OptionError(f"the model has no node and no operator {', '.join(unknown)}.", where="exclude")


def _channel_axis(node: ir.Node) -> int:
    """Return the axis of the channels of a product's input 0."""
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and "transA" not in node.attributes):
        return -1
    return 0 if node.op_type == "Gemm" and node.attributes["transA"].value else 1


def _activations(
    model: ir.Model, readers: Mapping[ir.Value, int], samples: Iterable[Mapping[str, Any]]
) -> tuple[dict[ir.Value, np.ndarray], dict[ir.Value, np.ndarray]]:
    """Return the mean absolute activation, and the mean, per channel over samples, by value."""
    inputs = set(model.graph.inputs)
    inner = [value for value in readers if value not in inputs and not value.is_initializer()]
    session = Session(model, compile="wait") if inner else None
    sums: dict[ir.Value, Any] = {}
    signed: dict[ir.Value, Any] = {}
    count = 0
    for count, sample in enumerate(samples, 1):
        results = [] if session is None else session.run([str(value.name) for value in inner], sample)
        arrays = dict(zip(inner, results, strict=True))
        arrays |= {value: np.asarray(sample[str(value.name)]) for value in readers if value in inputs}
        for value, array in arrays.items():
            rows = np.moveaxis(np.asarray(array, np.float32), readers[value], 0)
            rows = rows.reshape(rows.shape[0], -1)
            means = np.abs(rows).mean(axis=1, dtype=np.float64)
            if not np.isfinite(means).all():
                raise EvaluationError(
                    "the activation holds NaN or infinity, or is empty.", where=f"{value.name}, sample {count - 1}",
                    remedy="Remove the sample.",
                )  # fmt: skip
            sums[value] = sums.get(value, 0.0) + means
            signed[value] = signed.get(value, 0.0) + rows.mean(axis=1, dtype=np.float64)
    return {v: total / count for v, total in sums.items()}, {v: total / count for v, total in signed.items()}


def _correct_readers(
    model: ir.Model, graph: ChannelGraph, removed: set[int], means: Mapping[ir.Value, np.ndarray]
) -> int:
    """Add the mean of removed channels to the biases of layers that read these; return the number of layers."""
    corrected = 0
    for cut in list(graph.cuts):
        value, weight = cut.node.inputs[0], facts.constant(cut.node.inputs[cut.index])
        stays = stays_after(graph, cut.ids, removed)
        if cut.role != "consumer" or value is None or value not in means or weight is None or stays.all():
            continue
        shape = [1] * weight.ndim
        shape[cut.axis] = len(stays)
        had_bias = len(cut.node.inputs) > 2 and cut.node.inputs[2] is not None
        if correct_bias(
            model, cut.node, np.where(stays.reshape(shape), np.zeros((), weight.dtype), weight), means[value]
        ):
            corrected += 1
            if not had_bias:
                ids = graph.axes[cut.node.outputs[0]].ids
                graph.cuts.append(Cut(cut.node, 2, 0, ids, "parameter"))
    return corrected


def _weight_bytes(model: ir.Model) -> int:
    tensors: list[Any] = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
