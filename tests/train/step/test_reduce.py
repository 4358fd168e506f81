"""Training by several workers: means of gradients, equal states, decisions that all workers share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sardonyx import train
from sardonyx.errors import ExecutionError, OptionError
from tests.train.networks import regression

WORKERS = 2


class AllReduce:
    """Means over threads, each a worker."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(WORKERS, timeout=60)
        self._arrays: dict[int, list[np.ndarray]] = {}

    def worker(self, number: int) -> Callable[[list[np.ndarray]], None]:
        def reduce(arrays: list[np.ndarray]) -> None:
            self._arrays[number] = [array.copy() for array in arrays]
            self._barrier.wait()
            for i, array in enumerate(arrays):
                array[...] = sum(self._arrays[other][i] for other in range(WORKERS)) / WORKERS
            self._barrier.wait()

        return reduce


def run(work: Callable[[int], Any]) -> list[Any]:
    """Return the results or exceptions of all workers."""
    results: list[Any] = [None] * WORKERS

    def guarded(number: int) -> None:
        try:
            results[number] = work(number)
        except Exception as error:  # The test looks at it.
            results[number] = error

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.05}])
def test_workers_take_the_step_of_the_whole_batch(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    data = [
        {"x": rng.standard_normal((8, 4), np.float32), "labels": rng.standard_normal((8, 2), np.float32)}
        for _ in range(3)
    ]
    whole = train.Trainer(regression(), "mse", train.AdamW(1e-3), **options)
    expected = [whole.step(batch) for batch in data]
    shared = AllReduce()
    trainers = [
        train.Trainer(regression(), "mse", train.AdamW(1e-3), reduce=shared.worker(i), threads=1, **options)
        for i in range(WORKERS)
    ]

    def work(number: int) -> list[float]:
        parts = [{name: np.split(array, WORKERS)[number] for name, array in batch.items()} for batch in data]
        return [trainers[number].step(part) for part in parts]

    first, second = run(work)
    assert first == second
    np.testing.assert_allclose(first, expected, rtol=1e-5)
    for name, array in trainers[0].state().items():
        np.testing.assert_array_equal(trainers[1].state()[name], array)
        np.testing.assert_allclose(array, whole.state()[name], rtol=1e-3, atol=2e-5)


def test_a_loss_of_one_worker_that_is_not_finite_ends_the_step_of_all() -> None:
    shared = AllReduce()
    trainers = [train.Trainer(regression(), "mse", train.SGD(0.1), reduce=shared.worker(i)) for i in range(WORKERS)]
    before = trainers[0].state()
    batch = {"x": np.ones((2, 4), np.float32), "labels": np.ones((2, 2), np.float32)}
    results = run(lambda i: trainers[i].step(batch if i else {**batch, "labels": np.full((2, 2), np.inf, np.float32)}))
    assert [type(result) for result in results] == [ExecutionError] * WORKERS
    for trainer in trainers:
        for name, array in trainer.state().items():
            np.testing.assert_array_equal(before[name], array)


def test_accumulation_and_privacy_are_refused() -> None:
    with pytest.raises(OptionError, match="reduce"):
        train.Trainer(regression(), "mse", accumulate=2, reduce=lambda arrays: None)
