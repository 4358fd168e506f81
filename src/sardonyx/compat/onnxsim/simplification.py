"""Drop-in for ``simplify`` of ``onnxsim`` 0.8.1, implemented by the rewriter."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.compat import trials
from sardonyx.compat.function_rules import rule_from_functions
from sardonyx.compat.parameters import Parameters, Refused, Works, require_available
from sardonyx.compat.rewriting import rewrite_with_retries, select_passes
from sardonyx.errors import OptionError
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.rewrite_context import Settings

__all__ = ["simplify"]

FOLDING = ("fold_constants", "fold_shape_arithmetic", "eliminate_shape_op", "eliminate_shape_gather")
"""Passes that compute nodes at rewriting time."""

REWRITER_ROUNDS = 50
"""Maximum number of alternations between rewriting and ``custom_rewriter``."""

_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}

PARAMETERS: Parameters = {
    "model": Works(),
    "check_n": Works("inputs are drawn in the range that the graph allows"),
    "perform_optimization": Works("False only folds constants"),
    "skip_fuse_bn": Works(),
    "overwrite_input_shapes": Works("constants baked from the old shapes are repaired"),
    "test_input_shapes": Works(),
    "skipped_optimizers": Works("names of passes; unknown names are ignored, as in the original"),
    "skip_constant_folding": Works(),
    "skip_shape_inference": Refused("every rewrite needs shapes; failed inference leaves shapes open"),
    "input_data": Works(),
    "dynamic_input_shape": Works("deprecated in the original; warns and has no effect"),
    "custom_lib": Refused("the evaluator loads no libraries"),
    "include_subgraph": Works("bodies are always rewritten"),
    "unused_output": Works(),
    "tensor_size_threshold": Works("bytes that one rewrite may add, at most 64 KiB"),
    "mutable_initializer": Works(),
    "initializers_as_constants": Works("False excludes weights of the main graph from rewrites that need their values"),
    "inline_functions": Works(),
    "import_custom_schemas": Works("schemas registered with onnx are always used"),
    "input_shapes": Works("deprecated in the original; warns, sets overwrite_input_shapes and test_input_shapes"),
    "target_opset_version": Works(),
    "extra_optimizers": Works("names of passes"),
    "custom_rewriter": Works(),
    "function_rewrite_rules": Works("patterns of one output"),
    "check_rtol": Works(),
    "check_atol": Works(),
    "input_fill": Works("random: a normal distribution, integers in the range that the graph allows"),
    "providers": Refused("constants are folded on the CPU", (["CPUExecutionProvider"], ("CPUExecutionProvider",))),
    "gemm_fusion_backend": Works("ort_cpu does not fuse products in half precision, the others do"),
    "profile": Refused("the run has no trace; sardonyx.optimize reports the effect of each pass"),
    "ort_profile": Refused("the evaluator's sessions have no trace"),
    "merge_ort_profile": Refused("the evaluator's sessions have no trace"),
    "output_path": Works(),
    "external_data_threshold": Works(),
    "range_opt": Refused("ranges are not annotated"),
    "certify": Refused("no symbolic proof; sardonyx.optimize verifies by running both models", (False,)),
    "check_hazards": Refused("NaN and infinity are not analysed"),
    "check_gradients": Refused("gradients are not analysed"),
    "gradient_precision": Refused("gradients are not analysed"),
}


class InputNameError(OptionError, RuntimeError):
    """Unknown input or output of the model; a ``RuntimeError``, as in the original."""


class ArgumentError(OptionError, ValueError):
    """Arguments that exclude each other, or an invalid value; a ``ValueError``, as in the original."""


def simplify(  # type: ignore[no-untyped-def]  # the signature of the original
    model: str | onnx.ModelProto,
    check_n: int = 0,
    perform_optimization: bool = True,
    skip_fuse_bn: bool = False,
    overwrite_input_shapes=None,
    test_input_shapes=None,
    skipped_optimizers: list[str] | None = None,
    skip_constant_folding=False,
    skip_shape_inference=False,
    input_data=None,
    dynamic_input_shape: bool = False,
    custom_lib: str | None = None,
    include_subgraph: bool = False,
    unused_output=None,
    tensor_size_threshold: str = "1.5GB",
    mutable_initializer: bool = False,
    *,
    initializers_as_constants: bool = True,
    inline_functions: bool = False,
    import_custom_schemas: bool = True,
    input_shapes=None,
    target_opset_version=None,
    extra_optimizers: list[str] | None = None,
    custom_rewriter: Callable[[onnx.ModelProto], onnx.ModelProto | bool | None] | None = None,
    function_rewrite_rules=None,
    check_rtol: float = 1e-4,
    check_atol: float = 1e-5,
    input_fill: str = "random",
    providers=None,
    gemm_fusion_backend: str = "ort_cpu",
    profile: str | None = None,
    ort_profile: str | None = None,
    merge_ort_profile: bool = False,
    output_path: str | None = None,
    external_data_threshold: str = "100MB",
    range_opt: bool = False,
    certify: bool | None = None,
    check_hazards: bool = False,
    check_gradients: bool = False,
    gradient_precision: str = "fp32",
) -> tuple[onnx.ModelProto, bool]:
    """Simplify a model.

    The parameters have the names of ``onnxsim.simplify``; ``PARAMETERS`` and the reference page describe the support of
    each.

    Returns:
        The simplified model, and True if the model passes the checker and has the original's outputs on ``check_n``
        sets of inputs. The result is not verified further: ``sardonyx.optimize`` verifies results.

    Raises:
        RefusedParameterError: An unavailable parameter has a value other than its default.
        ArgumentError: Arguments exclude each other, or a size is malformed (a ``ValueError``).
        InputNameError: An input or output name is unknown (a ``RuntimeError``).
        OptionError: An extra pass is unknown.
        ModelFileError: The model cannot be read.
        ModelTooLargeError: The result does not fit into a message.
    """
    arguments = dict(locals())
    require_available(simplify, PARAMETERS, arguments)
    _require_consistent(arguments)
    if dynamic_input_shape:
        warnings.warn("dynamic_input_shape has no effect", DeprecationWarning, stacklevel=2)
    if input_shapes is not None:
        warnings.warn("use overwrite_input_shapes and test_input_shapes", DeprecationWarning, stacklevel=2)
        overwrite_input_shapes = test_input_shapes = input_shapes
    source = _Source(
        model,
        shapes=overwrite_input_shapes or {},
        unused_output=tuple(unused_output or ()),
        keep_inputs=mutable_initializer,
        constants=initializers_as_constants,
        inline=inline_functions,
        opset=target_opset_version,
    )
    skip = {*(skipped_optimizers or ()), *(FOLDING if skip_constant_folding else ())}
    skip |= {"fuse_bn_into_conv"} if skip_fuse_bn else set()
    if gemm_fusion_backend == "ort_cpu" and _multiplies_in_half_precision(source.fresh()):
        skip.add("fuse_matmul_add_bias_into_gemm")
    if mutable_initializer or not initializers_as_constants:
        skip.add("eliminate_initializer_from_inputs")
    if not perform_optimization:
        skip |= set(pipeline.available_passes()) - set(FOLDING)
    passes = select_passes(
        skip,
        extra_optimizers if extra_optimizers and perform_optimization else (),
        [rule_from_functions(*pair, index=i) for i, pair in enumerate(function_rewrite_rules or ())],
    )
    settings = Settings(growth=min(Settings.growth, _parse_size(tensor_size_threshold)))
    result, _ = rewrite_with_retries(
        source.fresh, lambda model, bounds: pipeline.transform(model, passes, bounds), settings
    )
    if custom_rewriter is not None:
        result = _with_rewriter(result, custom_rewriter, passes, settings)
    source.remove_added_inputs(result)
    proto = model_io.to_proto(result)
    if output_path is not None:
        large = sum(v.const_value.nbytes for v in result.graph.initializers.values() if v.const_value is not None)
        model_io.save(result, output_path, external_data=True if large > _parse_size(external_data_threshold) else None)
    return proto, _passes_checker(proto) and _agrees(
        source, proto, check_n, test_input_shapes or {}, input_fill, input_data, check_rtol, check_atol
    )


def _require_consistent(arguments: Mapping[str, Any]) -> None:
    if arguments["custom_rewriter"] is not None and arguments["function_rewrite_rules"]:
        raise ArgumentError(
            "custom_rewriter and function_rewrite_rules are mutually exclusive; pass only one.", where="simplify"
        )
    if arguments["output_path"] is not None and not isinstance(arguments["model"], str):
        raise ArgumentError("output_path requires `model` to be a file path", where="output_path")
    if arguments["gemm_fusion_backend"] not in ("ort_cpu", "unrestricted", "webgpu", "webnn"):
        raise ArgumentError(f"unknown backend {arguments['gemm_fusion_backend']!r}", where="gemm_fusion_backend")
    target = arguments["target_opset_version"]
    if target is not None and target != "latest" and not isinstance(target, int):
        raise ArgumentError(f"expected an int, 'latest' or None, got {target!r}", where="target_opset_version")
    if arguments["input_fill"] not in trials.FILLS:
        raise trials.FillError(f"Unknown input_fill {arguments['input_fill']!r}", where="input_fill")


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"([\d.]+)\s*([KMGT]?B)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ArgumentError(f'expected a size such as "1.5GB", got {text!r}', where="tensor_size_threshold")
    return int(float(match[1]) * _UNITS[match[2].upper()])


class _Source:
    """The model before any rewrite, with the changes that the parameters request."""

    def __init__(
        self,
        model: str | onnx.ModelProto,
        *,
        shapes: Mapping[str | None, Any],
        unused_output: tuple[str, ...],
        keep_inputs: bool,
        constants: bool,
        inline: bool,
        opset: int | str | None,
    ) -> None:
        self._model: str | onnx.ModelProto = os.fspath(model) if isinstance(model, os.PathLike) else model
        if inline:
            proto = onnx.load(self._model) if isinstance(self._model, str) else self._model
            self._model = onnx.inliner.inline_local_functions(proto)
        self._unused_output = unused_output
        self._keep_inputs = keep_inputs
        self._constants = constants
        self._opset = onnx.defs.onnx_opset_version() if opset == "latest" else opset
        self._added: set[str] = set()
        loaded = model_io.load(self._model)
        self.shapes = input_shapes_of(loaded, shapes)

    @property
    def original(self) -> str | onnx.ModelProto:
        """The model with which the result is compared."""
        return self._model

    def fresh(self) -> ir.Model:
        """Return a new copy of the model to rewrite."""
        model = model_io.load(self._model)
        if isinstance(self._opset, int):
            from sardonyx.rewrite.opset import convert_opset

            model = convert_opset(model, self._opset)
        pipeline.free_initializers(model)
        outputs = {value.name: value for value in model.graph.outputs}
        for name in self._unused_output:
            if name not in outputs:
                raise InputNameError(f'The model doesn\'t have output named "{name}"', where="unused_output")
            model.graph.outputs.remove(outputs[name])
        if not self._keep_inputs:
            for value in [v for v in model.graph.inputs if v.is_initializer()]:
                model.graph.inputs.remove(value)
        if self.shapes:
            from sardonyx.rewrite.reshape_inputs import set_input_shapes

            set_input_shapes(model, self.shapes)
        if not self._constants:
            # As graph inputs, weights are not constants for any rewrite.
            for value in [v for v in model.graph.initializers.values() if not v.is_graph_input()]:
                model.graph.inputs.append(value)
                self._added.add(str(value.name))
        return model

    def remove_added_inputs(self, model: ir.Model) -> None:
        """Remove the graph inputs that ``fresh`` added for rewriting."""
        for value in [v for v in model.graph.inputs if v.name in self._added]:
            model.graph.inputs.remove(value)


def input_shapes_of(model: ir.Model, shapes: Mapping[str | None, Any]) -> dict[str, Any]:
    """Return shapes by input name; the name None denotes the only input.

    Raises:
        InputNameError: An input is unknown.
    """
    names = [str(v.name) for v in model.graph.inputs if not v.is_initializer()]
    named = {}
    for name, shape in shapes.items():
        if name is None and len(names) != 1:
            raise InputNameError("The model has more than 1 inputs, please name them", where="input shapes")
        if name is not None and name not in names:
            raise InputNameError(f'The model doesn\'t have input named "{name}"', where="input shapes")
        named[names[0] if name is None else name] = shape
    return named


def _multiplies_in_half_precision(model: ir.Model) -> bool:
    return any(v.dtype == ir.DataType.FLOAT16 for v in (*model.graph.initializers.values(), *model.graph.inputs))


def _with_rewriter(
    model: ir.Model,
    rewriter: Callable[[onnx.ModelProto], onnx.ModelProto | bool | None],
    passes: pipeline.Selection,
    settings: Settings,
) -> ir.Model:
    """Alternate rewriting and ``rewriter`` until ``rewriter`` changes nothing."""
    for _ in range(REWRITER_ROUNDS):
        proto = model_io.to_proto(model)
        before = proto.SerializeToString(deterministic=True)
        answer = rewriter(proto)
        if answer is False:
            return model
        changed = answer if isinstance(answer, onnx.ModelProto) else proto
        if changed.SerializeToString(deterministic=True) == before:
            return model
        model, _ = rewrite_with_retries(
            lambda source=changed: model_io.from_proto(source),  # type: ignore[misc]
            lambda copy, bounds: pipeline.transform(copy, passes, bounds),
            settings,
        )
    return model


def _passes_checker(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True


def _agrees(
    source: _Source,
    proto: onnx.ModelProto,
    count: int,
    shapes: Mapping[str | None, Any],
    fill: str,
    data: Mapping[str, Any] | None,
    rtol: float,
    atol: float,
) -> bool:
    if count == 0:
        return True
    original = model_io.load(source.original)
    pipeline.free_initializers(original)
    inputs = trials.Trials(count, source.shapes | input_shapes_of(original, shapes), fill, data or {})
    return not trials.mismatches(original, source.original, proto, inputs, rtol, atol)
