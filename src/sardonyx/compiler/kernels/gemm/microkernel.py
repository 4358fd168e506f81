"""The microkernel of a matrix product: the sums of a register tile over all of K.

The sums of an element are added in the order of K for every tile, so that results do not depend on how the work is
split; with several chains each chain adds every second or fourth product. Finished tiles go through a small buffer on
the stack: the epilogue is then emitted once, in a loop over rows and vectors, and not once per register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.elementwise import emit
from sardonyx.compiler.codegen.integer_dot import bfloat16_dot_add, dot_add
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.gemm_schedule import Tile
from sardonyx.core.ir.types import DType, is_float


def read(e: Emitter, tile: Tile, dtype: DType, pointer: str, index: Index, lanes: int, mask: str | None = None) -> str:
    """Load elements as the type of the sums; ``index`` with ``lane`` 0 gives one element in every lane."""
    width = 1 if index.lane == 0 else lanes
    value = load_store.load(e, dtype, pointer, index, width, mask)
    if dtype != tile.result:
        value = emit(e, "convert", [dtype], [value], width, {"dtype": tile.result})
    return value if width == lanes else e.spread(value, lanes, tile.element)


def multiply_add(e: Emitter, tile: Tile, a: str, b: str, c: str) -> str:
    """Emit ``a * b + c`` of vectors: rounded once on targets with FMA, modulo 2**bits for integers."""
    if tile.dot_width > 1 and is_float(tile.result):
        return bfloat16_dot_add(e, tile.lanes, a, b, c)
    if tile.dot_width > 1:
        return dot_add(e, tile.lanes, tile.dot_width, a, b, c, saturates=tile.saturates)
    if is_float(tile.result):
        return e.multiply_add(tile.type, a, b, c)
    return e.let(f"add {tile.type} {e.let(f'mul {tile.type} {a}, {b}')}, {c}")


def accumulate(
    e: Emitter,
    tile: Tile,
    rows: int,
    vectors: int,
    depth: str | int,
    unroll: int,
    load_a: Callable[[int, str | int], str],
    load_b: Callable[[str | int], Sequence[str]],
    initial: Callable[[int, int], str] | None = None,
    prefetch: Callable[[str], None] | None = None,
) -> list[list[str]]:
    """Emit the loop over K; return the sums, by row and vector of columns.

    Args:
        e: The IR builder.
        tile: The tile.
        rows: Rows of the tile that are computed.
        vectors: Vectors of columns that are computed.
        depth: K.
        unroll: Steps of K that are written out in the loop.
        load_a: Emits the load of the element of A at a row of the tile and a step of K, in every lane.
        load_b: Emits the loads of the vectors of B at a step of K.
        initial: Emits the initial value of a sum, by row and vector; zeros by default.
        prefetch: Emits the prefetches of a round of the unrolled loop, by the step of K.
    """
    sums = [
        [e.variable(tile.type, initial(row, number) if initial else "zeroinitializer") for number in range(vectors)]
        for row in range(rows)
    ]

    chains = [sums]
    for _ in range(1, tile.chains):
        chains.append([[e.variable(tile.type, "zeroinitializer") for _ in line] for line in sums])

    def steps(start: str | int, count: int) -> None:
        current = [[[variable.get() for variable in line] for line in chain] for chain in chains[:count]]
        for offset in range(count):
            step, lines = e.add(start, offset), current[offset % len(current)]
            columns = load_b(step)
            for row, line in enumerate(lines):
                element = load_a(row, step)
                lines[row] = [
                    multiply_add(e, tile, element, column, sum) for sum, column in zip(line, columns, strict=True)
                ]
        for chain, results in zip(chains, current, strict=False):
            for variables, values in zip(chain, results, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.set(value)

    whole = e.mul(e.div(depth, unroll), unroll)
    with e.loop(0, whole, unroll) as step:
        if prefetch is not None:
            prefetch(step)
        steps(step, unroll)
    if unroll > 1 and not (isinstance(depth, int) and depth == whole):
        with e.loop(whole, depth) as step:
            steps(step, 1)

    def add_up(parts: list[str]) -> str:
        while len(parts) > 1:
            parts = [e.let(f"fadd {tile.type} {a}, {b}") for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    return [
        [add_up([chain[row][number].get() for chain in chains]) for number in range(vectors)] for row in range(rows)
    ]
