"""``InferenceSession`` over a session of ours."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import runtime
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
    loading,
    running,
)
from sardonyx.compat.onnxruntime.options import RunOptions, SessionOptions
from sardonyx.compat.onnxruntime.providers import CPU, normalized, ours
from sardonyx.compat.onnxruntime.unsupported import refuse
from sardonyx.compat.onnxruntime.values import OrtValue, SparseTensor, numpy_of
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.model import load, save, to_proto
from sardonyx.model.copying import copy_model
from sardonyx.ops.registry import canonical
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.structure import require_structure
from sardonyx.runtime.live.transaction import Edit, Edits
from sardonyx.runtime.metadata import Metadata
from sardonyx.runtime.providers.reference import without_definition
from sardonyx.runtime.value_info import ValueInfo

STANDARD = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"})
"""The standard's domains."""

_NO_VERSION = (1 << 63) - 1
_FIRST_OVERRIDABLE = 4
"""The version of the file format from which initializers need not be inputs: those that are can be overridden."""


class NodeArg:
    """An input or output.

    Attributes:
        name: Its name.
        type: Its type, ``tensor(float)``.
        shape: Its sizes: a number, a name, or None for an open one.
    """

    def __init__(self, info: ValueInfo) -> None:
        self.name = info.name
        self.type = info.type
        self.shape = list(info.shape or []) if info.type.startswith("tensor") else []

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class ModelMetadata:
    """What a model says of itself.

    Args:
        said: The same, as our sessions give it.
    """

    def __init__(self, said: Metadata) -> None:
        self.custom_metadata_map = dict(said.custom)
        self.description = said.description
        self.domain = said.domain
        self.graph_description = said.graph_description
        self.graph_name = said.graph_name
        self.producer_name = said.producer_name
        self.version = _NO_VERSION if said.version is None else said.version


def _blame(source: Any, error: Exception) -> None:
    """Raise what ONNX Runtime raises where a model cannot be made ready because of what it says.

    Raises:
        Fail: There is no operator of a name in a domain of somebody's own.
        InvalidGraph: There is none in the standard's domains.
        InvalidModelError: The model breaks the standard; found where the error does not say so.
    """
    if isinstance(error, UnsupportedError):
        model = load(source)
        missing = [node for node in model.graph if without_definition(node, model)]
        if missing:
            standard = any(canonical(node.domain) in STANDARD for node in missing)
            raise (InvalidGraph if standard else Fail)(str(error)) from error
    elif not isinstance(error, SardonyxError):
        require_structure(to_proto(load(source), weights=False))


