"""Lowering of a ``contract`` as a matrix product: rows, columns, batch axes and operands in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sardonyx.compiler.analysis.axis_collapsing import can_collapse
from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.low_bit_weights import LowBitWeights, match_low_bits
from sardonyx.compiler.analysis.multi_gate_matmul import Gates
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import View, contiguous, merge_axes, shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element, Reader
from sardonyx.compiler.codegen.kernel_builder import Gated, Index
from sardonyx.compiler.codegen.loop_nest import Unfusable, bound_at, masked, stored
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN, Position
from sardonyx.compiler.codegen.prefetch_reader import Ahead
from sardonyx.compiler.kernels.gemm.gemm import (
    LowBitPanels,
    Matrix,
    Operands,
    Packed,
    Serpentine,
    gemm,
    scratch_bytes,
)
from sardonyx.compiler.kernels.gemm.operands import b_layout
from sardonyx.compiler.llvm.ir_builder import Emitter, vector
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.compiler.lower.launch import Prepared, Scratch
from sardonyx.compiler.lower.weight_packing import LowBitPacking, PanelPacking
from sardonyx.compiler.schedule.groups import operations
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.gemm import (
    BYTES_OF_WORD,
    bfloat16_width,
    choose_gemm,
    multiplies_bytes,
    multiplies_pairs,
)
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem, GemmSchedule, gated_columns
from sardonyx.compiler.tiling.int8_forms import form_of
from sardonyx.core.dim import Size, equal, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError


class Contraction:
    """One contraction while the kernel is emitted.

    Args:
        writer: The kernel.
        value: The ``contract``.
        gates: The gates, if the columns are those of gates.
    """

    def __init__(self, writer: KernelWriter, value: Value, gates: Gates | None = None) -> None:
        self.writer = writer
        self.value = value
        self.gates = gates
        x, y = value.operands
        params = value.params
        self.pairs = params["batch"]
        self.left, self.right = params["left"], params["right"]
        self.a = writer.context.operand(x)
        self.b = (
            View(y, 0, shape_of(y), contiguous(shape_of(y)))
            if is_closed(y) and not self.pairs
            else writer.context.operand(y)
        )
        batch_axes = [a for a, _ in self.pairs], [b for _, b in self.pairs]
        self.rows = [axis for axis in range(len(shape_of(x))) if axis not in batch_axes[0] and axis not in self.left]
        self.columns = [
            axis for axis in range(len(shape_of(y))) if axis not in batch_axes[1] and axis not in self.right
        ]

    def write(self) -> Size:
        """Emit the product with the epilogue; return the work items."""
        a, b = self.a, self.b
        k_shape = [a.shape[axis] for axis in self.left]
        constant = is_closed(b.base) and not self.pairs and all(isinstance(size, int) for size in b.shape)
        steps_a, steps_b = [a.strides[axis] for axis in self.left], [b.strides[axis] for axis in self.right]
        inner = merge_axes(k_shape, steps_a) if constant else merge_axes(k_shape, steps_a, steps_b)
        if inner is None:
            for operand, view, steps in zip(self.value.operands, (a, b), (steps_a, steps_b), strict=True):
                # A permuted copy of the operand has summed axes with a common stride.
                if view.base is not operand and merge_axes(k_shape, steps) is None:
                    raise Unfusable(operand)
            raise UnsupportedError(
                f"no matrix product for summed axes of shape {k_shape}: expected axes with a common stride in memory."
            )
        (k,), k_steps = inner
        if constant:  # Constant weights have constant sizes; the other operand's sizes may be symbolic.
            k = math.prod(b.shape[axis] for axis in self.right)
        rows, batch_rows = self._split(a, self.rows)
        if constant and self.gates is None and self._repeats_weights(rows, batch_rows):
            raise Unfusable(self.value.operands[0])
        columns, batch_columns = (self.columns, []) if constant else self._split(b, self.columns)
        m, m_step = _joined(a, rows)
        n, n_step = _joined(b, columns) if not constant else (self._constant_columns(), 1)
        w, kernel = self.writer, self.writer.kernel
        result = dtype_of(self.value)
        pointer = w.pointer(a.base)
        dot_width = 1
        if k_steps[0][0] == 1:
            distances = [m_step, a.offset, *_other_strides(a, self.left)]
            dot_width = (
                self._dot_width((m, n, k), distances) if constant
                else self._word_width((m, n, k), distances, k_steps[1][0], n_step)
            )  # fmt: skip
        kernel.emitter.flushes_bfloat16 = dot_width > 1 and dtype_of(a.base) == t.BFLOAT16
        if dot_width > 1:
            k, m_step = floor_div(k, dot_width), floor_div(m_step, dot_width)
        word = t.INT32 if result == t.INT32 else t.FLOAT
        element_a = word if dot_width > 1 else dtype_of(a.base)
        matrix_a = Matrix(pointer, element_a, kernel.size(m_step), kernel.size(k_steps[0][0]))
        matrix_b: Matrix | Packed | LowBitPanels
        scratch = None
        if constant:
            dtype_b = word if dot_width > 1 else dtype_of(b.base)
            low = match_low_bits(b.base) if self.gates is None else None
            schedule = self._choose(
                GemmProblem(
                    m, n, k, result, "packed", dtype_b, dot_width, self._gate_count, None if low is None else low.form
                )
            )
            if schedule.form == "low_bits":
                assert low is not None
                matrix_b = LowBitPanels(w.pointer(_packed_codes(low, b.base, schedule)), low.form)
                scratch = w.pointer(Scratch(scratch_bytes(schedule, k, low.form)))
            else:
                matrix_b = Packed(w.pointer(self._packed(schedule, k)), dtype_b)
        else:
            dtype_b = dtype_of(b.base)
            if dot_width > 1 and k_steps[1][0] == 1:
                dtype_b, n_step = word, floor_div(n_step, dot_width)
            matrix_b = Matrix(w.pointer(b.base), dtype_b, kernel.size(k_steps[1][0]), kernel.size(n_step))
            layout = b_layout(matrix_a, matrix_b, result)
            schedule = self._choose(GemmProblem(m, n, k, result, layout, matrix_b.dtype, dot_width))
            scratch = w.pointer(Scratch(scratch_bytes(schedule, k)))
        leading: list[tuple[Size, Size, Size]] = [(a.shape[i], a.strides[i], b.strides[j]) for i, j in self.pairs]
        leading += [(a.shape[axis], a.strides[axis], 0) for axis in batch_rows]
        leading += [(b.shape[axis], 0, b.strides[axis]) for axis in batch_columns]

        def locate(e: Emitter, number: str | int) -> Operands:
            at_a, at_b = kernel.size(a.offset), 0 if constant else kernel.size(b.offset)
            indices: list[Index] = []
            left: str | int = number
            for position, (size, step_a, step_b) in reversed(list(enumerate(leading))):
                count = kernel.size(size)
                index = left if position == 0 else e.rem(left, count)
                left = 0 if position == 0 else e.div(left, count)
                if size == 1:
                    index = 0
                indices.insert(0, Index(index))
                at_a = e.add(at_a, e.mul(index, kernel.size(step_a)))
                at_b = e.add(at_b, e.mul(index, kernel.size(step_b)))
            return Operands(
                e.address(matrix_a.pointer, _memory_type(a), at_a),
                e.address(matrix_b.pointer, _memory_type(b), at_b),
                tuple(indices),
            )

        return gemm(
            kernel, schedule=schedule, m=m, n=n, k=k, a=matrix_a, b=matrix_b, locate=locate, result=result,
            batch=math.prod(size for size, _, _ in leading), scratch=scratch,
            serpentine=self._alternate_panels() if constant else None,
            epilogue=self._epilogue(rows, batch_rows, columns, batch_columns),
            epilogue_operations=self._epilogue_operations(),
        )  # fmt: skip

    def _choose(self, problem: GemmProblem) -> GemmSchedule:
        """Choose the schedule, once for packing and the kernel; fusion has chosen that of gates."""
        target = self.writer.context.target
        gate_choice = self.writer.context.grouping.gate_choices.get(self.value)
        if self.gates is not None and gate_choice is not None and gate_choice.problem == problem:
            choice = gate_choice
        else:
            choice = choose_gemm(problem, target)
            self.writer.fusion_choice = gate_choice if self.gates is None else None
        if choice.schedule.gates != problem.gates:
            raise Unfusable(self.value)
        self.writer.choice = choice
        return choice.schedule

    @property
    def _gate_count(self) -> int:
        return 1 if self.gates is None else self.gates.count

    def _epilogue_operations(self) -> int:
        """Return the operations for each result; an epilogue of gates counts once for all gates of a unit."""
        return operations(self.writer.group.members) // self._gate_count

    def _constant_columns(self) -> Size:
        """Return the columns of weights, as packed."""
        if self.gates is None:
            return math.prod(self.b.shape[axis] for axis in self.columns)
        return gated_columns(self.writer.context.target, dtype_of(self.value), self.gates.count, self.gates.units)

    def _alternate_panels(self) -> Serpentine | None:
        """Return the serpentine order of weights that the iterations of a loop read again."""
        number = self.writer.context.iteration
        if number is None:
            return None
        e = self.writer.kernel.emitter
        iteration = e.load("i64", self.writer.pointer(number), 8)
        return Serpentine(e.let(f"trunc i64 {iteration} to i1"), self.writer.context.threads)

    def _split(self, operand: View, axes: list[int]) -> tuple[list[int], list[int]]:
        """Return the free axes mergeable in memory, and the axes before, which join the batch."""
        for first in range(len(axes)):
            shape = [operand.shape[axis] for axis in axes[first:]]
            if merge_axes(shape, [operand.strides[axis] for axis in axes[first:]]) is not None:
                return axes[first:], axes[:first]
        return [], axes

    def _repeats_weights(self, rows: list[int], batch_rows: list[int]) -> bool:
        """Return True if few rows of the outer axis in memory would be multiplied for each position of an inner axis.

        Such is a sequence whose steps come before its batch. The weights would be read for each step, but once for a
        copy, whose rows are one matrix.
        """
        a, x = self.a, self.value.operands[0]
        if not batch_rows or a.base is x or math.prod(shape_of(self.value)[len(self.rows) :]) == 1:
            return False
        m, m_step = _joined(a, rows)
        if isinstance(m, int) and m >= costs.FEWEST_ROWS_OF_WEIGHTS:
            return False
        steps = [a.strides[axis] for axis in batch_rows if a.shape[axis] != 1]
        return 0 not in steps and all(equal(m_step % step, 0) for step in steps)

    def _dot_width(self, sizes: tuple[Size, Size, Size], distances: Sequence[Size]) -> int:
        """Return the adjacent elements along K multiplied and added in one 32-bit lane; 1 if not aligned."""
        x, y = self.value.operands
        target = self.writer.context.target
        form = form_of(x, y, target) if dtype_of(self.value) == t.INT32 else None
        width = 1 if form is None else form.dot_width
        if dtype_of(x) == dtype_of(y) == t.BFLOAT16:
            width = bfloat16_width(*sizes, target)
        k = sizes[2]
        if not isinstance(k, int) or k % width:
            return 1
        # All strides except along K must be multiples of the dot width.
        steps = [step for step in distances if step != 1]
        return width if all(equal(step % width, 0) for step in steps) else 1

    def _word_width(self, sizes: tuple[Size, Size, Size], distances: Sequence[Size], step: Size, n_step: Size) -> int:
        """Return the elements of two computed operands that are adjacent along K and multiplied in a lane.

        Words hold four bytes of codes or two numbers of bfloat16; 1 means that elements are converted when loaded.

        Args:
            sizes: Rows, columns and terms.
            distances: Distances in the first operand, whose terms are adjacent.
            step: The distance of terms in the second operand.
            n_step: The distance of its columns.
        """
        m, n, k = sizes
        types, target = (dtype_of(self.a.base), dtype_of(self.b.base)), self.writer.context.target
        if types == (t.UINT8, t.INT8) and multiplies_bytes(m, n, k, target):
            width = BYTES_OF_WORD
        elif types == (t.BFLOAT16, t.BFLOAT16) and multiplies_pairs(m, n, target):
            width = 2
        else:
            return 1
        of_second = [n_step, self.b.offset, *_other_strides(self.b, self.right)] if step == 1 else []
        if (step == 1 or n_step == 1) and _are_whole(width, [k, *distances, *of_second]):
            return width
        if width == BYTES_OF_WORD:
            # Copies have adjacent terms, and words at whole distances: K of codes has been padded.
            for operand, view in zip(self.value.operands, (self.a, self.b), strict=True):
                if view.base is not operand:
                    raise Unfusable(operand)
        return 1

    def _packed(self, schedule: GemmSchedule, k: Size) -> Prepared:
        b, right, columns = self.b, self.right, self.columns
        assert isinstance(k, int)
        layout = schedule.packed_layout
        source = f"{right} {columns} {b.shape} {b.strides} {b.offset}"
        source += ", whole steps" if schedule.form == "matrix" else ""
        make = PanelPacking(b, tuple(right), tuple(columns), k, schedule)
        return Prepared(b.base, f"{layout}, {source} {self.writer.context.target.name}", make, layout.dot_width == 1)

    def _epilogue(self, rows: list[int], batch_rows: list[int], columns: list[int], batch_columns: list[int]):  # type: ignore[no-untyped-def]
        w, value, gates = self.writer, self.value, self.gates
        reader = w.reader
        memories = [(root, w.located(root)) for root in w.group.roots]
        shape = shape_of(value)
        first_row = len(self.pairs)
        first_column = first_row + len(self.rows)
        a_axes, b_axes = self.rows, self.columns

        def alike(start: int, count: int) -> bool:
            axes = range(start, start + count - 1)
            return all(can_collapse(root, axis, w.memory, {value}) for root, _ in memories for axis in axes)

        def spread(index: Index, axes: Sequence[int], start: int) -> list[Index]:
            """Split an index over several merged axes of the result into one index per axis."""
            if len(axes) <= 1:
                return [index] * len(axes)
            sizes = [shape[start + i] for i in range(len(axes))]
            if alike(start, len(axes)):
                return [ORIGIN] * (len(axes) - 1) + [index]
            indices: list[Index] = []
            for size in reversed(sizes[1:]):
                index, inner = reader.split(index, w.kernel.size(size))
                indices.insert(0, inner)
            return [index, *indices]

        def position_in_value(at: tuple[Index, ...]) -> tuple[Index, ...]:
            """Return the position of a vector of results along the axes of the value."""
            *leading, row, column = at
            batch = leading[: len(self.pairs)]
            outer_rows = leading[len(self.pairs) : len(self.pairs) + len(batch_rows)]
            outer_columns = leading[len(self.pairs) + len(batch_rows) :]
            assert len(a_axes) == len(batch_rows) + len(rows)
            assert len(b_axes) == len(batch_columns) + len(columns)
            return (
                *batch, *outer_rows, *spread(row, rows, first_row + len(batch_rows)),
                *outer_columns, *spread(column, columns, first_column + len(batch_columns)),
            )  # fmt: skip

        def epilogue(at: tuple[Index, ...], result: str, mask: str | None) -> None:
            element = Element(result, False)
            if not b_axes:
                # Without columns there is one element, in the first lane.
                type = vector(reader.lanes, load_store.register_type(dtype_of(value)))
                element, mask = Element(w.kernel.emitter.let(f"extractelement {type} {result}, i64 0"), True), None
            with masked(reader, mask):
                here = position_in_value(at)
                reader.bind(value, bound_at(value, here, element))
                for root, memory in memories:
                    stored(reader, root, memory, here)

        def bind_gates(reader: Reader, here: tuple[Index, ...], results: Sequence[str]) -> None:
            assert gates is not None
            for part, gate in gates.parts.items():
                reader.bind(part, self._gate(reader, part, here, gate * gates.units, results[gate]))

        def of_gates(at: tuple[Index, ...], results: Sequence[str], mask: str | None) -> None:
            with masked(reader, mask):
                here = position_in_value(at)
                bind_gates(reader, here, results)
                for root, memory in memories:
                    stored(reader, root, memory, here)

        def ahead(at: tuple[Index, ...]) -> None:
            assert gates is not None
            here, prefetcher = (
                position_in_value(at),
                Ahead(w.kernel, reader.lanes, reader.memory, reader.fault, reading=reader),
            )
            bind_gates(prefetcher, here, ["poison"] * gates.count)
            for root, _ in memories:
                prefetcher.element(root, here)

        return epilogue if gates is None else Gated(gates.count, gates.units, of_gates, ahead)

    def _gate(
        self, reader: Reader, part: Value, here: tuple[Index, ...], start: int, result: str
    ) -> Callable[[Position], Element]:
        """Return the reader of a gate of some units: values of all columns are read at the gate's columns."""

        def at(position: Position) -> Element:
            if position != here:
                raise Unfusable(part)
            wide = (*here[:-1], reader.shifted(here[-1], start))
            reader.bind(self.value, bound_at(self.value, wide, Element(result, False)))
            return reader.element(part.operands[0], wide)

        return at


