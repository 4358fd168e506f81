"""``SessionOptions`` and ``RunOptions`` with ONNX Runtime's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np

from sardonyx import runtime
from sardonyx.compat.onnxruntime.devices import OrtEpDevice
from sardonyx.compat.onnxruntime.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)
from sardonyx.compat.onnxruntime.unsupported import refuse
from sardonyx.compat.onnxruntime.values import OrtValue, numpy_of

T = TypeVar("T")

_LEVELS: Mapping[GraphOptimizationLevel, Any] = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: "none",
    GraphOptimizationLevel.ORT_ENABLE_BASIC: "basic",
}


class Setting(Generic[T]):
    """An attribute with values of one type, as in ONNX Runtime's binding.

    Args:
        default: The initial value, whose type is the attribute's.
        doc: Description of the attribute.
    """

    def __init__(self, default: T, doc: str) -> None:
        self._default = default
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return cast(T, self)
        return cast(T, instance._settings.get(self._name, self._default))

    def __set__(self, instance: Any, value: T) -> None:
        kind = type(self._default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            if kind is int and hasattr(value, "__index__"):
                value = cast(T, int(cast(Any, value)))
            else:
                raise TypeError(
                    f"{self._name}: incompatible function arguments: expected {kind.__name__}, got "
                    f"{type(value).__name__}."
                )
        instance._settings[self._name] = value


class _Entries:
    """Configuration entries: texts by name."""

    _kind = ""
    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _add(self, key: str, value: str) -> None:
        if not key or not isinstance(value, str):
            raise TypeError("expected a nonempty key and a text.")
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{self._kind} does not have configuration with key: {key}")
        return self._entries[key]


class SessionOptions(_Entries):
    """Options of a session. Settings of execution details are stored and do not change results."""

    _kind = "SessionOptions"
    __slots__ = ("_by_denotation", "_by_name", "_files", "_initializers", "_providers", "_settings")

    enable_cpu_mem_arena = Setting(True, "Retain memory between runs; always the case.")
    enable_mem_pattern = Setting(True, "Plan memory; always the case.")
    enable_mem_reuse = Setting(True, "Reuse memory; always the case.")
    enable_profiling = Setting(False, "Record runs.")
    execution_mode = Setting(ExecutionMode.ORT_SEQUENTIAL, "Concurrency between nodes.")
    execution_order = Setting(ExecutionOrder.DEFAULT, "Order of nodes.")
    graph_optimization_level = Setting(GraphOptimizationLevel.ORT_ENABLE_ALL, "Extent of rewriting.")
    inter_op_num_threads = Setting(0, "Threads across nodes; all threads share every node.")
    intra_op_num_threads = Setting(0, "Number of threads; 0 for all threads of the process.")
    log_severity_level = Setting(-1, "Severity from which messages are logged; -1 for the default.")
    log_verbosity_level = Setting(0, "Verbosity of messages.")
    logid = Setting("", "Prefix of messages.")
    optimized_model_filepath = Setting("", "Path of the rewritten model.")
    profile_file_prefix = Setting("onnxruntime_profile_", "Prefix of the trace's file name.")
    use_deterministic_compute = Setting(False, "Equal results in every run; always the case.")
    use_per_session_threads = Setting(True, "Separate threads per session; sessions always share threads.")

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {}
        self._by_name: dict[str, int] = {}
        self._by_denotation: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}
        self._files: dict[str, memoryview] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry; the reference page lists the entries with an effect."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return the entry of a key.

        Raises:
            RuntimeError: Unknown key.
        """
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the open dimensions with a name."""
        self._by_name[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the open dimensions with a denotation."""
        self._by_denotation[denotation] = int(size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace the initializer with a name by a value."""
        self._initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Replace initializers with external data by values."""
        if len(names) != len(values):
            raise RuntimeError("Expecting names and values to have equal number of elements.")
        self._initializers.update(zip(names, values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Read external data from buffers instead of the files with these names."""
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            self._files[name] = memoryview(buffer).cast("B")[:length]

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Append an execution provider."""
        self._providers.append((name, dict(options)))

    def add_provider_for_devices(self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]) -> None:
        """Append the execution providers of devices."""
        for name in dict.fromkeys(device.ep_name for device in devices):
            self.add_provider(name, options)

    def has_providers(self) -> bool:
        """Return True if execution providers were added."""
        return bool(self._providers)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Select a provider by policy: always the CPU's."""
        if not isinstance(policy, OrtExecutionProviderDevicePolicy):
            raise TypeError(f"expected an OrtExecutionProviderDevicePolicy, got {type(policy).__name__}.")
        self._providers = [("CPUExecutionProvider", {})]

    def set_provider_selection_policy_delegate(self, delegate: Any) -> None:
        """Refused: see the table of names."""
        refuse("SessionOptions.set_provider_selection_policy_delegate")

    def register_custom_ops_library(self, path: str) -> None:
        """Refused: see the table of names."""
        refuse("SessionOptions.register_custom_ops_library")

    def set_ep_context_data_read_func(self, read_func: Any, max_data_size: int) -> None:
        """Refused: see the table of names."""
        refuse("SessionOptions.set_ep_context_data_read_func")

    def clear_ep_context_data_read_func(self) -> None:
        """Do nothing: the function is never set."""

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        """Refuse further loading, or allow loading again."""
        self._settings["cancelled"] = bool(cancel)

    @property
    def _cancelled(self) -> bool:
        return bool(self._settings.get("cancelled"))

    def _runtime_options(self, **others: Any) -> runtime.SessionOptions:
        """Return the equivalent options of Sardonyx's sessions."""
        return runtime.SessionOptions(
            threads=self.intra_op_num_threads or defaults.threads,
            optimization=_LEVELS.get(self.graph_optimization_level, "all"),
            profiling=self.enable_profiling,
            profile_prefix=self.profile_file_prefix.removesuffix("_"),
            deterministic=self.use_deterministic_compute,
            free_dimensions=dict(self._by_name),
            free_denotations=dict(self._by_denotation),
            log_severity=self.log_severity_level if self.log_severity_level >= 0 else defaults.severity,
            **others,
        )

    @property
    def _initializer_arrays(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(numpy_of(value)) for name, value in self._initializers.items()}


class RunOptions(_Entries):
    """Options of one or several runs."""

    _kind = "RunOptions"
    __slots__ = ("_options", "_settings")

    log_severity_level = Setting(-1, "Severity from which messages are logged.")
    log_verbosity_level = Setting(0, "Verbosity of messages.")
    logid = Setting("", "Prefix of messages, and name of the run in a trace.")
    only_execute_path_to_fetches = Setting(False, "Compute only the requested outputs.")

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {}
        self._options = runtime.RunOptions()

    @property
    def terminate(self) -> bool:
        """True ends all runs with these options, current ones included; settable from any thread."""
        return self._options.terminated

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"terminate: incompatible function arguments: expected bool, got {type(value).__name__}.")
        if value:
            self._options.terminate()
        else:
            self._options.reset()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry; no entry changes results."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return the entry of a key.

        Raises:
            RuntimeError: Unknown key.
        """
        return self._get(key)

    def add_active_adapter(self, adapter: Any) -> None:
        """Refused: see the table of names."""
        refuse("RunOptions.add_active_adapter")

    @property
    def _runtime_options(self) -> runtime.RunOptions:
        self._options.tag = self.logid
        return self._options


class _Defaults:
    """Defaults of sessions.

    Attributes:
        severity: Severity from which messages are logged.
        threads: Number of threads; None for all threads of the process.
        has_global_threads: True if the program has set the sizes of the global thread pools.
    """

    def __init__(self) -> None:
        self.severity = 2
        self.has_global_threads = False
        self.threads: int | None = None


defaults = _Defaults()
