"""Measure batch inference on local clusters: rows a second of Ray Data and Dask, beside one process.

    python benchmarks/distributed.py --model resnet18.onnx --rows 256 --engines "ray data" dask

One process predicts all rows with one thread; Ray Data uses two actors of one thread, Dask two processes of one thread.
The ratio to two single processes is 1 if an engine costs nothing; the goal is 0.95. The time of an engine is that of
a second pass in the same cluster; Ray Data starts its actors anew in each pass, `ray actors` keeps them.

`processes` are two plain processes at once, without an engine: they share caches and memory, and no engine can be
faster than they are.

`resident` is the proportional memory of the image in the two actors of `ray actors`, over the size of the image: 1 if
both map one copy, 2 if each has its own.

An engine that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def timed(work: Callable[[], Any]) -> float:
    work()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def single(image: Any, name: str, rows: np.ndarray, batch: int) -> float:
    """Return seconds of one process for a half of the rows: the share of each process of an engine."""
    from sardonyx.distributed import Predictor

    predictor = Predictor(image)
    half = rows[: len(rows) // PROCESSES]
    return timed(lambda: [predictor({name: half[at : at + batch]}) for at in range(0, len(half), batch)])


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


def with_ray(image: Any, name: str, rows: np.ndarray, batch: int) -> float:
    import ray

    from sardonyx.distributed.ray import _Actor

    class Actor(_Actor):
        def resident(self, path: Path) -> int:
            return mapped_bytes(path)

    ray.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    try:
        reference = ray.put(image)
        actor = ray.remote(num_cpus=1)(Actor)
        actors = [actor.remote(reference, None) for _ in range(PROCESSES)]
        pool = ray.util.ActorPool(actors)
        batches = [ray.put({name: rows[at : at + batch]}) for at in range(0, len(rows), batch)]
        seconds = timed(lambda: list(pool.map_unordered(lambda worker, part: worker.__call__.remote(part), batches)))
        path = image.local_path()
        RESIDENT.append(sum(ray.get([worker.resident.remote(path) for worker in actors])) / path.stat().st_size)
        return seconds
    finally:
        ray.shutdown()


def with_ray_data(image: Any, name: str, rows: np.ndarray, batch: int) -> float:
    import ray

    from sardonyx.distributed.ray import map_batches

    ray.init(num_cpus=PROCESSES + 1, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    try:
        data = ray.data.from_numpy(rows).rename_columns({"data": name}).repartition(len(rows) // batch).materialize()

        def work() -> None:
            for _ in map_batches(data, image, actors=PROCESSES, batch_size=batch).iter_batches(batch_size=batch):
                pass

        return timed(work)
    finally:
        ray.shutdown()


def _half(image: Any, name: str, rows: np.ndarray, batch: int, barrier: Any, seconds: Any) -> None:
    """Predict in a process of its own, twice; the second pass begins in all processes at once."""
    from sardonyx.distributed import Predictor

    predictor = Predictor(image)
    for _ in range(2):
        barrier.wait()
        begin = time.perf_counter()
        for at in range(0, len(rows), batch):
            predictor({name: rows[at : at + batch]})
        duration = time.perf_counter() - begin
    seconds.put(duration)


def with_processes(image: Any, name: str, rows: np.ndarray, batch: int) -> float:
    """Return seconds of plain processes that compute at once: the limit of the machine."""
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(PROCESSES), context.Queue()
    shares = np.array_split(rows, PROCESSES)
    workers = [context.Process(target=_half, args=(image, name, share, batch, barrier, seconds)) for share in shares]
    for worker in workers:
        worker.start()
    slowest = max(seconds.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    return float(slowest)


def with_dask(image: Any, name: str, rows: np.ndarray, batch: int) -> float:
    import dask.array
    from dask.distributed import Client, LocalCluster

    from sardonyx.distributed import map_blocks

    with LocalCluster(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        blocks = dask.array.from_array(rows, chunks=(batch, *rows.shape[1:])).persist()
        return timed(lambda: map_blocks(blocks, image).compute())


ENGINES: dict[str, tuple[str, Callable[[Any, str, np.ndarray, int], float]]] = {
    "processes": ("multiprocessing", with_processes), "ray data": ("ray", with_ray_data),
    "ray actors": ("ray", with_ray), "dask": ("distributed", with_dask),
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
    name, rows = rows_of(arguments.model, arguments.rows)
    table = rich.table.Table("engine", "rows/s", "ratio to two single processes", "resident")
    results = []
    for engine in arguments.engines:
        package, work = ENGINES[engine]
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            print(f"{engine} is not installed: left out")
            continue
        pairs = []
        for _ in range(arguments.rounds):
            alone = single(image, name, rows, arguments.batch)
            pairs.append((alone, work(image, name, rows, arguments.batch)))
        ratio = float(np.median([alone / seconds for alone, seconds in pairs]))
        rate = float(np.median([len(rows) / seconds for _, seconds in pairs]))
        resident = float(np.median(RESIDENT)) if engine == "ray actors" else None
        results.append({"engine": engine, "rows_per_second": rate, "ratio": ratio, "resident": resident})
        table.add_row(engine, f"{rate:,.1f}", f"{ratio:.2f}", "" if resident is None else f"{resident:.2f}")
    rich.console.Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return int(arguments.check is not None and any(result["ratio"] < arguments.check for result in results))


if __name__ == "__main__":
    sys.exit(main())
