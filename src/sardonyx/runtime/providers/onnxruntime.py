"""ONNX Runtime as a provider, on any of its own execution providers: ``onnxruntime:CUDAExecutionProvider``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import ExecutionError, MissingDependencyError, OptionError, ResourceError, UnsupportedError
from sardonyx.model.schemas import get_schema
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.registry import canonical
from sardonyx.ops.signatures import type_text
from sardonyx.rewrite.analysis import facts
from sardonyx.runtime.providers.estimates import node_seconds
from sardonyx.runtime.providers.protocol import Answer, Claim, Refusal, Settings

CPU = "CPUExecutionProvider"

PASSED_ON = frozenset(
    f"tensor({name})"
    for name in (
        "float", "double", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
        "string",
    )
)  # fmt: skip
"""Types of values that ONNX Runtime's Python interface exchanges as numpy arrays."""

_MAPS = frozenset(
    f"map({key},tensor({value}))" for key in ("int64", "string") for value in ("int64", "float", "double", "string")
)
_SUPPORTED = PASSED_ON | _MAPS | {f"seq({element})" for element in PASSED_ON | _MAPS}

Kernels = Mapping[tuple[str, str], Sequence[tuple[int, int, Mapping[str, frozenset[str]]]]]
"""First and last version and supported types by type variable, by domain and operator."""


def module() -> ModuleType:
    """Return the package.

    Raises:
        MissingDependencyError: The package is not installed, or its name is bound to this package's drop-in module.
    """
    remedy = "Install it: pip install onnxruntime"
    loaded = sys.modules.get("onnxruntime")
    if loaded is not None and loaded.__name__ != "onnxruntime":
        raise MissingDependencyError("`onnxruntime` is Sardonyx itself in this process.", where="onnxruntime")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise MissingDependencyError("the provider is not installed", where="onnxruntime", remedy=remedy) from error
    return onnxruntime  # type: ignore[no-any-return]


