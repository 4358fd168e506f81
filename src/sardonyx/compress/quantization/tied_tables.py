"""Tables of embeddings that products multiply by too: their integers are stored once.

A language model often computes its scores by the table of its words. The columns of the product are the rows of the
table, so that the scale of an output is the scale of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.placement import PRODUCTS, WeightSite
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.targets import QuantizationTarget
from sardonyx.compress.quantization.weights import QuantizedWeight, quantize_weight
from sardonyx.compress.quantization.writer import Writer

_MOST_NOISE = 4.0
"""Noise of the rows by the integers of a product, over that by the nearest integers, up to which both are one."""


class TiedTables:
    """The integers of tables that products read too, as they are or transposed.

    Args:
        writer: The writer of the model.
        target: The target.
        tables: The tables that become integers.
        sites: The sites of products and other weights.
    """

    def __init__(
        self, writer: Writer, target: QuantizationTarget, tables: Sequence[WeightSite], sites: Iterable[WeightSite]
    ) -> None:
        self._writer = writer
        self._tables = _tied(tables, sites) if target.computes_constants else {}
        self._stored: dict[WeightSite, tuple[ir.Value, QuantizedWeight]] = {}

    def integers(self, site: WeightSite, weight: QuantizedWeight) -> ir.Value | None:
        """Return the integers of a product's weight, stored as the rows of a table; None if these are others.

        Args:
            site: The site.
            weight: The weight, of the shape of the site's or with the columns last.
        """
        table = self._tables.get(site)
        if table is None:
            return None
        is_transposed = weight.values.shape != table.shape or weight.axis == 1
        rows = _rows(weight, is_transposed)
        if rows is None:
            return None
        if table in self._stored:
            if not _are_equal(self._stored[table][1], rows):
                return None
        elif _noise(table, rows) > _MOST_NOISE * _noise(table, quantize_weight(table.weight, 0, 1, Scheme())):
            return None
        else:
            name = str(table.node.inputs[0].name) if table.node.inputs[0] is not None else site.label
            self._stored[table] = self._writer.initializer(f"{name}_quantized", rows.values), rows
        values = self._stored[table][0]
        if not is_transposed:
            return values
        transpose = self._writer.node("Transpose", [values], str(values.name), ir.DataType.INT8, perm=[1, 0])
        transpose.outputs[0].shape = ir.Shape(weight.values.shape)
        self._writer.insert_constants([transpose])
        return transpose.outputs[0]

    def rows(self, table: WeightSite) -> tuple[ir.Value, np.ndarray] | None:
        """Return the stored integers of a table and the scales of its rows; None if no product has written these."""
        stored = self._stored.get(table)
        if stored is None:
            same = (own for own in self._stored if own.tensor is table.tensor)
            stored = next((self._stored[own] for own in same), None)
        return None if stored is None else (stored[0], stored[1].scales)


def _tied(tables: Sequence[WeightSite], sites: Iterable[WeightSite]) -> dict[WeightSite, WeightSite]:
    """Return the table that each product multiplies by."""
    result: dict[WeightSite, WeightSite] = {}
    for site in sites:
        if site.node.op_type not in PRODUCTS or len(site.shape) != 2:
            continue
        for table in tables:
            if table.shape[0] == site.channels and sorted(table.shape) == sorted(site.shape):
                own = site.weight if site.channel_axis == 0 else site.weight.T
                if own.shape == table.shape and np.array_equal(own, table.weight):
                    result[site] = table
                    break
    return result


def _rows(weight: QuantizedWeight, is_transposed: bool) -> QuantizedWeight | None:
    """Return a weight of signed bytes with a scale per output as rows; None for other types and blocks."""
    is_plain = weight.values.dtype == np.int8 and not weight.block and weight.axis is not None
    if not is_plain or weight.zeros.any() or weight.scales.ndim != 1:
        return None
    values = np.ascontiguousarray(weight.values.T) if is_transposed else weight.values
    return QuantizedWeight(values, weight.scales, weight.zeros, 0, 0)


def _are_equal(first: QuantizedWeight, second: QuantizedWeight) -> bool:
    return np.array_equal(first.values, second.values) and np.array_equal(first.scales, second.scales)


def _noise(table: WeightSite, weight: QuantizedWeight) -> float:
    return float(np.square(weight.dequantized() - table.weight, dtype=np.float64).sum())