class InferenceSession(Edits):
    """A model that runs, with the methods of ONNX Runtime's and the edits of our sessions.

    Args:
        path_or_bytes: The model's file, or what is in it.
        sess_options: What the session is told.
        providers: Execution providers in order of preference: names, or pairs of a name and options.
        provider_options: Options for providers that are given by name alone.
        kwargs: ``enable_fallback``: whether the processor stands in for providers that are given otherwise, as it does
            by default; ``disabled_optimizers`` changes no result here.

    Raises:
        NoSuchFile: There is no such file.
        InvalidProtobuf: It holds no model.
        InvalidGraph: The model breaks the standard.
        NotImplemented: An operator has no definition.
        TypeError: It is neither a path nor bytes.
        ValueError: The providers are given otherwise, and nothing stands in for them.
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
        self._given = path_or_bytes
        self._sess_options = sess_options if sess_options is not None else SessionOptions()
        if not isinstance(self._sess_options, SessionOptions):
            raise TypeError(f"sess_options: a SessionOptions is needed, not {type(sess_options).__name__}.")
        self._fallback = bool(kwargs.get("enable_fallback", True))
        if providers is None and self._sess_options.has_providers():
            providers = list(self._sess_options._providers)
        self._begin(providers, provider_options)

    def _begin(self, providers: Any, provider_options: Any) -> None:
        try:
            self._providers, options = normalized(providers, provider_options)
        except ValueError as error:
            if not self._fallback:
                raise
            warnings.warn(f"EP Error {error} when using {providers}. Falling back to {[CPU]}.", stacklevel=3)
            self._providers, options = [CPU], [{}]
        self._provider_options = dict(zip(self._providers, options, strict=True))
        told = self._sess_options
        if told._cancelled:
            raise ModelLoadCanceled("Session initialization canceled due to user request.")
        if self._model_path is not None and not Path(self._model_path).exists():
            raise NoSuchFile(f"Load model from {self._model_path} failed. File doesn't exist")
        if self._given in (b"", b"\0"):
            raise InvalidArgument("No graph was found in the protobuf.")
        with loading():
            waits = {} if "SARDONYX_COMPILE" in os.environ else {"compile": "wait"}
            source, ours_told = self._source(), told._ours(providers=ours(self._providers, options), **waits)
            try:
                self._session = runtime.Session(source, ours_told)
            except Exception as error:
                _blame(source, error)
                raise
            if told.optimized_model_filepath:
                rewritten = optimize(self._session.model, target="portable", verify=False).model
                save(rewritten, told.optimized_model_filepath)
        self._inputs = self._session.get_inputs()
        self._needed = frozenset(each.name for each in self._inputs)

    def _source(self) -> Any:
        """What our session is given: the file or bytes, or a model whose initializers are replaced."""
        replaced = self._sess_options._arrays
        if not replaced:
            return self._given
        model = copy_model(load(self._given))
        for name, array in replaced.items():
            if name not in model.graph.initializers:
                raise InvalidArgument(f"there is no initializer {name!r} to replace.")
            model.graph.initializers[name].const_value = ir.tensor(array, name=name)
        return model

    @property
    def session(self) -> runtime.Session:
        """Our session, with all that it can do beside this interface."""
        return self._session

    # What it is.

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return [NodeArg(each) for each in self._session.get_inputs()]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        return [NodeArg(each) for each in self._session.get_outputs()]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that need not be fed."""
        if self._session.model.ir_version < _FIRST_OVERRIDABLE:
            return []
        return [NodeArg(each) for each in self._session.get_overridable_initializers()]

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        return ModelMetadata(self._session.metadata)

    def get_session_options(self) -> SessionOptions:
        """What the session was told."""
        return self._sess_options

    def get_providers(self) -> list[str]:
        """The execution providers, in order of preference."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Their options."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Begin anew with other execution providers; edits of the session are lost."""
        self._begin(providers, provider_options)

    def disable_fallback(self) -> None:
        """Let a run fail with its provider; it always does here."""
        self._fallback = False

    def enable_fallback(self) -> None:
        """Allow another provider after a failure; none is asked here: what fails has no result anywhere."""
        self._fallback = True

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where inputs are read: on the processor."""
        return [CPU_MEMORY for _ in self._session.get_inputs()]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where outputs are written: on the processor."""
        return [CPU_MEMORY for _ in self._session.get_outputs()]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """What reads the inputs."""
        return [OrtEpDevice() for _ in self._session.get_inputs()]

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Which nodes the execution providers run."""
        names = {"openvino": "OpenVINOExecutionProvider"}
        parts: dict[tuple[int, str], list[OrtEpAssignedNode]] = {}
        for each, node in zip(self._session.placement, self._session.model.graph, strict=True):
            place = (each.part, names.get(each.provider, CPU))
            parts.setdefault(place, []).append(OrtEpAssignedNode(node.name or "", node.domain, node.op_type))
        return [OrtEpAssignedSubgraph(provider, nodes) for (_, provider), nodes in sorted(parts.items())]

    def get_tuning_results(self) -> list[Any]:
        """What tuning found: nothing, it is for other devices."""
        return []

    def set_tuning_results(self, results: list[Any], *, error_on_invalid: bool = False) -> None:
        """Refused, unless there are none: see the table of names."""
        if results:
            refuse("InferenceSession.set_tuning_results")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Refused, unless there are none: see the table of names."""
        if options:
            refuse("InferenceSession.set_ep_dynamic_options")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Forget what a device recorded; none does."""

    def edit(self) -> Edit:
        """Begin an edit of the model while it runs; see :meth:`sardonyx.Session.edit`."""
        return self._session.edit()

    # Running.

    def _missing(self, fed: Mapping[str, Any]) -> None:
        if not self._needed <= fed.keys() or self._session.get_inputs() != self._inputs:
            self._inputs = self._session.get_inputs()
            self._needed = frozenset(each.name for each in self._inputs)
            missing = [
                each.name for each in self._inputs if each.name not in fed and not each.type.startswith("optional")
            ]
            if missing:
                raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(fed)}).")

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Run the model once.

        Args:
            output_names: What is asked for; None or nothing for all outputs.
            input_feed: Arrays, or what becomes one, by input name.
            run_options: Of this run.

        Raises:
            ValueError: An input is missing.
            InvalidArgument: A name is unknown, or a feed is of another type, rank or size.
            RuntimeException: A node has no result for these values.
            Fail: The run was ended, or passed a limit.
        """
        if not isinstance(input_feed, Mapping) or isinstance(output_names, (str, bytes)):
            raise TypeError("run(): incompatible function arguments: names in a list, and a dict, are needed.")
        if run_options is not None and not isinstance(run_options, RunOptions):
            raise TypeError(f"run(): incompatible function arguments: no RunOptions but {type(run_options).__name__}.")
        self._missing(input_feed)
        names = list(output_names) if output_names else None
        if names is not None:
            known = {each.name for each in self._session.get_outputs()}
            if unknown := next((name for name in names if name not in known), None):
                raise InvalidArgument(f"Invalid output name:{unknown}")
        feeds = input_feed
        if any(type(fed) is not np.ndarray for fed in input_feed.values()):
            feeds = {name: self._array(name, fed) for name, fed in input_feed.items()}
        with running():
            return self._session.run(names, feeds, None if run_options is None else run_options._ours)

    def _array(self, name: str, fed: Any) -> Any:
        """A feed as our sessions take it: numbers and lists of them become arrays of the declared type."""
        if isinstance(fed, (OrtValue, SparseTensor)):
            return numpy_of(fed)
        declared = next((each.type for each in self._inputs if each.name == name), "")
        if not declared.startswith("tensor(") or isinstance(fed, np.ndarray) or hasattr(fed, "__dlpack__"):
            return fed
        if declared == "tensor(string)":
            return np.asarray(fed, object)
        return np.asarray(fed, ir.DataType[declared[len("tensor(") : -1].upper()].numpy())

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Begin a run in another thread, which calls ``callback(results, user_data, error)`` at its end.

        Raises:
            ValueError: An input is missing.
        """
        self._missing(input_feed)

        def compute() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:  # Whatever it is, somebody waits for the call.
                results, error = [], str(raised) or type(raised).__name__
            callback(results, user_data, error)

        background_threads.start("sardonyx-run", compute)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As :meth:`run`, with values in and out."""
        feeds = {name: numpy_of(value) for name, value in input_dict_ort_values.items()}
        return [OrtValue(found) for found in self.run(output_names, feeds, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: list[OrtValue],
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """As :meth:`run`, with values in order; what is asked for is put into ``fetches``."""
        given = dict(zip(feed_names, feeds, strict=True))
        fetches[:] = self.run_with_ort_values(list(fetch_names), given, run_options)

    def io_binding(self) -> IOBinding:
        """A binding of values to names for :meth:`run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run from what is bound into what is bound.

        Raises:
            RuntimeError: A run would raise ``InvalidArgument``, or what is bound to an output does not fit it.
        """
        try:
            iobinding._run(lambda names, feeds: self.run(names, feeds, run_options))
        except (SardonyxError, ValueError) as error:
            raise RuntimeError(f"Error in execution: {error}") from error

    def create_ortvalue_from_shape_and_type(self, shape: Sequence[int], element_type: Any) -> OrtValue:
        """A tensor on the session's device that is not yet written."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type)

    # Traces.

    def end_profiling(self) -> str:
        """Write the trace of the runs.

        Returns:
            The path of the file; empty where the session does not record.
        """
        return self._session.end_profiling() if self._sess_options.enable_profiling else ""

    def get_profiling_start_time_ns(self) -> int:
        """When recording began; 0 where the session does not record."""
        return self._session.profiling_start_ns
