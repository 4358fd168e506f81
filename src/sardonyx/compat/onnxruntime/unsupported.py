"""What of ONNX Runtime's interface is not here, and why: names resolve, calls raise."""

from __future__ import annotations

from typing import Any, NoReturn

from sardonyx.compat.onnxruntime import errors

_LIBRARY = "it loads compiled code written for ONNX Runtime's C interface"
_LORA = "adapters are files of ONNX Runtime's own; merge them into the weights, or set weights by `set_weight`"
_PACKAGE = "packages hold variants of a model for execution providers of ONNX Runtime's; open one of their models"
_CONTEXT = "contexts of execution providers are ONNX Runtime's own"

REASONS = {
    "AdapterFormat": _LORA,
    "LoraAdapter": _LORA,
    "RunOptions.add_active_adapter": _LORA,
    "ModelCompiler": "`sardonyx compile` and `Session.save_compiled` write compiled models, as files of our own",
    "ModelPackage": _PACKAGE,
    "ModelPackageComponentContext": _PACKAGE,
    "ModelPackageContext": _PACKAGE,
    "ModelPackageOptions": _PACKAGE,
    "OrtEpContextData": _CONTEXT,
    "OrtEpContextDataBuffer": _CONTEXT,
    "SessionOptions.set_ep_context_data_read_func": _CONTEXT,
    "OrtExternalInitializerInfo": "it is for the compiling of models to ONNX Runtime's files",
    "OrtSyncStream": "it is for devices with streams of their own, and there is the processor alone",
    "SessionOptions.register_custom_ops_library": _LIBRARY + "; define operators by `sardonyx.operator`",
    "SessionOptions.add_external_initializers_from_files_in_memory": "give the values by `add_external_initializers`",
    "SessionOptions.set_provider_selection_policy_delegate": "there is one device to choose",
    "register_execution_provider_library": _LIBRARY + "; providers of ours are packages, see *Write a provider*",
    "unregister_execution_provider_library": _LIBRARY,
    "InferenceSession.set_tuning_results": "they are for GPU kernels; there is the processor alone",
    "InferenceSession.set_ep_dynamic_options": "the processor has none",
    "SparseTensor.to_cuda": "there is the processor alone",
}
"""Why a name is not implemented."""


def refuse(name: str) -> NoReturn:
    """Raise what a call of such a name raises.

    Raises:
        NotImplemented: Always; says why.
    """
    raise errors.NotImplemented(f"{name} is not implemented: {REASONS[name]}.")


class _Refused:
    """A class that resolves and cannot be made."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        refuse(type(self).__name__)


class AdapterFormat(_Refused):
    """Files of adapters."""

    @staticmethod
    def read_adapter(file_path: Any) -> AdapterFormat:
        """Refused."""
        refuse("AdapterFormat")


class LoraAdapter(_Refused):
    """An adapter."""


class ModelCompiler(_Refused):
    """Compiles models to ONNX Runtime's files."""


class ModelPackage(_Refused):
    """A package that is written."""

    @staticmethod
    def open(package_root: Any, *arguments: Any, **named: Any) -> ModelPackage:
        """Refused."""
        refuse("ModelPackage")

    @staticmethod
    def compute_directory_hash(source_dir: Any) -> str:
        """Refused."""
        refuse("ModelPackage")


class ModelPackageComponentContext(_Refused):
    """One of a package's models."""


class ModelPackageContext(_Refused):
    """A package that is read."""


class ModelPackageOptions(_Refused):
    """What chooses a variant."""


class OrtEpContextData(_Refused):
    """Data of a context."""


class OrtEpContextDataBuffer(_Refused):
    """Memory for these."""


class OrtExternalInitializerInfo(_Refused):
    """Where an initializer is written to."""


class OrtSyncStream(_Refused):
    """A stream of a device."""


def register_execution_provider_library(registration_name: str, library_path: Any) -> None:
    """Refused."""
    refuse("register_execution_provider_library")


def unregister_execution_provider_library(registration_name: str) -> None:
    """Refused."""
    refuse("unregister_execution_provider_library")
