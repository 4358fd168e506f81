"""Products whose input is quantized in each call, by the range of that call: ``DynamicQuantizeLinear`` ahead of
``MatMulInteger`` or ``ConvInteger``.

Range and codes of an input take time for each of its elements, and integers save a part of each product. An input is
quantized if its products save more, by the costs of the compiler: for the processor at hand if the target is the native
engine, else for a typical one, so that a file for other machines does not depend on this one. Depthwise convolutions
save nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.convolution import ConvolutionProblem
from sardonyx.compiler.tiling.dynamic_quantization import convolution_saving, product_saving, quantization_cost
from sardonyx.compress.quantization.placement import PRODUCTS, WeightSite
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.targets import QuantizationTarget
from sardonyx.compress.quantization.tied_tables import TiedTables
from sardonyx.compress.quantization.weights import QuantizedWeight, quantize_weight
from sardonyx.compress.quantization.writer import Writer
from sardonyx.core.ir import types as t
from sardonyx.rewrite.analysis import facts

_TYPICAL = "avx2"
"""The processor by whose costs files for other engines are quantized."""

_MIDDLE = 128
"""The zero point of filters, as engines read these: unsigned bytes, and one zero point for all."""


def dynamic_sites(sites: Collection[WeightSite], target: QuantizationTarget, opset: int) -> frozenset[WeightSite]:
    """Return the sites whose products a target computes in integers of each call.

    Args:
        sites: The sites of a model.
        target: The target.
        opset: The operator set of the model.
    """
    processor = host() if target.name == "native" else NAMED[_TYPICAL]
    types = dict.fromkeys(range(4), "uint8")
    convolves = target.convolves_integers and target.accepts("ConvInteger", types, opset, inputs=4)
    readers: dict[ir.Value, list[tuple[WeightSite, float]]] = defaultdict(list)
    for site in sites:
        if site.input is not None and (_is_product(site) or (convolves and _is_convolution(site))):
            saving = _product_saving(site, processor) if _is_product(site) else _convolution_saving(site, processor)
            if saving > 0:
                readers[site.input].append((site, saving))
    return frozenset(
        site
        for x, saved in readers.items()
        if sum(saving for _, saving in saved) > quantization_cost(_elements(x), processor)
        for site, _ in saved
    )


def _is_product(site: WeightSite) -> bool:
    return site.node.op_type in PRODUCTS


def _is_convolution(site: WeightSite) -> bool:
    """Return True for a convolution that sums over channels, with a known bias."""
    bias = site.node.inputs[2] if len(site.node.inputs) > 2 else None
    is_known = bias is None or facts.constant_tensor(bias) is not None
    return site.node.op_type == "Conv" and site.shape[1] > 1 and is_known and 3 <= len(site.shape) <= 5


def _product_saving(site: WeightSite, processor: Target) -> float:
    depth, columns = site.depth, site.channels
    assert site.input is not None
    return product_saving(max(_elements(site.input) // depth, 1), depth, columns, processor)


def _convolution_saving(site: WeightSite, processor: Target) -> float:
    rank = len(site.shape) - 2
    problem = ConvolutionProblem(
        _known(site.node.outputs[0], 0, 1), site.shape[1], site.shape[0] // site.groups, 1, site.shape[2:],
        _numbers(site, "strides", rank), _numbers(site, "dilations", rank), (1,) * rank,
        tuple(_known(site.node.outputs[0], 2 + axis, costs.TYPICAL_SIZE) for axis in range(rank)), t.FLOAT, rank - 1, 1,
    )  # fmt: skip
    return site.groups * convolution_saving(problem, processor)


def _numbers(site: WeightSite, name: str, rank: int) -> tuple[int, ...]:
    return tuple(int(number) for number in facts.attribute(site.node, name, 11, None) or (1,) * rank)


def _elements(x: ir.Value) -> int:
    """Return the elements of an input; open sizes count as one sample, and as those in the middle of a network."""
    rank = 0 if x.shape is None else len(x.shape)
    return math.prod(_known(x, axis, 1 if axis == 0 else costs.TYPICAL_SIZE) for axis in range(rank))


def _known(value: ir.Value, axis: int, otherwise: int) -> int:
    size = None if value.shape is None or axis >= len(value.shape) else value.shape[axis]
    return size if isinstance(size, int) else otherwise


class DynamicProducts:
    """Products of integers in place of products with constant weights.

    Args:
        writer: The writer of the model.
        scheme: The scheme of the weights.
        tied: The tables whose integers are those of weights.
    """

    def __init__(self, writer: Writer, scheme: Scheme, tied: TiedTables) -> None:
        self._writer, self._scheme, self._tied = writer, scheme, tied
        self._quantized: dict[tuple[ir.Value, object], tuple[ir.Value, ...]] = {}

    def write(self, site: WeightSite) -> None:
        """Replace the node of a site."""
        writer, node = self._writer, site.node
        x, old = node.inputs[:2]  # The input of the site may be the result of a node that was replaced.
        assert x is not None and old is not None
        is_matrix = _is_product(site)
        codes, scale, zero = self._codes(x, node, site.label)
        name = site.label
        stored = None
        if is_matrix:
            weight = self._matrix(site)
            stored = self._tied.integers(site, weight)
            values, zeros, scales = weight.values, None if self._scheme.symmetric else weight.zeros, weight.scales
        else:
            values, zeros, scales = self._filters(site)
        integers = stored or writer.initializer(f"{old.name}_quantized", values)
        operands = [codes, integers, zero]
        if zeros is not None:
            operands.append(writer.initializer(f"{old.name}_zero_point", zeros))
        attributes = {} if is_matrix else {key: attribute.value for key, attribute in node.attributes.items()}
        operator = "MatMulInteger" if is_matrix else "ConvInteger"
        product = writer.node(operator, operands, name, ir.DataType.INT32, **attributes)
        product.outputs[0].shape = node.outputs[0].shape
        floats = writer.node("Cast", [product.outputs[0]], name, ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
        factor = writer.node(
            "Mul", [scale, writer.initializer(f"{old.name}_scale", scales)], f"{name}_scale", ir.DataType.FLOAT
        )
        scaled = writer.node("Mul", [floats.outputs[0], factor.outputs[0]], name, ir.DataType.FLOAT)
        nodes = [product, floats, factor, scaled]
        if len(node.inputs) > 2 and (bias := node.inputs[2]) is not None:
            nodes.append(writer.node("Add", [scaled.outputs[0], self._bias(site, bias)], name, ir.DataType.FLOAT))
        writer.replace(node, nodes)

    def _codes(self, x: ir.Value, node: ir.Node, name: str) -> tuple[ir.Value, ...]:
        """Return the integers of an input, their scale and zero point; products of one graph share these."""
        key = x, node.graph
        if key not in self._quantized:
            quantize = self._writer.node(
                "DynamicQuantizeLinear", [x], name, ir.DataType.UINT8, outputs=[
                    ("quantized", ir.DataType.UINT8), ("scale", ir.DataType.FLOAT), ("zero_point", ir.DataType.UINT8),
                ],
            )  # fmt: skip
            quantize.outputs[0].shape = x.shape
            for value in quantize.outputs[1:]:
                value.shape = ir.Shape(())
            assert node.graph is not None
            node.graph.insert_before(node, quantize)
            self._quantized[key] = tuple(quantize.outputs)
        return self._quantized[key]

    def _matrix(self, site: WeightSite) -> QuantizedWeight:
        """Return a matrix with its columns last."""
        is_right = site.channel_axis == len(site.shape) - 1
        matrix = site.weight if is_right else np.ascontiguousarray(site.weight.T)
        return quantize_weight(matrix, matrix.ndim - 1, matrix.ndim - 2, self._scheme)

    def _filters(self, site: WeightSite) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return integers, the zero point and scales of filters: engines have one zero point for all of these."""
        scheme = replace(self._scheme, symmetric=True)
        weight = quantize_weight(site.weight, site.channel_axis, site.sum_axis, scheme)
        values = (weight.values.astype(np.int16) + _MIDDLE).astype(np.uint8)
        scales = weight.scales.reshape(-1, *(1,) * (len(site.shape) - 2)) if weight.scales.ndim else weight.scales
        return values, np.array(_MIDDLE, np.uint8), scales

    def _bias(self, site: WeightSite, bias: ir.Value) -> ir.Value:
        """Return a bias that the product can add: of a convolution along the channels."""
        if _is_product(site):
            return bias
        tensor = facts.constant_tensor(bias)
        assert tensor is not None
        aligned = tensor.numpy().reshape(-1, *(1,) * (len(site.shape) - 2))
        return self._writer.initializer(f"{bias.name}_aligned", np.ascontiguousarray(aligned))
