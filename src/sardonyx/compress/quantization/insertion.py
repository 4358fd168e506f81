"""Quantized models: QuantizeLinear and DequantizeLinear around float operators, dynamic products, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.bias_correction import has_corrected_mean, mean_error, write_bias
from sardonyx.compress.quantization.bias_scales import unite_scales
from sardonyx.compress.quantization.dynamic_products import DynamicProducts
from sardonyx.compress.quantization.forms.packed_weights import is_packable, write_lookup, write_product
from sardonyx.compress.quantization.placement import PRODUCTS, Placement, WeightSite
from sardonyx.compress.quantization.scheme import Affine, Scheme
from sardonyx.compress.quantization.targets import QuantizationTarget
from sardonyx.compress.quantization.tied_tables import TiedTables
from sardonyx.compress.quantization.weights import QuantizedWeight, quantize_weight
from sardonyx.compress.quantization.writer import Writer

Weights = Mapping[WeightSite, QuantizedWeight]
Readers = Sequence[tuple[ir.Node, int]]

_MOST_ROWS = 4096
"""Rows of a table whose rounding is measured."""

_MOST_NOISE = 1e-3
"""Mean noise of the channels of a table of integers over their power: products of 8 bits have about as much."""


def write_static(
    model: ir.Model,
    placement: Placement,
    target: QuantizationTarget,
    scheme: Scheme,
    maps: Mapping[ir.Value, Affine],
    weights: Weights,
    means: Mapping[str, np.ndarray],
    shifts: Mapping[str, np.ndarray] | None = None,
) -> list[str]:
    """Write a model with integer weights and activations.

    Args:
        model: The model, which is changed.
        placement: The places of integers in this model.
        target: The target.
        scheme: The scheme of the model.
        maps: The map of each activation.
        weights: The weights of sites.
        means: The mean row of the inputs of sites by label, which corrects the mean error of products; empty for none.
        shifts: The mean error of the rows of sites by label; see :func:`mean_error`.

    Returns:
        Sentences for the user.
    """
    writer = Writer(model)
    tables = _gathered(writer, tables_of(placement, scheme, "static"), target)
    tied = TiedTables(writer, target, tables, placement.all_sites)
    shared = _SharedWeights(writer, tied)
    weights = unite_scales(placement, maps, weights)
    opset = model.opset_imports.get("", 0)
    has_integer_bias = target.stores(ir.DataType.INT32, opset)
    for site in placement.all_sites:
        weight = shared.write(site, weights[site])
        x = site.input
        if x is not None and x in maps and (site.node, 0) in placement.reads[x]:
            correction = mean_error(site, weight, means.get(site.label), (shifts or {}).get(site.label))
            write_bias(writer, site, maps[x] if has_integer_bias else None, weight, correction)
    for value, affine in maps.items():
        _write_activation(writer, value, affine, placement.reads[value])
    notes = _write_tables(writer, tables, tied, target, scheme)
    notes += _left_tables(placement, tables, scheme, "static", target)
    if placement.inner:
        notes.append(
            f"{len(placement.inner)} weights of recurrent layers and of bodies of control flow are integers; their "
            "activations stay in float."
        )
    return notes


def write_without_ranges(
    model: ir.Model, placement: Placement, target: QuantizationTarget, scheme: Scheme, mode: str, weights: Weights,
    means: Mapping[str, np.ndarray],
) -> list[str]:  # fmt: skip
    """Write a model with integer weights, whose products quantize their input in each call if `mode` is ``"dynamic"``.

    Args:
        model: The model, which is changed.
        placement: The places of integers in this model.
        target: The target.
        scheme: The scheme.
        mode: ``"dynamic"`` or ``"weights"``.
        weights: The weights of the sites that read floats.
        means: The mean row of the inputs of sites by label, which corrects the mean error of products; empty for none.

    Returns:
        Sentences for the user.
    """
    writer = Writer(model)
    tables = _gathered(writer, tables_of(placement, scheme, mode), target)
    tied = TiedTables(writer, target, tables, placement.all_sites)
    shared = _SharedWeights(writer, tied)
    dynamic = DynamicProducts(writer, scheme, tied)
    notes = []
    packed = 0
    for site in placement.all_sites:
        weight = weights.get(site)
        is_packed = weight is not None and target.vendor and _is_packed(site, weight)
        if weight is not None and not is_packed:
            weight = shared.write(site, weight)
        if weight is not None and site.label in means and has_corrected_mean(site):
            write_bias(writer, site, None, weight, mean_error(site, weight, means[site.label]))
        if weight is None:
            dynamic.write(site)
        elif is_packed:
            old = site.node.inputs[site.index]
            assert old is not None and site.sum_axis is not None
            write_product(writer, site.node, weight, site.sum_axis, str(old.name))
            packed += 1
    notes += _write_tables(writer, tables, tied, target, scheme)
    notes += _left_tables(placement, tables, scheme, mode, target)
    if packed:
        notes.append(f"{packed} products are MatMulNBits of com.microsoft, for {target.name}.")
    whole = [site for site in placement.all_sites if scheme.of_weight(site.sum_axis) != scheme]
    if whole:
        notes.append(f"The weights of {len(whole)} convolutions have 8 bits: 4 bits need blocks along one summed axis.")
    if mode == "dynamic":
        count = len(placement.all_sites)
        if count:
            notes.append(
                f"Without ranges of activations, {count - len(weights)} products or convolutions are quantized in "
                f"each call and {len(weights)} nodes have integer weights alone, which saves memory and no time."
            )
    return notes


def write_bounds(model: ir.Model) -> None:
    """Write Relu and Clip of the main graph as Max and Min.

    ONNX Runtime removes a Relu or Clip ahead of a quantization to 8-bit floats, as if these were unsigned integers.
    """
    writer = Writer(model)
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Relu", "Clip") or node.inputs[0] is None:
            continue
        if node.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        bounds: list[ir.Value | None] = [*node.inputs[1:3], None, None][:2]
        if node.op_type == "Relu":
            bounds = [writer.initializer(f"{node.name}_zero", np.zeros((), np.float32)), None]
        result, nodes = node.inputs[0], []
        for operator, bound in zip(("Max", "Min"), bounds, strict=True):
            if bound is not None:
                nodes.append(writer.node(operator, [result, bound], str(node.name), ir.DataType.FLOAT))
                result = nodes[-1].outputs[0]
                result.shape = node.outputs[0].shape
        if nodes:
            writer.replace(node, nodes)


def sums_integers(site: WeightSite, mode: str) -> bool:
    """Return True if engines may add the products of a site in 16 bits: depthwise convolutions add in 32."""
    is_depthwise = site.node.op_type == "Conv" and site.groups == site.channels and site.shape[1] == 1
    return mode == "static" and site.node.op_type in ("Conv", *PRODUCTS) and not is_depthwise


def _is_packed(site: WeightSite, weight: QuantizedWeight) -> bool:
    """Return True if the product of a site has a form with packed weights."""
    return site.node.op_type in PRODUCTS and not site.is_batched and is_packable(weight.block) and _is_integer(weight)


def _is_integer(weight: QuantizedWeight) -> bool:
    return ir.DataType.from_numpy(weight.values.dtype) in (
        ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2,
    )  # fmt: skip


class _SharedWeights:
    """DequantizeLinear nodes of weights; nodes that read one weight alike share one.

    Args:
        writer: The writer of the model.
        tied: The tables whose integers are those of weights.
    """

    def __init__(self, writer: Writer, tied: TiedTables) -> None:
        self._writer, self._tied = writer, tied
        self._written: dict[tuple[ir.Value, int, int | None], tuple[ir.Value, QuantizedWeight]] = {}

    def write(self, site: WeightSite, weight: QuantizedWeight) -> QuantizedWeight:
        """Let a node read its weight through DequantizeLinear; return the weight, which the first reader rounded."""
        value = site.node.inputs[site.index]
        assert value is not None
        key = value, site.channel_axis, site.sum_axis
        if key not in self._written:
            self._written[key] = self._dequantize(str(value.name), weight, self._tied.integers(site, weight)), weight
        dequantized, written = self._written[key]
        site.node.replace_input_with(site.index, dequantized)
        self._writer.drop(value)
        return written

    def _dequantize(self, name: str, weight: QuantizedWeight, stored: ir.Value | None) -> ir.Value:
        dtype = ir.DataType.from_numpy(weight.values.dtype)
        values = stored or self._writer.initializer(f"{name}_quantized", weight.values, dtype)
        scale = self._writer.initializer(f"{name}_scale", weight.scales)
        zero = self._writer.initializer(f"{name}_zero_point", weight.zeros, dtype)
        attributes: dict[str, Any] = {} if weight.axis is None else {"axis": weight.axis}
        if weight.block:
            attributes["block_size"] = weight.block
        node = self._writer.node("DequantizeLinear", [values, scale, zero], name, ir.DataType.FLOAT, **attributes)
        node.outputs[0].shape = ir.Shape(weight.values.shape)
        if values.producer() is None:
            self._writer.insert_constants([node])
        else:
            self._writer.insert_after(values, [node])
        return node.outputs[0]


def _write_activation(writer: Writer, value: ir.Value, affine: Affine, readers: Readers) -> None:
    """Let readers of a value read the value as integers."""
    name, kind = str(value.name), affine.kind
    scale = writer.initializer(f"{name}_scale", np.array(affine.scale, np.float32))
    zero = writer.initializer(f"{name}_zero_point", np.array(affine.zero_point, kind.numpy), kind.dtype)
    quantize = writer.node("QuantizeLinear", [value, scale, zero], name, kind.dtype)
    dequantize = writer.node("DequantizeLinear", [quantize.outputs[0], scale, zero], name, ir.DataType.FLOAT)
    for node in (quantize, dequantize):
        node.outputs[0].shape = value.shape
    writer.insert_after(value, [quantize, dequantize])
    for node, index in readers:
        node.replace_input_with(index, dequantize.outputs[0])


def tables_of(placement: Placement, scheme: Scheme, mode: str) -> list[WeightSite]:
    """Return the tables of embeddings that become integers: those that rows of 8 bits express as well as products.

    A row has one scale: beside a channel of large numbers those of the others are lost. Weights alone are always
    integers.
    """
    if mode == "weights":
        return placement.tables
    return [site for site in placement.tables if scheme.weight_type.bits <= 8 and _keeps_channels(site)]


def _keeps_channels(site: WeightSite) -> bool:
    """Return True if rows of 8 bits keep the channels of a table, on at most :data:`_MOST_ROWS` of its rows."""
    rows = site.weight[:: max(site.shape[0] // _MOST_ROWS, 1)]
    noise = np.square(quantize_weight(rows, 0, 1, Scheme()).dequantized() - rows, dtype=np.float64).sum(0)
    power = np.square(rows, dtype=np.float64).sum(0)
    return bool((noise[power > 0] / power[power > 0]).mean() <= _MOST_NOISE) if power.any() else True


def _gathered(writer: Writer, tables: list[WeightSite], target: QuantizationTarget) -> list[WeightSite]:
    """Return tables if a target gathers integers, else none."""
    return tables if target.accepts("Gather", {0: "int8"}, writer.opset, inputs=2) else []


def _left_tables(
    placement: Placement, tables: Sequence[WeightSite], scheme: Scheme, mode: str, target: QuantizationTarget
) -> list[str]:
    """Return a sentence for tables that a target does not gather as integers."""
    left = 0 if tables else len(tables_of(placement, scheme, mode))
    return [f"{left} tables stay in float: {target.name} does not gather integers."] if left else []


def _write_tables(
    writer: Writer, tables: Sequence[WeightSite], tied: TiedTables, target: QuantizationTarget, scheme: Scheme
) -> list[str]:
    """Let tables of embeddings be integers; return sentences for the user."""
    shared = 0
    for site in tables:
        shared += _write_table(writer, site, tied, target, scheme)
    return [f"{shared} tables share the integers of the products that read them too."] if shared else []


def _write_table(
    writer: Writer, site: WeightSite, tied: TiedTables, target: QuantizationTarget, scheme: Scheme
) -> bool:
    """Let a Gather read rows of integers: int8 with a scale each, or blocks of few bits if the target has them.

    Returns:
        True if the integers are those of a product.
    """
    node, table, indices = site.node, site.node.inputs[0], site.node.inputs[1]
    assert table is not None and indices is not None
    name = str(table.name)
    is_few = scheme.weight_type.bits == 4 and not scheme.weight_type.is_float
    width = site.shape[1]
    if target.vendor and is_few and is_packable(scheme.block) and width > scheme.block and width % scheme.block == 0:
        write_lookup(writer, node, quantize_weight(site.weight, 0, 1, scheme), name)
        return False
    stored = tied.rows(site)
    if stored is None:
        weight = quantize_weight(site.weight, 0, 1, Scheme())
        values, factors_of_rows = writer.initializer(f"{name}_quantized", weight.values), weight.scales
    else:
        values, factors_of_rows = stored
    scales = writer.initializer(f"{name}_row_scale", factors_of_rows.reshape(-1, 1))
    rows = writer.node("Gather", [values, indices], name, ir.DataType.INT8)
    factors = writer.node("Gather", [scales, indices], f"{name}_scale", ir.DataType.FLOAT)
    floats = writer.node("Cast", [rows.outputs[0]], name, ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
    product = writer.node("Mul", [floats.outputs[0], factors.outputs[0]], name, ir.DataType.FLOAT)
    writer.replace(node, [rows, factors, floats, product])
    return stored is not None
