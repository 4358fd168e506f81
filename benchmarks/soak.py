"""Mixed models at mixed sizes, called from eight threads while some are edited, loaded and dropped.

    python benchmarks/soak.py --minutes 60 [--pause 0] [model.onnx ...]

Every result is compared with numpy's, or with the first result for the same inputs. The warm-up fills everything that
has a bound: all threads run each act at the largest sizes concurrently, which allocates the memory of concurrent calls;
then each thread runs random acts without pause. The warm-up is a number of acts, not a time, so that a busy machine
warms up as far as an idle one.

Then resident memory is read once a second, after the C library returned its free memory: its arenas, one for each
thread, retain a varying amount of up to a tenth. After the first third of the time (of an hour: after 10 minutes),
memory must be flat. `--pause` lets each thread wait between calls, so that a run uses a part of a processor: the tests
run three minutes of it beside others. The last line is JSON; the exit code is 0 if no check failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sardonyx import Node, RunOptions, Session, demo
from sardonyx.errors import EditError, ResourceError, SardonyxError
from sardonyx.runtime.compiled.memory_usage import give_back

THREADS = 8
LARGEST = 6
"""Number of concurrent runs of each act at its largest size in each thread, before memory is read."""

MIXED = 200
"""Number of random acts of each thread after these runs, before memory is read."""

GROWTH = 0.02
"""Limit of the growth of resident memory, relative to the memory after the warm-up."""

Act = Callable[[random.Random], None]
"""One action of a thread; raises if a result is wrong."""


class Largest(random.Random):
    """A generator that draws the largest number of a range, and anything else at random."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return range(start)[-1] if stop is None else range(start, stop, step)[-1]


ROWS = """<ir_version: 8, opset_import: ["": 18]> rows (float[N, C] x, float[C] b) => (float[N, C] y) {
    h = Add(x, b)  e = Exp(h)  axis = Constant <value_ints = [1]> ()  s = ReduceSum(e, axis)  y = Div(e, s)
}"""

# The loop gives a row for each iteration; `indices` lists the rows with a positive sum.
ROLLED = """<ir_version: 8, opset_import: ["": 18]>
rolled (int64 count, float[N] x) => (float[M, N] y, int64[K] indices) {
    stay = Constant <value = bool {1}> ()
    last, y = Loop <body = step (int64 i, bool go, float[N] state) => (bool on, float[N] next, float[N] row) {
        half = Constant <value = float {0.5}> ()  scaled = Mul(state, half)  next = Sub(x, scaled)
        row = Identity(next)  on = Identity(go)
    }> (count, stay, x)
    axis = Constant <value_ints = [1]> ()  sums = ReduceSum <keepdims = 0> (y, axis)
    zero = Constant <value = float {0.0}> ()  above = Greater(sums, zero)
    rows = NonZero(above)  first = Constant <value_ints = [0]> ()  indices = Squeeze(rows, first)
}"""

NEIGHBOURS = """<ir_version: 8, opset_import: ["": 18]>
graph (float[N, F] x, int64[2, E] edges) => (float[N, F] y) {
    zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()
    sources = Gather(edges, zero)  targets = Gather(edges, one)  sent = Gather(x, sources)
    none = Sub(x, x)  axis = Constant <value_ints = [1]> ()  column = Unsqueeze(targets, axis)
    shape = Shape(sent)  indices = Expand(column, shape)
    got = ScatterElements <axis = 0, reduction = "add"> (none, indices, sent)
    both = Add(x, got)  y = Relu(both)
}"""

WORDS = """<ir_version: 9, opset_import: ["": 20]> words (string[N] a, string[N] b) => (seq(string[M]) parts) {
    joined = StringConcat(a, b)  parts = SplitToSequence(joined)
}"""

ENDLESS = """<ir_version: 8, opset_import: ["": 18]> endless (float[N] x) => (float[N] y) {
    count = Constant <value_int = 1000000000000> ()  stay = Constant <value = bool {1}> ()
    y = Loop <body = step (int64 i, bool go, float[N] s) => (bool on, float[N] t) {
        t = Cos(s)  on = Identity(go)
    }> (count, stay, x)
}"""

