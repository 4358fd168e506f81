"""Weights of few bits in blocks, by ONNX Runtime's names."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from sardonyx.compat.onnxruntime.quantization.calibrate import CalibrationDataReader, samples_of
from sardonyx.compat.onnxruntime.quantization.nbits_nodes import (
    DefaultWeightOnlyQuantizer as DefaultWeightOnlyQuantizer,
)
from sardonyx.compat.onnxruntime.quantization.onnx_model import ONNXModel
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantFormat, ms_domain
from sardonyx.compress.quantization.draft import Draft
from sardonyx.compress.quantization.methods.table import METHODS
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.targets import quantization_target
from sardonyx.compress.samples import read_samples, split_samples
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import load, to_proto
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

_LOG = logging.getLogger(__name__)
_METHODS = {"RTN": "nearest", "DEFAULT": "nearest", "HQQ": "hqq", "GPTQ": "gptq", "KQUANT": "least-squares"}
_METHODS |= dict.fromkeys(("K_QUANT", "k_quant"), _METHODS["KQUANT"])
_WITH_SAMPLES = ("GPTQ",)


class WeightOnlyQuantConfig:
    """An algorithm and its options."""

    def __init__(
        self,
        algorithm: str,
        quant_format: QuantFormat,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Sequence[tuple[str, int]] | None = None,
        customized_weight_config: Mapping[str, Any] | None = None,
    ) -> None:
        if customized_weight_config:
            raise OptionError("every node has the same bits and blocks.", where="customized_weight_config")
        self.algorithm, self.quant_format = algorithm, quant_format
        self.op_types_to_quantize = set(op_types_to_quantize or ("MatMul",))
        self.quant_axes = dict(quant_axes or (("MatMul", 0), ("Gather", 1)))
        if self.quant_axes.get("MatMul", 0) != 0:
            raise OptionError("blocks of matrices are along the summed axis.", where="quant_axes")
        self.customized_weight_config = customized_weight_config
        self.bits: int | None = None
        self.block_size: int | None = None
        self.is_symmetric: bool | None = None
        self.calibration_data_reader: CalibrationDataReader | None = None


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Nearest integers."""

    def __init__(
        self,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Sequence[tuple[str, int]] | None = None,
        bits: int = 4,
        channel_wised_quantize: bool = False,
    ) -> None:
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        self.block_size, self.is_symmetric, self.bits = block_size, is_symmetric, bits
        self.accuracy_level, self.channel_wised_quantize = accuracy_level, channel_wised_quantize


class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Nearest integers."""

    def __init__(
        self,
        ratios: Mapping[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        customized_weight_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("RTN", quant_format, op_types_to_quantize, None, customized_weight_config)
        self.ratios = dict(ratios or {})


class KQuantWeightOnlyQuantConfig(RTNWeightOnlyQuantConfig):
    """Scales of the least error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.algorithm = "k_quant"


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Scales of the least error in a norm below 1."""

    def __init__(
        self,
        block_size: int = 128,
        bits: int = 4,
        axis: int = 1,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Sequence[tuple[str, int]] | None = None,
    ) -> None:
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        self.block_size, self.bits, self.axis = block_size, bits, axis


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Integers that compensate each other's errors, by samples."""

    def __init__(
        self,
        calibration_data_reader: CalibrationDataReader | None = None,
        percdamp: float = 0.01,
        block_size: int = 128,
        actorder: bool = False,
        mse: bool = False,
        perchannel: bool = True,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
    ) -> None:
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        self.calibration_data_reader, self.block_size = calibration_data_reader, block_size
        self.percdamp, self.actorder, self.mse, self.perchannel = percdamp, actorder, mse, perchannel


