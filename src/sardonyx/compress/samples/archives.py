"""Archives of samples (``.npz``), read sample by sample: memory does not grow with the archive."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ModelFileError, OptionError
from sardonyx.model.named_arrays import true_dtype

_PREFIX = "in::"
"""Prefix of the names of inputs in archives that also hold outputs."""


def read_archive(path: Path, inputs: Sequence[ir.Value]) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the samples of an archive whose arrays hold samples in axis 0.

    An input with a known size in axis 0 takes as many rows in each sample, any other input one row.

    Args:
        path: The archive.
        inputs: The inputs without default values.

    Raises:
        ModelFileError: The archive cannot be read.
        OptionError: An input is missing, or arrays have different numbers of samples.
    """
    try:
        with zipfile.ZipFile(path) as archive, ExitStack() as stack:
            members = {name.removesuffix(".npy").removeprefix(_PREFIX): name for name in archive.namelist()}
            missing = [repr(str(value.name)) for value in inputs if value.name not in members]
            if missing:
                raise OptionError(
                    f"missing input {', '.join(missing)}.",
                    where=str(path),
                    remedy=f"The file has: {', '.join(map(repr, members)) or 'no array'}.",
                )
            columns = {
                str(value.name): _Column(stack.enter_context(archive.open(members[str(value.name)])), _batch(value))
                for value in inputs
            }
            if not columns:
                raise OptionError("the model has no inputs, so that no sample can be read.", where=str(path))
            counts = {name: column.count for name, column in columns.items()}
            if len(set(counts.values())) != 1 or not min(counts.values()):
                numbers = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
                raise OptionError(
                    f"expected at least one sample, and as many in axis 0 of each array: {numbers}.", where=str(path)
                )
            for _ in range(min(counts.values())):
                yield {name: column.read() for name, column in columns.items()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ModelFileError(f"cannot be read as samples: {error}", where=str(path)) from error


def _batch(value: ir.Value) -> int:
    size = value.shape[0] if value.shape is not None and len(value.shape) else None
    return size if isinstance(size, int) and size > 0 else 1


class _Column:
    """One array of an archive, read a few rows at a time.

    Args:
        stream: The member of the archive.
        rows: The rows of one sample.
    """

    def __init__(self, stream: IO[bytes], rows: int) -> None:
        self._stream, self._rows = stream, rows
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, self._dtype = read(stream)
        self._dtype = true_dtype(self._dtype)
        if self._dtype.hasobject:
            raise ValueError("arrays of objects are not read")
        self._shape = tuple(shape)
        self.count = self._shape[0] // rows if self._shape else 0
        self._whole: np.ndarray | None = None
        if is_fortran and len(self._shape) > 1:
            self._whole = self._take(math.prod(self._shape)).reshape(self._shape, order="F")
        self._number = 0

    def read(self) -> np.ndarray:
        """Return the rows of the next sample."""
        first = self._number * self._rows
        self._number += 1
        if self._whole is not None:
            return np.ascontiguousarray(self._whole[first : first + self._rows])
        shape = (self._rows, *self._shape[1:])
        return self._take(math.prod(shape)).reshape(shape)

    def _take(self, count: int) -> np.ndarray:
        size = count * self._dtype.itemsize
        parts: list[Any] = []
        while size:
            part = self._stream.read(min(size, 1 << 24))
            if not part:
                raise EOFError("the array is shorter than its header states")
            parts.append(part)
            size -= len(part)
        return np.frombuffer(b"".join(parts), self._dtype)