EDITED = """<ir_version: 8, opset_import: ["": 18]> edited (float[N, 16] x) => (float[N, 16] y)
    <float factor = {1.0}> { h = Tanh(x)  y = Mul(h, factor) }"""


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def close(result: Any, expected: Any) -> None:
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-5)


def numbers(draw: random.Random, *shape: int) -> np.ndarray:
    return np.random.default_rng(draw.getrandbits(32)).standard_normal(shape, np.float32)


def row_by_row(session: Session, most: int = 300) -> Act:
    """Return calls of a row-wise softmax at random sizes, compared with numpy."""

    def call(draw: random.Random) -> None:
        n, c = draw.randint(0, most), draw.randint(1, most)
        x, b = numbers(draw, n, c), numbers(draw, c)
        e = np.exp(x + b)
        close(session.run(None, {"x": x, "b": b})[0], e / e.sum(1, keepdims=True))

    return call


def loop_rows() -> Act:
    session = Session(parsed(ROLLED), compile="wait", threads=1)

    def call(draw: random.Random) -> None:
        count, x = draw.randint(0, 60), numbers(draw, draw.randint(1, 200))
        rows, state = [], x
        for _ in range(count):
            rows.append(state := x - np.float32(0.5) * state)
        expected = np.stack(rows) if rows else np.zeros((0, len(x)), np.float32)
        y, indices = session.run(None, {"count": np.int64(count), "x": x})
        close(y, expected)
        np.testing.assert_array_equal(indices, np.flatnonzero(y.sum(1) > 0))

    return call


def scatter_sums() -> Act:
    session = Session(parsed(NEIGHBOURS), compile="wait", threads=1)

    def call(draw: random.Random) -> None:
        n, edges, features = draw.randint(1, 400), draw.randint(0, 3000), draw.randint(1, 24)
        x, pairs = numbers(draw, n, features), np.random.default_rng(draw.getrandbits(32)).integers(0, n, (2, edges))
        got = np.zeros_like(x)
        np.add.at(got, pairs[1], x[pairs[0]])
        close(session.run(None, {"x": x, "edges": pairs})[0], np.maximum(x + got, 0))

    return call


def words() -> Act:
    session = Session(parsed(WORDS), compile="wait", threads=1)

    def call(draw: random.Random) -> None:
        a, b = ([f"{draw.random():.3f}" for _ in range(40)] for _ in range(2))
        (parts,) = session.run(None, {"a": np.array(a, object), "b": np.array(b, object)})
        assert [str(part.item()) for part in parts] == [one + other for one, other in zip(a, b, strict=True)]

    return call


