"""Batches of training data: arrays, files, generators, loaders of other frameworks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.base.option_checks import require_count
from sardonyx.core.dim import Dim
from sardonyx.core.ir.types import TensorType, conversion_remedy
from sardonyx.errors import FeedError, OptionError
from sardonyx.model.named_arrays import LABEL_NAMES, read_named_arrays
from sardonyx.ops.feeds import feed_array
from sardonyx.train.data.folders import LabeledFiles

Batch = Mapping[str, Any] | Sequence[Any]
"""Arrays by name, or in the order of the model's inputs and then the labels."""

Data = Mapping[str, Any] | tuple[Any, ...] | Iterable[Batch] | str | os.PathLike[str]
"""Whole arrays by name or in order, an ``.npz`` file of such, a folder with a folder of files for each class, or an
iterable of batches, read once an epoch. Labels may have any of the names in :data:`LABEL_NAMES`."""


_INFINITE = -1
"""The cardinality of datasets of TensorFlow without end."""


class Batches:
    """A source of batches, in an order that depends on the seed and the epoch alone.

    Args:
        data: See :data:`Data`.
        types: Types by name of the inputs and labels, in order.
        batch_size: Samples of a batch, for whole arrays.
        shuffle: If True, whole arrays are permuted anew each epoch.
        seed: The seed of the permutations.
        optional: Names of further arrays, which batches hold as they are if the data have them.
        where: The option that gives the data, for messages.
        remedies: Instructions for arrays that do not fit their types, by name.
        classes: The number of classes, of which a folder must have a folder each; None if unknown.

    Attributes:
        length: Number of batches of an epoch; None if unknown.
        is_endless: True for a dataset of TensorFlow that is repeated without end.
        where: The option that gives the data.

    Raises:
        OptionError: The data do not name the inputs, or differ in their numbers of samples.
        ModelFileError: The file cannot be read.
    """

    def __init__(
        self,
        data: Data,
        types: Mapping[str, TensorType],
        *,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        optional: Sequence[str] = (),
        where: str = "data",
        remedies: Mapping[str, str] | None = None,
        classes: int | None = None,
    ) -> None:
        require_count(batch_size, "batch_size")
        self._types, self._size, self._shuffle, self._seed = dict(types), batch_size, shuffle, seed
        self._optional = [name for name in optional if name not in types]
        self.where, self._remedies = where, remedies or {}
        self._files: LabeledFiles | None = None
        if isinstance(data, (str, os.PathLike)):
            path = Path(data)
            if path.is_dir():
                self._files = self._folder(path, classes)
                data = ()
            else:
                data = read_named_arrays(path)
        self.is_endless = hasattr(data, "cardinality") and int(data.cardinality()) == _INFINITE
        self._arrays: dict[str, np.ndarray] | None = None
        self._stream: Any = None
        if self._files is not None:
            self.length: int | None = -(-len(self._files) // batch_size)
        elif isinstance(data, (Mapping, tuple)):
            self._arrays = self._whole(data)
            self.length = -(-len(next(iter(self._arrays.values()))) // batch_size)
        elif isinstance(data, Iterable):
            self._stream = data
            self.length = _length(data)
        else:
            kind = type(data).__name__  # type: ignore[unreachable]
            raise OptionError(f"expected arrays, an .npz file or an iterable of batches, got {kind}.", where=where)
        self._is_iterator = isinstance(data, Iterator)
        self._began = False

    def _whole(self, data: Mapping[str, Any] | tuple[Any, ...]) -> dict[str, np.ndarray]:
        named = self._named(data, self.where)
        arrays = {name: np.asarray(value) for name, value in named.items()}
        counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        if len(set(counts.values())) != 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise OptionError(f"expected the same number of samples in every array, got {listed}.", where=self.where)
        if not next(iter(counts.values())):
            raise OptionError("expected at least one sample.", where=self.where)
        return arrays

    def _folder(self, path: Path, classes: int | None) -> LabeledFiles:
        if len(self._types) != 2:
            raise OptionError(
                f"a folder has samples and classes, expected {', '.join(self._types)}.",
                where=str(path),
                remedy="Give arrays by name, or an iterable of batches.",
            )
        files = LabeledFiles(path)
        if classes not in (None, len(files.classes)):  # Classes are numbered by the order of the folders.
            raise OptionError(
                f"expected {classes} folders, one for each class of the model, got {len(files.classes)}.",
                where=str(path),
                remedy="Make an empty folder for a class without samples, or give the model another last layer:"
                f" `swap_head`, `--classes {len(files.classes)}`.",
            )
        return files

    def _named(self, batch: Any, where: str) -> dict[str, Any]:
        names = list(self._types)
        if isinstance(batch, Mapping):
            batch = self._with_label(batch)
            missing = [name for name in names if name not in batch]
            if missing:
                raise OptionError(
                    f"missing {', '.join(missing)}.",
                    where=where,
                    remedy=f"The data have: {', '.join(map(str, batch))}.",
                )
            return {name: batch[name] for name in [*names, *(name for name in self._optional if name in batch)]}
        values = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        if any(isinstance(value, Mapping) for value in values):
            return self._named(self._of_keras(values, where), where)
        if len(values) != len(names):
            raise OptionError(f"expected {len(names)} arrays ({', '.join(names)}), got {len(values)}.", where=where)
        return dict(zip(names, values, strict=True))

    def _of_keras(self, values: Sequence[Any], where: str) -> dict[str, Any]:
        """Return arrays by name, where some are in mappings and some in the order of the remaining names."""
        named = {name: array for value in values if isinstance(value, Mapping) for name, array in value.items()}
        others = [name for name in self._types if name not in named]
        arrays = [value for value in values if not isinstance(value, Mapping)]
        if len(arrays) != len(others):
            listed = f" ({', '.join(others)})" if others else ""
            raise OptionError(
                f"expected {len(others)} arrays{listed} beside those by name, got {len(arrays)}.", where=where
            )
        return named | dict(zip(others, arrays, strict=True))

    def _with_label(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a batch whose labels have the expected name, if they have another one of :data:`LABEL_NAMES`."""
        for name in (*self._types, *self._optional):
            if name in LABEL_NAMES and name not in batch:
                for other in LABEL_NAMES:
                    if other in batch and other not in self._types and other not in self._optional:
                        return {**batch, name: batch[other]}
        return batch

    def epoch(self, number: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yield the batches of an epoch.

        Args:
            number: The number of the epoch, from 0.
            start: Batches to leave out.

        Raises:
            FeedError: A batch does not fit the model.
            OptionError: An iterator, which can be read once, is read again.
        """
        if self._files is not None:
            names, order = list(self._types), self._order(len(self._files), number)
            for index in range(start, -(-len(order) // self._size)):
                pair = self._files.read(order[index * self._size : (index + 1) * self._size])
                yield self.checked(dict(zip(names, pair, strict=True)), f"batch {index}")
            return
        if self._arrays is not None:
            count = len(next(iter(self._arrays.values())))
            order = self._order(count, number)
            for index in range(start, -(-count // self._size)):
                chosen = order[index * self._size : (index + 1) * self._size]
                yield self.checked({name: array[chosen] for name, array in self._arrays.items()}, f"batch {index}")
            return
        if self._is_iterator and self._began:
            raise OptionError(
                "an iterator can be read once.", where=self.where, remedy="Give a list, a loader, or `epochs=1`."
            )
        self._began = True
        stream = self._stream.as_numpy_iterator() if hasattr(self._stream, "as_numpy_iterator") else iter(self._stream)
        for index, batch in enumerate(stream):
            if index >= start:
                yield self.checked(self._named(batch, f"batch {index}"), f"batch {index}")

    def sample_names(self, number: int, index: int) -> list[str]:
        """Return the numbers in the data, or the files, of the samples of a batch; empty if the data are batches.

        Args:
            number: The number of the epoch, from 0.
            index: The number of the batch in the epoch, from 0.
        """
        chosen = slice(index * self._size, (index + 1) * self._size)
        if self._files is not None:
            return [str(self._files.paths[int(i)]) for i in self._order(len(self._files), number)[chosen]]
        if self._arrays is not None:
            return [str(i) for i in self._order(len(next(iter(self._arrays.values()))), number)[chosen]]
        return []

    def whole_arrays(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return whole arrays with elements of the declared types, after a check of the first batch of all arrays.

        The result is empty if the data are batches or files, which are checked when they are read.

        Args:
            names: Names of the arrays to return.

        Raises:
            FeedError: An array has another rank, size or kind of number than declared.
        """
        if self._arrays is None:
            return {}
        self.checked({name: array[: self._size] for name, array in self._arrays.items()}, self.where)
        return {name: self._arrays[name].astype(self._types[name].dtype.numpy(), copy=False) for name in names}

    def _order(self, count: int, number: int) -> np.ndarray:
        """Return the order of samples of an epoch."""
        if not self._shuffle:
            return np.arange(count)
        return np.random.default_rng((self._seed, number)).permutation(count)

    def checked(self, batch: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
        """Return the arrays of a batch in the declared types.

        Raises:
            FeedError: An array has another rank, size or kind of number than declared, or no sample, or two arrays have
                different sizes where both have one symbol.
        """
        arrays = {
            name: as_declared(batch[name], type, f"{where}, {name}", self._remedies.get(name, ""))
            for name, type in self._types.items()
        }
        _require_common_sizes(arrays, self._types, where)
        return arrays | {name: np.asarray(batch[name]) for name in self._optional if name in batch}


def _require_common_sizes(arrays: Mapping[str, np.ndarray], types: Mapping[str, TensorType], where: str) -> None:
    sizes: dict[str, tuple[int, str]] = {}
    for name, array in arrays.items():
        for axis, (declared, size) in enumerate(zip(types[name].shape or (), array.shape, strict=True)):
            if isinstance(declared, Dim) and declared.atom is not None and declared.atom.kind == "symbol":
                first, other = sizes.setdefault(declared.atom.name, (size, name))
                if size != first:
                    raise FeedError(
                        f"axis {axis} has size {size}, and {declared} is {first} in {other}.", where=f"{where}, {name}"
                    )


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def _length(stream: Any) -> int | None:
    """Return the number of batches of an iterable; loaders of unknown length have a ``__len__`` that fails."""
    try:
        return len(stream)
    except TypeError:
        return None


def require_names(batch: Mapping[str, Any], types: Mapping[str, TensorType]) -> dict[str, Any]:
    """Return the values of a batch that have declared types, in their order.

    Raises:
        OptionError: A name is missing.
    """
    missing = [name for name in types if name not in batch]
    if missing:
        raise OptionError(
            f"missing {', '.join(missing)}.", where="batch", remedy=f"The batch has: {', '.join(map(str, batch))}."
        )
    return {name: batch[name] for name in types}


def as_declared(value: Any, type: TensorType, where: str, remedy: str = "") -> np.ndarray:
    """Return a value as a contiguous array of a declared type.

    Args:
        value: The value.
        type: The type.
        where: The value, for messages.
        remedy: Instruction if the array does not fit; empty for that of inputs.

    Raises:
        FeedError: The array has another rank, size or kind of number than declared, or no element.
    """
    try:
        array = feed_array(value, where)
    except ValueError as error:
        raise FeedError("expected an array, got nested sequences of different lengths.", where=where) from error
    dtype = type.dtype.numpy()
    if array.dtype != dtype:
        if (array.dtype.kind not in "biuf" and array.dtype != _BFLOAT16) or not (
            np.can_cast(array.dtype, dtype, "same_kind") or dtype.kind not in "biuf"
        ):
            raise FeedError(
                f"expected elements of type {dtype}, got {array.dtype}.",
                where=where,
                remedy=remedy or conversion_remedy(type.dtype),
            )
        array = array.astype(dtype)
    shape = type.shape or ()
    if array.ndim != len(shape):
        raise FeedError(
            f"expected rank {len(shape)} [{_listed(shape)}], got shape {list(array.shape)}.", where=where, remedy=remedy
        )
    for axis, (size, declared) in enumerate(zip(array.shape, shape, strict=True)):
        if isinstance(declared, int) and size != declared:
            raise FeedError(
                f"axis {axis} has size {size}, expected {declared}.",
                where=where,
                remedy=remedy or "Give arrays of this size, or open the size of the model: `sardonyx set-shape`.",
            )
    if not array.size:
        raise FeedError(f"expected elements, got shape {list(array.shape)}.", where=where)
    return np.asarray(array, order="C")


def _listed(shape: Sequence[Any]) -> str:
    return ", ".join(map(str, shape))
