"""A part of a model that is ready to run, and what is checked of what it gives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.types import TensorType, Type, numpy_dtype
from sardonyx.errors import ExecutionError, SardonyxError, ShapeError
from sardonyx.ops.graph import declared_type, node_label
from sardonyx.rewrite.surgery.subgraph import is_constant_node
from sardonyx.runtime.providers.protocol import Runner

Expected = tuple[np.dtype[Any], tuple[int | None, ...] | None]
"""The element type of a tensor, and its sizes as far as they are known."""


class Part:
    """A part that is ready to run.

    Args:
        provider: Its name.
        runner: What runs it.
        model: The part.

    Attributes:
        inputs: Names of what it is given, in order.
        outputs: Names of what it gives, in order.
        types: Their types, None where they are not known.
        last: Names of what no later part reads.
        around: Most bytes of the values of other parts that were there when it ran.
    """

    def __init__(self, provider: str, runner: Runner, model: ir.Model) -> None:
        self.provider = provider
        self.runner = runner
        self.model = model
        self.inputs = [str(value.name) for value in model.graph.inputs]
        self.outputs = [str(value.name) for value in model.graph.outputs]
        self.types = [declared_type(value) for value in model.graph.outputs]
        self._expected = self.expected({})
        self.last: list[str] = []
        self.around = 0

    @property
    def label(self) -> str:
        """How errors call it."""
        nodes = [node_label(node) for node in self.model.graph if not is_constant_node(node)]
        return f"{', '.join(nodes[:3])}{f' and {len(nodes) - 3} more' if len(nodes) > 3 else ''}"

    def expected(self, sizes: Mapping[str, int]) -> list[Expected | None]:
        """What each output must be.

        Args:
            sizes: Numbers for symbols; a size that has others is open.
        """
        return [_expected(each, sizes) for each in self.types]

    def run(
        self, values: Mapping[str, Any], context: RunContext, expected: Sequence[Expected | None] | None = None
    ) -> Sequence[Any]:
        """What it gives for the values that are there by now.

        Args:
            values: Its inputs among them.
            context: The limits of the run.
            expected: What each output must be, where more is known than its type tells.

        Raises:
            SardonyxError: What the provider raises, or it gives something else than it must.
        """
        try:
            found = self.runner.run([values[name] for name in self.inputs], context)
        except SardonyxError as error:
            if not error.where:
                raise type(error)(error.problem, where=f"{self.provider}: {self.label}", remedy=error.remedy) from error
            raise
        except Exception as error:
            raise _raised(error, f"{self.provider}: {self.label}") from error
        if not isinstance(found, (list, tuple)):
            raise self._wrong(f"{_kind(found)}, and a list of its results is needed")
        if len(found) != len(self.outputs):
            raise self._wrong(f"{len(found)} results, and {len(self.outputs)} are needed")
        for i, wanted in enumerate(self._expected if expected is None else expected):
            if wanted is not None:
                array = found[i]
                # What nearly always is so, at once.
                if type(array) is not np.ndarray or array.dtype is not wanted[0] or array.shape != wanted[1]:
                    self._require(array, self.outputs[i], *wanted)
        return found

    def _require(self, array: Any, name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...] | None) -> None:
        if not isinstance(array, np.ndarray):
            raise self._wrong(f"{_kind(array)} for {name!r}, which is a tensor")
        if array.dtype != dtype and not (dtype.kind == "O" and array.dtype.kind in "OSU"):
            raise self._wrong(f"{array.dtype} for {name!r}, which is {dtype}")
        if shape is not None and array.shape != shape and not _fits(array.shape, shape):
            raise self._wrong(f"the shape {array.shape} for {name!r}, which is {_told(shape)}")

    def _wrong(self, what: str) -> ExecutionError:
        return ExecutionError(f"the provider gave {what}.", where=f"{self.provider}: {self.label}")


@contextlib.contextmanager
def asking(where: str) -> Iterator[None]:
    """Turn what a provider raises, other than errors of ours, into one that names it."""
    try:
        yield
    except SardonyxError:
        raise
    except Exception as error:
        raise _raised(error, where) from error


def _raised(error: Exception, where: str) -> ExecutionError:
    """The error by which a provider's own is told."""
    text = str(error)
    return ExecutionError(f"the provider raised {type(error).__name__}{f': {text}' if text else '.'}", where=where)


def _kind(found: Any) -> str:
    return "nothing" if found is None else f"{type(found).__name__}"


def _expected(type: Type | None, sizes: Mapping[str, int]) -> Expected | None:
    if not isinstance(type, TensorType):
        return None
    shape = None if type.shape is None else tuple(_number(size, sizes) for size in type.shape)
    return numpy_dtype(type.dtype), shape


def _number(size: Size, sizes: Mapping[str, int]) -> int | None:
    """The number of a size; None where it is open, or comes out as none."""
    if not isinstance(size, Dim):
        return size
    if not size.symbols() <= sizes.keys():
        return None
    try:
        return size.evaluate(sizes)
    except ShapeError:  # Who computes the value says what is wrong.
        return None


def _fits(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> bool:
    return len(shape) == len(declared) and all(d is None or d == s for s, d in zip(shape, declared, strict=True))


def _told(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in shape)})"
