"""Weights by the names of transformers: from safetensors files, or from a GGUF file."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sardonyx.convert.weights.architecture import Architecture
from sardonyx.convert.weights.blocks import Blocks
from sardonyx.convert.weights.gguf import GgufFile
from sardonyx.errors import ModelFileError

_TYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_LONGEST_HEADER = 1 << 27


_IGNORED = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|rotary_emb\.(cos|sin)_cached|masked_bias|attn\.bias|attention\.bias|position_ids)"
)
"""Tensors that files have beside the weights: tables and masks that a model computes."""


class Checkpoint(Protocol):
    """Weights by name.

    Attributes:
        where: The files, for errors.
    """

    where: str

    def has(self, name: str) -> bool:
        """Return True if the tensor exists."""

    def tensor(self, name: str) -> npt.NDArray[Any] | Blocks:
        """Return a tensor; raises ``ModelFileError`` if it is missing or malformed."""


class SafetensorsFiles:
    """The safetensors files of a folder, or one file.

    Args:
        path: A folder or a file.

    Raises:
        ModelFileError: A header is malformed, or a tensor exceeds its file.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._entries: dict[str, tuple[memoryview, Mapping[str, Any], str]] = {}
        for file in _files_of(path) if path.is_dir() else [path]:
            self._read(file)

    def _read(self, path: Path) -> None:
        where = str(path)
        with path.open("rb") as file:
            try:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError as error:
                raise ModelFileError("the file is empty", where=where) from error
        length = int.from_bytes(data[:8], "little")
        if length > min(_LONGEST_HEADER, len(data) - 8):
            raise ModelFileError(f"a header of {length} bytes exceeds the file of {len(data)}", where=where)
        try:
            header = json.loads(bytes(data[8 : 8 + length]))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, AttributeError, RecursionError) as error:
            raise ModelFileError(f"the header is not JSON: {error}", where=where) from error
        for name, entry in entries.items():
            self._entries[name] = (data[8 + length :], entry, where)

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self._entries)

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """Return a view of a tensor."""
        if name not in self._entries:
            raise ModelFileError(f"tensor '{name}' is missing", where=self.where)
        data, entry, where = self._entries[name]
        try:
            dtype, shape = _TYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
            start, end = (int(n) for n in entry["data_offsets"])
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise ModelFileError(f"tensor '{name}' is malformed: {error}", where=where) from error
        count = 1
        for size in shape:
            count *= size
        if min(shape, default=0) < 0 or not 0 <= start <= end <= len(data) or end - start != count * dtype.itemsize:
            raise ModelFileError(f"tensor '{name}': bytes {start} to {end} do not hold {shape} {dtype}", where=where)
        return np.frombuffer(data[start:end], dtype).reshape(shape)


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder's model: those of its index, or `model.safetensors`, or all.

    Folders may hold the same weights a second time, under the names of another program.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelFileError(f"the index is malformed: {error}", where=str(index)) from error
        if any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise ModelFileError("the index names a file outside of the folder", where=str(index))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelFileError(f"the file '{missing[0]}' of the index is missing", where=str(index))
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelFileError("the folder has no .safetensors file", where=str(folder))
    return [file for file in files if file.name == "model.safetensors"] or files


class FolderCheckpoint:
    """Weights of safetensors files by the names of a family.

    A file may have the base model's prefix or not, and old files call scales and shifts of norms gamma and beta.

    Args:
        files: The files.
        prefixes: Prefixes of the base model.
    """

    def __init__(self, files: SafetensorsFiles, prefixes: tuple[str, ...]) -> None:
        self.where = files.where
        self._files = files
        self._names = files.names()
        self._prefixes = ("", *prefixes)
        self._used: set[str] = set()

    def _name(self, name: str) -> str | None:
        old = re.sub(r"(LayerNorm\.)(weight|bias)$", lambda m: m[1] + {"weight": "gamma", "bias": "beta"}[m[2]], name)
        names = (prefix + form for form in (name, old) for prefix in self._prefixes)
        return next((candidate for candidate in names if candidate in self._names), None)

    def has(self, name: str) -> bool:
        """Return True if a file has the tensor."""
        return self._name(name) is not None

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """Return a view of a tensor."""
        stored = self._name(name) or self._prefixes[-1] + name
        self._used.add(stored)
        return self._files.tensor(stored)

    def unused(self) -> list[str]:
        """Return the names of tensors that were not read, without known tables and masks."""
        return sorted(name for name in self._names - self._used if not _IGNORED.fullmatch(name))


class GgufCheckpoint:
    """A GGUF file, with rows of queries and keys in halves where files have pairs.

    Args:
        file: The file.
        architecture: Sizes, and the names of the file.
        has_pairs: True if rotated pairs of queries and keys are neighbours.
    """

    def __init__(self, file: GgufFile, architecture: Architecture, *, has_pairs: bool) -> None:
        self.where = file.where
        self._file = file
        self._heads = {"attn_q": architecture.heads, "attn_k": architecture.key_heads} if has_pairs else {}
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        """Return True if the file has the tensor."""
        return name in self._file.shapes

    def tensor(self, name: str) -> npt.NDArray[Any] | Blocks:
        """Return a tensor."""
        self._used.add(name)
        tensor = self._file.tensor(name)
        heads = self._heads.get(name.split(".")[2]) if name.startswith("blk.") and name.count(".") == 3 else None
        if name.endswith("ffn_gate_inp_shexp.weight") and len(tensor.shape) == 1:
            return tensor[None]
        return tensor if heads is None else _unpaired(tensor, heads)

    def unused(self) -> list[str]:
        """Return the names of tensors that were not read."""
        return sorted(name for name in self._file.shapes if name not in self._used and not name.startswith("rope_"))


def _unpaired(tensor: npt.NDArray[Any] | Blocks, heads: int) -> npt.NDArray[Any] | Blocks:
    """Return rows in halves: the first elements of all rotated pairs of a head, then the second."""
    count = len(tensor)
    if count % (2 * heads):
        raise ModelFileError(f"{count} rows of queries or keys, expected a multiple of {2 * heads}", where="GGUF")
    order = np.arange(count).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)
    return tensor[order]