class MatMulNBitsQuantizer:
    """Quantizes constant matrices to few bits in blocks.

    Args:
        model: The model, or its path.
        bits: 2, 4 or 8.
        block_size: Elements of a block: a power of two from 16.
        is_symmetric: If True, 0 is the middle of the integers.
        accuracy_level: Written to the nodes of the default algorithm, with no effect on Sardonyx's products.
        nodes_to_exclude: Names of nodes that stay in float.
        nodes_to_include: Names of the nodes to quantize; None for all.
        quant_format: ``MatMulNBits`` or DequantizeLinear.
        op_types_to_quantize: Some of MatMul and Gather.
        quant_axes: The axes of blocks; that of a matrix is the summed one.
        channel_wised_quantize: If True, pairs have a scale for each column.
        algo_config: The algorithm.
    """

    def __init__(
        self,
        model: onnx.ModelProto | str | os.PathLike[str],
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        nodes_to_include: Sequence[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Sequence[tuple[str, int]] | None = None,
        channel_wised_quantize: bool = False,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        config = algo_config or DefaultWeightOnlyQuantConfig(
            block_size, is_symmetric, accuracy_level, quant_format, op_types_to_quantize, quant_axes, bits,
            channel_wised_quantize,
        )  # fmt: skip
        if config.algorithm not in _METHODS:
            raise OptionError(f"expected one of {', '.join(_METHODS)}, got {config.algorithm!r}.", where="algo_config")
        self.bits = config.bits or bits
        self.block_size = config.block_size or block_size
        self.is_symmetric = is_symmetric if config.is_symmetric is None else config.is_symmetric
        if self.bits not in (2, 4, 8):
            raise OptionError(f"expected 2, 4 or 8, got {self.bits}.", where="bits")
        self.accuracy_level = accuracy_level
        self.nodes_to_exclude = list(nodes_to_exclude or [])
        self.nodes_to_include = list(nodes_to_include or [])
        self.algo_config = config
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(str(model))
        self.model = ONNXModel(proto)

    def process(self) -> None:
        """Quantize the model; ``model`` is then the result."""
        if self.algo_config.algorithm != "DEFAULT":
            self._process_by_method()
            return
        config, model = self.algo_config, self.model
        if config.quant_format == QuantFormat.QOperator:
            model.set_opset_import(ms_domain, 1)
        if config.quant_format == QuantFormat.QDQ or "Gather" in config.op_types_to_quantize:
            for entry in model.opset_import():
                if entry.domain in ("", "ai.onnx") and entry.version < 21:
                    _LOG.warning("The result has opset 21, for integers of 4 bits; verify it.")
                    entry.version = 21
            model.model.ir_version = max(model.model.ir_version, 10)
        self._process_graph([model.graph()], DefaultWeightOnlyQuantizer(config))
        model.clean_initializers()

    def _process_graph(self, graphs: list[onnx.GraphProto], quantizer: DefaultWeightOnlyQuantizer) -> None:
        """Replace the nodes of the last graph of a list, and of the graphs below."""
        nodes: list[onnx.NodeProto] = []
        for node in graphs[-1].node:
            for attribute in node.attribute:
                for body in (attribute.g, *attribute.graphs):
                    if body.node:
                        self._process_graph([*graphs, body], quantizer)
            is_chosen = node.op_type in self.algo_config.op_types_to_quantize or node.name in self.nodes_to_include
            is_chosen = is_chosen and node.name not in self.nodes_to_exclude
            nodes.extend(quantizer.quantize(node, graphs) if is_chosen else [node])
        del graphs[-1].node[:]
        graphs[-1].node.extend(nodes)

    def _process_by_method(self) -> None:
        """Quantize the model by one of Sardonyx's methods."""
        config, source = self.algo_config, load(self.model.model)
        excluded = []
        for node in (node for graph in facts.graphs_of(source.graph) for node in graph):
            label = node_label(node)
            if (
                node.op_type not in config.op_types_to_quantize
                or label in self.nodes_to_exclude
                or (self.nodes_to_include and label not in self.nodes_to_include)
            ):
                excluded.append(label)
        target = quantization_target("onnxruntime" if config.quant_format == QuantFormat.QOperator else "portable")
        scheme = Scheme(f"int{self.bits}", "block", self.block_size, self.is_symmetric)
        method = METHODS[_METHODS[config.algorithm]]
        try:
            draft = Draft(source, scheme, "weights", method, excluded, target=target, optimized=False)
        except UnsupportedError:
            return  # No matrix is constant: the model stays, as in the original.
        split = None
        if config.algorithm in _WITH_SAMPLES:
            if config.calibration_data_reader is None:
                raise OptionError(f"{config.algorithm} needs samples.", where="calibration_data_reader")
            split = split_samples(read_samples(samples_of(config.calibration_data_reader), source), 0)
        draft.learn(split)
        self.model = ONNXModel(to_proto(draft.write("")))


MatMul4BitsQuantizer = MatMulNBitsQuantizer
