"""The system shared memory extension: tensors in regions that a client on the same machine has created."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.protocol.datatypes import Datatype, shortened
from sardonyx.serve.protocol.limits import require_bytes
from sardonyx.serve.protocol.raw_tensors import binary_tensor
from sardonyx.serve.protocol.requests import Destination
from sardonyx.serve.protocol.strings import write_strings

_FOLDER = Path("/dev/shm")
_KEY = re.compile(r"/?[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


class SharedObject:
    """An open POSIX shared memory object, closed with the last reference.

    Bytes are read and written by calls of the system: a client may shorten the object at any time, and access to a
    mapped page that no longer exists would end the process.

    Args:
        key: The name of the object.

    Raises:
        RequestError: The object cannot be opened.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        try:
            self._descriptor = os.open(_FOLDER / key.lstrip("/"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise RequestError("the shared memory object cannot be opened.", where=key) from error
        weakref.finalize(self, os.close, self._descriptor)

    def require(self, offset: int, size: int) -> None:
        """Check that bytes are within the object.

        Raises:
            RequestError: The object is smaller.
        """
        total = os.fstat(self._descriptor).st_size
        if offset + size > total:
            raise RequestError(
                f"bytes {offset} to {offset + size} are not within the object of {total} bytes.", where=self._key
            )

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes.

        Raises:
            RequestError: The object is smaller.
        """
        self.require(offset, size)
        parts, rest = [], size
        while rest:
            part = os.pread(self._descriptor, rest, offset + size - rest)
            if not part:
                raise RequestError("the shared memory object became smaller.", where=self._key)
            parts.append(part)
            rest -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, data: memoryview) -> None:
        """Replace bytes.

        Raises:
            RequestError: The object is smaller, or the machine has no memory for its pages.
        """
        self.require(offset, len(data))
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], offset + written)
        except OSError as error:
            raise RequestError(
                f"the output cannot be written: {error.strerror}.", kind="exhausted", where=self._key
            ) from error


@dataclass(frozen=True)
class Region:
    """A registered region.

    Attributes:
        name: The name for requests.
        key: The name of the POSIX object.
        offset: The first byte.
        byte_size: The number of bytes.
        source: The POSIX object.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    source: SharedObject

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
        """Open a region.

        Args:
            name: The name for requests.
            key: The name of the POSIX object; names with a folder are refused.
            offset: The first byte.
            byte_size: The number of bytes.

        Raises:
            RequestError: The name is in use, the object does not exist, or the region is not within the object.
        """
        self._require_enabled()
        if not name:
            raise RequestError("expected a name of the region.", where="name")
        if name in self._regions:
            raise RequestError("a region of this name is registered.", where=name[:64])
        if len(self._regions) >= self._most:
            raise RequestError(f"{self._most} regions are registered.", kind="exhausted")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise RequestError(f"expected the name of a POSIX shared memory object, got {shortened(key)}.", where="key")
        begin, size = _size(offset, "offset"), _size(byte_size, "byte_size")
        if size == 0:
            raise RequestError("expected at least 1 byte.", where="byte_size")
        source = SharedObject(key)
        source.require(begin, size)
        self._regions[name] = Region(name, key, begin, size, source)

    def unregister(self, name: str = "") -> None:
        """Forget one region, or all; an unknown name is ignored. Running requests keep the object open."""
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
        source, begin, size = self._part(name, offset, byte_size)
        require_bytes(shape, datatype, size, str(name))
        return binary_tensor(memoryview(source.read(begin, size)), datatype, shape, str(name))

    def destination(self, name: object, offset: object, byte_size: object) -> Destination:
        """Return a place for an output.

        Raises:
            RequestError: The region is unknown, or the place is outside of the region.
        """
        source, begin, size = self._part(name, offset, byte_size)

        def write(array: np.ndarray) -> int:
            data: Any = write_strings(array) if array.dtype.kind == "O" else np.ascontiguousarray(array).tobytes()
            if len(data) > size:
                raise RequestError(f"the output has {len(data)} bytes, the place {size}.", where=str(name))
            source.write(begin, memoryview(data))
            return len(data)

        return Destination(write, str(name))

    def _part(self, name: object, offset: object, byte_size: object) -> tuple[SharedObject, int, int]:
        """Return the object of a part of a region, the offset of the part in the object, and its size."""
        self._require_enabled()
        region = self._region(name)
        begin, size = _size(offset, "shared_memory_offset"), _size(byte_size, "shared_memory_byte_size")
        if begin + size > region.byte_size:
            raise RequestError(
                f"bytes {begin} to {begin + size} are not within the region of {region.byte_size} bytes.",
                where=region.name,
            )
        return region.source, region.offset + begin, size

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


def require_region(parameters: Mapping[str, Any], where: str) -> None:
    """Refuse the place of a tensor in a region that no parameter names.

    Raises:
        RequestError: There is an offset or a size, and no region.
    """
    if parameters.get("shared_memory_region") is None:
        for name in ("shared_memory_offset", "shared_memory_byte_size"):
            if name in parameters:
                raise RequestError(f"{name} requires shared_memory_region.", where=where)


def _size(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise RequestError(f"expected a number of bytes, got {shortened(value)}.", where=where)
    return value
