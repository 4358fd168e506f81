"""Devices and their memory: only the CPU exists, other names resolve."""

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

_TYPES = {"cpu": 0, "gpu": 1, "cuda": 1, "dml": 4, "webgpu": 1, "fpga": 2, "npu": 3, "cann": 3}
_ARENA_SETTINGS = (
    "max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk",
    "initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes",
)  # fmt: skip
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA, "dml": OrtDeviceVendorId.MICROSOFT, "cann": OrtDeviceVendorId.HUAWEI,
}  # fmt: skip


def require_cpu(device_type: str | OrtDevice, device_id: int = 0) -> None:
    """Check that a device, by name or as an object, is the CPU.

    Raises:
        RuntimeError: Another device.
    """
    if isinstance(device_type, OrtDevice):
        device_type, device_id = "cpu" if device_type.is_cpu else str(device_type.device_type()), 0
    if device_type.lower() != "cpu" or device_id != 0:
        raise RuntimeError(f"expected the device 'cpu' 0, got {device_type!r} {device_id}.")


class OrtDevice:
    """A device.

    Args:
        device_type: Number of the device type; 0 is the CPU.
        memory_type: Number of the memory type.
        numbers: The index among devices of the type, preceded by the PCI identifier of the vendor if two are passed.
    """

    def __init__(self, device_type: int = 0, memory_type: int = 0, *numbers: int) -> None:
        self._type, self._memory = device_type, memory_type
        self._vendor, self._id = (0, 0, *numbers)[-2:]

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1) -> OrtDevice:
        """Return a device by name.

        Raises:
            Exception: Unknown device type.
        """
        if ort_device_name not in _TYPES:
            raise RuntimeError(f"Unsupported device type: {ort_device_name}")
        vendor = int(vendor_id) if vendor_id >= 0 else int(_VENDORS.get(ort_device_name, 0))
        return OrtDevice(_TYPES[ort_device_name], 0, vendor, device_id)

    def device_id(self) -> int:
        """Return the index among devices of the type."""
        return self._id

    def device_type(self) -> int:
        """Return the number of the device type."""
        return self._type

    def device_vendor_id(self) -> int:
        """Return the PCI identifier of the vendor."""
        return self._vendor

    def device_mem_type(self) -> int:
        """Return the number of the memory type."""
        return self._memory

    @property
    def is_cpu(self) -> bool:
        """True for the CPU."""
        return self._type == 0

    @staticmethod
    def cpu() -> int:
        """Return the number of the CPU's device type."""
        return _TYPES["cpu"]

    @staticmethod
    def cuda() -> int:
        """Return the number of CUDA's device type."""
        return _TYPES["cuda"]

    @staticmethod
    def gpu() -> int:
        """Return the number of a GPU's device type."""
        return _TYPES["gpu"]

    @staticmethod
    def dml() -> int:
        """Return the number of DirectML's device type."""
        return _TYPES["dml"]

    @staticmethod
    def webgpu() -> int:
        """Return the number of WebGPU's device type."""
        return _TYPES["webgpu"]

    @staticmethod
    def fpga() -> int:
        """Return the number of an FPGA's device type."""
        return _TYPES["fpga"]

    @staticmethod
    def npu() -> int:
        """Return the number of an NPU's device type."""
        return _TYPES["npu"]

    @staticmethod
    def cann() -> int:
        """Return the number of CANN's device type."""
        return _TYPES["cann"]

    @staticmethod
    def default_memory() -> int:
        """Return the number of the default memory type."""
        return int(OrtDeviceMemoryType.DEFAULT)


class OrtMemoryInfo:
    """Memory of a device.

    Args:
        name: Name of the memory, ``"Cpu"``.
        allocator_type: Kind of the allocator.
        device_id: Index of the device.
        mem_type: Purpose of the memory.
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
        """Return the memory of a device, with all attributes."""
        return cls(name, allocator_type, device_id)


CPU_MEMORY = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR)


class OrtArenaCfg:
    """Settings of an arena, stored without effect: memory is planned.

    Args:
        settings: A dict of names and numbers; or the numbers ``max_mem``, ``arena_extend_strategy``,
            ``initial_chunk_size_bytes`` and ``max_dead_bytes_per_chunk``.

    Raises:
        RuntimeError: An unknown name.
    """

    def __init__(self, *settings: Any) -> None:
        named = settings[0] if len(settings) == 1 else dict(zip(_ARENA_SETTINGS, settings, strict=False))
        for name in named:
            if name not in _ARENA_SETTINGS:
                raise RuntimeError(f"Invalid OrtArenaCfg option: {name}")
        self.max_mem = int(named.get("max_mem", 0))
        self.arena_extend_strategy = int(named.get("arena_extend_strategy", -1))
        self.initial_chunk_size_bytes = int(named.get("initial_chunk_size_bytes", -1))
        self.max_dead_bytes_per_chunk = int(named.get("max_dead_bytes_per_chunk", -1))
        self.initial_growth_chunk_size_bytes = int(named.get("initial_growth_chunk_size_bytes", -1))
        self.max_power_of_two_extend_bytes = int(named.get("max_power_of_two_extend_bytes", -1))


class OrtHardwareDevice:
    """The CPU."""

    type = OrtHardwareDeviceType.CPU
    vendor_id = 0
    device_id = 0

    @property
    def vendor(self) -> str:
        """Name of the vendor; unknown."""
        return ""

    @property
    def metadata(self) -> dict[str, str]:
        """Further properties of the device."""
        return {"processors": str(os.cpu_count() or 1)}


class OrtEpDevice:
    """The CPU with its execution provider."""

    ep_name = "CPUExecutionProvider"
    ep_vendor = "Sardonyx"

    @property
    def device(self) -> OrtHardwareDevice:
        """The CPU."""
        return OrtHardwareDevice()

    @property
    def ep_metadata(self) -> dict[str, str]:
        """Further properties of the provider."""
        return {}

    @property
    def ep_options(self) -> dict[str, str]:
        """Options of the provider."""
        return {}


class OrtEpAssignedNode:
    """A node with its execution provider.

    Args:
        name: Name of the node.
        domain: Domain of the operator.
        op_type: The operator.
    """

    def __init__(self, name: str, domain: str, op_type: str) -> None:
        self.name, self.domain, self.op_type = name, domain, op_type


class OrtEpAssignedSubgraph:
    """The nodes of an execution provider.

    Args:
        ep_name: Name of the provider.
        nodes: The nodes.
    """

    def __init__(self, ep_name: str, nodes: list[OrtEpAssignedNode]) -> None:
        self.ep_name = ep_name
        self._nodes = nodes

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Return the nodes."""
        return list(self._nodes)
