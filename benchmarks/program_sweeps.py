"""Small programs whose time decides the constants of fusion, row kernels, gates and tree ensembles.

Used by ``python benchmarks/kernels.py --constants``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import Target
from sardonyx.core import language as L
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir.types import FLOAT, UINT8, TensorType
from sardonyx.core.transform.simplify import simplify
from sardonyx.ops.definitions.ml.tree_tables import LEAF, MODES, Trees, Weights
from sardonyx.ops.definitions.ml.trees import scores

Body = Callable[..., Sequence[L.Tensor]]


@dataclass
class Programs:
    """Programs that run one after the other.

    Args:
        target: The processor.
        threads: Threads that share the work.
    """

    target: Target
    threads: int
    _calls: list[tuple[Program, list[np.ndarray]]] = field(default_factory=list)

    def add(self, body: Body, *shapes: tuple[int, ...]) -> Programs:
        """Compile a function of float inputs, with the constants of the cost models as they are now."""
        function = simplify(trace("sweep", body, [TensorType(FLOAT, shape) for shape in shapes]))
        program = Program.compile(function, target=self.target, threads=self.threads)
        rng = np.random.default_rng(0)
        self._calls.append((program, [rng.standard_normal(shape, np.float32) for shape in shapes]))
        return self

    def __call__(self, threads: int) -> None:
        for program, arrays in self._calls:
            program.run(arrays)


def chain(x: L.Tensor, operations: int) -> L.Tensor:
    """Return a value of so many operations: additions and multiplications in turn."""
    for number in range(operations):
        x = x * 0.875 if number % 2 else x + 0.5
    return x


def recomputed(programs: Programs) -> Programs:
    """Values of 2 to 16 operations, broadcast to 512 rows."""
    for operations in (2, 4, 6, 8, 12, 16):
        programs.add(lambda x, v, count=operations: [x * chain(v, count)], (512, 1024), (1024,))
    return programs


def mapped(programs: Programs) -> Programs:
    """An expensive elementwise function."""
    return programs.add(lambda x: [L.tanh(x)], (1024, 1024))


def requantized(programs: Programs) -> Programs:
    """Codes that are dequantized and quantized with another scale, alone and with a maximum."""

    def quantized(x: L.Tensor, scale: float) -> L.Tensor:
        return L.cast(L.clip(L.round_(x / np.float32(scale)) + 3.0, 0.0, 255.0), UINT8)

    def body(x: L.Tensor, least: float | None) -> list[L.Tensor]:
        y = (L.cast(quantized(x, 0.1), FLOAT) - 3.0) * np.float32(0.1)
        return [quantized(y if least is None else L.maximum(y, least), 0.07)]

    for least in (None, 0.25):
        programs.add(lambda x, least=least: body(x, least), (256, 1024))
    return programs


def row_sums(programs: Programs) -> Programs:
    """Sums along contiguous rows."""
    return programs.add(lambda x: [L.reduce_sum(x, [1])], (1024, 512))


def short_row_sums(programs: Programs) -> Programs:
    """Sums along many short rows."""
    return programs.add(lambda x: [L.reduce_sum(x, [1])], (16384, 64))


def shared_values(programs: Programs) -> Programs:
    """Values of 2 to 14 operations that two passes over a row read."""

    def normalize(x: L.Tensor, count: int) -> list[L.Tensor]:
        value = chain(x, count)
        return [value / L.reduce_sum(value, [1], keepdims=True)]

    for operations in (2, 4, 6, 8, 10, 14):
        programs.add(lambda x, count=operations: normalize(x, count), (256, 1024))
    return programs


def column_sums(programs: Programs) -> Programs:
    """Sums along columns whose distance is a power of two."""
    return programs.add(lambda x: [L.reduce_sum(x, [0])], (512, 1024))


def column_sums_of_chains(programs: Programs) -> Programs:
    """Sums along columns of values of 2 to 20 operations."""
    for operations in (2, 6, 10, 20):
        programs.add(lambda x, count=operations: [L.reduce_sum(chain(x, count), [0])], (512, 1024))
    return programs


def recurrent(programs: Programs) -> Programs:
    """LSTMs of 256 units, 16 steps, 1 to 48 rows: products with four gates."""
    for batch in (1, 8, 12, 24, 48):
        programs.add(_lstm(256, 16), (16, batch, 4 * 256), (batch, 256), (batch, 256))
    return programs


def _lstm(units: int, steps: int) -> Body:
    weights = np.random.default_rng(0).standard_normal((units, 4 * units)).astype(np.float32) / 16

    def layer(x: L.Tensor, *initial: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, h: L.Tensor, c: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            sums = L.take(x, i, 0) + L.matmul(h, L.constant(weights))
            i_, o, f, g = (L.slice_(sums, -1, start, start + units) for start in range(0, 4 * units, units))
            c = L.sigmoid(f) * c + L.sigmoid(i_) * L.tanh(g)
            h = L.sigmoid(o) * L.tanh(c)
            return None, [h, c], [h]

        last, (hidden,) = L.loop(L.size_tensor([steps], ()), None, list(initial), step)
        return [hidden, *last]

    return layer


def forest(
    programs: Programs, rows: Sequence[int], trees: Sequence[int], depth: int, leaf_share: float = 0.0
) -> Programs:
    """Sums over ensembles of 20 features.

    Args:
        programs: Receives a program for each number of rows and of trees.
        rows: Numbers of rows.
        trees: Numbers of trees.
        depth: Most steps to a leaf.
        leaf_share: Probability of a leaf at each step.
    """
    for count in trees:
        tables = _trees(count, depth, leaf_share)
        for row_count in rows:
            programs.add(lambda x, tables=tables: [scores(x, tables, 1, "SUM", FLOAT)], (row_count, 20))
    return programs


def _trees(count: int, depth: int, leaf_share: float) -> Trees:
    rng = np.random.default_rng(0)
    roots: list[int] = []
    nodes: list[tuple[int, float, int, int, int]] = []
    leaves: list[int] = []

    def grow(level: int) -> int:
        node = len(nodes)
        nodes.append((0, 0.0, LEAF, node, node))
        if level == depth or (level and rng.random() < leaf_share):
            leaves.append(node)
        else:
            yes, no = grow(level + 1), grow(level + 1)
            nodes[node] = int(rng.integers(20)), float(rng.standard_normal()), MODES.index("BRANCH_LEQ"), yes, no
        return node

    for _ in range(count):
        roots.append(grow(0))
    features, splits, modes, yes, no = (np.array(column) for column in zip(*nodes, strict=True))
    weights = Weights(np.array(leaves), np.zeros(len(leaves), np.int64), rng.standard_normal(len(leaves)))
    return Trees(np.array(roots), features, splits, modes, yes, no, np.zeros(len(nodes), bool), weights, {})
