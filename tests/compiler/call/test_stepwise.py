"""Calls of programs from several threads."""

from __future__ import annotations

import threading

import numpy as np

from sardonyx.compiler.call import stepwise
from sardonyx.compiler.call.stepwise import remembered
from sardonyx.compiler.program import Program
from sardonyx.core.dim import as_dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType


def test_a_full_table_begins_anew() -> None:
    table: dict[int, int | None] = {}
    requested: list[int] = []

    def find(key: int) -> int | None:
        requested.append(key)
        return None if key == 0 else key

    for key in (0, 0, *range(stepwise.TABLE_ENTRIES + 1)):
        assert remembered(table, key, lambda key=key: find(key)) == (key or None)  # type: ignore[misc]
    assert requested == [*range(stepwise.TABLE_ENTRIES + 1)] and list(table) == [stepwise.TABLE_ENTRIES]


def test_threads_whose_sizes_clear_each_others_away() -> None:
    program = Program.compile(trace("f", lambda x: [x + x], [TensorType(t.FLOAT, (as_dim("N"),))]))
    wrong: list[object] = []

    def work(first: int) -> None:
        try:
            for size in range(first, first + 400):
                (y,) = program.run([np.ones(size, np.float32)])
                if y.shape != (size,) or not (y == 2).all():
                    wrong.append(size)
        except Exception as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
