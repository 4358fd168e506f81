"""``SessionOptions`` and ``RunOptions`` as ONNX Runtime has them."""

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
    """An attribute that takes values of one type, as those of bindings do.

    Args:
        default: What it is at first; its type is the one that it takes.
        doc: What it is for.
    """

    def __init__(self, default: T, doc: str) -> None:
        self._default = default
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return cast(T, self)
        return cast(T, instance._told.get(self._name, self._default))

    def __set__(self, instance: Any, value: T) -> None:
        kind = type(self._default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            if kind is int and hasattr(value, "__index__"):
                value = cast(T, int(cast(Any, value)))
            else:
                raise TypeError(
                    f"{self._name}: incompatible function arguments: {kind.__name__} is needed, not "
                    f"{type(value).__name__}."
                )
        instance._told[self._name] = value


class _Entries:
    """Texts by name."""

    _kind = ""
    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _add(self, key: str, value: str) -> None:
        if not key or not isinstance(value, str):
            raise TypeError("a configuration entry is two texts, the first not empty.")
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{self._kind} does not have configuration with key: {key}")
        return self._entries[key]


class SessionOptions(_Entries):
    """What a session is told when it is made. Settings that only say how to compute are kept and change no result."""

    _kind = "SessionOptions"
    __slots__ = ("_by_denotation", "_by_name", "_initializers", "_providers", "_told")

    enable_cpu_mem_arena = Setting(True, "Whether memory is kept between runs; it always is.")
    enable_mem_pattern = Setting(True, "Whether memory is planned; it always is.")
    enable_mem_reuse = Setting(True, "Whether memory is used again; it always is.")
    enable_profiling = Setting(False, "Whether runs are recorded.")
    execution_mode = Setting(ExecutionMode.ORT_SEQUENTIAL, "Whether nodes may run beside each other.")
    execution_order = Setting(ExecutionOrder.DEFAULT, "In what order nodes run.")
    graph_optimization_level = Setting(GraphOptimizationLevel.ORT_ENABLE_ALL, "How much the model is rewritten.")
    inter_op_num_threads = Setting(0, "Threads across nodes; all threads share every node.")
    intra_op_num_threads = Setting(0, "Threads that compute; 0 for what the process may use.")
    log_severity_level = Setting(-1, "From which severity on messages are logged; -1 for the default.")
    log_verbosity_level = Setting(0, "How much is told of what goes on.")
    logid = Setting("", "What messages begin with.")
    optimized_model_filepath = Setting("", "Where the rewritten model is written.")
    profile_file_prefix = Setting("onnxruntime_profile_", "How the name of the trace begins.")
    use_deterministic_compute = Setting(False, "Whether results are the same from run to run; they always are.")
    use_per_session_threads = Setting(True, "Whether sessions have threads of their own; they always share.")

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, Any] = {}
        self._by_name: dict[str, int] = {}
        self._by_denotation: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; none of them changes what is computed here."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """The entry of a name.

        Raises:
            RuntimeError: There is none.
        """
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the open dimensions of a name."""
        self._by_name[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the open dimensions of a denotation."""
        self._by_denotation[denotation] = int(size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Let a value stand for the initializer of a name."""
        self._initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Let values stand for initializers whose data are in files."""
        if len(names) != len(values):
            raise RuntimeError("Expecting names and values to have equal number of elements.")
        self._initializers.update(zip(names, values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Refused: see the table of names."""
        refuse("SessionOptions.add_external_initializers_from_files_in_memory")

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Add an execution provider behind those that are there."""
        self._providers.append((name, dict(options)))

    def add_provider_for_devices(self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]) -> None:
        """Add the execution provider of devices behind those that are there."""
        for name in dict.fromkeys(device.ep_name for device in devices):
            self.add_provider(name, options)

    def has_providers(self) -> bool:
        """Whether execution providers were added."""
        return bool(self._providers)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Choose a provider by policy: there is one device, the processor."""
        if not isinstance(policy, OrtExecutionProviderDevicePolicy):
            raise TypeError(f"an OrtExecutionProviderDevicePolicy is needed, not {type(policy).__name__}.")
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
        """Forget the function that is never set."""

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        """Refuse to load from now on, or allow it again."""
        self._told["cancelled"] = bool(cancel)

    @property
    def _cancelled(self) -> bool:
        return bool(self._told.get("cancelled"))

    def _ours(self, **others: Any) -> runtime.SessionOptions:
        """The same as options of our sessions."""
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
    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(numpy_of(value)) for name, value in self._initializers.items()}


class RunOptions(_Entries):
    """What one run is told, or several."""

    _kind = "RunOptions"
    __slots__ = ("_options", "_told")

    log_severity_level = Setting(-1, "From which severity on messages are logged.")
    log_verbosity_level = Setting(0, "How much is told of what goes on.")
    logid = Setting("", "What messages begin with, and what a trace calls the run.")
    only_execute_path_to_fetches = Setting(False, "Whether only what is asked for is computed.")

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, Any] = {}
        self._options = runtime.RunOptions()

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end, those that go on too; set it from any thread."""
        return self._options.terminated

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"terminate: incompatible function arguments: bool is needed, not {type(value).__name__}.")
        if value:
            self._options.terminate()
        else:
            self._options.reset()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; none of them changes what is computed here."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """The entry of a name.

        Raises:
            RuntimeError: There is none.
        """
        return self._get(key)

    def add_active_adapter(self, adapter: Any) -> None:
        """Refused: see the table of names."""
        refuse("RunOptions.add_active_adapter")

    @property
    def _ours(self) -> runtime.RunOptions:
        self._options.tag = self.logid
        return self._options


class _Defaults:
    """What holds for sessions that say nothing else.

    Attributes:
        severity: From which severity on messages are logged.
        threads: Threads that compute; None for what the process may use.
    """

    def __init__(self) -> None:
        self.severity = 2
        self.threads: int | None = None


defaults = _Defaults()
