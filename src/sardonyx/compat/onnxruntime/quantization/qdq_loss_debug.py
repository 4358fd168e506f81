"""Errors of tensors of a quantized model, by ONNX Runtime's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from sardonyx.compat.onnxruntime.quantization.calibrate import CalibraterBase, CalibrationDataReader, samples_of
from sardonyx.compat.onnxruntime.quantization.quant_utils import DEQUANT_OUTPUT_SUFFIX, QUANT_INPUT_SUFFIX
from sardonyx.runtime.session import Session

Arrays = Sequence[np.ndarray]

_AFTER = (DEQUANT_OUTPUT_SUFFIX, DEQUANT_OUTPUT_SUFFIX + "_1", "_DequantizeLinear")
"""Endings of the names of dequantized tensors; the last is that of ``sardonyx.quantize``."""


def modify_model_output_intermediate_tensors(
    input_model_path: str | os.PathLike[str],
    output_model_path: str | os.PathLike[str],
    op_types_for_saving: Sequence[str] | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Write a model whose float tensors are outputs."""
    saver = CalibraterBase(os.fspath(input_model_path), op_types_for_saving, os.fspath(output_model_path))
    saver.augment_graph()


def collect_activations(
    augmented_model: str | os.PathLike[str],
    input_reader: CalibrationDataReader,
    session_options: Any = None,
    execution_providers: Sequence[str] | None = None,
) -> dict[str, list[np.ndarray]]:
    """Return the values of all outputs of a model over the samples of a reader, by name."""
    session = Session(os.fspath(augmented_model), compile="wait")
    names = [info.name for info in session.get_outputs()]
    values: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for sample in samples_of(input_reader):
        for name, array in zip(names, session.run(names, sample), strict=True):
            values[name].append(np.asarray(array))
    return values


def create_activation_matching(
    qdq_activations: Mapping[str, Arrays], float_activations: Mapping[str, Arrays] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the values of quantized tensors by name: ``pre_qdq``, ``post_qdq`` and ``float``."""
    pairs: dict[str, dict[str, Any]] = {}
    for name, values in qdq_activations.items():
        stem = next((name.removesuffix(end) for end in (*_AFTER, QUANT_INPUT_SUFFIX) if name.endswith(end)), None)
        before, after = qdq_activations.get(stem or ""), values
        if name.endswith(QUANT_INPUT_SUFFIX):  # Outputs of the graph have their own name after the pair.
            before, after = values, qdq_activations.get(stem or "")  # type: ignore[assignment]
        if stem is not None and before is not None and after is not None:
            pairs[stem] = {"pre_qdq": before, "post_qdq": after, "float": (float_activations or {}).get(stem)}
    return pairs


def create_weight_matching(
    float_model_path: str | os.PathLike[str], qdq_model_path: str | os.PathLike[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Return the weights that a quantized model stores as integers: ``float`` and ``dequantized``, by name."""
    floats = {t.name: t for t in onnx.load(os.fspath(float_model_path)).graph.initializer}
    model = onnx.load(os.fspath(qdq_model_path))
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    pairs: dict[str, dict[str, np.ndarray]] = {}
    for node in model.graph.node:
        name = node.input[0].removesuffix("_quantized") if node.op_type == "DequantizeLinear" else ""
        if node.op_type != "DequantizeLinear" or node.input[0] not in stored or name not in floats:
            continue
        single = onnx.helper.make_graph([node], "weight", [], [onnx.ValueInfoProto(name=node.output[0])])
        single.initializer.extend(stored[value] for value in node.input if value in stored)
        output = onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
        single.output[0].CopyFrom(output)
        proto = onnx.helper.make_model(single, opset_imports=model.opset_import, ir_version=model.ir_version)
        (value,) = Session(proto, compile="off").run(None, {})
        pairs[name] = {"float": onnx.numpy_helper.to_array(floats[name]), "dequantized": np.asarray(value)}
    return pairs


def compute_signal_to_quantization_noice_ratio(x: Arrays | np.ndarray, y: Arrays | np.ndarray) -> float:
    """Return the signal-to-noise ratio in dB.

    Raises:
        RuntimeError: The numbers of tensors differ.
    """
    left, right = ([one] if isinstance(one, np.ndarray) else list(one) for one in (x, y))
    if len(left) != len(right):
        raise RuntimeError(f"expected the same number of tensors, got {len(left)} and {len(right)}.")
    a, b = (np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float64) for arrays in (left, right))
    least = float(np.finfo(np.float64).eps)
    return float(20 * np.log10(max(float(np.linalg.norm(a)), least) / max(float(np.linalg.norm(a - b)), least)))


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, np.ndarray]],
    err_func: Callable[[Any, Any], float] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """Return the error of each weight."""
    return {name: err_func(pair["float"], pair["dequantized"]) for name, pair in weights_match.items()}


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Any]],
    err_func: Callable[[Any, Any], float] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """Return the errors of each activation: ``qdq_err`` of its own integers, ``xmodel_err`` of all integers before."""
    errors: dict[str, dict[str, float]] = {}
    for name, match in activations_match.items():
        errors[name] = {"qdq_err": err_func(match["pre_qdq"], match["post_qdq"])}
        if match["float"] is not None:
            errors[name]["xmodel_err"] = err_func(match["float"], match["post_qdq"])
    return errors
