"""Measure batch inference on local clusters: rows a second of Ray, Spark and Dask, beside one process.

    python benchmarks/distributed.py --model resnet18.onnx --rows 256 --engines "ray data" dask

One process predicts all rows with one thread; Ray Data uses two actors of one thread, Spark and Dask two processes of
one thread. The ratio to two single processes is 1 if an engine costs nothing; the goal is 0.95. The time of an engine
is that of a second pass in the same cluster; Ray Data starts its actors anew in each pass, `ray actors` keeps them.
`ray serve` are two replicas, `ray pipeline` two parts of the model, each an actor of a compiled graph.

`processes` are two plain processes at once, without an engine: they share caches and memory, and no engine can be
faster than they are.

`resident` is the proportional memory of the image in the two actors of `ray actors`, over the size of the image: 1 if
both map one copy, 2 if each has its own.

An engine that is not installed, or fails, is named and left out; then the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import rich.console
import rich.table

# The folder of this file would hide the package `distributed` of Dask.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

PROCESSES = 2


def rows_of(model: Path, count: int) -> tuple[str, np.ndarray]:
    """Return the name of the first input, and random rows for it; open sizes are 224, for images."""
    value = onnx.load(model, load_external_data=False).graph.input[0]
    shape = [dim.dim_value or 224 for dim in value.type.tensor_type.shape.dim][1:]
    return value.name, np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)


class Task(NamedTuple):
    """The work of every engine.

    Attributes:
        path: The model.
        image: The compiled model.
        name: The name of its input.
        rows: The rows.
        batch: Rows of a batch.
    """

    path: Path
    image: Any
    name: str
    rows: np.ndarray
    batch: int

    def batches(self) -> list[dict[str, np.ndarray]]:
        """Return all rows in batches."""
        return [{self.name: self.rows[at : at + self.batch]} for at in range(0, len(self.rows), self.batch)]


def timed(work: Callable[[], Any]) -> float:
    work()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def single(task: Task) -> float:
    """Return seconds of one process for a half of the rows: the share of each process of an engine."""
    from sardonyx.distributed import Predictor

    predictor = Predictor(task.image)
    half = task._replace(rows=task.rows[: len(task.rows) // PROCESSES]).batches()
    return timed(lambda: [predictor(batch) for batch in half])


def mapped_bytes(path: Path) -> int:
    """Return the share of this process in the memory of a mapped file (Linux)."""
    total, is_of_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()[0]
        if not word.endswith(":"):
            is_of_file = line.endswith(str(path))
        elif is_of_file and word == "Pss:":
            total += int(line.split()[1]) << 10
    return total


RESIDENT: list[float] = []
"""Memory of the image in all actors over its size, of each round."""


@contextlib.contextmanager
def ray_cluster(processors: int) -> Iterator[Any]:
    """Start Ray with a number of processors, and end it; a busy machine starts it in minutes."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
    import ray

    ray.init(num_cpus=processors, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    try:
        yield ray
    finally:
        ray.shutdown()


def with_ray(task: Task) -> float:
    from sardonyx.distributed.ray import _Actor

    class Actor(_Actor):
        def resident(self, path: Path) -> int:
            return mapped_bytes(path)

    with ray_cluster(PROCESSES) as ray:
        reference = ray.put(task.image)
        actor = ray.remote(num_cpus=1)(Actor)
        actors = [actor.remote(reference, None) for _ in range(PROCESSES)]
        pool = ray.util.ActorPool(actors)
        batches = [ray.put(batch) for batch in task.batches()]
        seconds = timed(lambda: list(pool.map_unordered(lambda worker, part: worker.__call__.remote(part), batches)))
        path = task.image.local_path()
        RESIDENT.append(sum(ray.get([worker.resident.remote(path) for worker in actors])) / path.stat().st_size)
        return seconds


def with_ray_data(task: Task) -> float:
    from sardonyx.distributed.ray import map_batches

    with ray_cluster(PROCESSES + 1) as ray:
        data = ray.data.from_numpy(task.rows).rename_columns({"data": task.name})
        data = data.repartition(len(task.rows) // task.batch).materialize()

        def work() -> None:
            options: dict[str, Any] = {"actors": PROCESSES, "batch_size": task.batch}
            for _ in map_batches(data, task.image, **options).iter_batches(batch_size=task.batch):
                pass

        return timed(work)


def with_ray_serve(task: Task) -> float:
    from sardonyx.distributed.ray import deployment

    with ray_cluster(PROCESSES + 1):
        from ray import serve

        handle = serve.run(deployment(str(task.path), num_replicas=PROCESSES), route_prefix=None)
        try:
            requests = [{"inputs": batch} for batch in task.batches()]
            return timed(lambda: [answer.result() for answer in [handle.remote(request) for request in requests]])
        finally:
            serve.shutdown()


def with_ray_pipeline(task: Task) -> float:
    import sardonyx
    from sardonyx.distributed.ray_pipeline import RayPipeline

    parts = sardonyx.split(task.path, PROCESSES)
    with ray_cluster(PROCESSES + 1), RayPipeline(parts, actors={"num_cpus": 1}) as pipeline:
        batches = task.batches()
        return timed(lambda: [answer.result() for answer in [pipeline.submit(batch) for batch in batches]])


def with_spark(task: Task) -> float:
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import SparkSession
    from pyspark.sql.types import ArrayType, FloatType

    from sardonyx.distributed.spark import make_predict_fn

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{PROCESSES}]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "2g").config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        session.sparkContext.setLogLevel("ERROR")
        table = [(row.ravel().tolist(),) for row in task.rows]
        frame = session.createDataFrame(table, "row array<float>").repartition(PROCESSES).cache()
        frame.count()
        predict = predict_batch_udf(
            make_predict_fn(task.image), return_type=ArrayType(FloatType()), batch_size=task.batch,
            input_tensor_shapes=[list(task.rows.shape[1:])],
        )  # fmt: skip
        answers = frame.select(predict("row").alias("y"))
        return timed(lambda: answers.write.format("noop").mode("overwrite").save())
    finally:
        session.stop()


