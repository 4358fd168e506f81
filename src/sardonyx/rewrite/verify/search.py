"""Search of inputs on which the original runs: common sizes first, then variations guided by failures.

A failure names the node at which the model stopped. The later the node, the better the sizes: the
search retains the assignment with the latest failure, and varies one or two of its sizes at a time.
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
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.compare import is_informative, varies
from sardonyx.rewrite.verify.data_paths import outputs_of_sizes
from sardonyx.rewrite.verify.weight_sizes import required_sizes

ATTEMPTS = 600
"""Maximum number of input sets tried without success."""

MOST_ALIKE = 12
"""Maximum number of input sets for a model of fixed sizes, which differ only in their numbers."""

SECONDS = 40.0
"""Time limit of the search."""

PATIENCE = 12.0
"""Time after which fewer samples than requested are enough."""

CANDIDATES: tuple[tuple[int, int], ...] = (
    (2, 8), (1, 16), (3, 5), (1, 1), (1, 32), (2, 64), (1, 64),
    (1, 128), (4, 4), (1, 96), (1, 160), (1, 224), (1, 256), (1, 320),
)  # fmt: skip
"""(batch, other sizes) tried first."""

SUMS = ((2, 3, 5), (1, 1, 8), (3, 6, 4))
"""(batch, two sizes) tried next, with a third size as their sum: e.g. cache length plus new tokens."""

MOST_SUMS = 60
"""Maximum number of such sets: a model of many open sizes has many such triples."""

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
"""Sizes common in models."""

MEMORY_EXCEEDED = "the run exceeds the memory limit"

Feeds = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """Inputs on which the original runs, its sizes, and its answers."""

    sizes: Mapping[str, int]
    feeds: Feeds
    answers: Mapping[str, Any]


class Search:
    """Search for samples.

    Args:
        model: The original, annotated by inference.
        run: Runs the original; raises ``EvaluationError``.
        seed: Seed of everything drawn.
        count: Number of samples to find.
        probes: Names of answers that are not outputs of the model.
    """

    def __init__(
        self,
        model: ir.Model,
        run: Callable[[Feeds], Mapping[str, Any]],
        seed: int,
        count: int,
        probes: Collection[str] = (),
    ) -> None:
        self._model = model
        self._probes = frozenset(probes)
        self._run = run
        self._seed = seed
        self._count = count
        self._positions = {node.name: i for i, node in enumerate(facts.nodes_of(model.graph)) if node.name}
        self._open = inputs.open_sizes(model)
        self._required = {name: size for name, size in required_sizes(model).items() if name in self._open}
        self._integers = inputs.unbounded_integers(model)
        self._depends_on_numbers = len(outputs_of_sizes(model)) < len(model.graph.outputs)
        self._generator = np.random.default_rng(seed)
        self._best: tuple[int, dict[str, int]] = (-1, {})
        self._hints: dict[int, None] = {}
        self._fixed_sizes = _numbers(model)
        self._informative_sizes: list[dict[str, int]] = []
        self.reasons: dict[str, None] = {}
        self.uninformative: list[Sample] = []

    def samples(self, is_incomplete: Callable[[Sample], bool] = lambda sample: False) -> list[Sample]:
        """Return informative samples on which the original runs.

        Args:
            is_incomplete: Called with each sample; while True is returned, up to four times ``count`` are drawn.
        """
        samples: list[Sample] = []
        began = time.monotonic()
        for number, sizes in enumerate(self._assignments(samples)):
            spent = time.monotonic() - began
            most = ATTEMPTS if self._open or self._integers else MOST_ALIKE
            if number >= most or spent > SECONDS or (samples and spent > PATIENCE):
                break
            sample = self._try(sizes, self._seed + number)
            if sample is None:
                continue
            if self._depends_on_numbers and not is_informative(self._outputs(sample)):
                self.uninformative.append(sample)
                self.reasons["every output is empty, NaN or one repeated number"] = None
                continue
            samples.append(sample)
            self._informative_sizes.append(sizes)
            unseen = is_incomplete(sample)
            if len(samples) >= self._count and (
                not unseen or len(samples) + len(self.uninformative) >= 4 * self._count
            ):
                break
        if not samples and varies([self._outputs(sample) for sample in self.uninformative]):
            # Each sample has one repeated number, but the numbers differ: the outputs depend on the inputs.
            samples = self.uninformative[: self._count]
        return samples

    def _outputs(self, sample: Sample) -> Mapping[str, Any]:
        return {name: value for name, value in sample.answers.items() if name not in self._probes}

    def _try(self, sizes: dict[str, int], seed: int) -> Sample | None:
        sizes = {**sizes, **self._required}
        try:
            feeds = inputs.draw(self._model, sizes, seed)
            answers = self._run(feeds)
        except EvaluationError as error:
            self._learn(str(error), sizes)
            return None
        except MemoryError:
            # Sizes this large are out of reach; other sizes may not be.
            self.reasons[MEMORY_EXCEEDED] = None
            return None
        self._best = (len(self._positions) + 1, sizes)
        shown = {name: size for name, size in sizes.items() if name in self._open}
        return Sample(shown, feeds, answers)

    def _learn(self, reason: str, sizes: dict[str, int]) -> None:
        self.reasons[reason.splitlines()[0][:300]] = None
        # "Name:'Add_3'" by ONNX Runtime, "node Add_3 (Add)" by Sardonyx.
        named = [a or b for a, b in re.findall(r"[Nn]ame:\s?'([^']*)'|\bnode (\S+) \(", reason)]
        progress = max((self._positions.get(name, -1) for name in named), default=-1)
        if progress >= self._best[0]:
            self._best = (progress, sizes)
        for number in re.findall(r"(?<![\w.])\d{1,5}(?![\w.])", reason):
            if 0 < int(number) <= 1 << 14:
                self._hints[int(number)] = None

    def _assignments(self, samples: list[Sample]) -> Iterator[dict[str, int]]:
        """Yield sizes to try: common ones, then variations of the best so far, distinct if any is open."""
        tried: set[tuple[tuple[str, int], ...]] = set()
        for batch, other in CANDIDATES:
            sizes = {}
            for i, name in enumerate(self._open):
                # Unequal sizes distinguish rows from columns; multiples satisfy strided models.
                unequal = other * 2 if i % 2 and other >= 16 else other
                sizes[name] = batch if self._is_batch(name) else unequal
            tried.add(tuple(sorted(sizes.items())))
            yield sizes
            if not self._open and not self._integers:
                break
        names = [name for name in (*self._open, *self._integers) if name not in self._required]
        if not names:
            while True:
                yield {}
        for sizes in itertools.islice(self._sums(), MOST_SUMS):
            tried.add(tuple(sorted(sizes.items())))
            yield sizes
        for number in range(20 * ATTEMPTS):
            if self._informative_sizes and self.uninformative and number % 2 == 0:
                # Few sizes are informative: draw other numbers at these sizes.
                yield self._informative_sizes[number // 2 % len(self._informative_sizes)]
                continue
            sizes = self._changed(dict(self._best[1]), names)
            key = tuple(sorted(sizes.items()))
            if key not in tried:
                tried.add(key)
                yield sizes

    def _is_batch(self, name: str) -> bool:
        return self._open[name] or "batch" in name.lower()

    def _sums(self) -> Iterator[dict[str, int]]:
        """Yield sizes of which one is the sum of two others."""
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
        pools = [pool for pool in (POOL, tuple(self._hints)[-12:], self._fixed_sizes) if pool]
        pool = pools[int(generator.choice(len(pools), p=[0.5, 0.25, 0.25] if len(pools) == 3 else None))]
        size = int(pool[int(generator.integers(len(pool)))])
        for name in generator.permutation(len(names))[: int(generator.choice([1, 1, 1, 2, 2, 3]))]:
            sizes[names[int(name)]] = size
        return sizes


def _numbers(model: ir.Model) -> tuple[int, ...]:
    """Return likely factors of sizes: fixed input sizes, and small constants such as targets of Reshape."""
    numbers: dict[int, None] = {}
    for value in inputs.required_inputs(model):
        numbers.update((size, None) for size in inputs.declared_sizes(value) or () if isinstance(size, int))
    for node in facts.nodes_of(model.graph):
        for operand in node.inputs:
            tensor = facts.constant_tensor(operand)
            if tensor is not None and tensor.size <= 8 and tensor.dtype == ir.DataType.INT64:
                numbers.update((int(number), None) for number in tensor.numpy().reshape(-1))
    return tuple(number for number in numbers if 1 < number <= 4096)[:64]
