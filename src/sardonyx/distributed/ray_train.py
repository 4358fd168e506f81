"""Ray Train: workers train one model on parts of the data; Ray's collectives compute the means of gradients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.base.extras import require
from sardonyx.base.option_checks import require_count
from sardonyx.errors import FeedError, OptionError
from sardonyx.train.data.batches import Data
from sardonyx.train.trainer.callbacks import Moment
from sardonyx.train.trainer.trainer import Trainer

Reduce = Callable[[Sequence[np.ndarray]], None]

_DATA = "train"


def data_parallel_trainer(
    make_trainer: Callable[[Reduce], Trainer],
    data: Any,
    *,
    workers: int = 2,
    epochs: int = 1,
    batch_size: int = 32,
    shuffle: bool = True,
    validation: Data | None = None,
    **options: Any,
) -> Any:
    """Return a ``DataParallelTrainer`` of Ray Train; ``fit()`` trains and returns Ray's result.

    Each worker trains on its part of the data, of equal size for all; samples that remain are left out. After each
    epoch the row of the history is reported, with a checkpoint that :func:`restored` reads. Workers that Ray starts
    again go on from the last checkpoint, with bits equal to those of a run without interruption.

    Args:
        make_trainer: Returns a trainer for a function of means: ``lambda reduce: Trainer(model, reduce=reduce)``.
        data: Arrays by name or in order, or a dataset of Ray with a column for each input and label.
        workers: Number of workers.
        epochs: Epochs in all.
        batch_size: Samples of a batch of one worker.
        shuffle: If True, the samples of arrays are permuted anew each epoch.
        validation: Data of evaluations after each epoch, which every worker evaluates.
        options: Further arguments of ``DataParallelTrainer``, e.g. ``run_config``; ``scaling_config`` replaces
            ``workers``.

    Raises:
        MissingDependencyError: Ray or torch, whose transport Ray's collectives use, is not installed.
        OptionError: A number is impossible, or the data have fewer samples than workers.

    Example:
        >>> trainer = data_parallel_trainer(lambda reduce: Trainer("model.onnx", reduce=reduce), arrays, workers=4)
        >>> restored(Trainer("model.onnx"), trainer.fit().checkpoint).save("tuned.onnx")
    """
    _require_ray()
    for name, count in (("workers", workers), ("epochs", epochs), ("batch_size", batch_size)):
        require_count(count, name)
    import ray
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    scaling = options.pop("scaling_config", None) or ray.train.ScalingConfig(num_workers=workers)
    config: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "shuffle": shuffle, "validation": validation}
    if isinstance(data, ray.data.Dataset):
        options["datasets"] = {**options.get("datasets", {}), _DATA: data}
    else:
        _require_samples(data, scaling.num_workers)
        config["data"] = ray.put(data)

    def loop(config: Mapping[str, Any]) -> None:
        _train(make_trainer, config)

    return DataParallelTrainer(loop, train_loop_config=config, scaling_config=scaling, **options)


def all_reduce(group: str | None = None) -> Reduce:
    """Return the ``reduce`` of a trainer in a worker of Ray Train: means over all workers, equal to the bit in all.

    Args:
        group: The name of the group of Ray's collectives, which is made; that of the run by default.

    Raises:
        MissingDependencyError: Ray or torch is not installed.
    """
    _require_ray()
    import ray.train
    from ray.util import collective

    context = ray.train.get_context()
    count, name = context.get_world_size(), group or f"sardonyx {context.get_experiment_name()}"
    if count == 1:
        return lambda arrays: None
    collective.init_collective_group(count, context.get_world_rank(), backend="gloo", group_name=name)
    return Means(lambda array: collective.allreduce(array, name), count)


class Means:
    """Replace arrays by their means over processes: one sum for all arrays of a type.

    Args:
        add: Replaces an array by its sum over processes.
        count: Number of processes.
    """

    def __init__(self, add: Callable[[np.ndarray], None], count: int) -> None:
        self._add, self._count = add, count
        self._buffers: dict[np.dtype[Any], np.ndarray] = {}

    def __call__(self, arrays: Sequence[np.ndarray]) -> None:
        """Replace each array by its mean, in place."""
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            own = [array for array in arrays if array.dtype == dtype]
            size = sum(array.size for array in own)
            buffer = self._buffers.get(dtype)
            if buffer is None or buffer.size != size:
                buffer = self._buffers[dtype] = np.empty(size, dtype)
            np.concatenate([array.reshape(-1) for array in own], out=buffer)
            self._add(buffer)
            with np.errstate(invalid="ignore"):
                buffer /= self._count
            start = 0
            for array in own:
                array[...] = buffer[start : start + array.size].reshape(array.shape)
                start += array.size


class Report:
    """Report each row to Ray Train; the first worker adds a checkpoint.

    Args:
        checkpoints: If False, only numbers are reported.
    """

    def __init__(self, *, checkpoints: bool = True) -> None:
        self._checkpoints = checkpoints

    def __call__(self, moment: Moment) -> None:
        """Report the row of the epoch."""
        import ray.train

        row = dict(moment.row)
        if not self._checkpoints or ray.train.get_context().get_world_rank():
            ray.train.report(row)
            return
        with tempfile.TemporaryDirectory() as folder:
            moment.trainer.save_checkpoint(folder)
            ray.train.report(row, checkpoint=ray.train.Checkpoint.from_directory(folder))


class ShardBatches:
    """The batches of a worker's part of a dataset of Ray, an iterable that each epoch reads anew.

    Args:
        shard: The part: ``ray.train.get_dataset_shard("train")``.
        batch_size: Samples of a batch.
    """

    def __init__(self, shard: Any, batch_size: int = 32) -> None:
        self._shard, self._batch_size = shard, batch_size

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        return iter(self._shard.iter_batches(batch_size=self._batch_size, batch_format="numpy"))


def restored(trainer: Trainer, checkpoint: Any) -> Trainer:
    """Return the trainer in the state of a checkpoint of Ray Train.

    Args:
        trainer: A trainer of the same model and options.
        checkpoint: The checkpoint of a result.

    Raises:
        OptionError: The checkpoint is of another training.
    """
    if checkpoint is None:
        raise OptionError("the result has no checkpoint.", where="checkpoint", remedy="Train at least one epoch.")
    with checkpoint.as_directory() as folder:
        trainer.load_checkpoint(folder)
    return trainer


def _train(make_trainer: Callable[[Reduce], Trainer], config: Mapping[str, Any]) -> None:
    """Train in a worker."""
    import ray
    import ray.train

    context = ray.train.get_context()
    trainer = make_trainer(all_reduce())
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        restored(trainer, checkpoint)
    epochs = int(config["epochs"])
    if len(trainer.history.rows) >= epochs:
        return
    if "data" in config:
        data: Any = _part(ray.get(config["data"]), context.get_world_rank(), context.get_world_size())
    else:
        data = ShardBatches(ray.train.get_dataset_shard(_DATA), config["batch_size"])
    trainer.fit(
        data, epochs=epochs, batch_size=config["batch_size"], shuffle=config["shuffle"],
        validation=config["validation"], callbacks=[Report()], progress=False,
    )  # fmt: skip


def _part(data: Any, rank: int, count: int) -> Any:
    """Return the samples of a worker: as many for each worker."""
    samples = len(next(iter(_arrays(data).values())))
    rows = slice(rank, samples - samples % count, count)
    parts = {name: np.asarray(array)[rows] for name, array in _arrays(data).items()}
    return parts if isinstance(data, Mapping) else tuple(parts.values())


def _require_samples(data: Any, workers: int) -> None:
    arrays = _arrays(data)
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1 or counts.pop() < workers:
        raise FeedError(f"expected arrays with as many samples, at least {workers}.", where="data")


def _arrays(data: Any) -> dict[Any, Any]:
    if isinstance(data, Mapping) and data:
        return dict(data)
    if isinstance(data, tuple) and data:
        return dict(enumerate(data))
    raise FeedError(
        f"expected arrays by name or in order, or a dataset of Ray, got {type(data).__name__}.",
        where="data",
        remedy="For other data, call `Trainer.fit` in a loop of your own, with `reduce=all_reduce()`.",
    )


def _require_ray() -> None:
    require("ray", "ray-train", "Ray Train")
    require("torch", "ray-train", "all-reduce by Ray's collectives")
