"""Drop-in for ``slim`` of ``onnxslim`` 0.1.98, implemented by the rewriter."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from sardonyx import model as model_io
from sardonyx.compat import trials
from sardonyx.compat.parameters import Parameters, Refused, Works, require_available
from sardonyx.compat.rewriting import rewrite_with_retries, select_passes
from sardonyx.compress import float16
from sardonyx.errors import OptionError
from sardonyx.report.summary import Port, Summary, summary
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.engine.engine import Applied
from sardonyx.rewrite.rewrite_context import Settings

__all__ = ["OnnxSlimKwargs", "slim"]

Source = str | onnx.ModelProto


class OnnxSlimKwargs(TypedDict, total=False):
    """The keyword options of ``slim``."""

    model_check: bool
    input_shapes: dict[str, list[int]]
    inputs: list[str]
    outputs: list[str]
    no_shape_infer: bool
    skip_optimizations: list[str]
    dtype: Literal["float16", "float32", "uint8", "int8"]
    skip_fusion_patterns: list[str]
    size_threshold: int
    inspect: bool
    dump_to_disk: bool
    save_as_external_data: bool
    model_check_inputs: list[str] | None
    verbose: bool


PARAMETERS: Parameters = {
    "model": Works("a list of models is inspected, as in the original"),
    "output_model": Works("the second argument; saves the model there, prints the table, and returns None"),
    "model_check": Works("inputs are drawn in the range that the graph allows; returns None if outputs differ"),
    "input_shapes": Works("as a dict, or as NAME:1,3,224,224; constants baked from the old shapes are repaired"),
    "inputs": Works("names of tensors; a type after the name must be the tensor's own"),
    "outputs": Works("names of tensors; a type after the name must be the tensor's own"),
    "no_shape_infer": Refused("every rewrite needs shapes; failed inference leaves shapes open"),
    "skip_optimizations": Works(),
    "dtype": Works("float16 or fp16; other values have no effect in the original and are refused here"),
    "skip_fusion_patterns": Works("names of onnxslim's patterns, or of passes"),
    "size_threshold": Works("bytes that one rewrite may add, at most 64 KiB"),
    "inspect": Works("prints the table of the model, and returns None"),
    "dump_to_disk": Works("with inspect or a list of models"),
    "save_as_external_data": Works(),
    "model_check_inputs": Works("NAME:SHAPE or NAME:FILE.npy"),
    "verbose": Works("prints each rewrite to standard error"),
}

OPTIMIZATIONS: Mapping[str, tuple[str, ...]] = {
    "constant_folding": ("fold_constants", "fold_shape_arithmetic", "eliminate_shape_op", "eliminate_shape_gather"),
    "graph_fusion": (),
    "dead_node_elimination": ("eliminate_deadend", "eliminate_unused_initializer", "eliminate_identity"),
    "subexpression_elimination": ("eliminate_common_subexpression",),
    "weight_tying": ("eliminate_duplicate_initializer",),
}
"""Names of ``skip_optimizations``, with the passes to skip; graph_fusion: all passes of no other name."""

PATTERNS: Mapping[str, tuple[str, ...]] = {
    "EliminationConcat": ("eliminate_nop_concat", "fuse_consecutive_concats"),
    "EliminationReshape": ("eliminate_nop_reshape", "fuse_consecutive_reshapes"),
    "EliminationReshapeAs": ("fuse_consecutive_reshapes", "fold_shape_arithmetic"),
    "EliminationSlice": ("eliminate_nop_slice", "fuse_consecutive_slices"),
    "EliminationTranspose": ("eliminate_nop_transpose", "fuse_consecutive_transposes"),
    "EliminationTransposeViewTranspose": ("rewrite_transpose_to_reshape", "fuse_consecutive_transposes"),
    "EliminationUnsqueeze": ("fuse_consecutive_unsqueezes", "fuse_consecutive_squeeze_unsqueeze"),
    "EliminationTransposeAsReshape": ("rewrite_transpose_to_reshape",),
    "FusionConcatReshape": ("fuse_concat_into_reshape",),
    "FusionConvAdd": ("fuse_add_bias_into_conv",),
    "FusionConvTransposeAdd": ("fuse_add_bias_into_conv",),
    "FusionConvBN": ("fuse_bn_into_conv",),
    "FusionConvTransposeBN": ("fuse_bn_into_conv",),
    "FusionConvMul": ("fuse_mul_into_conv", "fuse_preceding_mul_into_conv"),
    "FusionConvTransposeMul": ("fuse_mul_into_conv",),
    "FusionGemm": ("fuse_matmul_add_bias_into_gemm",),
    "FusionGemmMul": ("fuse_scale_into_matmul",),
    "FusionGemmAdd": ("fuse_add_into_gemm",),
    "FusionPadConv": ("fuse_pad_into_conv",),
    "FusionReduce": ("fuse_consecutive_reduce_unsqueeze", "fuse_consecutive_reduces"),
}
"""onnxslim's fusion patterns, with the equivalent passes."""

