"""Names of the binding module, mainly exceptions."""

from __future__ import annotations

from typing import Any

from sardonyx.compat.onnxruntime.binding import SessionIOBinding as SessionIOBinding
from sardonyx.compat.onnxruntime.compatibility import (
    get_compatibility_info_from_model as get_compatibility_info_from_model,
)
from sardonyx.compat.onnxruntime.compatibility import (
    get_compatibility_info_from_model_bytes as get_compatibility_info_from_model_bytes,
)
from sardonyx.compat.onnxruntime.compatibility import (
    get_hardware_device_ep_incompatibility_details as get_hardware_device_ep_incompatibility_details,
)
from sardonyx.compat.onnxruntime.compatibility import get_hardware_devices as get_hardware_devices
from sardonyx.compat.onnxruntime.compatibility import (
    get_model_compatibility_for_ep_devices as get_model_compatibility_for_ep_devices,
)
from sardonyx.compat.onnxruntime.enums import OrtCompiledModelCompatibility as OrtCompiledModelCompatibility
from sardonyx.compat.onnxruntime.enums import OrtDeviceEpIncompatibilityReason as OrtDeviceEpIncompatibilityReason
from sardonyx.compat.onnxruntime.errors import DeviceReset as DeviceReset
from sardonyx.compat.onnxruntime.errors import EngineError as EngineError
from sardonyx.compat.onnxruntime.errors import EPFail as EPFail
from sardonyx.compat.onnxruntime.errors import Fail as Fail
from sardonyx.compat.onnxruntime.errors import InvalidArgument as InvalidArgument
from sardonyx.compat.onnxruntime.errors import InvalidGraph as InvalidGraph
from sardonyx.compat.onnxruntime.errors import InvalidProtobuf as InvalidProtobuf
from sardonyx.compat.onnxruntime.errors import ModelLoadCanceled as ModelLoadCanceled
from sardonyx.compat.onnxruntime.errors import ModelLoaded as ModelLoaded
from sardonyx.compat.onnxruntime.errors import ModelRequiresCompilation as ModelRequiresCompilation
from sardonyx.compat.onnxruntime.errors import NoModel as NoModel
from sardonyx.compat.onnxruntime.errors import NoSuchFile as NoSuchFile
from sardonyx.compat.onnxruntime.errors import NotFound as NotFound
from sardonyx.compat.onnxruntime.errors import NotImplemented as NotImplemented
from sardonyx.compat.onnxruntime.errors import RuntimeException as RuntimeException
from sardonyx.compat.onnxruntime.value_vector import OrtValueVector as OrtValueVector

_BLOCKWISE = (
    "quantize_matmul_2bits", "quantize_matmul_4bits", "quantize_matmul_8bits", "quantize_qdq_matmul_4bits",
    "quantize_matmul_bnb4",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _BLOCKWISE:
        from sardonyx.compat.onnxruntime.quantization import blockwise

        return getattr(blockwise, name)
    # Other names belong to the package, which imports this module during its own import.
    from sardonyx.compat import onnxruntime

    if name.startswith("__") or not hasattr(onnxruntime, name):
        raise AttributeError(f"unknown name {name!r}; `docs/reference/onnxruntime.md` lists all names.")
    return getattr(onnxruntime, name)
