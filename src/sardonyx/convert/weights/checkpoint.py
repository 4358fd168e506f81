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
from sardonyx.convert.weights.gguf import Blocks, GgufFile
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


class Checkpoint(Protocol):
    """Weights by name."""

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""

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
        self._entries: dict[str, tuple[memoryview, Mapping[str, Any], str]] = {}
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files:
            raise ModelFileError("the folder has no .safetensors file", where=str(path))
        for file in files:
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
        except (ValueError, AttributeError) as error:
            raise ModelFileError(f"the header is not JSON: {error}", where=where) from error
        for name, entry in entries.items():
            self._entries[name] = (data[8 + length :], entry, where)

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self._entries)

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """Return a view of a tensor."""
        if name not in self._entries:
            raise ModelFileError(f"tensor '{name}' is missing", where="safetensors")
        data, entry, where = self._entries[name]
        try:
            dtype, shape = _TYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
            start, end = (int(n) for n in entry["data_offsets"])
        except (KeyError, ValueError, TypeError) as error:
            raise ModelFileError(f"tensor '{name}' is malformed: {error}", where=where) from error
        count = 1
        for size in shape:
            count *= size
        if min(shape, default=0) < 0 or not 0 <= start <= end <= len(data) or end - start != count * dtype.itemsize:
            raise ModelFileError(f"tensor '{name}': bytes {start} to {end} do not hold {shape} {dtype}", where=where)
        return np.frombuffer(data[start:end], dtype).reshape(shape)


_GGUF_NAMES = (
    (r"model\.embed_tokens\.weight", "token_embd.weight"),
    (r"model\.norm\.weight", "output_norm.weight"),
    (r"lm_head\.weight", "output.weight"),
    (r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)", r"blk.\1.attn_\2.\3"),
    (r"model\.layers\.(\d+)\.self_attn\.o_proj\.(weight|bias)", r"blk.\1.attn_output.\2"),
    (r"model\.layers\.(\d+)\.self_attn\.([qk])_norm\.weight", r"blk.\1.attn_\2_norm.weight"),
    (r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj\.weight", r"blk.\1.ffn_\2.weight"),
    (r"model\.layers\.(\d+)\.block_sparse_moe\.gate\.weight", r"blk.\1.ffn_gate_inp.weight"),
    (r"model\.layers\.(\d+)\.input_layernorm\.weight", r"blk.\1.attn_norm.weight"),
    (r"model\.layers\.(\d+)\.post_feedforward_layernorm\.weight", r"blk.\1.post_ffw_norm.weight"),
)


class GgufCheckpoint:
    """A GGUF file under the names of transformers.

    Args:
        file: The file.
        architecture: Sizes and family: the norm after attention has another name in Gemma 2, and files of ``llama``
            store the rows of queries and keys in pairs.
    """

    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self._file = file
        family = architecture.family
        self._post = "post_attention_norm" if family == "gemma2" else "ffn_norm"
        self._is_gemma = family.startswith("gemma")
        self._heads = {"q": architecture.heads, "k": architecture.key_heads}
        self._has_pairs = file.metadata.get("general.architecture") == "llama"

    def _name(self, name: str) -> str:
        for pattern, replacement in _GGUF_NAMES:
            if re.fullmatch(pattern, name):
                return re.sub(pattern, replacement, name)
        name = re.sub(r"model\.layers\.(\d+)\.post_attention_layernorm\.", rf"blk.\1.{self._post}.", name)
        return re.sub(r"model\.layers\.(\d+)\.pre_feedforward_layernorm\.", r"blk.\1.ffn_norm.", name)

    def names(self) -> frozenset[str]:
        """Return the file's own names; `has` finds those of transformers."""
        return frozenset(self._file.shapes)

    def has(self, name: str) -> bool:
        """Return True if the file has the tensor that transformers calls `name`."""
        return self._name(name) in self._file.shapes

    def tensor(self, name: str) -> npt.NDArray[Any] | Blocks:
        """Return a tensor by its name in transformers."""
        expert = re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.(\d+)\.w([123])\.weight", name)
        if expert:
            kind = {"1": "gate", "2": "down", "3": "up"}[expert[3]]
            whole = self._file.tensor(f"blk.{expert[1]}.ffn_{kind}_exps.weight")
            number = int(expert[2])
            if isinstance(whole, Blocks):
                return Blocks(whole.integers[number], whole.scales[number], whole.size)
            return np.asarray(whole[number])
        tensor = self._file.tensor(self._name(name))
        rows = re.search(r"self_attn\.([qk])_proj\.", name)
        if rows and self._has_pairs:
            return _unpaired(tensor, self._heads[rows[1]])
        if self._is_gemma and name.endswith("norm.weight") and not isinstance(tensor, Blocks):
            # The converter to GGUF adds the 1 that the model's code adds.
            return np.asarray(tensor - 1, tensor.dtype)
        return tensor


def _unpaired(tensor: npt.NDArray[Any] | Blocks, heads: int) -> npt.NDArray[Any] | Blocks:
    """Return rows in halves: the first elements of all rotated pairs of a head, then the second."""
    count = len(tensor.integers if isinstance(tensor, Blocks) else tensor)
    if count % (2 * heads):
        raise ModelFileError(f"{count} rows of queries or keys, expected a multiple of {2 * heads}", where="GGUF")
    order = np.arange(count).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)
    if isinstance(tensor, Blocks):
        return Blocks(tensor.integers[order], tensor.scales[order], tensor.size)
    return tensor[order]