_TYPES = {"fp16": ir.DataType.FLOAT16, "fp32": ir.DataType.FLOAT, "int32": ir.DataType.INT32, "bool": ir.DataType.BOOL}


class UnknownParameterError(OptionError, TypeError):
    """Unknown parameter of ``slim``; a ``TypeError``, as for any function."""


def slim(
    model: str | onnx.ModelProto | list[str | onnx.ModelProto], *args: Any, **kwargs: Unpack[OnnxSlimKwargs]
) -> onnx.ModelProto | None:
    """Slim a model.

    Args:
        model: A path or a message, which is not changed; a list of models is only inspected.
        args: The path of the result, if any.
        kwargs: See ``PARAMETERS`` and the reference page.

    Returns:
        The slimmed model. None if the model was saved instead, if models were inspected, or if ``model_check`` found
        a difference. The result is not verified further: ``sardonyx.optimize`` verifies results.

    Raises:
        UnknownParameterError: A parameter is unknown (a ``TypeError``).
        RefusedParameterError: An unavailable parameter has a value other than its default.
        OptionError: A name is unknown in the model, or as a pattern or optimization.
        ModelFileError: The model cannot be read or written.
    """
    options: dict[str, Any] = {"output_model": args[0] if args else None, **kwargs}
    _require_known(args, options)
    if isinstance(model, list) or options.get("inspect"):
        _inspect(model if isinstance(model, list) else [model], bool(options.get("dump_to_disk")))
        return None
    if options.get("dump_to_disk"):
        raise OptionError("can only be used with inspect", where="dump_to_disk")
    started = time.perf_counter()
    original = _original(model, options)
    result, applied = _slim(original, options)
    if options.get("verbose"):
        for patch in applied:
            print(f"{patch.number}: {patch.rule} at {patch.site}", file=sys.stderr)
    if options.get("model_check") and not _agrees(original, result, options.get("model_check_inputs") or ()):
        return None
    target = options["output_model"]
    if not target:
        return model_io.to_proto(result)
    model_io.save(result, target, external_data=True if options.get("save_as_external_data") else None)
    _print([(_title(model), summary(model)), (Path(target).name, summary(target))], time.perf_counter() - started)
    return None


def _require_known(args: Sequence[Any], options: Mapping[str, Any]) -> None:
    if len(args) > 1:
        raise UnknownParameterError("takes at most two positional arguments", where="slim")
    for name in options:
        if name not in PARAMETERS:
            raise UnknownParameterError(f"has no parameter '{name}'", where="slim")
    require_available(slim, PARAMETERS, {"no_shape_infer": options.get("no_shape_infer") or None})


def _original(model: Source, options: Mapping[str, Any]) -> ir.Model:
    """Return the model before slimming: cut to the selected tensors, with the new shapes."""
    loaded = model_io.load(model)
    pipeline.free_initializers(loaded)
    # As in the original, a weight that is also listed as an input is a weight.
    for value in [v for v in loaded.graph.inputs if v.is_initializer()]:
        loaded.graph.inputs.remove(value)
    if options.get("inputs") or options.get("outputs"):
        loaded = _cut(loaded, options.get("inputs") or (), options.get("outputs") or ())
    shapes = _shapes(options.get("input_shapes") or ())
    if shapes:
        from sardonyx.rewrite.reshape_inputs import set_input_shapes

        set_input_shapes(loaded, shapes)
    return loaded


def _cut(model: ir.Model, inputs: Iterable[str], outputs: Iterable[str]) -> ir.Model:
    from sardonyx.rewrite.surgery import extract

    inference.infer_shapes(model, strict=False)
    output_names = [_typed_name(model, text) for text in outputs] or [str(v.name) for v in model.graph.outputs]
    input_names = [_typed_name(model, text) for text in inputs] or None
    return extract(model, output_names, input_names)


def _typed_name(model: ir.Model, text: str) -> str:
    """Return the tensor's name of ``NAME`` or ``NAME:TYPE``."""
    values = {v.name: v for v in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))}
    name, separator, kind = text.rpartition(":")
    if text in values or not separator:
        return text
    if kind not in _TYPES:
        raise OptionError(f"expected a type of {', '.join(_TYPES)}, got '{text}'", where="inputs, outputs")
    if name in values and values[name].dtype not in (None, _TYPES[kind]):
        raise OptionError(f"expected {values[name].dtype} for '{name}', got {kind}", where="inputs, outputs")
    return name


def _shapes(shapes: Mapping[str, Sequence[int]] | Iterable[str]) -> dict[str, list[int]]:
    if isinstance(shapes, Mapping):
        return {name: list(shape) for name, shape in shapes.items()}
    pairs = [text.rpartition(":") for text in shapes]
    try:
        return {name: [int(size) for size in sizes.split(",")] for name, _, sizes in pairs}
    except ValueError:
        raise OptionError("expected NAME:1,3,224,224", where="input_shapes") from None


