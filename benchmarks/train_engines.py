"""Engines of the training benchmark, each in a process of its own that takes steps on demand.

`python train_engines.py ARGUMENTS` is the child process: it reads lines with a number of steps and answers with lines
of JSON.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import train_networks
from isolated import RESET_PEAK, resident_bytes

Result = dict[str, Any]
Step = Callable[[train_networks.Batch], float]

SUBJECT = "sardonyx"
EAGER = "torch"
JAX = "jax"
PEERS = (EAGER, "torch-compile", JAX)
JAX_PYTHON = "JAX_PYTHON"
"""Environment variable with the interpreter of JAX, if another one than that of the other engines."""

TIMEOUT_SECONDS = 900.0


class Worker:
    """An engine that trains one network in a process of its own; a context manager.

    Args:
        engine: The name of the engine.
        network: The name of the network.
        model: The ONNX file.
        threads: Number of threads.
        cache: The folder of the program cache; None for that of the environment.
        precision: The numbers of products: ``float32`` or ``bf16``, torch's by autocast.

    Attributes:
        start: The reply of the child after its first step: seconds and loss.

    Raises:
        RuntimeError: The engine cannot train the network.
    """

    def __init__(
        self, engine: str, network: str, model: Path, threads: int,
        cache: Path | None = None, precision: str = "float32",
    ) -> None:  # fmt: skip
        arguments = json.dumps([engine, network, str(model), threads, precision])
        surroundings = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if cache is not None:
            surroundings["SARDONYX_CACHE"] = str(cache)
            surroundings["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
        if engine == JAX and threads == 1:
            surroundings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        interpreter = os.environ.get(JAX_PYTHON, sys.executable) if engine == JAX else sys.executable
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [interpreter, __file__, arguments], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True,
            env=surroundings,
        )  # fmt: skip
        self.start = self._reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def steps(self, count: int) -> Result:
        """Take steps and return lists: wall and processor seconds and the loss of each."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> Result:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_SECONDS)
        if not ready:
            self._process.kill()
            raise RuntimeError(f"did not answer within {TIMEOUT_SECONDS:.0f} s")
        text = self._process.stdout.readline()
        reply = json.loads(text) if text else {"failure": f"the process ended with code {self._process.wait()}"}
        if "failure" in reply:
            raise RuntimeError(reply["failure"])
        return dict(reply)


# The engines, in the child process.


def sardonyx(network: train_networks.Network, model: Path, threads: int, precision: str) -> Step:
    """Return a step of our trainer."""
    from sardonyx import train

    optimizer: Any = {
        "adam": lambda: train.Adam(network.rate),
        "adamw": lambda: train.AdamW(network.rate, weight_decay=0.01),
        "sgd": lambda: train.SGD(network.rate, momentum=0.9),
        "plain": lambda: train.SGD(network.rate),
    }[network.optimizer]()
    trainer = train.Trainer(
        str(model), train.CrossEntropy(), optimizer, trainable=parameters_of(network, model), threads=threads,
        precision=precision,
    )  # fmt: skip
    return trainer.step


def parameters_of(network: train_networks.Network, model: Path) -> list[str]:
    """Return a pattern of all parameters, and those that only their names select."""
    import onnx

    names = [one.name for one in onnx.load(model).graph.initializer]
    return ["*", *(name for name in names if name in network.more_parameters)]


def publication(name: str, model: Path) -> Result:
    """Measure `Session.update_weights` with all weights of a network, in this process."""
    import numpy as np

    from sardonyx import Session

    session = Session(str(model), compile="wait")
    graph = session.model.graph
    weights = {
        key: value.const_value.numpy() for key, value in graph.initializers.items()
        if value.const_value is not None and value.const_value.dtype.name == "FLOAT" and value.const_value.size > 1
    }  # fmt: skip
    batch = train_networks.NETWORKS[name].batches()[0]
    feeds = {key: array for key, array in batch.items() if key != "labels"}
    session.run(None, feeds)
    times = []
    rng = np.random.default_rng(0)
    for _ in range(7):
        # As training leaves weights: untrained scales are equal numbers, which would be part of the code.
        new = {key: array + 1e-3 * rng.standard_normal(array.shape, np.float32) for key, array in weights.items()}
        begin = time.perf_counter()
        session.update_weights(new)
        times.append(time.perf_counter() - begin)
        session.run(None, feeds)
    begin = time.perf_counter()
    session.undo()
    undo = time.perf_counter() - begin
    count = sum(array.size for array in weights.values())
    return {"weights": count, "first": times[0], "median": sorted(times[1:])[3], "undo": undo}


