"""``InferenceSession`` over Sardonyx's session."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.base import background_threads
from sardonyx.compat.onnxruntime.binding import IOBinding
from sardonyx.compat.onnxruntime.devices import (
    CPU_MEMORY,
    OrtDevice,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtMemoryInfo,
)
from sardonyx.compat.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    ModelLoadCanceled,
    NoSuchFile,
    translate_load_errors,
    translate_run_errors,
)
from sardonyx.compat.onnxruntime.model_source import load_config, select_source, write_rewritten
from sardonyx.compat.onnxruntime.options import RunOptions, SessionOptions, defaults
from sardonyx.compat.onnxruntime.providers import CPU, normalize_providers, session_providers
from sardonyx.compat.onnxruntime.raw_session import RawSession
from sardonyx.compat.onnxruntime.unsupported import refuse
from sardonyx.compat.onnxruntime.value_vector import OrtValueVector
from sardonyx.compat.onnxruntime.values import OrtValue, SparseTensor, numpy_of
from sardonyx.core.ir.types import DType
from sardonyx.errors import SardonyxError, TypeMismatchError, UnsupportedError
from sardonyx.runtime.live.edits import Edits
from sardonyx.runtime.session import Session

if TYPE_CHECKING:
    from sardonyx.runtime.live.transaction import Edit
    from sardonyx.runtime.model_info import Metadata, ValueInfo

STANDARD = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"})
"""The domains of the ONNX standard."""

_RECORD_PROVIDERS = "session.record_ep_graph_assignment_info"
_NO_VERSION = (1 << 63) - 1
_FIRST_OVERRIDABLE = 4
"""First IR version in which initializers need not be inputs, and may therefore be optional inputs."""


class NodeArg:
    """An input or output.

    Attributes:
        name: Name of the value.
        type: Type in ONNX notation, ``tensor(float)``.
        shape: Sizes: numbers, names, or None for open sizes.
    """

    def __init__(self, info: ValueInfo) -> None:
        self.name = info.name
        self.type = info.type
        self.shape = list(info.shape or []) if info.type.startswith("tensor") else []

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class ModelMetadata:
    """Metadata of a model.

    Args:
        metadata: The metadata of Sardonyx's session.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.custom_metadata_map = dict(metadata.custom)
        self.description = metadata.description
        self.domain = metadata.domain
        self.graph_description = metadata.graph_description
        self.graph_name = metadata.graph_name
        self.producer_name = metadata.producer_name
        self.version = _NO_VERSION if metadata.version is None else metadata.version


def _raise_load_error(source: Any, error: Exception) -> None:
    """Raise ONNX Runtime's exception for a model that cannot be loaded because of its content.

    Raises:
        Fail: An operator of a custom domain is unknown.
        InvalidGraph: An operator of a standard domain is unknown.
        InvalidModelError: The model breaks the standard, and ``error`` does not report the violation.
    """
    from sardonyx.model import load, to_proto
    from sardonyx.ops.registry import canonical
    from sardonyx.rewrite.analysis.structure import require_structure
    from sardonyx.runtime.providers.reference import without_definition

    if isinstance(error, UnsupportedError):
        model = load(source)
        missing = [node for node in model.graph if without_definition(node, model)]
        if missing:
            standard = any(canonical(node.domain) in STANDARD for node in missing)
            names = "; ".join(
                f"{node.domain or 'ai.onnx'}:{node.op_type}(-1) is not a registered function/op" for node in missing
            )
            raise (InvalidGraph if standard else Fail)(f"Fatal error: {names}. {error}") from error
    elif not isinstance(error, SardonyxError):
        require_structure(to_proto(load(source), weights=False))


def _require_types(session: Session) -> None:
    """Refuse a model with a node that no input type fits, as ONNX Runtime does while it loads a model.

    Compiled models have been typed; a model that could not be compiled answers from the interpreter, which would refuse
    the first call.

    Raises:
        TypeMismatchError: An operator does not accept the types of its inputs.
    """
    from sardonyx.ops.inference import infer

    for error in infer(session.model).refusals.values():
        if isinstance(error, TypeMismatchError):
            raise error


