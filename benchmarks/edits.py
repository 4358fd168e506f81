"""Live edits: how long they take, beside how long compiling does, and what calls wait meanwhile.

    python benchmarks/edits.py model.onnx [--threads 2] [--edits 20]

Times are by the clock, and processor seconds of the process. Then 4 threads call
without pause, for a second at a time alone and while edits are made, in turn: the medians of their calls.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sardonyx import Node, Session
from sardonyx.compiler.program import Program
from sardonyx.errors import SardonyxError

CALLERS = 4


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of the process."""
    clock, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - own


def shown(name: str, times: list[tuple[float, float]]) -> None:
    clock, own = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    print(f"{name:<44} {clock:10.1f} ms by the clock {own:10.1f} ms of the processor")


def feeds_of(session: Session) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {
        each.name: [size if isinstance(size, int) else 1 for size in each.shape or ()] for each in session.get_inputs()
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class Callers:
    """Threads that call a session without pause.

    Attributes:
        seconds: How long calls took.
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
    """Edits without end."""

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
    session: Session, feeds: dict[str, Any], made: Iterator[Callable[[], object]], rounds: int
) -> tuple[float, float, int]:
    """Median seconds of a call, alone and during edits, and how many edits were made."""
    times: dict[bool, list[float]] = {False: [], True: []}
    count = 0
    for editing in itertools.islice(itertools.cycle((False, True)), 2 * rounds):
        with Callers(session, feeds) as callers:
            end = time.perf_counter() + 1
            while editing and time.perf_counter() < end:
                next(made)()
                count += 1
            time.sleep(max(0.0, end - time.perf_counter()))
        times[editing] += callers.seconds
    return statistics.median(times[False]), statistics.median(times[True]), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--edits", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    prepared: list[tuple[float, float]] = []
    prepare = Program._prepare

    def timed(program: Program) -> None:
        prepared.append(seconds(lambda: prepare(program)))

    Program._prepare = timed  # type: ignore[method-assign]
    from_bytes = open(options.model, "rb").read()  # noqa: SIM115, PTH123
    session = Session(from_bytes, compile="wait", threads=options.threads)
    if session.program is None:
        raise SystemExit(f"it is not compiled: {session.not_compiled}")
    feeds = feeds_of(session)
    session.run(None, feeds)
    shown("preparing its weights, at load", prepared[:1])
    tensors = [str(value.name) for node in session.model.graph for value in node.outputs if value.name]
    middle = tensors[len(tensors) // 2]
    session.add_node(Node("Relu", inputs=[middle]))
    shown(
        "adding a node",
        [seconds(lambda: session.add_node(Node("Relu", inputs=[middle]))) for _ in range(options.edits)],
    )
    inserted = [seconds(lambda: session.insert_after(middle, "Identity", name="between"))]
    inserted += [seconds(lambda: session.remove_node("between"))]
    shown("inserting a node and removing it", inserted)
    weights = {
        name: value.const_value.numpy() * np.float32(1.01)
        for name, value in session.model.graph.initializers.items()
        if value.const_value is not None and value.const_value.dtype.name == "FLOAT" and value.const_value.size > 1
    }
    session.wait()
    others = [{name: array * np.float32(1 + i / 64) for name, array in weights.items()} for i in range(1, 4)]
    shown("updating all weights", [seconds(functools.partial(session.update_weights, each)) for each in others])
    shown("a call after that", [seconds(lambda: session.run(None, feeds)) for _ in range(5)])
    alone, during, count = under_load(session, feeds, edits(session, from_bytes, middle, weights), options.rounds)
    print(f"calls of {CALLERS} threads: {alone * 1e3:.2f} ms alone, {during * 1e3:.2f} ms during {count} edits", end="")
    print(f": {during / alone:.2f} times")


if __name__ == "__main__":
    main()