def versions() -> dict[str, str]:
    """Return the versions of the engines that this interpreter has."""
    from importlib import metadata

    return {name: metadata.version(name) for name in ("sardonyx", "torch") if _is_installed(name)}


def _is_installed(name: str) -> bool:
    from importlib import util

    return util.find_spec(name) is not None


def _torch(network: train_networks.Network, compiled: bool, precision: str) -> Step:
    import torch

    module = network.module().train()
    parameters = list(module.parameters())
    optimizer: torch.optim.Optimizer = {
        "adam": lambda: torch.optim.Adam(parameters, network.rate, fused=True),
        "adamw": lambda: torch.optim.AdamW(parameters, network.rate, weight_decay=0.01, fused=True),
        "sgd": lambda: torch.optim.SGD(parameters, network.rate, momentum=0.9, fused=True),
        "plain": lambda: torch.optim.SGD(parameters, network.rate, fused=True),
    }[network.optimizer]()
    loss_of = torch.nn.CrossEntropyLoss()
    forward = torch.compile(module) if compiled else module

    def step(batch: train_networks.Batch) -> float:
        *inputs, labels = (torch.from_numpy(array) for array in batch.values())
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(forward(*inputs), labels)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def build(engine: str, network: train_networks.Network, model: Path, threads: int, precision: str) -> Step:
    """Return the step of an engine."""
    if engine == SUBJECT:
        return sardonyx(network, model, threads, precision)
    if engine == JAX:
        import train_jax

        return train_jax.step_of(network, model, precision)
    import torch

    torch.set_num_threads(threads)
    return _torch(network, engine == "torch-compile", precision)


def _import(engine: str) -> None:
    """Import an engine, so that the import counts neither as time nor as memory."""
    if engine.startswith("sardonyx"):
        import sardonyx.train
        import sardonyx.train.trainer.trainer  # noqa: F401

        _Modules.watch()
    elif engine == JAX:
        import train_jax  # noqa: F401
    else:
        import torch  # noqa: F401


class _Modules:
    """The number of modules that the compiler asked for: compiled, or read from the store."""

    count = 0

    @classmethod
    def watch(cls) -> None:
        """Count from now on."""
        from sardonyx.compiler.llvm.parallel_build import Build

        add = Build.add

        def counted(build: Build, text: str) -> None:
            cls.count += 1
            add(build, text)

        Build.add = counted  # type: ignore[method-assign]


def serve(engine: str, name: str, model: Path, threads: int, precision: str) -> None:
    """Build an engine, take a step, and then as many steps as each line of the input says."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    network = train_networks.NETWORKS[name]
    batches = train_networks.endless(network)
    _import(engine)
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    imported = resident_bytes("VmRSS")
    begin = time.perf_counter()
    try:
        step = build(engine, network, model, threads, precision)
        first = step(next(batches))
    except Exception as error:  # the engines' errors have no base class of their own
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps({"failure": text}), file=replies, flush=True)
        return
    print(json.dumps({"seconds": time.perf_counter() - begin, "loss": first}), file=replies, flush=True)
    before = _Modules.count
    for line in sys.stdin:
        reply: Result = {"wall": [], "processor": [], "losses": []}
        for _ in range(int(line)):
            batch = next(batches)
            wall, busy = time.perf_counter(), time.process_time()
            reply["losses"].append(step(batch))
            reply["processor"].append(time.process_time() - busy)
            reply["wall"].append(time.perf_counter() - wall)
        reply["peak_bytes"] = resident_bytes("VmHWM") - imported
        reply["compiled"] = _Modules.count - before
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    chosen, network_name, file, number, narrow = json.loads(sys.argv[1])
    serve(chosen, network_name, Path(file), number, narrow)
