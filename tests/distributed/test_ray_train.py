"""Ray Train: workers take the steps of the whole batch, and go on from the last checkpoint after a failure."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.distributed.ray_train import Means, all_reduce, data_parallel_trainer, restored
from sardonyx.errors import FeedError, MissingDependencyError, ModelFileError, OptionError
from sardonyx.train import AdamW, Trainer
from tests.distributed.networks import layers
from tests.train.networks import classifier, images

Reduce = Callable[[Sequence[np.ndarray]], None]
ROOT = Path(__file__).parents[2]
PATIENCE = {"RAY_agent_register_timeout_ms": "300000", "RAY_gcs_server_request_timeout_seconds": "300",
            "RAY_raylet_start_wait_time_s": "300"}  # fmt: skip
"""Time that the processes of Ray may take to start on a busy machine."""


def rows(count: int = 64) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((count, 64), np.float32)
    return {"x": x, "labels": np.tanh(x)}


def trainer(reduce: Reduce | None = None) -> Trainer:
    return Trainer(layers(2), "mse", AdamW(1e-3), reduce=reduce, threads=1)


def test_means_are_those_of_each_array_and_type() -> None:
    arrays = [np.array([[2.0, 4.0]], np.float32), np.array(8.0), np.array([6.0, np.nan], np.float32)]
    sums: list[tuple[np.dtype[Any], int]] = []

    def add(array: np.ndarray) -> None:
        sums.append((array.dtype, array.size))
        array *= 2

    means = Means(add, 4)
    means(arrays)
    np.testing.assert_array_equal(arrays[0], [[1.0, 2.0]])
    np.testing.assert_array_equal(arrays[1], 4.0)
    np.testing.assert_array_equal(arrays[2], [3.0, np.nan])
    assert sums == [(np.float32, 4), (np.float64, 1)]


def test_threads_as_workers_take_the_step_of_the_whole_batch() -> None:
    barrier, shared = threading.Barrier(2, timeout=60), {}
    whole, batch = trainer(), rows(16)
    expected = whole.step(batch)
    losses: dict[int, float] = {}

    def work(number: int) -> None:
        def add(array: np.ndarray) -> None:
            shared[number] = array.copy()
            barrier.wait()
            array[...] = shared[0] + shared[1]
            barrier.wait()

        own = trainer(Means(add, 2))
        losses[number] = own.step({name: array[number::2] for name, array in batch.items()})
        shared[f"state {number}"] = own.state()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses[0] == losses[1] == pytest.approx(expected, rel=1e-5)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(shared["state 0"][name], shared["state 1"][name])
        np.testing.assert_allclose(shared["state 0"][name], array, rtol=1e-3, atol=2e-5)


def test_a_checkpoint_is_written_and_read_by_name(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed (extra: train)")
    first, data = Trainer(classifier(), "cross-entropy", threads=1), images(16, 0)
    first.fit(data, epochs=1, progress=False)
    first.save_checkpoint(tmp_path / "one")
    first.fit(data, epochs=2, progress=False)
    second = Trainer(classifier(), "cross-entropy", threads=1)
    second.load_checkpoint(tmp_path / "one")
    second.fit(data, epochs=2, progress=False)
    assert all(np.array_equal(array, first.state()[name]) for name, array in second.state().items())
    with pytest.raises(OptionError, match="another training"):
        trainer().load_checkpoint(tmp_path / "one")
    with pytest.raises(ModelFileError):
        second.load_checkpoint(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_ray_train_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for call in (all_reduce, lambda: data_parallel_trainer(trainer, rows())):
        with pytest.raises(MissingDependencyError, match="the package ray"):
            call()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed (extra: ray-train)")
    pytest.importorskip("torch", reason="torch is not installed (extra: ray-train)")
    pytest.importorskip("ray.train", reason="Ray Train is not installed (extra: ray-train)")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {"env_vars": {"PYTHONPATH": path}}
        ray.init(
            num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20,
            runtime_env=environment,
        )  # fmt: skip
        yield ray
        ray.shutdown()


@pytest.mark.long
@pytest.mark.parametrize("as_dataset", [False, True])
def test_two_workers_train_as_one_with_twice_the_batch(cluster: Any, tmp_path: Path, as_dataset: bool) -> None:
    import ray.data
    from ray.train import RunConfig

    data: Any = rows(65)
    if as_dataset:
        data = ray.data.from_numpy(data["x"]).rename_columns({"data": "x"})
        data = data.add_column("labels", lambda batch: np.tanh(batch["x"]), batch_format="numpy")
    result = data_parallel_trainer(
        trainer, data, workers=2, epochs=3, batch_size=8, shuffle=False,
        run_config=RunConfig(storage_path=str(tmp_path), name="run"),
    ).fit()  # fmt: skip
    alone = trainer()
    history = alone.fit({name: array[:64] for name, array in rows(65).items()}, epochs=3, batch_size=16, shuffle=False)
    both = restored(trainer(), result.checkpoint)
    assert result.metrics["epoch"] == 3
    if not as_dataset:  # Rows of datasets are distributed in blocks.
        assert both.history["loss"] == pytest.approx(history["loss"], rel=1e-4)
        for name, array in alone.state().items():
            np.testing.assert_allclose(both.state()[name], array, rtol=5e-3, atol=5e-4)
    assert both.evaluate(rows())["loss"] < trainer().evaluate(rows())["loss"]


@pytest.mark.long
def test_workers_that_fail_go_on_from_the_checkpoint(cluster: Any, tmp_path: Path) -> None:
    from ray.train import FailureConfig, RunConfig

    flag = tmp_path / "failed"

    def make(fails: bool) -> Callable[[Reduce], Trainer]:
        def make_trainer(reduce: Reduce) -> Trainer:
            calls = 0

            def reduce_or_fail(arrays: Sequence[np.ndarray]) -> None:
                nonlocal calls
                calls += 1
                if fails and calls == 6 and not flag.exists():
                    flag.touch()
                    raise RuntimeError("a worker fails")
                reduce(arrays)

            return trainer(reduce_or_fail)

        return make_trainer

    states = []
    for fails in (False, True):
        run = RunConfig(storage_path=str(tmp_path / str(fails)), failure_config=FailureConfig(max_failures=2))
        result = data_parallel_trainer(make(fails), rows(), workers=2, epochs=3, batch_size=8, run_config=run).fit()
        states.append(restored(trainer(), result.checkpoint).state())
    assert flag.exists()
    assert all(np.array_equal(array, states[1][name]) for name, array in states[0].items())


def test_data_that_workers_cannot_share_are_refused() -> None:
    pytest.importorskip("ray.train", reason="Ray Train is not installed (extra: ray-train)")
    pytest.importorskip("torch", reason="torch is not installed (extra: ray-train)")
    with pytest.raises(FeedError, match="at least 2"):
        data_parallel_trainer(trainer, rows(1), workers=2)
    with pytest.raises(FeedError, match="got generator"):
        data_parallel_trainer(trainer, (batch for batch in [rows()]), workers=2)
    with pytest.raises(OptionError, match="workers"):
        data_parallel_trainer(trainer, rows(), workers=0)
