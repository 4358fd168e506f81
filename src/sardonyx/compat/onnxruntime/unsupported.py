"""Unsupported parts of ONNX Runtime's interface: names resolve, calls raise with a reason."""

from __future__ import annotations

from typing import Any, NoReturn

from sardonyx.compat.onnxruntime import errors

_LIBRARY = "the library is compiled code for ONNX Runtime's C interface"
_LORA = "adapter files are specific to ONNX Runtime; merge adapters into the weights, or use `set_weight`"
_PACKAGE = "packages hold variants of a model for ONNX Runtime's execution providers; open one of the models"
_CONTEXT = "contexts of execution providers are specific to ONNX Runtime"

REASONS = {
    "AdapterFormat": _LORA,
    "LoraAdapter": _LORA,
    "RunOptions.add_active_adapter": _LORA,
    "ModelCompiler": "`sardonyx compile` and `Session.save_compiled` write compiled models, in a format of Sardonyx",
    "ModelPackage": _PACKAGE,
    "ModelPackageComponentContext": _PACKAGE,
    "ModelPackageContext": _PACKAGE,
    "ModelPackageOptions": _PACKAGE,
    "OrtEpContextData": _CONTEXT,
    "OrtEpContextDataBuffer": _CONTEXT,
    "SessionOptions.set_ep_context_data_read_func": _CONTEXT,
    "OrtExternalInitializerInfo": "compiled models of ONNX Runtime are not written",
    "OrtSyncStream": "the CPU, the only device, has no streams",
    "SessionOptions.register_custom_ops_library": _LIBRARY + "; define operators by `sardonyx.operator`",
    "SessionOptions.set_provider_selection_policy_delegate": "the CPU is the only device",
    "register_execution_provider_library": _LIBRARY + "; providers of Sardonyx are packages, see *Write a provider*",
    "unregister_execution_provider_library": _LIBRARY,
    "InferenceSession.set_tuning_results": "tuning results are for GPU kernels; the CPU is the only device",
    "InferenceSession.set_ep_dynamic_options": "the CPU provider has no dynamic options",
    "SparseTensor.to_cuda": "the CPU is the only device",
}
"""Reasons why names are not implemented."""


def refuse(name: str) -> NoReturn:
    """Raise the error of a call of an unsupported name.

    Raises:
        NotImplemented: Always, with the reason.
    """
    raise errors.NotImplemented(f"{name} is not implemented: {REASONS[name]}.")


class _Refused:
    """A class that resolves and cannot be instantiated."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        refuse(type(self).__name__)


class AdapterFormat(_Refused):
    """Adapter files."""

    @staticmethod
    def read_adapter(file_path: Any) -> AdapterFormat:
        """Refused."""
        refuse("AdapterFormat")


class LoraAdapter(_Refused):
    """An adapter."""


class ModelCompiler(_Refused):
    """Compiler to ONNX Runtime's files."""


class ModelPackage(_Refused):
    """A package to write."""

    @staticmethod
    def open(package_root: Any, *arguments: Any, **named: Any) -> ModelPackage:
        """Refused."""
        refuse("ModelPackage")

    @staticmethod
    def compute_directory_hash(source_dir: Any) -> str:
        """Refused."""
        refuse("ModelPackage")


class ModelPackageComponentContext(_Refused):
    """One model of a package."""


class ModelPackageContext(_Refused):
    """A package to read."""


class ModelPackageOptions(_Refused):
    """Criteria for the choice of a variant."""


class OrtEpContextData(_Refused):
    """Data of a context."""


class OrtEpContextDataBuffer(_Refused):
    """Memory of a context's data."""


class OrtExternalInitializerInfo(_Refused):
    """Location of an initializer in a file."""


class OrtSyncStream(_Refused):
    """A stream of a device."""


def register_execution_provider_library(registration_name: str, library_path: Any) -> None:
    """Refused."""
    refuse("register_execution_provider_library")


def unregister_execution_provider_library(registration_name: str) -> None:
    """Refused."""
    refuse("unregister_execution_provider_library")
