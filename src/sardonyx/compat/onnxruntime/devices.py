"""Devices and their memory: there is the processor, and the names of others resolve."""

from __future__ import annotations

import os
from typing import Any

from sardonyx.compat.onnxruntime.enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)

_TYPES = {"cpu": 0, "gpu": 1, "cuda": 1, "dml": 1, "webgpu": 1, "fpga": 2, "npu": 3, "cann": 3}


def require_cpu(device_type: str, device_id: int = 0) -> None:
    """Check that a device is the processor.

    Raises:
        RuntimeError: It is another one.
    """
    if device_type.lower() != "cpu" or device_id != 0:
        raise RuntimeError(f"there is no device {device_type!r} {device_id} here: the processor is 'cpu' 0.")


class OrtDevice:
    """A device.

    Args:
        device_type: The number of its kind; 0 is the processor.
        memory_type: What its memory is.
        vendor_id: Who made it.
        device_id: Which of several.
    """

    def __init__(self, device_type: int = 0, memory_type: int = 0, vendor_id: int = 0, device_id: int = 0) -> None:
        self._type, self._memory, self._vendor, self._id = device_type, memory_type, vendor_id, device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1) -> OrtDevice:
        """A device by name.

        Raises:
            Exception: There is no such kind.
        """
        if ort_device_name not in _TYPES:
            raise RuntimeError(f"Unsupported device type: {ort_device_name}")
        return OrtDevice(_TYPES[ort_device_name], 0, max(int(vendor_id), 0), device_id)

    def device_id(self) -> int:
        """Which of several."""
        return self._id

    def device_type(self) -> int:
        """The number of its kind."""
        return self._type

    def device_vendor_id(self) -> int:
        """Who made it."""
        return self._vendor

    def device_mem_type(self) -> int:
        """What its memory is."""
        return self._memory

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor."""
        return self._type == 0

    @staticmethod
    def cpu() -> int:
        """The number of processors."""
        return 0

    @staticmethod
    def cuda() -> int:
        """The number of CUDA's devices."""
        return 1

    @staticmethod
    def default_memory() -> int:
        """The usual memory."""
        return int(OrtDeviceMemoryType.DEFAULT)


class OrtMemoryInfo:
    """Memory of a device.

    Args:
        name: Its name, ``"Cpu"``.
        allocator_type: How it is given out.
        device_id: Which device.
        mem_type: What it is for.
    """

    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int = 0, mem_type: OrtMemType = OrtMemType.DEFAULT
    ) -> None:
        self.name = name
        self.allocator_type = allocator_type
        self.device_id = device_id
        self.mem_type = mem_type
        self.device_mem_type = OrtDeviceMemoryType.DEFAULT
        self.device_vendor_id = 0

    @classmethod
    def create_v2(
        cls,
        name: str,
        device_type: OrtMemoryInfoDeviceType = OrtMemoryInfoDeviceType.CPU,
        vendor_id: int = 0,
        device_id: int = 0,
        mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT,
        alignment: int = 0,
        allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_ARENA_ALLOCATOR,
    ) -> OrtMemoryInfo:
        """Memory of a device, told in full."""
        return cls(name, allocator_type, device_id)


CPU_MEMORY = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR)


class OrtArenaCfg:
    """How an arena grows; memory is planned here, so that it is kept and changes nothing.

    Args:
        settings: A dict, or numbers in ONNX Runtime's order.
    """

    def __init__(self, *settings: Any) -> None:
        self.settings = settings


class OrtHardwareDevice:
    """The processor."""

    type = OrtHardwareDeviceType.CPU
    vendor_id = 0
    device_id = 0

    @property
    def vendor(self) -> str:
        """Who made it; not known."""
        return ""

    @property
    def metadata(self) -> dict[str, str]:
        """What else is known of it."""
        return {"processors": str(os.cpu_count() or 1)}


class OrtEpDevice:
    """The processor with the execution provider that computes on it."""

    ep_name = "CPUExecutionProvider"
    ep_vendor = "Sardonyx"

    @property
    def device(self) -> OrtHardwareDevice:
        """The processor."""
        return OrtHardwareDevice()

    @property
    def ep_metadata(self) -> dict[str, str]:
        """What else is known of the provider."""
        return {}

    @property
    def ep_options(self) -> dict[str, str]:
        """Its options."""
        return {}


class OrtEpAssignedNode:
    """A node that an execution provider runs.

    Args:
        name: Its name.
        domain: The domain of its operator.
        op_type: Its operator.
    """

    def __init__(self, name: str, domain: str, op_type: str) -> None:
        self.name, self.domain, self.op_type = name, domain, op_type


class OrtEpAssignedSubgraph:
    """The nodes that an execution provider runs.

    Args:
        ep_name: Its name.
        nodes: The nodes.
    """

    def __init__(self, ep_name: str, nodes: list[OrtEpAssignedNode]) -> None:
        self.ep_name = ep_name
        self._nodes = nodes

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """The nodes."""
        return list(self._nodes)
