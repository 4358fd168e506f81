"""Finding inputs on which the original runs: sizes tried in turn, then changed as its failures suggest.

A failure names the node at which the model stopped. The later that node, the better the sizes: the
search keeps the assignment that got farthest, and changes one or two of its sizes at a time.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import EvaluationError
from sardonyx.rewrite import facts
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.compare import tells_something, varies

ATTEMPTS = 600
"""Sets of inputs tried before the search ends without one that works."""

MOST_ALIKE = 12
"""Sets tried of a model whose sizes are all told: only numbers differ between them."""

SECONDS = 40.0
"""Time after which the search ends."""

PATIENCE = 12.0
"""Time after which it is content with fewer samples than asked for."""

CANDIDATES: tuple[tuple[int, int], ...] = (
    (2, 8), (1, 16), (3, 5), (1, 1), (1, 32), (2, 64), (1, 64),
    (1, 128), (4, 4), (1, 96), (1, 160), (1, 224), (1, 256), (1, 320),
)  # fmt: skip
"""(batch, other sizes) tried first."""

SUMS = ((2, 3, 5), (1, 1, 8), (3, 6, 4))
"""(batch, two sizes) tried next, where another size is the sum of two: what is new behind what a cache holds."""

MOST_SUMS = 60
"""Sets tried of these: a model of many open sizes has too many of such triples."""

POOL = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12,
    16,
    24,
    32,
    40,
    48,
    64,
    80,
    96,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    400,
    512,
    640,
    768,
    1024,
)
"""Sizes that models like."""

Feeds = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """Inputs on which the original runs, its sizes, and its answers."""

    sizes: Mapping[str, int]
    feeds: Feeds
    answers: Mapping[str, Any]


class Search:
    """Looks for samples.

    Args:
        model: The original, annotated with what inference tells.
        run: Runs it; raises ``EvaluationError``.
        seed: Decides everything that is drawn.
        wanted: Samples to find.
        watched: Answers that are no outputs of the model.
    """

    def __init__(
        self,
        model: ir.Model,
        run: Callable[[Feeds], Mapping[str, Any]],
        seed: int,
        wanted: int,
        watched: Collection[str] = (),
    ) -> None:
        self._model = model
        self._watched = frozenset(watched)
        self._run = run
        self._seed = seed
        self._wanted = wanted
        self._positions = {node.name: i for i, node in enumerate(facts.nodes_of(model.graph)) if node.name}
        self._open = inputs.open_sizes(model)
        self._integers = inputs.unbounded_integers(model)
        self._generator = np.random.default_rng(seed)
        self._best: tuple[int, dict[str, int]] = (-1, {})
        self._hints: dict[int, None] = {}
        self._told = _numbers(model)
        self._telling: list[dict[str, int]] = []
        self.reasons: dict[str, None] = {}
        self.dull: list[Sample] = []

    def samples(self, more: Callable[[Sample], bool] = lambda sample: False) -> list[Sample]:
        """Samples on which the original runs and tells something.

        Args:
            more: Told of each sample found; while it answers True, up to four times the number wanted are tried.
        """
        found: list[Sample] = []
        began = time.monotonic()
        for number, sizes in enumerate(self._assignments(found)):
            spent = time.monotonic() - began
            most = ATTEMPTS if self._open or self._integers else MOST_ALIKE
            if number >= most or spent > SECONDS or (found and spent > PATIENCE):
                break
            sample = self._try(sizes, self._seed + number)
            if sample is None:
                continue
            if not tells_something(self._outputs(sample)):
                self.dull.append(sample)
                self.reasons["every output is empty, NaN or one repeated number"] = None
                continue
            found.append(sample)
            self._telling.append(sizes)
            unseen = more(sample)
            if len(found) >= self._wanted and (not unseen or len(found) + len(self.dull) >= 4 * self._wanted):
                break
        if not found and varies([self._outputs(sample) for sample in self.dull]):
            # One number each, and not the same one: the outputs do depend on the inputs.
            found = self.dull[: self._wanted]
        return found

    def _outputs(self, sample: Sample) -> Mapping[str, Any]:
        return {name: value for name, value in sample.answers.items() if name not in self._watched}

    def _try(self, sizes: dict[str, int], seed: int) -> Sample | None:
        try:
            feeds = inputs.draw(self._model, sizes, seed)
            answers = self._run(feeds)
        except EvaluationError as error:
            self._learn(str(error), sizes)
            return None
        self._best = (len(self._positions) + 1, sizes)
        shown = {name: size for name, size in sizes.items() if name in self._open}
        return Sample(shown, feeds, answers)

    def _learn(self, reason: str, sizes: dict[str, int]) -> None:
        self.reasons[reason.splitlines()[0][:300]] = None
        named = re.findall(r"[Nn]ame:\s?'([^']*)'", reason)
        progress = max((self._positions.get(name, -1) for name in named), default=-1)
        if progress >= self._best[0]:
            self._best = (progress, sizes)
        for number in re.findall(r"(?<![\w.])\d{1,5}(?![\w.])", reason):
            if 0 < int(number) <= 1 << 14:
                self._hints[int(number)] = None

    def _assignments(self, found: list[Sample]) -> Iterator[dict[str, int]]:
        """Sizes to try: the common ones, and then changes of the best so far, none twice unless none is open."""
        tried: set[tuple[tuple[str, int], ...]] = set()
        for batch, other in CANDIDATES:
            sizes = {}
            for i, name in enumerate(self._open):
                # Unequal sizes tell rows from columns; multiples keep strided models happy.
                unequal = other * 2 if i % 2 and other >= 16 else other
                sizes[name] = batch if self._is_batch(name) else unequal
            tried.add(tuple(sorted(sizes.items())))
            yield sizes
            if not self._open and not self._integers:
                break
        names = [*self._open, *self._integers]
        if not names:
            while True:
                yield {}
        for sizes in itertools.islice(self._sums(), MOST_SUMS):
            tried.add(tuple(sorted(sizes.items())))
            yield sizes
        for number in range(20 * ATTEMPTS):
            if self._telling and self.dull and number % 2 == 0:
                # Few sizes tell anything: other numbers at those that do.
                yield self._telling[number // 2 % len(self._telling)]
                continue
            sizes = self._changed(dict(self._best[1]), names)
            key = tuple(sorted(sizes.items()))
            if key not in tried:
                tried.add(key)
                yield sizes

    def _is_batch(self, name: str) -> bool:
        return self._open[name] or "batch" in name.lower()

    def _sums(self) -> Iterator[dict[str, int]]:
        """Sizes of which one is the sum of two others."""
        batches = [name for name in self._open if self._is_batch(name)]
        others = [name for name in self._open if not self._is_batch(name)]
        for batch, *parts in SUMS:
            for whole in others:
                for pair in itertools.combinations([name for name in others if name != whole], 2):
                    yield (
                        dict.fromkeys(batches, batch)
                        | dict.fromkeys(others, sum(parts))
                        | dict(zip(pair, parts, strict=True))
                    )

    def _changed(self, sizes: dict[str, int], names: list[str]) -> dict[str, int]:
        generator = self._generator
        pools = [pool for pool in (POOL, tuple(self._hints)[-12:], self._told) if pool]
        pool = pools[int(generator.choice(len(pools), p=[0.5, 0.25, 0.25] if len(pools) == 3 else None))]
        size = int(pool[int(generator.integers(len(pool)))])
        for name in generator.permutation(len(names))[: int(generator.choice([1, 1, 1, 2, 2, 3]))]:
            sizes[names[int(name)]] = size
        return sizes


def _numbers(model: ir.Model) -> tuple[int, ...]:
    """Numbers of which sizes are likely made: told sizes of inputs, and small constants such as targets of Reshape."""
    found: dict[int, None] = {}
    for value in inputs.required_inputs(model):
        found.update((size, None) for size in inputs.declared_sizes(value) or () if isinstance(size, int))
    for node in facts.nodes_of(model.graph):
        for operand in node.inputs:
            tensor = facts.constant_tensor(operand)
            if tensor is not None and tensor.size <= 8 and tensor.dtype == ir.DataType.INT64:
                found.update((int(number), None) for number in tensor.numpy().reshape(-1))
    return tuple(number for number in found if 1 < number <= 4096)[:64]