@functools.cache
def _kernels(provider: str) -> Kernels | None:
    """Return the kernels of an execution provider; None if the package does not list them."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
    except ImportError:
        return None
    table: dict[tuple[str, str], list[tuple[int, int, Mapping[str, frozenset[str]]]]] = {}
    for kernel in get_all_opkernel_def():
        if kernel.provider == provider:
            first, last = kernel.version_range
            types = {name: frozenset(allowed) for name, allowed in kernel.type_constraints.items()}
            table.setdefault((canonical(kernel.domain), kernel.op_name), []).append((first, last, types))
    return table or None


def _serialize(model: ir.Model) -> bytes:
    """Return a model as the bytes of a file.

    Raises:
        UnsupportedError: The model exceeds the size of a file.
    """
    try:
        return model_io.to_proto(model).SerializeToString()
    except Exception as error:  # Protobuf's limit of 2 GiB has a class of its own in each of its versions.
        raise UnsupportedError(f"the model cannot be serialized: {error}") from error


class OnnxRuntimeRunner:
    """A model as a session of ONNX Runtime.

    Args:
        model: The bytes of the model.
        inputs: The names of its inputs, in the order of the values of a run.
        outputs: The names of the results.
        provider: The provider that compiles the model.

    Raises:
        UnsupportedError: ONNX Runtime refuses the model.
    """

    def __init__(
        self, model: bytes, inputs: Sequence[str], outputs: Sequence[str], provider: OnnxRuntimeProvider
    ) -> None:
        runtime = provider.runtime
        self._options = runtime.RunOptions
        self._inputs = list(inputs)
        self._outputs = list(outputs)
        try:
            session = runtime.InferenceSession(model, provider.session_options(), providers=provider.providers)
        except Exception as error:  # The binding raises a dozen unrelated classes.
            raise UnsupportedError(f"ONNX Runtime does not load it: {error}") from error
        if provider.device not in session.get_providers():
            raise UnsupportedError(f"ONNX Runtime could not start {provider.device}.")
        session.disable_fallback()
        # The method of the binding skips checks of names, which are right here.
        self._run = session._sess.run if hasattr(session, "_sess") else session.run

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        """Run once; see :class:`~sardonyx.runtime.providers.protocol.Runner`."""
        feeds = dict(zip(self._inputs, values, strict=True))
        if not context.limited:
            try:
                return self._run(self._outputs, feeds, None)  # type: ignore[no-any-return]
            except Exception as error:
                raise ExecutionError(f"ONNX Runtime: {error}") from error
        options = self._options()
        try:
            with ExitStack() as stack:
                stack.enter_context(context.on_end(lambda: setattr(options, "terminate", True)))
                return self._run(self._outputs, feeds, options)  # type: ignore[no-any-return]
        except Exception as error:
            context.check_time()
            if options.terminate:
                raise ResourceError("the run was ended.") from error
            raise ExecutionError(f"ONNX Runtime: {error}") from error


class OnnxRuntimeProvider:
    """One execution provider of ONNX Runtime, with its CPU provider as the fallback.

    Args:
        settings: The device is the name of the execution provider, with or without its ending; the CPU by default.

    Raises:
        MissingDependencyError: The package is not installed.
        OptionError: The package was built without the execution provider.
    """

    def __init__(self, settings: Settings) -> None:
        self.runtime = module()
        device = settings.device or CPU
        self.device = device if device.endswith("ExecutionProvider") else f"{device}ExecutionProvider"
        self.name = "onnxruntime" if not settings.device else f"onnxruntime:{settings.device}"
        available = self.runtime.get_available_providers()
        if self.device not in available:
            raise OptionError(
                f"this onnxruntime has no {self.device}.", where="providers", remedy=f"It has: {', '.join(available)}."
            )
        own = [(self.device, {name: str(value) for name, value in settings.options.items()})]
        self.providers = own if self.device == CPU else [*own, (CPU, {})]
        self._settings = settings

    def session_options(self) -> Any:
        """Return the options for the session of a partition."""
        level = self.runtime.GraphOptimizationLevel
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = {
            "none": level.ORT_DISABLE_ALL, "basic": level.ORT_ENABLE_BASIC, "all": level.ORT_ENABLE_ALL
        }[self._settings.optimization]  # fmt: skip
        options.use_deterministic_compute = self._settings.deterministic
        if self._settings.threads is not None:
            options.intra_op_num_threads = self._settings.threads
        # Spinning workers would occupy the processors that other providers need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        """Claim the nodes with a kernel of the right version and types."""
        seconds = node_seconds(model)
        return {node: self._answer(node, model, seconds[node]) for node in model.graph}

    def _answer(self, node: ir.Node, model: ir.Model, seconds: float) -> Answer:
        for value in (*node.inputs, *node.outputs):
            declared = declared_type(value) if value is not None and (value.name or value.uses()) else None
            if declared is not None and type_text(declared) not in _SUPPORTED:
                return Refusal(f"{type_text(declared)} is not passed from Python")
        missing = self._missing(node, model)
        return Refusal(missing) if missing else Claim(seconds, f"{self.device} has a kernel")

    def _missing(self, node: ir.Node, model: ir.Model) -> str:
        """Return the reason why a node, or a node inside of it, has no kernel; empty if all have kernels."""
        kernels = _kernels(self.device) or _kernels(CPU)
        if kernels is None:
            return ""
        nodes = [node, *(inner for body in facts.bodies(node) for inner in facts.nodes_of(body))]
        for current in nodes:
            version = model.graph.opset_imports.get(current.domain, 1)
            if current.op_identifier() in model.functions:
                for called in model.functions[current.op_identifier()]:
                    if reason := self._missing(called, model):
                        return reason
            elif reason := _without_kernel(current, version, kernels):
                return reason
        return ""

    def compile(self, part: ir.Model) -> OnnxRuntimeRunner:
        """Load the partition.

        Raises:
            UnsupportedError: ONNX Runtime refuses the partition.
        """
        inputs, outputs = ([str(value.name) for value in values] for values in (part.graph.inputs, part.graph.outputs))
        return OnnxRuntimeRunner(_serialize(part), inputs, outputs, self)


def _without_kernel(node: ir.Node, version: int, kernels: Kernels) -> str:
    """Return the reason why a node has no kernel; empty if it has one, or if its operator is a function."""
    domain = canonical(node.domain)
    label = f"{domain}.{node.op_type}".lstrip(".")
    try:
        schema: Any = get_schema(node.op_type, version, domain)
        since = schema.since_version
        if schema.has_function or schema.has_context_dependent_function:
            return ""
    except onnx.defs.SchemaError:
        schema, since = None, version
    known = kernels.get((domain, node.op_type), ())
    if not known:
        return f"{label} has no kernel"
    right = [types for first, last, types in known if first <= since <= last]
    if not right:
        return f"{label} has no kernel for version {since}"
    if schema is None or any(_fits(node, schema, types) for types in right):
        return ""
    return f"{label} has no kernel for {', '.join(sorted(set(_types(node.inputs))))}"


def _types(values: Sequence[ir.Value | None]) -> list[str]:
    types = [declared_type(value) for value in values if value is not None]
    return [type_text(type) for type in types if type is not None]


def _fits(node: ir.Node, schema: Any, types: Mapping[str, frozenset[str]]) -> bool:
    """Return True if the known types of a node's values are among the types of a kernel."""
    for values, formal in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for position, value in enumerate(values):
            if value is None or not formal:
                continue
            parameter = formal[min(position, len(formal) - 1)]
            allowed = types.get(parameter.type_str) or types.get(parameter.name)
            if allowed is not None and any(text not in allowed for text in _types([value])):
                return False
    return True