def package_model(name: str) -> Act:
    """Return calls of a model of the package on batches of its own images.

    For images of other sizes, the expected result is the interpreter's.
    """
    session = Session(demo.path(name), compile="wait", threads=1)
    images = demo.inputs(name)["image"]
    height, width = images.shape[2:]
    draw = random.Random(0)
    sizes = sorted(
        (draw.randint(1, 8), draw.randint(height // 2, height), draw.randint(width // 2, width))
        if name == "digits_detector"
        else (draw.randint(1, 64), height, width)
        for _ in range(16)
    )
    pool = [np.ascontiguousarray(images[:n, :, :h, :w]) for n, h, w in sizes]
    reference = Session(demo.path(name), compile="off")
    expected = [reference.run(None, {"image": image}) for image in pool]

    def call(draw: random.Random) -> None:
        number = draw.randrange(len(pool))
        for one, other in zip(session.run(None, {"image": pool[number]}), expected[number], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-2)

    return call


def model_file(path: str) -> Act:
    """Return calls of a model from a file at random sizes: equal inputs must give equal bits."""
    session = Session(path, compile="wait", threads=1)
    draw = random.Random(0)
    pool: list[dict[str, np.ndarray]] = []
    for _ in range(4):
        sizes: dict[Any, int] = {}
        feeds = {}
        for info in session.get_inputs():
            shape = [d if isinstance(d, int) else sizes.setdefault(d, draw.randint(1, 4)) for d in info.shape or ()]
            is_float = "float" in info.type
            feeds[info.name] = numbers(draw, *shape) if is_float else np.ones(shape, np.int64)
        pool.append(feeds)
    expected = [session.run(None, feeds) for feeds in pool]

    def call(draw: random.Random) -> None:
        number = draw.randrange(len(pool))
        for one, other in zip(session.run(None, pool[number]), expected[number], strict=True):
            np.testing.assert_array_equal(one, other)

    return call


def limited() -> Act:
    """Return calls of a session with 60 % of a large call's memory: large calls fail, small ones succeed."""
    model = parsed(ROWS)
    large = {"x": np.ones((2000, 300), np.float32), "b": np.ones(300, np.float32)}
    free = Session(model, compile="wait", threads=1)
    free.run(None, large)
    session = Session(model, compile="wait", threads=1, max_memory=free.memory().peak * 6 // 10)
    small = row_by_row(session, 100)

    def call(draw: random.Random) -> None:
        try:
            session.run(None, large)
        except ResourceError:
            small(draw)
        else:
            raise AssertionError("a call exceeded its memory limit without an error")

    return call


def endless_loop() -> Act:
    """Return calls of a loop without end under a time limit."""
    session = Session(parsed(ENDLESS), compile="wait", threads=1)

    def call(draw: random.Random) -> None:
        try:
            session.run(None, {"x": np.ones(8, np.float32)}, RunOptions(timeout=0.005))
        except ResourceError:
            return
        raise AssertionError("an endless loop ended without an error")

    return call


def edits() -> Act:
    """Return calls of an edited session, and edits of all kinds, including refused and undone ones."""
    session = Session(parsed(EDITED), compile="wait", threads=1)

    def is_answer(draw: random.Random, name: str | None) -> None:
        x = numbers(draw, draw.randint(1, 100), 16)
        result = session.run(None if name is None else [name], {"x": x})[0]
        h = np.tanh(x)
        factors = (1, 2, 3, -1, -2, -3) if name is None else (1,)
        assert any(np.allclose(result, factor * h, rtol=2e-4, atol=2e-5) for factor in factors)

    def once(kind: str, draw: random.Random) -> None:
        match kind:
            case "weight":
                session.set_weight("factor", np.float32(draw.randint(1, 3)))
            case "node":
                session.remove_node(session.insert_after("h", "Neg"))
            case "output":
                with session.edit() as g:
                    g.add_node(Node("Abs", inputs=["h"], outputs=["magnitude"], name="abs"))
                    g.add_output("magnitude")
                with session.edit() as g:
                    g.remove_output("magnitude")
                    g.remove_node("abs")
            case "refused":
                refused()
            case "reload":
                session.reload(parsed(EDITED))
            case "undo":
                session.undo()

    def refused() -> None:
        try:
            session.insert_after("h", "Transpose", perm=[0])
        except SardonyxError:
            return
        raise AssertionError("a transposition of a matrix along one axis was accepted")

    def call(draw: random.Random) -> None:
        kinds = ("call", "call", "inside", "weight", "node", "output", "refused", "reload", "undo")
        match draw.choice(kinds):
            case "call":
                is_answer(draw, None)
            case "inside":
                is_answer(draw, "h")
            case kind:
                # Another thread may have removed the nodes of this edit, which is then refused.
                try:
                    once(kind, draw)
                except EditError:
                    return

    return call


def short_session(draw: random.Random) -> None:
    """Create, call and drop a session."""
    row_by_row(Session(parsed(ROWS), compile="wait", threads=1))(draw)


def bindings() -> Act:
    session = Session(parsed(ROWS), compile="wait", threads=1)

    def call(draw: random.Random) -> None:
        x, b = numbers(draw, draw.randint(1, 100), 8), numbers(draw, 8)
        binding = session.bind({"x": x, "b": b})
        for _ in range(3):
            x[...] = draw.random()
            binding()
            e = np.exp(x + b)
            close(binding.outputs["y"], e / e.sum(1, keepdims=True))

    return call


def shared_between_providers() -> Act:
    session = Session(parsed(ROWS), compile="wait", threads=1, pins=[("e", "reference")])
    return row_by_row(session, 100)


def acts(paths: list[str]) -> dict[str, Act]:
    return {
        "rows": row_by_row(Session(parsed(ROWS), compile="wait", threads=1)),
        "loop rows": loop_rows(),
        "scatter sums": scatter_sums(),
        "words": words(),
        "classifier": package_model("digits_classifier"),
        "detector": package_model("digits_detector"),
        "limited": limited(),
        "endless loop": endless_loop(),
        "edited": edits(),
        "short session": short_session,
        "bindings": bindings(),
        "providers": shared_between_providers(),
        **{Path(path).name: model_file(path) for path in paths},
    }


def resident() -> int:
    """Return the bytes of this process in memory, without free ones."""
    give_back()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


class Soak:
    """Threads that run random acts until the time is over.

    Args:
        acts: The acts.
        pause: Seconds between two acts of a thread.
    """

    def __init__(self, acts: dict[str, Act], pause: float) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._acts = acts
        self._pause = pause
        self._over = threading.Event()
        self._together = threading.Barrier(THREADS + 1)

    def run(self, seconds: float) -> Iterator[int]:
        """Yield the resident memory once a second."""
        threads = [threading.Thread(target=self._act, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(LARGEST * len(self._acts) + 1):
                self._together.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end and not self.errors:
                time.sleep(1)
                yield resident()
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _act(self, number: int) -> None:
        largest, draw, names = Largest(number), random.Random(number), list(self._acts)
        for name in names * LARGEST:
            self._together.wait()
            self._once(name, largest)
        for _ in range(MIXED):
            self._once(draw.choice(names), draw)
        self._together.wait()
        while not self._over.wait(self._pause):
            self._once(draw.choice(names), draw)

    def _once(self, name: str, draw: random.Random) -> None:
        try:
            self._acts[name](draw)
            self.counts[name] += 1
        except BaseException as error:
            self.errors.append(f"{name}: {type(error).__name__}: {error}")
            self._over.set()


def growth(samples: list[int]) -> tuple[float, float]:
    """Return the megabytes after the warm-up and at the end, each the median over a tenth of the time."""
    warm = min(len(samples) // 3, 600)
    window = max(len(samples) // 10, 1)
    return statistics.median(samples[warm : warm + window]) / 1e6, statistics.median(samples[-window:]) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="further models")
    parser.add_argument("--minutes", type=float, default=60, help="duration after the warm-up")
    parser.add_argument("--pause", type=float, default=0, help="seconds that each thread waits between calls")
    options = parser.parse_args()
    soak = Soak(acts(options.models), options.pause)
    gc.collect()
    samples = []
    for number, sample in enumerate(soak.run(options.minutes * 60)):
        samples.append(sample)
        if number % 60 == 0:
            print(f"{number // 60:3} min  {sample / 1e6:8.1f} MB  {sum(soak.counts.values()):>9,} acts", flush=True)
    if not samples:
        print(json.dumps({"errors": soak.errors, "flat": False}))
        return 1
    warm, last = growth(samples)
    flat = last <= warm * (1 + GROWTH)
    report = {
        "acts": dict(soak.counts), "errors": soak.errors, "warm_mb": round(warm, 1), "last_mb": round(last, 1),
        "growth": round(last / warm - 1, 4), "flat": flat,
    }  # fmt: skip
    print(json.dumps(report))
    return 0 if flat and not soak.errors else 1


if __name__ == "__main__":
    sys.exit(main())
