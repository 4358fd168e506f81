"""ONNX Runtime's names of execution providers, and what computes for them here."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

CPU = "CPUExecutionProvider"

ALL = (
    "NvTensorRTRTXExecutionProvider", "TensorrtExecutionProvider", "CUDAExecutionProvider", "MIGraphXExecutionProvider",
    "OpenVINOExecutionProvider", "DnnlExecutionProvider", "VitisAIExecutionProvider", "QNNExecutionProvider",
    "NnapiExecutionProvider", "VSINPUExecutionProvider", "JsExecutionProvider", "CoreMLExecutionProvider",
    "ACLExecutionProvider", "DmlExecutionProvider", "RknpuExecutionProvider", "WebNNExecutionProvider",
    "WebGpuExecutionProvider", "XnnpackExecutionProvider", "CANNExecutionProvider", "AzureExecutionProvider", CPU,
)  # fmt: skip
"""All that ONNX Runtime knows, in its order."""

_OURS = {CPU: ("native", "reference"), "OpenVINOExecutionProvider": ("openvino",)}


def available_providers() -> list[str]:
    """The execution providers that can be asked for: native code as the CPU's, and OpenVINO where it is installed."""
    there = ["OpenVINOExecutionProvider"] if importlib.util.find_spec("openvino") is not None else []
    return [*there, CPU]


def ours(names: Sequence[str], options: Sequence[Mapping[str, str]]) -> list[Any]:
    """Providers of sessions of ours that stand for ONNX Runtime's; the processor is always last."""
    found: list[Any] = []
    for name, given in zip(names, options, strict=True):
        if name != CPU and name in _OURS:
            found.extend((each, given) if given else each for each in _OURS[name])
    return [*found, *_OURS[CPU]]


def normalized(providers: Any, provider_options: Any) -> tuple[list[str], list[dict[str, str]]]:
    """Names and options of execution providers, however they are given.

    Args:
        providers: Names, or pairs of a name and options; None for the default.
        provider_options: Options for names that come alone.

    Returns:
        The names, those that are there, each once, with its options; the CPU's last.

    Raises:
        ValueError: They are given otherwise.
    """
    if providers is None:
        return [CPU], [{}]
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    pairs: list[tuple[Any, Any]] = []
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(provider_options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(each, str) for each in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
        if not all(isinstance(each, Mapping) for each in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        pairs = list(zip(providers, provider_options, strict=True))
    else:
        pairs = [_pair(each) for each in providers]
    found: dict[str, dict[str, str]] = {}
    there = available_providers()
    for name, options in pairs:
        if name not in there:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. "
                f"Available providers: '{', '.join(there)}'",
                stacklevel=4,
            )
        elif name in found:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=4)
        else:
            found[name] = {str(key): str(value) for key, value in options.items()}
    found.setdefault(CPU, {})
    return list(found), list(found.values())


def _pair(given: Any) -> tuple[str, Mapping[Any, Any]]:
    if isinstance(given, str):
        return given, {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], Mapping):
        return given[0], given[1]
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
