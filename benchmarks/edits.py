"""Live edits: the duration of edits compared with compiling, and the latency of calls during edits.

    python benchmarks/edits.py model.onnx [--threads 2] [--edits 20] [--rounds 10]

Times are wall time and processor time of the process. Then 4 threads call without pause, alternately for one second
without and for one second with concurrent edits; medians of their calls are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import Node, Session
from sardonyx.compiler.pass_runner import recorded_pass_times
from sardonyx.errors import SardonyxError

CALLERS = 4
PREPARE = "prepare constants"
"""The compiler pass that packs the weights."""


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds of a call."""
    clock, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - own


def show(name: str, times: list[tuple[float, float]]) -> None:
    clock, own = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    print(f"{name:<44} {clock:10.1f} ms wall time {own:10.1f} ms processor time")


def feeds_of(session: Session) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {
        info.name: [size if isinstance(size, int) else 1 for size in info.shape or ()] for info in session.get_inputs()
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class Callers:
    """Threads that call a session without pause.

    Attributes:
        seconds: Seconds of each call.
    """

    def __init__(self, session: Session, feeds: dict[str, Any]) -> None:
        self.seconds: list[float] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(session, feeds)) for _ in range(CALLERS)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, session: Session, feeds: dict[str, Any]) -> None:
        while not self._over.is_set():
            begin = time.perf_counter()
            session.run(None, feeds)
            self.seconds.append(time.perf_counter() - begin)


def edits(session: Session, model: bytes, tensor: str, weights: dict[str, Any]) -> Iterator[Callable[[], object]]:
    """Yield edits without end."""

    def broken() -> None:
        with contextlib.suppress(SardonyxError):
            session.insert_after(tensor, "Transpose", perm=[0])

    while True:
        yield lambda: session.insert_after(tensor, "Identity", name="between")
        yield broken
        yield lambda: session.update_weights(weights)
        yield lambda: session.add_output(tensor)
        yield lambda: session.remove_node("between")
        yield lambda: session.add_node(Node("Relu", inputs=[tensor]))
        yield lambda: session.remove_output(tensor)
        yield lambda: session.reload(model)


def under_load(
    session: Session, feeds: dict[str, Any], changes: Iterator[Callable[[], object]], rounds: int
) -> tuple[float, float, int]:
    """Return the median seconds of a call without and with edits, and the number of edits."""
    times: dict[bool, list[float]] = {False: [], True: []}
    count = 0
    for editing in itertools.islice(itertools.cycle((False, True)), 2 * rounds):
        with Callers(session, feeds) as callers:
            end = time.perf_counter() + 1
            while editing and time.perf_counter() < end:
                next(changes)()
                count += 1
            time.sleep(max(0.0, end - time.perf_counter()))
        times[editing] += callers.seconds
    return statistics.median(times[False]), statistics.median(times[True]), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--threads", type=int, help="threads of the session")
    parser.add_argument("--edits", type=int, default=20, help="number of added nodes")
    parser.add_argument("--rounds", type=int, default=10, help="seconds with, and seconds without concurrent edits")
    options = parser.parse_args()
    # A program from the cache would be prepared and compiled already.
    os.environ["SARDONYX_CACHE"] = "off"
    from_bytes = Path(options.model).read_bytes()
    with recorded_pass_times() as times:
        session = Session(from_bytes, compile="wait", threads=options.threads)
    if session.program is None:
        raise SystemExit(f"the model is not compiled: {session.not_compiled}")
    feeds = feeds_of(session)
    session.run(None, feeds)
    print(f"{'preparing the weights, at load':<44} {times.seconds[PREPARE] * 1e3:10.1f} ms wall time")
    tensors = [str(value.name) for node in session.model.graph for value in node.outputs if value.name]
    middle = tensors[len(tensors) // 2]
    session.add_node(Node("Relu", inputs=[middle]))
    show(
        "adding a node",
        [seconds(lambda: session.add_node(Node("Relu", inputs=[middle]))) for _ in range(options.edits)],
    )
    inserted = [seconds(lambda: session.insert_after(middle, "Identity", name="between"))]
    inserted += [seconds(lambda: session.remove_node("between"))]
    show("inserting or removing a node", inserted)
    weights = {
        name: value.const_value.numpy() * np.float32(1.01)
        for name, value in session.model.graph.initializers.items()
        if value.const_value is not None and value.const_value.dtype.name == "FLOAT" and value.const_value.size > 1
    }
    session.wait()
    others = [{name: array * np.float32(1 + i / 64) for name, array in weights.items()} for i in range(1, 4)]
    show("updating all weights", [seconds(functools.partial(session.update_weights, weights)) for weights in others])
    show("a call after an update", [seconds(lambda: session.run(None, feeds)) for _ in range(5)])
    alone, during, count = under_load(session, feeds, edits(session, from_bytes, middle, weights), options.rounds)
    print(f"calls of {CALLERS} threads: {alone * 1e3:.2f} ms without edits, ", end="")
    print(f"{during * 1e3:.2f} ms during {count} edits: ratio {during / alone:.2f}")


if __name__ == "__main__":
    main()
