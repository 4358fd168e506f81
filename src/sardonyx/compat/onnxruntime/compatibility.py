"""Suitability of compiled models and devices for execution providers: only the CPU's exists."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sardonyx.compat.onnxruntime.devices import OrtEpDevice, OrtHardwareDevice
from sardonyx.compat.onnxruntime.enums import OrtCompiledModelCompatibility
from sardonyx.errors import SardonyxError

_KEY = "ep_compatibility_info."


def get_hardware_devices() -> list[OrtHardwareDevice]:
    """Return the CPU."""
    return [OrtHardwareDevice()]


def get_hardware_device_ep_incompatibility_details(ep_name: str, hw: OrtHardwareDevice) -> dict[str, Any]:
    """Return the reasons why an execution provider does not run on a device: none for the CPU's.

    Raises:
        RuntimeError: The name of the provider is empty.
    """
    if not ep_name:
        raise RuntimeError("expected the name of an execution provider.")
    return {"reasons_bitmask": 0, "notes": None, "error_code": 0}


def get_model_compatibility_for_ep_devices(
    ep_devices: Sequence[OrtEpDevice], compatibility_info: str
) -> OrtCompiledModelCompatibility:
    """Return the suitability of a compiled model for devices: none suits the CPU.

    Raises:
        RuntimeError: No devices.
        TypeError: The information is not a text.
    """
    if not isinstance(compatibility_info, str):
        raise TypeError(f"compatibility_info: expected a str, got {type(compatibility_info).__name__}.")
    if not ep_devices:
        raise RuntimeError("expected at least one device.")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_compatibility_info_from_model(model_path: str | os.PathLike[str], ep_type: str) -> str | None:
    """Return the entry of a compiled model for an execution provider; None if the model has none.

    Raises:
        RuntimeError: An empty argument, or the file cannot be read.
    """
    return _entry(os.fspath(model_path), ep_type)


def get_compatibility_info_from_model_bytes(model_data: bytes, ep_type: str) -> str | None:
    """Return the entry of a compiled model in bytes for an execution provider; None without entry.

    Raises:
        RuntimeError: An empty argument, or the bytes hold no model.
    """
    return _entry(model_data, ep_type)


def _entry(model: str | bytes, ep_type: str) -> str | None:
    if not model or not ep_type:
        raise RuntimeError("expected a model and the name of an execution provider.")
    from sardonyx.model import load

    try:
        return load(model).metadata_props.get(_KEY + ep_type)
    except SardonyxError as error:
        raise RuntimeError(str(error)) from error
