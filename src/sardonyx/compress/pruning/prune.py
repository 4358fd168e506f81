"""`prune`: fewer channels, heads or layers, or fewer nonzero weights, with measured evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

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
from sardonyx.compress.pruning.activations import Activations, observe
from sardonyx.compress.pruning.blocks import RemovedLayer, choose_blocks, contributions, find_blocks, remove_blocks
from sardonyx.compress.pruning.channels import ChannelGraph
from sardonyx.compress.pruning.compensation import correct_readers
from sardonyx.compress.pruning.grouping import NORMALIZATIONS
from sardonyx.compress.pruning.layer_inputs import LayerInputs
from sardonyx.compress.pruning.masks import MaskedLayer, Pattern, mask_weights, weighted_inputs
from sardonyx.compress.pruning.operators import find_channels
from sardonyx.compress.pruning.scores import output_changes, score_by_changes, score_channels
from sardonyx.compress.pruning.sharing import bytes_of_constants
from sardonyx.compress.pruning.shrink import (
    LayerChannels,
    choose_channels,
    free_channels,
    layer_channels,
    padded_work,
    remove_channels,
    stays_after,
)
from sardonyx.compress.pruning.sizes import join_lists, separate_lists, state_split_sizes
from sardonyx.compress.quantization.placement import (
    RECURRENT,
    find_placement,
    recurrent_label,
    recurrent_notes,
    without_layers,
)
from sardonyx.compress.quantization.preparation import weight_bytes
from sardonyx.compress.quantization.site_inputs import Needs
from sardonyx.compress.recovery import distill, reconstruct
from sardonyx.compress.samples import Data, Preprocess, Split, read_samples, split_samples
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.pipeline import exact_passes

_MOST_ALIGNED_LOSS = 1.25
"""The importance of channels that go in whole vectors, relative to that of the least important channels."""

Kind = Literal["channels", "heads", "layers", "sparsity"]

CRITERIA: Mapping[Kind, tuple[str, ...]] = {
    "channels": ("magnitude", "activation", "taylor"),
    "heads": ("magnitude", "activation", "taylor"),
    "layers": ("activation", "taylor"),
    "sparsity": ("magnitude", "activation", "wanda", "sparsegpt"),
}
"""The criteria of importance by kind."""

RECOVERIES = ("auto", "none", "bias", "reconstruct", "finetune")

STEPS = 200
"""Steps of fine-tuning unless the caller states others."""

MOST_REREAD = 512
"""Samples in memory for the methods that read samples more than once."""

_TAYLOR_SAMPLES = 48


@dataclass(frozen=True)
class PruningReport:
    """The evidence of a pruning.

    Attributes:
        kind: ``"channels"`` or ``"heads"`` for smaller shapes, ``"layers"`` for fewer layers, ``"sparsity"`` for zeros.
        criterion: The importance of channels or weights.
        recovery: The recovery after the change.
        share: The share that the caller stated.
        pattern: The pattern of zeros; empty for none.
        removed: The number of removed channels (channels that are summed count once), heads or layers, or of zeros.
        candidates: The number of channels, heads or layers that can be removed, or of weights.
        layers: The layers, with the reasons of those that stay.
        weight_bytes: Bytes of weights, before and after.
        evidence: The samples, the errors of the outputs, the metric and the verdict.
        notes: Sentences for the user.
    """

    kind: Kind
    criterion: str
    recovery: str
    share: float
    pattern: str
    removed: int
    candidates: int
    layers: tuple[LayerChannels | MaskedLayer | RemovedLayer, ...]
    weight_bytes: tuple[int, int]
    evidence: Evidence
    notes: tuple[str, ...]


class Pruned(CompressionResult[PruningReport]):
    """A pruned model."""


def prune(
    model: Loadable,
    data: Data | None = None,
    *,
    channels: float | None = None,
    heads: float | None = None,
    layers: float | None = None,
    sparsity: float | None = None,
    pattern: str | None = None,
    criterion: str = "auto",
    recover: str = "auto",
    steps: int = STEPS,
    align: bool | None = None,
    preprocess: Preprocess | None = None,
    evaluate: Evaluate | None = None,
    drop: float | None = None,
    exclude: Collection[str] = (),
    seed: int = 0,
) -> Pruned:
    """Remove channels, heads or layers, or set weights to zero, and measure the error of the outputs.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        data: Samples of real inputs, as for :func:`sardonyx.quantize`; every fourth sample judges the result, and
            the others serve scores and recovery.
        channels: The share of channels to remove, of the channels that can be removed; above 0 and below 1.
        heads: The share of attention heads to remove, in place of `channels`.
        layers: The share of residual branches with weights to remove, in place of `channels`; needs data.
        sparsity: The share of weights to set to zero in every layer, in place of `channels`.
        pattern: ``"N:M"`` for N nonzero weights of M consecutive input channels, with its sparsity, or ``"RxC"`` for
            whole blocks of R outputs and C input channels.
        criterion: The importance: ``"magnitude"`` of weights, ``"activation"`` (mean absolute activation times the norm
            of the weight), ``"taylor"`` (the expected change of the outputs, by gradients), for zeros ``"wanda"`` and
            ``"sparsegpt"``; all but the first need data. ``"auto"`` is ``"taylor"`` for heads with data,
            ``"activation"`` for layers, ``"sparsegpt"`` for zeros with data, else ``"magnitude"``.
        recover: ``"none"``, ``"bias"`` (correction by the mean of the removed products), ``"reconstruct"`` (least
            squares per layer), ``"finetune"`` (reconstruction, then steps on the answers of the original), or
            ``"auto"``: reconstruction with data, for zeros the correction of biases.
        steps: Steps of ``"finetune"``.
        align: If True, layers lose channels in pieces that leave whole vectors of the processor; by default if the
            products of padded layers are not more than those of the plain choice.
        preprocess: A function or a model that computes feeds from the items of the data.
        evaluate: A function of a session that returns the metric, higher is better; see ``compress.evidence``.
        drop: The largest permitted loss of the metric, for the verdict.
        exclude: Names of nodes, or operators, whose channels and weights stay.
        seed: The seed of random directions, draws and orders.

    Returns:
        The model and the evidence.

    Raises:
        OptionError: An option is impossible, a name in `exclude` is unknown, or the data hold no sample or
            samples that do not fit.
        UnsupportedError: No channel, head, layer or weight of the model can be pruned, or no gradient reaches one; the
            message has the reasons.
        EvaluationError: A weight, a sample or an activation is not finite, or the evaluate function raised.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> result = sardonyx.prune("model.onnx", data="real.npz", channels=0.3)
        >>> result.save("small.onnx")
    """
    zeros = Pattern.of_text(pattern)
    kind, share = _share({"channels": channels, "heads": heads, "layers": layers, "sparsity": sparsity}, zeros)
    criterion = _criterion(criterion, kind, has_data=data is not None)
    recover = _recovery(recover, kind, has_data=data is not None)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise OptionError(f"expected at least 1, got {steps!r}.", where="steps")
    require_metric(drop, evaluate)
    exclude = require_names(exclude, "exclude")
    source = load(model)
    prepared = optimize(source, verify=False, passes=[*exact_passes(), "inline_functions"], growth=0).model
    infer_shapes(prepared)
    result = copy_model(prepared)
    _require_known(exclude, source, result)
    split = None if data is None else split_samples(read_samples(data, result, preprocess))
    work = _Work(prepared, result, kind, share, criterion, recover, exclude, seed, _Samples(split))
    if kind == "sparsity":
        work.mask(zeros)
    elif kind == "layers":
        work.remove_layers()
    else:
        work.remove_channels(align)
    if kind in ("heads", "layers"):
        work.notes += recurrent_notes(work.result, "No weight of recurrent layers is pruned")
    work.recover(steps)
    work.samples.finish()
    evidence = judge(source, work.result, split, evaluate, drop)
    report = PruningReport(
        kind, criterion, recover, share, zeros.text, work.removed, work.candidates, work.layers,
        (weight_bytes(prepared), weight_bytes(work.result)), evidence, tuple(work.notes),
    )  # fmt: skip
    store(work.result, "prune", report)
    return Pruned(work.result, report)


class _Samples:
    """Samples to learn from: one stream, whose head stays in memory for further passes."""

    def __init__(self, split: Split | None) -> None:
        self._split, self._head = split, list[Mapping[str, Any]]()
        self._is_read = False

    @property
    def exist(self) -> bool:
        """True if there are data."""
        return self._split is not None

    def stream(self) -> Iterator[Mapping[str, Any]]:
        """Yield all samples; after the first pass those in memory."""
        if self._split is None or self._is_read:
            yield from self._head
            return
        self._is_read = True
        for sample in self._split.fitting():
            if len(self._head) < MOST_REREAD:
                self._head.append(sample)
            yield sample

    def finish(self) -> None:
        """Read the samples to their end: without scores and recovery none is read, and those held back judge."""
        for _ in () if self._is_read else self.stream():
            pass

    def head(self, most: int = MOST_REREAD) -> list[Mapping[str, Any]]:
        """Return the samples in memory, at most a number."""
        self.finish()
        return self._head[:most]


@dataclass
class _Work:
    """One pruning in progress.

    Attributes:
        prepared: The original after exact rewrites.
        result: The pruned model, changed in place.
        remaining: True for the outputs of a layer that stay, by the name of the layer.
    """

    prepared: ir.Model
    result: ir.Model
    kind: Kind
    share: float
    criterion: str
    recovery: str
    exclude: Collection[str]
    seed: int
    samples: _Samples
    removed: int = 0
    candidates: int = 0
    layers: tuple[LayerChannels | MaskedLayer | RemovedLayer, ...] = ()
    notes: list[str] = field(default_factory=list)
    remaining: dict[str, np.ndarray] = field(default_factory=dict)

    def remove_channels(self, align: bool | None) -> None:
        """Remove channels or heads."""
        state_split_sizes(self.result)
        separate_lists(self.result)
        graph = self._channels()
        axes = {
            value: graph.axes[value].index
            for cut in graph.cuts
            if cut.role == "consumer" and (value := cut.node.inputs[0]) is not None
        }
        seen = None
        if self.samples.exist and (self.recovery != "none" or self.criterion == "activation"):
            seen = observe(self.result, axes, self.samples.stream())
        free, removed = self._choose(graph, self._channel_score(graph, axes, seen), align)
        before, after = bytes_of_constants(graph, removed)
        if removed and after >= before:
            # Copies of vectors that layers share take more than the removed channels save.
            graph = self._channels(vectors=True)
            free, removed = self._choose(graph, self._channel_score(graph, axes, seen), align)
        self.layers = layer_channels(graph, removed)
        for cut in graph.cuts:
            if cut.role == "producer" or (cut.role == "parameter" and cut.index == 1 and cut.node.op_type == "Conv"):
                self.remaining[node_label(cut.node)] = stays_after(graph, cut.ids, removed)
        corrected = 0 if seen is None else correct_readers(self.result, graph, removed, seen.means)
        remove_channels(self.result, graph, removed)
        join_lists(self.result)
        infer_shapes(self.result)
        self.removed, self.candidates = len(removed), len(free)
        if not removed:
            self.notes.append(f"No channel was removed: the share {self.share:g} of {len(free)} is too small.")
        elif abs(len(removed) - round(self.share * len(free))) > 0:
            self.notes.append(f"{len(removed)} of {len(free)} were removed: every layer keeps at least one, or whole "
                              "vectors.")  # fmt: skip
        self._note_biases(corrected)
        self._note_statistics(graph, removed)

    def _channels(self, *, vectors: bool = False) -> ChannelGraph:
        """Return the channels of the model, of which some can be removed."""
        graph = find_channels(self.result, self.exclude, vectors=vectors)
        if not free_channels(graph, heads=self.kind == "heads"):
            reasons = "; ".join(dict.fromkeys(graph.fixed_roots().values())) or without_layers(self.result)
            noun = "channel" if self.kind == "channels" else "head"
            raise UnsupportedError(f"no {noun} can be removed: {reasons}.", where=self._where)
        return graph

    def _choose(
        self, graph: ChannelGraph, score: Callable[[], dict[int, float]], align: bool | None
    ) -> tuple[set[int], set[int]]:
        """Return the representing channels that can be removed, and those to remove."""
        graph.balance(score())
        free = free_channels(graph, heads=self.kind == "heads")
        return free, self._chosen(graph, score(), free, align)

    def _channel_score(
        self, graph: ChannelGraph, axes: Mapping[ir.Value, int], seen: Activations | None
    ) -> Callable[[], dict[int, float]]:
        """Return the function that scores the representing channels by what is known of the layers."""
        if self.criterion == "taylor":
            inner = {value: axis for value, axis in axes.items() if value.producer() is not None}
            samples = self.samples.head(_TAYLOR_SAMPLES)
            return partial(score_by_changes, graph, output_changes(self.result, inner, samples, self.seed))
        magnitudes = seen.magnitudes if seen is not None and self.criterion == "activation" else None
        return partial(score_channels, graph, magnitudes)

    def _chosen(
        self, graph: ChannelGraph, scores: Mapping[int, float], free: Collection[int], align: bool | None
    ) -> set[int]:
        """Return the channels to remove: in whole vectors if that is less work, or requested."""
        lanes = host().lanes(32)
        plain = choose_channels(graph, scores, self.share, free)
        if align is False or self.kind == "heads" or lanes == 1:
            return plain
        whole = choose_channels(graph, scores, self.share, free, lanes)
        losses = [sum(scores[root] for root in removed) for removed in (plain, whole)]
        is_harmful = losses[1] > _MOST_ALIGNED_LOSS * losses[0]
        is_more_work = padded_work(graph, whole, lanes) > padded_work(graph, plain, lanes)
        if align is None and (not whole or is_harmful or is_more_work):
            return plain
        if whole != plain:
            self.notes.append(f"Layers keep multiples of {lanes} channels, the lanes of a vector here.")
        return whole

    def remove_layers(self) -> None:
        """Remove residual branches."""
        blocks = find_blocks(self.result, self.exclude)
        if not blocks:
            raise UnsupportedError("no residual branch with weights can be removed.", where=self._where)
        if self.criterion == "taylor":
            inner = {block.branch: None for block in blocks}
            changes = output_changes(self.result, inner, self.samples.head(_TAYLOR_SAMPLES), self.seed)
            scores = {block: float(changes[block.branch].sum()) for block in blocks}
        else:
            axes = {value: 0 for block in blocks for value in (block.stream, block.branch)}
            scores = contributions(blocks, observe(self.result, axes, self.samples.stream()).powers)
        removed = choose_blocks(scores, self.share)
        self.layers = tuple(
            RemovedLayer(node_label(one.sum), one.sum.op_type, one.weights, scores[one], one in removed, "")
            for one in blocks
        )
        self.removed, self.candidates = len(removed), len(blocks)
        remove_blocks(self.result, removed)
        infer_shapes(self.result)
        if not removed:
            self.notes.append(f"No layer was removed: the share {self.share:g} of {len(blocks)} is less than one.")

    def mask(self, pattern: Pattern) -> None:
        """Set weights to zero."""
        if not weighted_inputs(self.result):
            raise UnsupportedError(f"no weight can be masked: {without_layers(self.result)}.", where=self._where)
        statistics = self._inputs() if self.samples.exist else None
        layers, corrected = mask_weights(self.result, self.share, pattern, self.criterion, statistics, self.exclude)
        if all(layer.fixed for layer in layers):
            reasons = "; ".join(f"{layer.name}: {layer.fixed}" for layer in layers[:3])
            raise UnsupportedError(f"no weight can be masked ({reasons}).", where=self._where)
        self.layers = layers
        self.removed = sum(layer.zeros for layer in layers)
        self.candidates = sum(layer.weights for layer in layers)
        self.notes.append("Zeros save neither bytes nor time here: weights are stored and multiplied densely. A "
                          "compressed file is smaller, and engines with sparse kernels may be faster.")  # fmt: skip
        self._note_biases(corrected)

    def _inputs(self) -> LayerInputs:
        """Return the statistics by which weights become zero."""
        second = self.criterion in ("wanda", "sparsegpt")
        needs = Needs(self.recovery != "none", magnitudes=self.criterion == "activation", second_moments=second)
        if self.criterion == "wanda":
            needs = replace(needs, most_bytes=0)  # Norms alone: second moments take as much as the weights.
        placement = find_placement(self.prepared)
        # Weights of recurrent layers are masked too; the state, which the other weight reads, is not observed.
        sites = [*placement.sites, *(site for site in placement.inner if site.node.op_type in RECURRENT)]
        order = {one.label: number for number, one in enumerate(weighted_inputs(self.prepared))}
        sites = sorted((site for site in sites if site.label in order), key=lambda site: order[site.label])
        return LayerInputs(self.prepared, sites, needs, self.samples.stream, weight_bytes(self.prepared))

    def recover(self, steps: int) -> None:
        """Refit layers, and train on the answers of the original."""
        if not self.removed or self.recovery not in ("reconstruct", "finetune"):
            return
        samples = self.samples.head()
        if self.kind != "sparsity":
            count = reconstruct(self.prepared, self.result, samples, self.remaining, seed=self.seed)
            self.notes.append(f"{count} layers are refitted to the results of the original, by least squares.")
        if self.recovery == "finetune":
            if len(samples) < 2:
                raise OptionError("fine-tuning needs at least 2 samples.", where="data")
            self.result, losses = distill(
                self.result, self.prepared, samples, steps=steps, keep_zeros=self.kind == "sparsity", seed=self.seed
            )
            self.notes.append(f"{steps} steps on the answers of the original: relative error {losses[0]:.3g} -> "
                              f"{losses[1]:.3g} on samples that were not trained on.")  # fmt: skip

    def _note_biases(self, corrected: int) -> None:
        if corrected:
            self.notes.append(f"The biases of {corrected} layers are corrected by the mean of the removed products.")

    def _note_statistics(self, graph: ChannelGraph, removed: Collection[int]) -> None:
        changed = [
            node_label(group.node)
            for group in graph.balanced
            if facts.is_op(group.node, *NORMALIZATIONS) and not stays_after(graph, group.ids.reshape(-1), removed).all()
        ]
        if changed:
            self.notes.append("Mean and variance of a normalization in few groups are those of the channels that "
                              f"remain: {', '.join(changed)}.")  # fmt: skip

    @property
    def _where(self) -> str:
        return str(self.prepared.graph.name or "model")


def _share(shares: Mapping[Kind, float | None], pattern: Pattern) -> tuple[Kind, float]:
    """Return the kind of pruning, and the share to remove."""
    stated: list[tuple[Kind, float]] = [(kind, share) for kind, share in shares.items() if share is not None]
    if pattern.text and shares["sparsity"] is None:
        raise OptionError("a pattern needs a sparsity.", where="pattern", remedy="Give sparsity=0.5.")
    if len(stated) != 1:
        names = " and ".join(f"`{kind}`" for kind, _ in stated)
        raise OptionError(
            f"expected one of `channels`, `heads`, `layers` and `sparsity`, got {names or 'none'}.",
            where="channels, heads, layers, sparsity",
            remedy="Give channels=0.3 for smaller shapes, or sparsity=0.5 for zeros.",
        )
    kind, share = stated[0]
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not math.isfinite(share) or not 0 < share < 1:
        raise OptionError(f"expected a share above 0 and below 1, got {share!r}.", where=kind)
    if pattern.share is not None and not math.isclose(share, pattern.share):
        raise OptionError(
            f"the pattern {pattern.text} has a sparsity of {pattern.share:g}, got {share:g}.", where="sparsity"
        )
    return kind, float(share)


def _criterion(criterion: str, kind: Kind, *, has_data: bool) -> str:
    known = CRITERIA[kind]
    if criterion == "auto":
        with_data = {"channels": "magnitude", "heads": "taylor", "layers": "activation", "sparsity": "sparsegpt"}
        criterion = with_data[kind] if has_data else "magnitude"
    if kind == "layers" and not has_data:
        raise OptionError("the importance of layers needs data.", where="criterion", remedy="Give samples.")
    if criterion not in known:
        raise OptionError(f"expected one of auto, {', '.join(known)} for {kind}, got {criterion!r}.", where="criterion")
    if criterion != "magnitude" and not has_data:
        raise OptionError(f"the criterion {criterion} needs data.", where="criterion", remedy="Give samples.")
    return criterion


def _recovery(recover: str, kind: Kind, *, has_data: bool) -> str:
    if recover not in RECOVERIES:
        raise OptionError(f"expected one of {', '.join(RECOVERIES)}, got {recover!r}.", where="recover")
    if recover not in ("auto", "none") and not has_data:
        raise OptionError(f"the recovery {recover} needs data.", where="recover", remedy="Give samples.")
    if recover == "reconstruct" and kind == "sparsity":
        raise OptionError(
            "least squares would fill the zeros.", where="recover", remedy="Use criterion='sparsegpt', or 'finetune'."
        )
    if recover != "auto":
        return recover
    return "none" if not has_data else "bias" if kind == "sparsity" else "reconstruct"


def _require_known(exclude: Collection[str], *models: ir.Model) -> None:
    """Raise OptionError for a name that is neither a node nor an operator of the models."""
    nodes = [node for model in models for graph in facts.graphs_of(model.graph) for node in graph]
    labels = {label for node in nodes for label in (node_label(node), node.op_type)}
    labels |= {recurrent_label(node, index) for node in nodes if node.op_type in RECURRENT for index in (1, 2)}
    unknown = [name for name in exclude if name not in labels]
    if unknown:
        raise OptionError(f"the model has no node and no operator {', '.join(unknown)}.", where="exclude")