def _slim(original: ir.Model, options: Mapping[str, Any]) -> tuple[ir.Model, list[Applied]]:
    skip: set[str] = set()
    for name in options.get("skip_optimizations") or ():
        if name not in OPTIMIZATIONS:
            raise OptionError(
                f"unknown optimization '{name}'",
                where="skip_optimizations",
                remedy=f"Choose from {', '.join(OPTIMIZATIONS)}.",
            )
        others = {label for passes in OPTIMIZATIONS.values() for label in passes}
        skip |= set(OPTIMIZATIONS[name]) or set(pipeline.available_passes()) - others
    for name in options.get("skip_fusion_patterns") or ():
        if name not in PATTERNS and name not in pipeline.available_passes():
            raise OptionError(
                f"unknown pattern '{name}'",
                where="skip_fusion_patterns",
                remedy=f"Choose from {', '.join(PATTERNS)}.",
            )
        skip |= set(PATTERNS.get(name, (name,)))
    threshold = options.get("size_threshold")
    try:
        settings = Settings(growth=min(Settings.growth, int(threshold))) if threshold else Settings()
    except (TypeError, ValueError) as error:
        raise OptionError(f"expected a number of bytes, got {threshold!r}", where="size_threshold") from error
    passes = select_passes(skip)
    result, engine = rewrite_with_retries(
        original.clone, lambda model, bounds: pipeline.transform(model, passes, bounds), settings
    )
    return _convert(result, options.get("dtype")), engine.applied


def _convert(model: ir.Model, dtype: str | None) -> ir.Model:
    if dtype is None:
        return model
    if dtype in ("float16", "fp16"):
        return float16.convert_float16(model).model
    raise OptionError(f"expected 'float16', got {dtype!r}", where="dtype")


def _agrees(original: ir.Model, result: ir.Model, entries: Iterable[str]) -> bool:
    """Return True if both models have equal outputs on one set of inputs (1e-3 relative, 1e-4 absolute)."""
    shapes: dict[str, list[int]] = {}
    data: dict[str, Any] = {}
    names = {str(v.name) for v in original.graph.inputs}
    for text in entries:
        name, _, source = text.rpartition(":")
        if name not in names:
            raise OptionError(f"unknown input '{name}'", where="model_check_inputs")
        if source.endswith(".npy"):
            data[name] = np.load(source)
            shapes[name] = list(data[name].shape)
        else:
            shapes |= _shapes([text])
    wrong = trials.mismatches(original.clone(), original, result, trials.Trials(1, shapes, arrays=data), 1e-3, 1e-4)
    for name in wrong:
        print(f"Model output {name} mismatch after slimming.\nPlease check the model carefully.")
    return not wrong


def _title(model: Source) -> str:
    return Path(model).name if isinstance(model, (str, os.PathLike)) else "OnnxModel"


def _inspect(models: Sequence[Source], dump: bool) -> None:
    columns = [(_title(model), summary(model)) for model in models]
    if dump:
        for model in models:
            _dump(model_io.load(model), f"{_title(model)}_model_info.csv")
    _print(columns, None)


def _dump(model: ir.Model, path: str) -> None:
    """Append a row for every output of every node of the main graph to a CSV file."""
    model = model.clone()
    inference.infer_shapes(model, strict=False)
    with Path(path).open("a", newline="") as file:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(["NodeName", "OpType", "OutputDtype", "OutputShape"])
        for node in model.graph:
            for index, value in enumerate(node.outputs):
                label = ("", "") if index else (node.name or "", node.op_type)
                shape = (
                    None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
                )
                writer.writerow([*label, value.dtype, shape])
    print(f"Model info written to {path}")


def _print(columns: Sequence[tuple[str, Summary]], seconds: float | None) -> None:
    """Print the table of several models: interface, operators, bytes of weights."""
    table = Table("Model Name", *(name for name, _ in columns))
    summaries = [info for _, info in columns]
    table.add_row("Model Info", *(f"Op Set: {s.opsets.get('', '')} / IR Version: {s.ir_version}" for s in summaries))
    table.add_section()
    for label, sides in (("IN", [s.inputs for s in summaries]), ("OUT", [s.outputs for s in summaries])):
        for name in dict.fromkeys(port.name for ports in sides for port in ports):
            table.add_row(f"{label}: {name}", *(_port_text(ports, name) for ports in sides))
    table.add_section()
    for operator in sorted({name for s in summaries for name in s.operators}):
        table.add_row(operator, *(str(s.operators.get(operator, 0)) for s in summaries))
    table.add_section()
    table.add_row("Weights", *(f"{s.weight_bytes:,} B" for s in summaries))
    if seconds is not None:
        table.add_row("Elapsed Time", f"{seconds:.2f} s")
    Console(emoji=False).print(table)


def _port_text(ports: Iterable[Port], name: str) -> str:
    return next((f"{port.type}: {port.shape}" for port in ports if port.name == name), "")
