"""ONNX Runtime's inference interface, implemented by Sardonyx.

``sardonyx.compat.install("onnxruntime")``, before any import of the original, lets ``import onnxruntime`` load this
package; ``python -m sardonyx.compat.onnxruntime program.py …`` does the same for a whole program.
``docs/reference/onnxruntime.md`` lists every name.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sardonyx.compat.module_finder import attributes_below
from sardonyx.compat.onnxruntime import capi as capi
from sardonyx.compat.onnxruntime.binding import IOBinding as IOBinding
from sardonyx.compat.onnxruntime.binding import SessionIOBinding as SessionIOBinding
from sardonyx.compat.onnxruntime.devices import OrtArenaCfg as OrtArenaCfg
from sardonyx.compat.onnxruntime.devices import OrtDevice as OrtDevice
from sardonyx.compat.onnxruntime.devices import OrtEpAssignedNode as OrtEpAssignedNode
from sardonyx.compat.onnxruntime.devices import OrtEpAssignedSubgraph as OrtEpAssignedSubgraph
from sardonyx.compat.onnxruntime.devices import OrtEpDevice as OrtEpDevice
from sardonyx.compat.onnxruntime.devices import OrtHardwareDevice as OrtHardwareDevice
from sardonyx.compat.onnxruntime.devices import OrtMemoryInfo as OrtMemoryInfo
from sardonyx.compat.onnxruntime.enums import ExecutionMode as ExecutionMode
from sardonyx.compat.onnxruntime.enums import ExecutionOrder as ExecutionOrder
from sardonyx.compat.onnxruntime.enums import GraphOptimizationLevel as GraphOptimizationLevel
from sardonyx.compat.onnxruntime.enums import ModelPackageWriteMode as ModelPackageWriteMode
from sardonyx.compat.onnxruntime.enums import OrtAllocatorType as OrtAllocatorType
from sardonyx.compat.onnxruntime.enums import OrtCompileApiFlags as OrtCompileApiFlags
from sardonyx.compat.onnxruntime.enums import OrtDeviceMemoryType as OrtDeviceMemoryType
from sardonyx.compat.onnxruntime.enums import OrtDeviceVendorId as OrtDeviceVendorId
from sardonyx.compat.onnxruntime.enums import OrtExecutionProviderDevicePolicy as OrtExecutionProviderDevicePolicy
from sardonyx.compat.onnxruntime.enums import OrtHardwareDeviceType as OrtHardwareDeviceType
from sardonyx.compat.onnxruntime.enums import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
from sardonyx.compat.onnxruntime.enums import OrtMemType as OrtMemType
from sardonyx.compat.onnxruntime.enums import OrtSparseFormat as OrtSparseFormat
from sardonyx.compat.onnxruntime.logs import set_default_logger_callback as set_default_logger_callback
from sardonyx.compat.onnxruntime.logs import set_default_logger_severity as set_default_logger_severity
from sardonyx.compat.onnxruntime.options import RunOptions as RunOptions
from sardonyx.compat.onnxruntime.options import SessionOptions as SessionOptions
from sardonyx.compat.onnxruntime.options import defaults
from sardonyx.compat.onnxruntime.providers import ALL, available_providers
from sardonyx.compat.onnxruntime.session import InferenceSession as InferenceSession
from sardonyx.compat.onnxruntime.session import ModelMetadata as ModelMetadata
from sardonyx.compat.onnxruntime.session import NodeArg as NodeArg
from sardonyx.compat.onnxruntime.unsupported import AdapterFormat as AdapterFormat
from sardonyx.compat.onnxruntime.unsupported import LoraAdapter as LoraAdapter
from sardonyx.compat.onnxruntime.unsupported import ModelCompiler as ModelCompiler
from sardonyx.compat.onnxruntime.unsupported import ModelPackage as ModelPackage
from sardonyx.compat.onnxruntime.unsupported import ModelPackageComponentContext as ModelPackageComponentContext
from sardonyx.compat.onnxruntime.unsupported import ModelPackageContext as ModelPackageContext
from sardonyx.compat.onnxruntime.unsupported import ModelPackageOptions as ModelPackageOptions
from sardonyx.compat.onnxruntime.unsupported import OrtEpContextData as OrtEpContextData
from sardonyx.compat.onnxruntime.unsupported import OrtEpContextDataBuffer as OrtEpContextDataBuffer
from sardonyx.compat.onnxruntime.unsupported import OrtExternalInitializerInfo as OrtExternalInitializerInfo
from sardonyx.compat.onnxruntime.unsupported import OrtSyncStream as OrtSyncStream
from sardonyx.compat.onnxruntime.unsupported import (
    register_execution_provider_library as register_execution_provider_library,
)
from sardonyx.compat.onnxruntime.unsupported import (
    unregister_execution_provider_library as unregister_execution_provider_library,
)
from sardonyx.compat.onnxruntime.values import OrtValue as OrtValue
from sardonyx.compat.onnxruntime.values import SparseTensor as SparseTensor
from sardonyx.compat.onnxruntime.values import copy_tensors as copy_tensors

if TYPE_CHECKING:
    from sardonyx.runtime.node import Node as Node

__version__ = "1.32.0"
__author__ = "Sardonyx"

package_name = "onnxruntime"
version = __version__
cuda_version = ""
import_capi_exception = None

_module = attributes_below("onnxruntime")


def __getattr__(name: str) -> Any:
    if name != "Node":
        return _module(name)
    # Imported on demand: only edits need nodes, and their import takes longer than a warm start.
    from sardonyx.runtime.node import Node

    return Node


def get_version_string() -> str:
    """Return the version of ONNX Runtime whose interface this is."""
    return __version__


def get_build_info() -> str:
    """Return a description of the implementation."""
    from sardonyx import __version__ as ours

    return f"ORT Build Info: Sardonyx {ours}, with the interface of ONNX Runtime {__version__}"


def get_device() -> str:
    """Return the computing device."""
    return "CPU"


def get_all_providers() -> list[str]:
    """Return the names of all execution providers, available or not."""
    return list(ALL)


def get_available_providers() -> list[str]:
    """Return the names of the available execution providers."""
    return available_providers()


def get_ep_devices() -> list[OrtEpDevice]:
    """Return the CPU."""
    return [OrtEpDevice()]


def has_collective_ops() -> bool:
    """Return True if operators over several devices exist."""
    return False


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: only one verbosity exists."""


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Set the default number of threads of sessions; 0 for all threads of the process."""
    defaults.threads = int(intra_op_num_threads) or None
    defaults.has_global_threads = True


def set_seed(seed: int) -> None:
    """Do nothing: random numbers depend on the node and the number of the run."""


def enable_telemetry_events() -> None:
    """Do nothing: no telemetry exists."""


def disable_telemetry_events() -> None:
    """Do nothing: no telemetry exists."""


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None) -> None:
    """Do nothing: memory is planned."""


def create_and_register_allocator_v2(
    provider_type: str, memory_info: OrtMemoryInfo, options: dict[str, str], arena_cfg: OrtArenaCfg | None
) -> None:
    """Do nothing: memory is planned."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None) -> None:
    """Do nothing: no library needs preloading."""


def print_debug_info() -> None:
    """Print versions and available providers."""
    print(f"{get_build_info()}\nPython {sys.version}\nproviders: {', '.join(get_available_providers())}")
