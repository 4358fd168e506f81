"""Partitions of a model, ready to run, with checks of the provider's results."""

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
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.graph import node_label
from sardonyx.rewrite.surgery.subgraph import is_constant_node
from sardonyx.runtime.providers.protocol import Runner

Expected = tuple[np.dtype[Any], tuple[int | None, ...] | None]
"""The element type of a tensor, and its sizes as far as known."""


class Part:
    """A partition that is ready to run.

    Args:
        provider: The name of its provider.
        runner: The compiled partition.
        model: The partition as a model.

    Attributes:
        inputs: Names of the inputs, in order.
        outputs: Names of the outputs, in order.
        types: Types of the outputs; None if unknown.
        last: Names of values that no later part reads.
        around: Most bytes of values of other parts that were alive while this part ran.
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
        """The label of the part in errors."""
        nodes = [node_label(node) for node in self.model.graph if not is_constant_node(node)]
        return f"{', '.join(nodes[:3])}{f' and {len(nodes) - 3} more' if len(nodes) > 3 else ''}"

    def expected(self, sizes: Mapping[str, int]) -> list[Expected | None]:
        """Return the expected type and sizes of each output.

        Args:
            sizes: Values of size symbols; sizes with other symbols are open.
        """
        return [_expected(type, sizes) for type in self.types]

    def run(
        self, values: Mapping[str, Any], context: RunContext, expected: Sequence[Expected | None] | None = None
    ) -> Sequence[Any]:
        """Run the part on the current values.

        Args:
            values: Values by name, including the inputs.
            context: The limits of the run.
            expected: The expected outputs, if more is known than their types.

        Raises:
            SardonyxError: The provider fails, or its results are not as expected.
        """
        try:
            results = self.runner.run([values[name] for name in self.inputs], context)
        except SardonyxError as error:
            if not error.where:
                raise type(error)(error.problem, where=f"{self.provider}: {self.label}", remedy=error.remedy) from error
            raise
        except Exception as error:
            raise _raised(error, f"{self.provider}: {self.label}") from error
        if not isinstance(results, (list, tuple)):
            raise self._wrong(f"expected a list of results, got {_kind(results)}")
        if len(results) != len(self.outputs):
            raise self._wrong(f"expected {len(self.outputs)} results, got {len(results)}")
        for i, output in enumerate(self._expected if expected is None else expected):
            if output is not None:
                array = results[i]
                # The usual case first: this runs for every result.
                if type(array) is not np.ndarray or array.dtype is not output[0] or array.shape != output[1]:
                    self._require(array, self.outputs[i], *output)
        return results

    def _require(self, array: Any, name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...] | None) -> None:
        if not isinstance(array, np.ndarray):
            raise self._wrong(f"expected a tensor for {name!r}, got {_kind(array)}")
        if array.dtype != dtype and not (dtype.kind == "O" and array.dtype.kind in "OSU"):
            raise self._wrong(f"expected {dtype} for {name!r}, got {array.dtype}")
        if shape is not None and array.shape != shape and not _fits(array.shape, shape):
            raise self._wrong(f"expected the shape {_shape_text(shape)} for {name!r}, got {array.shape}")

    def _wrong(self, problem: str) -> ExecutionError:
        return ExecutionError(f"{problem}.", where=f"{self.provider}: {self.label}")


@contextlib.contextmanager
def provider_errors(where: str) -> Iterator[None]:
    """Convert foreign exceptions of a provider to an error that names the provider."""
    try:
        yield
    except SardonyxError:
        raise
    except Exception as error:
        raise _raised(error, where) from error


def _raised(error: Exception, where: str) -> ExecutionError:
    text = str(error)
    return ExecutionError(f"the provider raised {type(error).__name__}{f': {text}' if text else '.'}", where=where)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__}"


def _expected(type: Type | None, sizes: Mapping[str, int]) -> Expected | None:
    if not isinstance(type, TensorType):
        return None
    shape = None if type.shape is None else tuple(_number(size, sizes) for size in type.shape)
    return numpy_dtype(type.dtype), shape


def _number(size: Size, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a size; None if the size is open or invalid."""
    if not isinstance(size, Dim):
        return size
    if not size.symbols() <= sizes.keys():
        return None
    try:
        return size.evaluate(sizes)
    except ShapeError:  # The provider that computes the value reports the error.
        return None


def _fits(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> bool:
    return len(shape) == len(declared) and all(d is None or d == s for s, d in zip(shape, declared, strict=True))


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in shape)})"