class InferenceSession(Edits):
    """A session with the methods of ONNX Runtime's, and the edits of Sardonyx's.

    Args:
        path_or_bytes: The model's file, or its content.
        sess_options: Options of the session.
        providers: Execution providers in order of preference: names, or pairs of a name and options.
        provider_options: Options for providers without options in ``providers``.
        kwargs: ``enable_fallback``: True (the default) replaces malformed providers by the CPU's;
            ``disabled_optimizers`` does not change results.

    Raises:
        NoSuchFile: The file does not exist.
        InvalidProtobuf: The file holds no model.
        InvalidGraph: The model breaks the standard.
        NotImplemented: An operator has no definition.
        TypeError: The model is neither a path nor bytes.
        ValueError: Malformed providers without fallback.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        self._model_path = os.fspath(path_or_bytes) if not isinstance(path_or_bytes, bytes) else None
        self._path_or_bytes = path_or_bytes
        self._sess_options = sess_options if sess_options is not None else SessionOptions()
        if not isinstance(self._sess_options, SessionOptions):
            raise TypeError(f"sess_options: expected a SessionOptions, got {type(sess_options).__name__}.")
        self._fallback = bool(kwargs.get("enable_fallback", True))
        if providers is None and self._sess_options.has_providers():
            providers = list(self._sess_options._providers)
        self._open(providers, provider_options)

    def _open(self, providers: Any, provider_options: Any) -> None:
        try:
            self._providers, options = normalize_providers(providers, provider_options)
        except (ValueError, RuntimeError) as error:
            if not self._fallback:
                raise
            warnings.warn(f"EP Error {error} when using {providers}. Falling back to {[CPU]}.", stacklevel=3)
            self._providers, options = [CPU], [{}]
        self._provider_options = dict(zip(self._providers, options, strict=True))
        sess_options = self._sess_options
        if sess_options._cancelled:
            raise ModelLoadCanceled("Session initialization canceled due to user request.")
        if self._model_path is not None and not Path(self._model_path).exists():
            raise NoSuchFile(f"Load model from {self._model_path} failed. File doesn't exist")
        if self._path_or_bytes in (b"", b"\0"):
            raise InvalidArgument("No graph was found in the protobuf.")
        if sess_options.use_per_session_threads and defaults.has_global_threads:
            raise RuntimeError("use_per_session_threads must be false when using a global thread pool")
        with translate_load_errors():
            load_config(self._path_or_bytes, sess_options)
            compile_mode = {} if "SARDONYX_COMPILE" in os.environ else {"compile": "wait"}
            source = select_source(self._path_or_bytes, sess_options)
            runtime_options = sess_options._runtime_options(
                providers=session_providers(self._providers, options), **compile_mode
            )
            try:
                self._session = Session(source, runtime_options)
            except Exception as error:
                _raise_load_error(source, error)
                raise
            if self._session.native is None and runtime_options.compile != "background":
                _require_types(self._session)
            if sess_options.optimized_model_filepath:
                write_rewritten(self._session.model, sess_options)
        self._inputs = self._session.get_inputs()
        self._required = frozenset(info.name for info in self._inputs)

    @property
    def _sess(self) -> RawSession:
        return RawSession(self)

    @property
    def session(self) -> Session:
        """Sardonyx's session, with all methods beyond this interface."""
        return self._session

    # Properties.

    def get_inputs(self) -> list[NodeArg]:
        """Return the required inputs."""
        return [NodeArg(info) for info in self._session.get_inputs()]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return [NodeArg(info) for info in self._session.get_outputs()]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the optional inputs."""
        if self._session.model.ir_version < _FIRST_OVERRIDABLE:
            return []
        return [NodeArg(info) for info in self._session.get_overridable_initializers()]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata."""
        return ModelMetadata(self._session.metadata)

    def get_session_options(self) -> SessionOptions:
        """Return the session's options."""
        return self._sess_options

    def get_providers(self) -> list[str]:
        """Return the execution providers, in order of preference."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of the execution providers."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Open the model again with other execution providers; edits of the session are lost.

        Raises:
            RuntimeError: An unknown provider.
        """
        normalize_providers(providers, provider_options)
        self._open(providers, provider_options)

    def disable_fallback(self) -> None:
        """Let a run fail with its provider, as always."""
        self._fallback = False

    def enable_fallback(self) -> None:
        """Allow another provider after a failure, without effect: a failing node fails with every provider."""
        self._fallback = True

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory of the inputs: the CPU's."""
        return [CPU_MEMORY for _ in self._session.get_inputs()]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory of the outputs: the CPU's."""
        return [CPU_MEMORY for _ in self._session.get_outputs()]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Return the devices that read the inputs."""
        return [OrtEpDevice() for _ in self._session.get_inputs()]

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Return the execution provider of each node.

        Raises:
            Fail: The session was created without the configuration entry that requests the record.
        """
        if self._sess_options._entries.get(_RECORD_PROVIDERS) != "1":
            raise Fail(
                f"Session configuration entry '{_RECORD_PROVIDERS}' must be set to \"1\" to retrieve EP graph "
                "assignment information."
            )
        names = {"openvino": "OpenVINOExecutionProvider"}
        pairs = zip(self._session.placement, self._session.model.graph, strict=True)
        return [
            OrtEpAssignedSubgraph(
                names.get(placement.provider, CPU), [OrtEpAssignedNode(node.name or "", node.domain, node.op_type)]
            )
            for placement, node in pairs
        ]

    def get_tuning_results(self) -> list[Any]:
        """Return no tuning results, which exist for other devices only."""
        return []

    def set_tuning_results(self, results: list[Any], *, error_on_invalid: bool = False) -> None:
        """Refused unless empty: see the table of names."""
        if results:
            refuse("InferenceSession.set_tuning_results")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Refused unless empty: see the table of names."""
        if options:
            refuse("InferenceSession.set_ep_dynamic_options")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: no device records graphs."""

    def edit(self) -> Edit:
        """Begin an edit of the running model; see :meth:`sardonyx.Session.edit`."""
        return self._session.edit()

    # Running.

    def _require_inputs(self, feeds: Mapping[str, Any]) -> None:
        if not self._required <= feeds.keys() or self._session.get_inputs() != self._inputs:
            self._inputs = self._session.get_inputs()
            self._required = frozenset(info.name for info in self._inputs)
            missing = [
                info.name for info in self._inputs if info.name not in feeds and not info.type.startswith("optional")
            ]
            if missing:
                raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).")

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Run the model once.

        Args:
            output_names: Names of the requested outputs; None or empty for all.
            input_feed: Arrays, or values convertible to arrays, by input name.
            run_options: Options of this run.

        Raises:
            ValueError: An input is missing.
            InvalidArgument: A name is unknown, or a feed has another type, rank or size.
            RuntimeException: A node has no result for these values.
            Fail: The run was terminated, or exceeded a limit.
        """
        if not isinstance(input_feed, Mapping) or isinstance(output_names, (str, bytes)):
            raise TypeError("run(): incompatible function arguments: expected a list of names and a dict.")
        if run_options is not None and not isinstance(run_options, RunOptions):
            raise TypeError(
                f"run(): incompatible function arguments: expected RunOptions, got {type(run_options).__name__}."
            )
        self._require_inputs(input_feed)
        names = list(output_names) if output_names else None
        if names is not None:
            known = {info.name for info in self._session.get_outputs()}
            if unknown := next((name for name in names if name not in known), None):
                raise InvalidArgument(f"Invalid output name:{unknown}")
        feeds = input_feed
        if any(type(value) is not np.ndarray or value.dtype.kind in "VO" for value in input_feed.values()):
            feeds = {name: self._array(name, value) for name, value in input_feed.items()}
        with translate_run_errors():
            return self._session.run(names, feeds, None if run_options is None else run_options._runtime_options)

    def _array(self, name: str, value: Any) -> Any:
        """Return a feed for Sardonyx's session: numbers and lists become arrays of the declared type."""
        if isinstance(value, (OrtValue, SparseTensor)):
            return numpy_of(value)
        declared = next((info.type for info in self._inputs if info.name == name), "")
        if declared == "tensor(string)" and isinstance(value, np.ndarray) and value.dtype.kind == "V":
            return np.array([item.tobytes().decode() for item in value.ravel()], object).reshape(value.shape)
        if declared == "tensor(string)" and isinstance(value, np.ndarray) and value.dtype == object:
            # ONNX Runtime converts each element that is not a string by `str`.
            words = [item if isinstance(item, (str, bytes)) else str(item) for item in value.ravel().tolist()]
            strings = np.empty(len(words), object)
            strings[:] = words
            return strings.reshape(value.shape)
        if not declared.startswith("tensor(") or isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
            return value
        if declared == "tensor(string)":
            return np.asarray(value, object)
        return np.asarray(value, DType.__members__[declared[len("tensor(") : -1].upper()].numpy())

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Start a run in another thread, which calls ``callback(results, user_data, error)`` at the end.

        Raises:
            ValueError: An input is missing.
        """
        self._require_inputs(input_feed)

        def compute() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:  # The caller waits for the callback in any case.
                results, error = [], str(raised) or type(raised).__name__
            callback(results, user_data, error)

        background_threads.start("sardonyx-run", compute)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run as :meth:`run` does, with ``OrtValue`` inputs and outputs."""
        feeds = {name: numpy_of(value) for name, value in input_dict_ort_values.items()}
        return [OrtValue(result) for result in self.run(output_names, feeds, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """Run as :meth:`run` does, with values in order; the requested outputs are appended to ``fetches``."""
        inputs = dict(zip(feed_names, feeds, strict=True))
        for value in self.run_with_ort_values(list(fetch_names), inputs, run_options):
            fetches.push_back(value)

    def io_binding(self) -> IOBinding:
        """Return a binding of values to names for :meth:`run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run from the bound inputs to the bound outputs.

        Raises:
            RuntimeError: A run would raise ``InvalidArgument``, or an output does not fit its bound memory.
        """
        try:
            iobinding._run(lambda names, feeds: self.run(names, feeds, run_options))
        except (SardonyxError, ValueError) as error:
            raise RuntimeError(f"Error in execution: {error}") from error

    def create_ortvalue_from_shape_and_type(self, shape: Sequence[int], element_type: Any) -> OrtValue:
        """Return an uninitialized tensor on the session's device."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type)

    # Traces.

    def end_profiling(self) -> str:
        """Write the trace of the runs.

        Returns:
            The path of the file; empty if the session does not record.
        """
        return self._session.end_profiling() if self._sess_options.enable_profiling else ""

    def get_profiling_start_time_ns(self) -> int:
        """Return the start time of recording; 0 if the session does not record."""
        return self._session.profiling_start_ns
