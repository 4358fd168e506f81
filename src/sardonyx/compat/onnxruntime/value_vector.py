"""``OrtValueVector``: values in order, for runs without names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sardonyx.compat.onnxruntime.values import OrtValue


class OrtValueVector(Sequence[OrtValue]):
    """A growing sequence of values.

    Args:
        values: The first values.
    """

    def __init__(self, values: Sequence[OrtValue] = ()) -> None:
        self._values = list(values)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[OrtValue]:
        return iter(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def push_back(self, value: Any, is_bool_tensor: bool = False) -> None:
        """Append a value, or a tensor over the memory of a DLPack producer."""
        self._values.append(value if isinstance(value, OrtValue) else OrtValue.from_dlpack(value, is_bool_tensor))

    def push_back_batch(
        self, tensors: Sequence[Any], data_ptrs: Sequence[int], element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]], devices: Sequence[Any],
    ) -> None:  # fmt: skip
        """Append tensors over memory at addresses; ``tensors`` own the memory, and must outlive the vector."""
        for address, element_type, shape, device in zip(data_ptrs, element_types, shapes, devices, strict=True):
            self._values.append(OrtValue.over_memory(address, shape, element_type, device))

    def reserve(self, size: int) -> None:
        """Do nothing: the vector grows as values are appended."""

    def shrink_to_fit(self) -> None:
        """Do nothing: the vector has no spare memory of its own."""

    def element_type_at(self, index: int) -> int:
        """Return the ONNX number of the element type of a tensor."""
        return self._values[index].element_type()

    def bool_tensor_indices(self) -> list[int]:
        """Return the positions of the tensors of booleans."""
        return [index for index, value in enumerate(self._values) if value.data_type() == "tensor(bool)"]

    def dlpack_at(self, index: int) -> Any:
        """Return a DLPack capsule over the memory of a tensor."""
        return self._values[index].to_dlpack()

    def to_dlpacks(self, to_tensor: Any = None) -> list[Any]:
        """Return DLPack capsules of all tensors, converted by ``to_tensor`` if that is passed."""
        capsules = [value.to_dlpack() for value in self._values]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]
