"""Compiled models: a model rewritten, traced to one Core function, and compiled for this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.base.gc_pause import collector_paused
from sardonyx.base.thread_priority import let_calls_pass
from sardonyx.core.ir.types import STRING, TensorType
from sardonyx.errors import ExecutionError, FeedError, SardonyxError

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.compiler.call.host_epilogue import HostTailEntry
    from sardonyx.compiler.call.native_entry import Entry
    from sardonyx.compiler.program import Program
    from sardonyx.compiler.target.denormals import Denormals
    from sardonyx.core.eval.run_context import RunContext
    from sardonyx.runtime.compiled.frontend import Source
    from sardonyx.runtime.compiled.weight_swap import WeightSwap
    from sardonyx.runtime.editing.fingerprint import Structure
    from sardonyx.runtime.providers.protocol import OptimizationLevel


class NativeModel:
    """A model compiled for this machine.

    Args:
        program: The compiled function.
        input_names: The names of its inputs.
        output_names: The names of its results.
        source: The rewritten model, for programs over other weights; None if unknown.
        swap: The replacement of weights without tracing; None if unknown.
    """

    def __init__(
        self,
        program: Program,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: Source | None = None,
        swap: WeightSwap | None = None,
    ) -> None:
        self.program = program
        self._source, self._swap = source, swap
        self.input_names = list(input_names)
        self.output_names = list(output_names)
        self._positions = {name: position for position, name in enumerate(self.output_names)}
        self._types = [value.type for value in program.function.inputs]
        self._entry: Entry | HostTailEntry | None = None
        self._connected: Sequence[np.ndarray] | None = None
        # The elements of text tensors are checked too.
        self._plain = [
            (name, type.dtype.numpy()) if isinstance(type, TensorType) and type.dtype != STRING else (name, None)
            for name, type in zip(self.input_names, self._types, strict=True)
        ]
        self._may_have_entry = self._is_plain
        self._ran = False

    @classmethod
    def compiled(
        cls,
        model: ir.Model,
        threads: int | None = None,
        denormals: Denormals = "auto",
        optimization: OptimizationLevel = "all",
    ) -> NativeModel:
        """Compile a model.

        Args:
            model: The model, which is not changed.
            threads: Number of threads; by default all processors of the process.
            denormals: The treatment of denormal numbers.
            optimization: The rewrites before: only the separation of weights from inputs, rewrites that keep every bit,
                or all.

        Raises:
            UnsupportedError: The model cannot be traced before its inputs are known.
        """
        from sardonyx.compiler.program import Program
        from sardonyx.runtime.compiled.frontend import lower_model

        with collector_paused():  # Traversals of the graphs under construction would take a third of the time.
            function, inputs, source = lower_model(model, optimization)
            program = Program.compile(function, threads=threads, denormals=denormals, stores_kernels=True)
        return cls(program, inputs, [str(value.name) for value in model.graph.outputs], source)

    def reweighted(self, model: ir.Model, optimization: OptimizationLevel = "all") -> NativeModel | None:
        """Return the same compiled model over other weights; None if other weights need another program.

        Args:
            model: The compiled model with other elements of weights, which is not changed.
            optimization: The rewrites before.
        """
        from sardonyx.runtime.compiled.frontend import lower_model
        from sardonyx.runtime.editing.fingerprint import structure

        if not self.program.can_be_reweighted:
            return None
        inputs, source = self.input_names, self._source
        if self._swap is not None and (described := structure(model)) is not None:
            swapped = self.swapped(described, optimization)
            if swapped is not None:
                return swapped
        traced = source.traced(model, optimization) if source is not None else None
        if traced is None:
            function, inputs, source = lower_model(model, optimization)
        else:
            function = traced[0]
        program = self.program.reweighted(function) if inputs == self.input_names else None
        if program is None:
            return None
        swap = None
        if source is not None and traced is not None:
            from sardonyx.runtime.compiled.weight_swap import WeightSwap

            swap = WeightSwap.of(source, self.program, program, model, traced[1], function)
        return NativeModel(program, inputs, self.output_names, source, swap)

    @property
    def has_swap(self) -> bool:
        """True if :meth:`swapped` may return a model."""
        return self._swap is not None

    def swapped(self, model: Structure, optimization: OptimizationLevel = "all") -> NativeModel | None:
        """Return the same compiled model over other weights, without tracing; None if the model must be traced.

        Args:
            model: The structure of the compiled model, with the other weights.
            optimization: The rewrites before.
        """
        if self._swap is None or not self.program.can_be_reweighted:
            return None
        swapped = self._swap.over(self.program, model, optimization)
        if swapped is None:
            return None
        other = NativeModel(swapped[0], self.input_names, self.output_names, self._source, swapped[1])
        if self._connected is not None:
            # The first calls after a publication would connect it instead, and be several times as long.
            let_calls_pass()
            other._connect(self._connected)
        return other

    @property
    def output_bytes(self) -> dict[str, int]:
        """The bytes of each output by name; an open size counts as 1, and outputs that are no tensors as 0."""
        sizes = {}
        for name, value in zip(self.output_names, self.program.function.results, strict=True):
            type = value.type
            sizes[name] = 0
            if isinstance(type, TensorType) and type.dtype != STRING:
                elements = math.prod(size for size in type.shape or () if isinstance(size, int))
                sizes[name] = elements * type.dtype.numpy().itemsize
        return sizes

    @property
    def _is_plain(self) -> bool:
        return all(dtype is not None for _, dtype in self._plain)

    def programs(self) -> list[tuple[str, Program, int]]:
        """Return the program; see :data:`.memory.Programs`."""
        return [("", self.program, 0)]

    @property
    def call(self) -> Callable[[Any], list[Any] | None] | None:
        """The generated function of feeds, from the second call on; a result of None requests :meth:`run`."""
        return None if self._entry is None else self._entry.call

    def run_directly(self, output_names: Sequence[str], feeds: Any) -> list[Any] | None:
        """Return some results by the generated function; None requests :meth:`run`."""
        if self._entry is None:
            return None
        try:
            positions = [self._positions[name] for name in output_names]
        except KeyError:
            return None
        results = self._entry.call(feeds)
        return None if results is None else [results[position] for position in positions]

    def shrink(self) -> None:
        """Free memory that no call uses."""
        from sardonyx.runtime.compiled.memory_usage import shrink

        self._entry, self._connected, self._ran = None, None, False
        self._may_have_entry = self._is_plain
        shrink(self.program)

    def bind(
        self, feeds: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> tuple[Entry, dict[str, np.ndarray]]:
        """Return a native call over fixed arrays, and its results by name; see :meth:`Session.bind`."""
        from sardonyx.compiler.direct_call import binding

        arrays = [feeds[name] for name in self.input_names]
        entry, results = binding(self.program, arrays, [outputs.get(name) for name in self.output_names])
        return entry, dict(zip(self.output_names, results, strict=True))

    def accepts(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Return True if a call feeds all inputs, and requests outputs of the compiled function alone."""
        if output_names is not None and not set(output_names) <= set(self.output_names):
            return False
        return len(feeds) == len(self.input_names) and all(name in feeds for name in self.input_names)

    def explain_refusal(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], defaults: Collection[str] = ()
    ) -> SardonyxError:
        """Return the error of a call that compiled code cannot compute, as precise as compiled code allows.

        Args:
            output_names: Names of the requested outputs; None for all.
            feeds: The inputs by name.
            defaults: The inputs whose default value is a constant of the program.
        """
        for name in output_names or ():
            if name not in self.output_names:
                return FeedError("the compiled file computes no such value.", where=name)
        for name in feeds:
            if name in defaults:
                return FeedError(
                    "expected no value, because the compiled file holds the default of this input as a constant.",
                    where=name,
                    remedy="Leave the input out, or run the original model.",
                )
            if name not in self.input_names:
                return FeedError("the model has no such input.", where=name)
        for name in self.input_names:
            if name not in feeds:
                return FeedError("the input is not fed.", where=name)
        return ExecutionError(
            "a kernel has no result for these values, as for an index out of range.",
            remedy="Run the original model: the interpreter names the node.",
        )

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext) -> list[Any]:
        """Run once.

        Args:
            output_names: Names of the requested outputs; None for all.
            feeds: All inputs, see :meth:`accepts`.
            context: The limits of this run.

        Raises:
            Fault: The data have no result: the interpreter describes the error.
            FeedError: An input is of another type or rank.
            ShapeError: A size contradicts the declaration, or another input.
        """
        arrays = self.arrays(feeds)
        results = self.program.run(arrays, context)
        if self._may_have_entry and self._ran and self._entry is None:
            self._connect(arrays)
        self._ran = True
        if output_names is None:
            return results
        by_name = dict(zip(self.output_names, results, strict=True))
        return [by_name[name] for name in output_names]

    def _connect(self, arrays: Sequence[np.ndarray]) -> None:
        """Let a generated function make calls, if there can be one; it is prepared for the sizes of these arrays."""
        from sardonyx.compiler.direct_call import direct

        self._entry = direct(self.program, self.input_names, arrays)
        self._may_have_entry = self._entry is not None
        if self._entry is not None:
            # Types and sizes alone, without the elements.
            self._connected = [np.broadcast_to(np.empty((), array.dtype), array.shape) for array in arrays]

    def arrays(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of the program for feeds; raises like :meth:`run`."""
        arrays = []
        for (name, dtype), type in zip(self._plain, self._types, strict=True):
            feed = feeds[name]
            if dtype is None or not isinstance(feed, np.ndarray) or feed.dtype != dtype or not feed.flags.c_contiguous:
                from sardonyx.ops.feeds import as_value

                feed = as_value(feed, type, name).known
            arrays.append(feed)
        return arrays
