"""Preparation of models for quantization, by ONNX Runtime's names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx

from sardonyx.compat.onnxruntime.quantization.quant_utils import add_pre_process_metadata
from sardonyx.errors import OptionError
from sardonyx.model import load, save, to_proto
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.opset.convert import convert_opset
from sardonyx.rewrite.optimize import optimize

_LEAST_OPSET = 11


def quant_pre_process(
    input_model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    output_model_path: str | os.PathLike[str] | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Optimize a model, infer its shapes, and write the model with a mark, in operator set 11 at least.

    One inference does the work of both kinds of shape inference; ``auto_merge``, ``int_max``, ``guess_output_rank`` and
    ``verbose`` have no effect on it.

    Raises:
        TypeError: An argument is missing or unknown.
        OptionError: The output has no path.
    """
    input_model = input_model if input_model is not None else deprecated_kwargs.pop("input_model_path", None)
    if deprecated_kwargs:
        raise TypeError(f"unexpected arguments: {', '.join(deprecated_kwargs)}.")
    if input_model is None:
        raise TypeError("expected input_model, got None.")
    if output_model_path is None:
        raise OptionError("expected the path of the result.", where="output_model_path")
    model = load(input_model if isinstance(input_model, onnx.ModelProto) else Path(input_model))
    if model.graph.opset_imports.get("", _LEAST_OPSET) < _LEAST_OPSET:
        model = convert_opset(model, _LEAST_OPSET)  # Quantization needs it, and Upsample ends there.
    if not skip_optimization:
        model = optimize(model, verify=False).model
    if not (skip_onnx_shape and skip_symbolic_shape):
        infer_shapes(model)
    if not save_as_external_data:
        model.metadata_props["onnx.quant.pre_process"] = "onnxruntime.quant"
        save(model, output_model_path)
        return
    proto = to_proto(model)
    add_pre_process_metadata(proto)
    onnx.save_model(
        proto, os.fspath(output_model_path), save_as_external_data=True,
        all_tensors_to_one_file=all_tensors_to_one_file, location=external_data_location,
        size_threshold=external_data_size_threshold,
    )  # fmt: skip
