"""The planner of segments: writes the tape and the layouts of the arena for the launches of a segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal, select_known
from sardonyx.compiler.executor.size_program import Operation, SizeTable
from sardonyx.compiler.executor.tape_planner import BUFFER_WORDS, ELEMENT_WORDS, LAYOUT_WORDS, WORD_WORDS
from sardonyx.compiler.executor.tape_player import COPY_WORDS, PATCH_WORDS, WORDS, IterationWord
from sardonyx.compiler.lower.launch import FAULT, Body, Launch, Scratch
from sardonyx.compiler.plan.arena_layout import (
    ITERATION_NUMBER,
    ArenaLayouts,
    Layout,
    StateBuffer,
    concurrent_runs,
    results_in_place,
)
from sardonyx.compiler.plan.stored_shapes import bytes_register, stored_registers
from sardonyx.compiler.plan.tape import (
    UNLIMITED,
    ArenaAddress,
    Constant,
    Copy,
    Kernel,
    Link,
    Literal,
    Locate,
    Part,
    Plan,
    RegisterValue,
    RowAddress,
    TapeAddress,
    ValueAddress,
    Word,
)
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_MIN_SHARED_WORK = 6
"""Work per thread, in fork-join times, from which a thread claims more than one chunk of a launch."""


class Planner:
    """Writes the plan of a segment.

    Args:
        threads: Number of threads that share the work.
        prepared: Constants in the form for kernels.
    """

    def __init__(self, threads: int, prepared: Mapping[object, np.ndarray]) -> None:
        self._threads = threads
        self._prepared = prepared
        self._table = SizeTable()
        self._arena = ArenaLayouts(self._table, threads)
        self._words: list[int] = []
        self._size_words: list[tuple[int, int]] = []
        self._arena_words: list[tuple[int, int]] = []
        self._tape_words: list[tuple[int, int]] = []
        self._elements: list[tuple[int, int, int]] = []
        self._links: list[tuple[int, Link]] = []
        self._value_words: list[tuple[int, Value]] = []
        self._fault = self._limit = TapeAddress(0)
        self._known_symbols: frozenset[str] = frozenset()

    def plan(
        self,
        launches: Sequence[Launch],
        blocks: Mapping[Value, int],
        is_external: Callable[[Value], bool],
        inputs: Sequence[Value] = (),
        equal: Sequence[Equal] = (),
        names: frozenset[str] = frozenset(),
        size_tensors: Sequence[Value] = (),
    ) -> Plan:
        """Return the plan.

        Args:
            launches: The launches, in order.
            blocks: Channels per block, of values in blocked layout.
            is_external: True for a value outside of the segment's arena, e.g. one with later readers.
            inputs: Values whose sizes the plan computes even without a reader.
            equal: Pairs of sizes, equal in every call and any branch.
            names: The symbols whose values are known when the segment runs.
            size_tensors: Tensors of sizes to hold in the tape even without a reader.
        """
        self._known_symbols = names
        start = self._append([Literal(0)] * (WORDS * len(launches)))
        self._fault = TapeAddress(self._append([Literal(0)]))
        self._limit = TapeAddress(self._append([Literal(UNLIMITED)]))
        layout = self._arena.add(launches, blocks, is_external, ())
        self._write_tape(start, launches, layout, {}, Part.POOL)
        tensor_words = {value: self._append_sizes(value).word for value in size_tensors}
        values = [value for _, value in self._value_words]
        written = {value for launch in launches for value in launch.all_writes}
        makes = [value for value in dict.fromkeys(values) if value in written]
        table = self._table
        shapes = {value: stored_registers(table, value, blocks) for value in (*makes, *inputs)}
        for pair in equal:
            table.require_equal(*pair)
        return Plan(
            words=np.array(self._words, np.int64), kernels=len(launches), instructions=table.rows(),
            start=table.start(), symbols=table.symbols, dims=list(table.dims), equal=equal,
            buffers=_rows(self._arena.buffers, BUFFER_WORDS), layouts=_rows(self._arena.rows, LAYOUT_WORDS),
            size_words=_rows(self._size_words, WORD_WORDS), arena_words=_rows(self._arena_words, WORD_WORDS),
            elements=_rows(self._elements, ELEMENT_WORDS), tape_words=_rows(self._tape_words, WORD_WORDS),
            links=self._links, value_words=(np.array([word for word, _ in self._value_words], np.int64), values),
            makes=makes, shapes=shapes, size_tensors=tensor_words, count=layout.count,
            fault=self._fault.word, limit=self._limit.word, titles=self._arena.titles,
        )  # fmt: skip

    def _size(self, size: object) -> RegisterValue:
        return RegisterValue(self._table.register(size))  # type: ignore[arg-type]

    def _bytes(self, value: Value) -> RegisterValue:
        """Return the bytes of a value in row-major layout."""
        return RegisterValue(bytes_register(self._table, value, {}))

    # Words.

    def _append(self, words: Sequence[Word]) -> int:
        """Append words; return the index of the first."""
        start = len(self._words)
        self._words += [0] * len(words)
        self._write(start, words)
        return start

    def _write(self, first: int, words: Sequence[Word]) -> None:
        """Write values to appended words."""
        for offset, word in enumerate(words):
            self._write_word(first + offset, word)

    def _write_word(self, index: int, word: Word) -> None:
        match word:
            case Literal(number):
                self._words[index] = number
            case RegisterValue(register):
                size = self._table.number(register)
                if size is None:
                    self._size_words.append((index, register))
                else:
                    self._words[index] = size
            case ArenaAddress(buffer):
                self._arena_words.append((index, buffer))
            case Part() | Kernel() | Constant():
                self._links.append((index, word))
            case TapeAddress(other):
                self._tape_words.append((index, other))
            case ValueAddress(value):
                self._value_words.append((index, value))
            case RowAddress(first, step, patches):
                patches.append((index, first, step))

    def _append_list(self, rows: Sequence[Sequence[Word]]) -> TapeAddress:
        """Append the number of rows and the words of the rows; return the address."""
        return TapeAddress(self._append([Literal(len(rows)), *(word for row in rows for word in row)]))

    def _append_copies(self, copies: Sequence[Copy]) -> TapeAddress:
        assert all(len(copy) == COPY_WORDS for copy in copies)
        return self._append_list(copies)

    def _append_sizes(self, value: Value) -> TapeAddress:
        """Append a tensor of sizes (``dims``); return the address."""
        width = t.numpy_dtype(value.params["dtype"]).itemsize
        sizes = value.params["sizes"]
        start = self._append([Literal(0)] * -(-len(sizes) * width // 8))
        self._elements += [
            (8 * start + number * width, width, self._table.register(size)) for number, size in enumerate(sizes)
        ]
        return TapeAddress(start)

    # Tapes.

    def _write_tape(
        self, start: int, launches: Sequence[Launch], layout: Layout, external: Mapping[Value, Word], pool: Part
    ) -> Locate:
        """Write the entries of launches to appended words; return the locator of their buffers.

        Args:
            start: Index of the first word.
            launches: The launches.
            layout: Their layout.
            external: Addresses of values outside of the layout.
            pool: The executing threads.
        """
        size_tensors: dict[Value, Word] = {}

        def locate(at: int, buffer: object) -> Word:
            key = (at, buffer) if isinstance(buffer, Scratch) else buffer
            if isinstance(buffer, Value) and buffer in external:
                return external[buffer]
            if key in layout.buffers:
                return ArenaAddress(layout.buffers[key])
            if buffer in self._prepared:
                return Constant(buffer)  # type: ignore[arg-type]
            if buffer == FAULT:
                return self._fault
            assert isinstance(buffer, Value)
            if buffer.op == "dims" and buffer not in size_tensors:
                size_tensors[buffer] = self._append_sizes(buffer)
            return size_tensors.get(buffer, ValueAddress(buffer))

        concurrent: list[int] = []
        for at, (first, end, launch) in enumerate(concurrent_runs(launches)):
            code: Word
            body_pool = pool if first == end else Part.ALONE
            if launch.writes.op == "loop" and launch.bodies:
                code, arguments = Part.LOOP, self._append_loop(at, launch, layout, locate, body_pool)
            elif launch.bodies:
                code, arguments = Part.CHOICE, self._append_choice(at, launch, layout, locate, body_pool)
            else:
                code = Kernel(launch.text)
                buffers = [locate(at, buffer) for buffer in launch.buffers]
                arguments = self._append([*buffers, *map(self._size, launch.sizes)])
            entry: list[Word] = [code, TapeAddress(arguments), self._size(launch.items), self._chunk(launch)]
            if first < end:
                # The first entry of a run executes all its loops, one work item each; the others are empty.
                concurrent = [arguments] if at == first else [*concurrent, arguments]
                entry[2:] = Literal(0), Literal(1)
            if at > first or first == end:
                self._write(start + WORDS * at, entry)
            if first < end == at:
                loops = TapeAddress(self._append([TapeAddress(loop) for loop in concurrent]))
                self._write(start + WORDS * first, [Part.LOOPS, loops, Literal(len(concurrent)), Literal(1)])
        return locate

    def _chunk(self, launch: Launch) -> Word:
        """Return the work items of a chunk.

        Each thread claims a few chunks of a long launch, and one chunk of a short launch, since a claim takes time too.
        """
        items, worth = launch.items, launch.useful_chunks
        if worth is not None and worth < _MIN_SHARED_WORK * self._threads:
            assert isinstance(items, int)
            return Literal(max(1, -(-items // max(1, min(worth, self._threads)))))
        table = self._table
        part = table.operation(Operation.DIVIDE, table.register(items), table.register(4 * self._threads))
        return RegisterValue(table.operation(Operation.GREATEST, table.register(1), part))

    def _append_body(
        self, body: Body, layout: Layout, external: Mapping[Value, Word], pool: Part
    ) -> tuple[TapeAddress, Locate]:
        """Append the tape of a body; return its address and the locator of its buffers."""
        start = self._append([Literal(0)] * (WORDS * len(body.launches)))
        return TapeAddress(start), self._write_tape(start, body.launches, layout, external, pool)

    # Control flow.

    def _append_loop(self, at: int, launch: Launch, layout: Layout, locate: Locate, pool: Part) -> int:
        """Append the arguments of a loop, see :class:`.LoopWord`; return the index of the first word."""
        (body,) = launch.bodies
        carried = launch.writes.params["carried"]
        operands = [locate(at, operand) for operand in launch.writes.operands]
        results = [locate(at, result) for result in launch.all_writes]
        sizes = [self._bytes(result) for result in body.function.results[1:]]
        number = ArenaAddress(layout.buffers[at, ITERATION_NUMBER])
        halves = [
            [ArenaAddress(layout.buffers[at, StateBuffer(slot, half)]) for half in (0, 1)] for slot in range(carried)
        ]
        changing = [
            slot for slot in range(carried) if body.function.results[1 + slot] is not body.function.inputs[2 + slot]
        ]
        fixed = {slot for slot in range(carried) if slot not in changing}
        in_place = results_in_place(launch, body)
        words: list[Word] = [pool, operands[0], operands[1], number, self._fault, self._limit]
        zero = Literal(0)
        words.append(
            self._append_copies([(halves[slot][0], operands[2 + slot], sizes[slot], zero) for slot in changing])
        )
        for half in (0, 1):
            patches: list[tuple[int, Word, Word]] = []
            external: dict[Value, Word] = {
                body.function.inputs[0]: number,
                body.function.inputs[1]: Part.TRUE,
                **dict(zip(body.function.inputs[2 + carried :], operands[2 + carried :], strict=True)),
            }
            for slot in range(carried):
                external[body.function.inputs[2 + slot]] = operands[2 + slot] if slot in fixed else halves[slot][half]
            for value, slot in in_place.items():
                external[value] = (
                    halves[slot][1 - half] if slot < carried else RowAddress(results[slot], sizes[slot], patches)
                )
            tape, locate_in_body = self._append_body(body, layout.bodies[at, 0], external, pool)
            computed = [locate_in_body(-1, value) for value in body.function.results]
            copies: list[Copy] = [
                (halves[slot][1 - half], computed[1 + slot], sizes[slot], zero)
                for slot in changing
                if in_place.get(body.function.results[1 + slot]) != slot
            ]
            copies += [
                (results[slot], computed[1 + slot], sizes[slot], sizes[slot])
                for slot in range(carried, len(results))
                if in_place.get(body.function.results[1 + slot]) != slot
            ]
            after: list[Copy] = [
                (results[slot], operands[2 + slot] if slot in fixed else halves[slot][half], sizes[slot], zero)
                for slot in range(carried)
            ]
            copy_list = self._append_copies(copies)
            rows = [(TapeAddress(word), first, step) for word, first, step in patches]
            assert all(len(row) == PATCH_WORDS for row in rows)
            iteration: list[Word] = [
                tape,
                Literal(len(body.launches)),
                computed[0],
                self._append_list(rows),
                copy_list,
                self._append_copies(after),
            ]
            assert len(iteration) == len(IterationWord)
            words += iteration
        return self._append(words)

    def _append_choice(self, at: int, launch: Launch, layout: Layout, locate: Locate, pool: Part) -> int:
        """Append the arguments of a choice, see :class:`.ChoiceWord`; return the index of the first word."""
        condition, *operands = [locate(at, operand) for operand in launch.writes.operands]
        results = [locate(at, result) for result in launch.all_writes]
        words: list[Word] = [pool, condition, self._fault]
        for number, body in enumerate(launch.bodies):
            in_place = results_in_place(launch, body)
            external = dict(zip(body.function.inputs, operands, strict=True))
            external |= {value: results[slot] for value, slot in in_place.items()}
            tape, locate_in_body = self._append_body(body, layout.bodies[at, number], external, pool)
            copies: list[Copy] = [
                (results[slot], locate_in_body(-1, value), self._bytes(value), Literal(0))
                for slot, value in enumerate(body.function.results)
                if in_place.get(value) != slot
            ]
            misfits = RegisterValue(self._table.misfits(select_known(body.equal, self._known_symbols)))
            words += [tape, Literal(len(body.launches)), self._append_copies(copies), misfits]
        return self._append(words)


def _rows(rows: Sequence[Sequence[int]], words: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, words)