def _half(task: Task, barrier: Any, seconds: Any) -> None:
    """Predict in a process of its own, twice; the second pass begins in all processes at once."""
    from sardonyx.distributed import Predictor

    predictor = Predictor(task.image)
    batches = task.batches()
    for _ in range(2):
        barrier.wait()
        begin = time.perf_counter()
        for batch in batches:
            predictor(batch)
        duration = time.perf_counter() - begin
    seconds.put(duration)


def with_processes(task: Task) -> float:
    """Return seconds of plain processes that compute at once: the limit of the machine."""
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(PROCESSES), context.Queue()
    shares = [task._replace(rows=share) for share in np.array_split(task.rows, PROCESSES)]
    workers = [context.Process(target=_half, args=(share, barrier, seconds)) for share in shares]
    for worker in workers:
        worker.start()
    slowest = max(seconds.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    return float(slowest)


def with_dask(task: Task) -> float:
    import dask.array
    from dask.distributed import Client, LocalCluster

    from sardonyx.distributed import map_blocks

    with LocalCluster(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        blocks = dask.array.from_array(task.rows, chunks=(task.batch, *task.rows.shape[1:])).persist()
        return timed(lambda: map_blocks(blocks, task.image).compute())


ENGINES: dict[str, tuple[str, Callable[[Task], float]]] = {
    "processes": ("multiprocessing", with_processes), "ray data": ("ray", with_ray_data),
    "ray actors": ("ray", with_ray), "ray serve": ("ray", with_ray_serve), "ray pipeline": ("ray", with_ray_pipeline),
    "spark": ("pyspark", with_spark), "dask": ("distributed", with_dask),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a model with one float input and an open batch")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", type=float, help="fail below this ratio")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from sardonyx.distributed import Image

    os.environ["OMP_NUM_THREADS"] = "1"
    image = Image.compile(arguments.model, threads=1)
    task = Task(arguments.model, image, *rows_of(arguments.model, arguments.rows), arguments.batch)
    table = rich.table.Table("engine", "rows/s", "ratio to two single processes", "resident")
    results, failed = [], False
    for engine in arguments.engines:
        package, work = ENGINES[engine]
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            print(f"{engine} is not installed: left out")
            continue
        try:
            pairs = [(single(task), work(task)) for _ in range(arguments.rounds)]
        except Exception as error:
            print(f"{engine} failed: {str(error).strip().splitlines()[-1:]}", file=sys.stderr)
            failed = True
            continue
        ratio = float(np.median([alone / seconds for alone, seconds in pairs]))
        rate = float(np.median([len(task.rows) / seconds for _, seconds in pairs]))
        resident = float(np.median(RESIDENT)) if engine == "ray actors" else None
        results.append({"engine": engine, "rows_per_second": rate, "ratio": ratio, "resident": resident})
        table.add_row(engine, f"{rate:,.1f}", f"{ratio:.2f}", "" if resident is None else f"{resident:.2f}")
    rich.console.Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    is_slow = arguments.check is not None and any(result["ratio"] < arguments.check for result in results)
    return int(failed or is_slow)


if __name__ == "__main__":
    sys.exit(main())
