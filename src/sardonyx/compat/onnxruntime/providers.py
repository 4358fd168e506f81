"""ONNX Runtime's names of execution providers, and the corresponding providers of Sardonyx."""

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
"""All providers of ONNX Runtime, in its order."""

_SESSION_NAMES = {CPU: ("native", "reference"), "OpenVINOExecutionProvider": ("openvino",)}


def available_providers() -> list[str]:
    """Return the available execution providers: native code as the CPU's, and OpenVINO if installed."""
    optional = ["OpenVINOExecutionProvider"] if importlib.util.find_spec("openvino") is not None else []
    return [*optional, CPU]


def session_providers(names: Sequence[str], options: Sequence[Mapping[str, str]]) -> list[Any]:
    """Return the session's providers for ONNX Runtime's; the CPU is always last."""
    providers: list[Any] = []
    for name, settings in zip(names, options, strict=True):
        if name != CPU and name in _SESSION_NAMES:
            providers.extend((provider, settings) if settings else provider for provider in _SESSION_NAMES[name])
    return [*providers, *_SESSION_NAMES[CPU]]


def check_and_normalize_provider_args(
    providers: Any, provider_options: Any, available_provider_names: Sequence[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """Return names and options of execution providers, from any accepted form.

    Args:
        providers: Names, or pairs of a name and options; None for none.
        provider_options: Options for names without options.
        available_provider_names: The available providers; any other name warns.

    Returns:
        The names, each once, with options.

    Raises:
        ValueError: Malformed arguments.
    """
    selected: dict[str, dict[str, str]] = {}
    for name, options in [] if providers is None else _pairs(providers, provider_options):
        if name not in available_provider_names:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. "
                f"Available providers: '{', '.join(available_provider_names)}'",
                stacklevel=5,
            )
        if name in selected:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
        else:
            selected[name] = {str(key): str(value) for key, value in options.items()}
    return list(selected), list(selected.values())


def normalize_providers(providers: Any, provider_options: Any) -> tuple[list[str], list[dict[str, str]]]:
    """Return names and options of the available execution providers; the CPU's is last.

    Raises:
        ValueError: Malformed arguments.
        RuntimeError: A name that ONNX Runtime has not either.
    """
    available = available_providers()
    pairs = zip(*check_and_normalize_provider_args(providers, provider_options, available), strict=True)
    selected = dict(pairs)
    for name in selected:
        if name not in ALL:
            raise RuntimeError(f"Unknown Provider Type: {name}")
    selected = {name: options for name, options in selected.items() if name in available}
    selected.setdefault(CPU, {})
    return list(selected), list(selected.values())


def _pairs(providers: Any, provider_options: Any) -> list[tuple[str, Mapping[Any, Any]]]:
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is None:
        return [_pair(provider) for provider in providers]
    if not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if len(providers) != len(provider_options):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if not all(isinstance(provider, str) for provider in providers):
        raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    if not all(isinstance(settings, Mapping) for settings in provider_options):
        raise ValueError("'provider_options' values must be dicts.")
    return list(zip(providers, provider_options, strict=True))


def _pair(provider: Any) -> tuple[str, Mapping[Any, Any]]:
    if isinstance(provider, str):
        return provider, {}
    if (
        isinstance(provider, tuple)
        and len(provider) == 2
        and isinstance(provider[0], str)
        and isinstance(provider[1], Mapping)
    ):
        return provider[0], provider[1]
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
