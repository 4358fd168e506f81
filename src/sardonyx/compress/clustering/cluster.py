"""`cluster`: weights as indices into a palette of shared values, with measured evidence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.base.option_checks import require_names
from sardonyx.compress.clustering.palette import nearest, palette_of
from sardonyx.compress.evidence import (
    CompressionResult,
    Evaluate,
    Evidence,
    judge,
    require_metric,
    store,
)
from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.placement import NOT_FINITE, WeightSite, find_placement
from sardonyx.compress.quantization.plain_forms import write_plain_forms
from sardonyx.compress.quantization.preparation import prepare_layers
from sardonyx.compress.quantization.site_inputs import Needs, SiteInput
from sardonyx.compress.samples import Data, Preprocess, read_samples, split_samples
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load, to_proto
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.analysis.names import Names, value_names
from sardonyx.rewrite.opset import convert_opset

_UINT4_OPSET = 21
"""First operator set whose Cast reads uint4."""

_NODE_BYTES = 400
"""Bytes of the nodes and names that restore a weight, about: a smaller saving is none."""


@dataclass(frozen=True)
class ClusteredLayer:
    """A layer with a weight.

    Attributes:
        name: The name of the node.
        op_type: The operator.
        values: The number of shared values; 0 if the layer is unchanged.
        error: The squared error of the weight over its power.
        reason: The reason why the layer is unchanged; empty if clustered.
    """

    name: str
    op_type: str
    values: int
    error: float
    reason: str


@dataclass(frozen=True)
class ClusteringReport:
    """The evidence of a clustering.

    Attributes:
        bits: Bits of an index.
        layers: The layers with weights.
        file_bytes: Bytes of the file, before and after.
        evidence: The samples, the errors of the outputs, the metric and the verdict.
        notes: Sentences for the user.
    """

    bits: int
    layers: tuple[ClusteredLayer, ...]
    file_bytes: tuple[int, int]
    evidence: Evidence
    notes: tuple[str, ...]


class Clustered(CompressionResult[ClusteringReport]):
    """A model of shared weights."""


def cluster(
    model: Loadable,
    data: Data | None = None,
    *,
    bits: int = 4,
    preprocess: Preprocess | None = None,
    evaluate: Evaluate | None = None,
    drop: float | None = None,
    exclude: Collection[str] = (),
) -> Clustered:
    """Share the weights of each layer: a palette of 2^bits values, an index an element, and a scale an output channel.

    Layers are those of bodies of control flow too, recurrent ones, and tables of embeddings (a scale per row). The file
    is smaller, in standard operators (Cast, Gather, Mul of constants); engines restore the weights when they load the
    model, so that a run takes the time of the original. With data, elements that read large inputs weigh more.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        data: Samples of real inputs, as for :func:`sardonyx.quantize`; every fourth one judges the result.
        bits: Bits of an index, 4 (operator set 21, raised if needed) or 8.
        preprocess: A function or a model that computes feeds from the items of the data.
        evaluate: A function of a session that returns the metric, higher is better; see ``compress.evidence``.
        drop: The largest permitted loss of the metric, for the verdict.
        exclude: Names of nodes, or operators, whose weights stay.

    Returns:
        The model and the evidence.

    Raises:
        OptionError: An option is impossible, or the data hold no sample or samples that do not fit.
        UnsupportedError: No weight has fewer bytes as a palette.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> result = sardonyx.cluster("model.onnx", data="real.npz", bits=4)
        >>> result.save("small.onnx")
    """
    if bits not in (4, 8) or isinstance(bits, bool):
        raise OptionError(f"expected 4 or 8, got {bits!r}.", where="bits")
    require_metric(drop, evaluate)
    source = load(model)
    result = prepare_layers(source)
    notes = []
    opset = result.opset_imports.get("", _UINT4_OPSET)  # Without nodes of the standard domain there are no weights.
    if bits == 4 and opset < _UINT4_OPSET:
        notes.append(f"The operator set was raised from {opset} to {_UINT4_OPSET}, which uint4 needs.")
        result = convert_opset(result, _UINT4_OPSET)
    infer_shapes(result)
    notes += write_plain_forms(result)
    placement = find_placement(result, require_names(exclude, "exclude"))
    split = None if data is None else split_samples(read_samples(data, result, preprocess))
    inputs: dict[str, SiteInput] = {}
    if split is not None:
        needs = Needs(second_moments=True, most_bytes=0)
        inputs = Observation(result, [], split.fitting(), placement.sites, needs).inputs
    names = Names(value_names(result))
    shared: dict[ir.Value, ClusteredLayer] = {}
    layers = []
    weights = [(site, site.node.inputs[site.index]) for site in (*placement.all_sites, *placement.tables)]
    for site, value in weights:
        raise_if_cancelled()
        assert value is not None
        if value not in shared:
            shared[value] = _clustered(result, site, inputs.get(site.label), bits, names)
        layers.append(replace(shared[value], name=site.label, op_type=site.node.op_type))
    layers += [
        ClusteredLayer(one.name, one.op_type, 0, 0.0, one.reason)
        for one in placement.floats
        if one.reason == NOT_FINITE
    ]
    if all(layer.reason for layer in layers):
        reasons = [f"{layer.name}: {layer.reason}" for layer in layers[:3]]
        stated = "; ".join(reasons) or "no layer has a constant weight"
        raise UnsupportedError(f"no weight is smaller as a palette ({stated}).", where=str(source.graph.name))
    evidence = judge(source, result, split, evaluate, drop)
    report = _store_report(source, result, ClusteringReport(bits, tuple(layers), (0, 0), evidence, tuple(notes)))
    return Clustered(result, report)


def _store_report(source: ir.Model, result: ir.Model, report: ClusteringReport) -> ClusteringReport:
    """Store a report in the model with the bytes of the file, of which it is a part, and return it.

    Raises:
        UnsupportedError: The file is not smaller than that of the original.
    """
    notes, before, after = report.notes, int(to_proto(source).ByteSize()), 0
    # The number of bytes is in the report, and may change its length.
    while report.file_bytes != (before, after) or not after:
        note = (
            f"The file has {before:,} -> {after:,} bytes; a run takes the time and memory of the original, since "
            "engines restore the weights when they load the model."
        )
        report = replace(report, file_bytes=(before, after), notes=(*notes, note))
        store(result, "cluster", report)
        after = int(to_proto(result).ByteSize())
    if after >= before:
        raise UnsupportedError(
            f"no file is smaller by palettes: {before:,} bytes, with palettes and report {after:,}.",
            where=str(source.graph.name),
        )
    return report


def _clustered(model: ir.Model, site: WeightSite, seen: SiteInput | None, bits: int, names: Names) -> ClusteredLayer:
    """Replace one weight by a palette if that has fewer bytes, and report the layer."""
    old, weight = site.node.inputs[site.index], site.weight
    assert old is not None
    unchanged = ClusteredLayer(site.label, site.node.op_type, 0, 0.0, "")
    if old.is_graph_output():
        return ClusteredLayer(**{**vars(unchanged), "reason": "the weight is an output of the model"})
    saved = weight.nbytes - weight.size * bits // 8 - 4 * (1 << bits) - 4 * site.channels
    if saved <= _NODE_BYTES:
        return ClusteredLayer(**{**vars(unchanged), "reason": "the weight is too small to save bytes"})
    axes = tuple(axis for axis in range(weight.ndim) if axis != site.channel_axis)
    scale = np.abs(weight).max(axes, keepdims=True).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1))
    level = (weight / scale).astype(np.float64)
    importance = np.broadcast_to(np.square(scale, dtype=np.float64), weight.shape)
    if seen is not None and seen.squares is not None:
        rows = np.broadcast_to(seen.squares[:, None], site.matrix().shape)
        importance = importance * site.from_matrix(np.ascontiguousarray(rows))
    palette = palette_of(level.reshape(-1), importance.reshape(-1), 1 << bits)
    indices = nearest(level, palette)
    error = float(np.square(palette[indices] * scale - weight, dtype=np.float64).sum())
    power = float(np.square(weight, dtype=np.float64).sum()) or 1.0
    stored = indices if bits == 8 else indices.astype(ml_dtypes.uint4)
    kind = ir.DataType.UINT8 if bits == 8 else ir.DataType.UINT4
    base = str(old.name)
    parts = {
        "indices": ir.Tensor(stored, dtype=kind), "palette": ir.Tensor(palette), "scale": ir.Tensor(scale),
    }  # fmt: skip
    values = {key: _initializer(model, names.fresh(f"{base}_{key}"), tensor) for key, tensor in parts.items()}
    steps = [ir.node("Cast", [values["indices"]], {"to": int(ir.DataType.INT32)})]
    steps.append(ir.node("Gather", [values["palette"], steps[0].outputs[0]]))
    steps.append(ir.node("Mul", [steps[1].outputs[0], values["scale"]]))
    for step in steps:
        step.name = step.outputs[0].name = names.fresh(f"{base}_{step.op_type.lower()}")
        step.outputs[0].shape = ir.Shape(weight.shape)
        step.outputs[0].type = ir.TensorType(ir.DataType.INT32 if step.op_type == "Cast" else ir.DataType.FLOAT)
    model.graph.insert_before(next(iter(model.graph)), steps)
    old.replace_all_uses_with(steps[-1].outputs[0])
    constant, graph = old.producer(), old.graph
    assert graph is not None
    if constant is None:
        del graph.initializers[base]
    else:
        graph.remove(constant, safe=True)
    return ClusteredLayer(site.label, site.node.op_type, len(palette), error / power, "")


def _initializer(model: ir.Model, name: str, tensor: ir.Tensor[np.ndarray]) -> ir.Value:
    tensor.name = name
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
    model.graph.register_initializer(value)
    return value