def _packed_codes(weights: LowBitWeights, source: Value, schedule: GemmSchedule) -> Prepared:
    """Return weights of few bits in the panels of a schedule."""
    columns = schedule.tile.columns * schedule.panel_tiles
    form = f"unsigned low bits, panels of {columns} columns, {weights.form}"
    return Prepared(source, form, LowBitPacking(weights, columns))


def _joined(operand: View, axes: Sequence[int]) -> tuple[Size, Size]:
    """Return size and stride of axes mergeable in memory."""
    merged_axes = merge_axes([operand.shape[axis] for axis in axes], [operand.strides[axis] for axis in axes])
    assert merged_axes is not None
    (size,), ((step,),) = merged_axes
    return size, step


def _other_strides(operand: View, summed: Sequence[int]) -> list[Size]:
    """Return the strides of the axes that are not summed; the summed ones are one axis of adjacent terms."""
    return [stride for axis, stride in enumerate(operand.strides) if axis not in summed]


def _are_whole(width: int, distances: Sequence[Size]) -> bool:
    """Return True if words of some elements begin at all distances; adjacent elements may be in one word."""
    return all(equal(size % width, 0) for size in distances if size != 1)


def _memory_type(operand: View) -> str:
    return load_store.memory_type(dtype_of(operand.base))
