"""The system shared memory extension: tensors in regions that a client on the same machine has created."""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.protocol.datatypes import Datatype, shortened
from sardonyx.serve.protocol.limits import require_bytes
from sardonyx.serve.protocol.requests import Destination
from sardonyx.serve.protocol.strings import parse_strings, string_array, write_strings

_FOLDER = Path("/dev/shm")
_KEY = re.compile(r"/?[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


@dataclass(frozen=True)
class Region:
    """A registered region.

    Attributes:
        name: The name for requests.
        key: The name of the POSIX object.
        offset: The first byte.
        byte_size: The number of bytes.
        memory: The mapped bytes of the region.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    memory: memoryview

    def described(self) -> dict[str, Any]:
        """Return the region in the form of the extension."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}


class SharedMemory:
    """The registered regions.

    Args:
        enabled: True if clients may register regions.
        most: Limit of the number of regions.
    """

    def __init__(self, enabled: bool, most: int) -> None:
        self._enabled = enabled
        self._most = most
        self._regions: dict[str, Region] = {}

    def status(self, name: str = "") -> list[Region]:
        """Return one region, or all.

        Raises:
            RequestError: The name is unknown, or the extension is off.
        """
        self._require_enabled()
        return [self._region(name)] if name else list(self._regions.values())

    def register(self, name: str, key: object, offset: object, byte_size: object) -> None:
        """Map a region.

        Args:
            name: The name for requests.
            key: The name of the POSIX object; names with a folder are refused.
            offset: The first byte.
            byte_size: The number of bytes.

        Raises:
            RequestError: The name is in use, the object does not exist, or the region is not within the object.
        """
        self._require_enabled()
        if name in self._regions:
            raise RequestError("a region of this name is registered.", where=name[:64])
        if len(self._regions) >= self._most:
            raise RequestError(f"{self._most} regions are registered.", kind="exhausted")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise RequestError(f"expected the name of a POSIX shared memory object, got {shortened(key)}.", where="key")
        begin, size = _size(offset, "offset"), _size(byte_size, "byte_size")
        if size == 0:
            raise RequestError("expected at least 1 byte.", where="byte_size")
        self._regions[name] = Region(name, key, begin, size, _mapped(key, begin, size))

    def unregister(self, name: str = "") -> None:
        """Forget one region, or all; an unknown name is ignored. Running requests keep the memory mapped."""
        self._require_enabled()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def read(self, name: object, offset: object, byte_size: object, datatype: Datatype, shape: list[int]) -> np.ndarray:
        """Return a copy of a tensor in a region: the client may write the region while the model runs.

        Raises:
            RequestError: The region is unknown, or the tensor does not fit.
        """
        data = self._part(name, offset, byte_size)
        if datatype.size == 0:
            count = int(np.prod(shape, dtype=object)) if shape else 1
            return string_array(parse_strings(bytes(data), count, str(name)), shape)
        require_bytes(shape, datatype, len(data), str(name))
        return np.frombuffer(bytes(data), datatype.dtype).reshape(shape)

    def destination(self, name: object, offset: object, byte_size: object) -> Destination:
        """Return a place for an output.

        Raises:
            RequestError: The region is unknown, or the place is outside of the region.
        """
        part = self._part(name, offset, byte_size)

        def write(array: np.ndarray) -> int:
            data: Any = write_strings(array) if array.dtype.kind == "O" else np.ascontiguousarray(array).tobytes()
            if len(data) > len(part):
                raise RequestError(f"the output has {len(data)} bytes, the place {len(part)}.", where=str(name))
            part[: len(data)] = data
            return len(data)

        return Destination(write, str(name))

    def _part(self, name: object, offset: object, byte_size: object) -> memoryview:
        self._require_enabled()
        region = self._region(name)
        begin, size = _size(offset, "shared_memory_offset"), _size(byte_size, "shared_memory_byte_size")
        if begin + size > region.byte_size:
            raise RequestError(
                f"bytes {begin} to {begin + size} are not within the region of {region.byte_size} bytes.",
                where=region.name,
            )
        return region.memory[begin : begin + size]

    def _region(self, name: object) -> Region:
        region = self._regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise RequestError(f"unknown region of shared memory {shortened(name)}.", kind="not_found")
        return region

    def _require_enabled(self) -> None:
        if not self._enabled:
            raise RequestError(
                "shared memory is off.", kind="unsupported", remedy="Start the server with --allow-client-shm."
            )


def _size(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise RequestError(f"expected a number of bytes, got {shortened(value)}.", where=where)
    return value


def _mapped(key: str, offset: int, size: int) -> memoryview:
    try:
        descriptor = os.open(_FOLDER / key.lstrip("/"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RequestError("the shared memory object cannot be opened.", where=key) from error
    try:
        total = os.fstat(descriptor).st_size
        if offset + size > total:
            raise RequestError(
                f"bytes {offset} to {offset + size} are not within the object of {total} bytes.", where=key
            )
        # Mapped whole: offsets of mappings are multiples of a page.
        memory = mmap.mmap(descriptor, total)
    except (OSError, ValueError) as error:
        raise RequestError("the shared memory object cannot be mapped.", where=key) from error
    finally:
        os.close(descriptor)
    return memoryview(memory)[offset : offset + size]
