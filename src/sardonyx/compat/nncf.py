"""NNCF's interface for ONNX models: ``quantize(model, Dataset)`` and ``compress_weights``, implemented by Sardonyx.

``docs/reference/compat.md`` lists the parameters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from enum import Enum
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.compress.quantization import Scheme
from sardonyx.compress.quantization import quantize as quantize_model
from sardonyx.errors import OptionError
from sardonyx.model import load, to_proto
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.optimize import optimize


class QuantizationPreset(Enum):
    """Symmetry of activations."""

    PERFORMANCE = "performance"
    MIXED = "mixed"


class QuantizationMode(Enum):
    """8-bit floats in place of integers."""

    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class ModelType(Enum):
    """Kinds of models; the placement follows from the graph."""

    TRANSFORMER = "transformer"


class TargetDevice(Enum):
    """Processors; the model runs on all of them."""

    ANY = "ANY"
    CPU = "CPU"
    GPU = "GPU"
    NPU = "NPU"
    CPU_SPR = "CPU_SPR"


class CompressWeightsMode(Enum):
    """Types of weights."""

    INT8_SYM = "int8_sym"
    INT8_ASYM = "int8_asym"
    INT4_SYM = "int4_sym"
    INT4_ASYM = "int4_asym"


class Dataset:
    """Samples of any source.

    Args:
        data_source: An iterable.
        transform_func: Computes the feeds by name from an item; None for items that are feeds.
    """

    def __init__(self, data_source: Iterable[Any], transform_func: Callable[[Any], Any] | None = None) -> None:
        self._source, self._transform = data_source, transform_func

    def get_data(self, indices: Sequence[int] | None = None) -> Iterator[Any]:
        """Yield items as they are stored."""
        return iter(self._source) if indices is None else self._chosen(indices)

    def get_inference_data(self, indices: Sequence[int] | None = None) -> Iterator[Any]:
        """Yield feeds."""
        for item in self.get_data(indices):
            yield item if self._transform is None else self._transform(item)

    def get_length(self) -> int | None:
        """Return the number of items; None if unknown."""
        return len(self._source) if isinstance(self._source, Sized) else None

    def _chosen(self, indices: Sequence[int]) -> Iterator[Any]:
        last = max(indices, default=-1)
        for number, item in enumerate(itertools.islice(iter(self._source), last + 1)):
            if number in indices:
                yield item


class IgnoredScope:
    """Nodes that stay in float: names, regular expressions over names, and operators."""

    def __init__(
        self,
        names: Sequence[str] = (),
        patterns: Sequence[str] = (),
        types: Sequence[str] = (),
        subgraphs: Sequence[Any] = (),
        validate: bool = True,
    ) -> None:
        if subgraphs:
            raise OptionError("subgraphs have no equivalent.", where="subgraphs", remedy="List the names of nodes.")
        self.names, self.patterns, self.types, self.validate = names, patterns, types, validate


def quantize(
    model: onnx.ModelProto,
    calibration_dataset: Dataset,
    mode: QuantizationMode | None = None,
    preset: QuantizationPreset | None = None,
    target_device: TargetDevice = TargetDevice.ANY,
    subset_size: int = 300,
    fast_bias_correction: bool = True,
    model_type: ModelType | None = None,
    ignored_scope: IgnoredScope | None = None,
    advanced_parameters: Any = None,
) -> onnx.ModelProto:
    """Return a model quantized to 8 bits.

    Raises:
        OptionError: An option has no equivalent, or the samples do not fit.
    """
    if advanced_parameters is not None:
        raise OptionError("only None is accepted.", where="advanced_parameters")
    if subset_size < 1:
        raise OptionError(f"expected at least 1 sample, got {subset_size}.", where="subset_size")
    source = optimize(load(model), verify=False).model
    samples = itertools.islice(calibration_dataset.get_inference_data(), subset_size)
    scheme: Scheme | str = Scheme(symmetric_activations=preset == QuantizationPreset.PERFORMANCE)
    if mode is not None:
        scheme = mode.value.replace("fp8_", "float8")
    result = quantize_model(source, samples, scheme=scheme, mode="static", exclude=_excluded(source, ignored_scope))
    return to_proto(result.model)


def compress_weights(
    model: onnx.ModelProto,
    mode: CompressWeightsMode = CompressWeightsMode.INT8_ASYM,
    ratio: float | None = None,
    group_size: int | None = None,
    ignored_scope: IgnoredScope | None = None,
    **others: Any,
) -> onnx.ModelProto:
    """Return a model with integer weights alone.

    Raises:
        OptionError: An option has no equivalent.
    """
    refused = sorted(name for name, value in others.items() if value not in (None, False))
    if refused or ratio not in (None, 1, 1.0):
        raise OptionError("only the default is accepted.", where=", ".join(refused) or "ratio")
    source = optimize(load(model), verify=False).model
    is_int4 = mode in (CompressWeightsMode.INT4_SYM, CompressWeightsMode.INT4_ASYM)
    scheme = Scheme(
        "int4" if is_int4 else "int8", "block" if is_int4 and group_size != -1 else "channel",
        128 if group_size in (None, -1) else int(group_size or 128), mode.value.endswith("_sym"),
    )  # fmt: skip
    result = quantize_model(source, scheme=scheme, mode="weights", exclude=_excluded(source, ignored_scope))
    return to_proto(result.model)


def _excluded(model: ir.Model, scope: IgnoredScope | None) -> list[str]:
    """Return the labels of the nodes of a scope.

    Raises:
        OptionError: A name, pattern or operator matches nothing, and the scope is validated.
    """
    if scope is None:
        return []
    nodes: Mapping[str, str] = {
        node_label(node): node.op_type for graph in facts.graphs_of(model.graph) for node in graph
    }
    matches: dict[str, list[str]] = {
        **{name: [label for label in nodes if label == name] for name in scope.names},
        **{name: [label for label in nodes if re.fullmatch(name, label)] for name in scope.patterns},
        **{name: [label for label, kind in nodes.items() if kind == name] for name in scope.types},
    }
    unknown = [name for name, labels in matches.items() if not labels]
    if unknown and scope.validate:
        raise OptionError(f"nothing matches {', '.join(unknown)}.", where="ignored_scope")
    return sorted({label for labels in matches.values() for label in labels})
