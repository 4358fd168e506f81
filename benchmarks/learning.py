"""Measure a session that learns: publications, and calls beside publications and beside learning.

    python benchmarks/learning.py --networks mlp resnet18-64 --seconds 6

Publications replace all weights of a live session; processor times are those of the whole process. One thread calls at
a fixed rate (an open loop: a late call counts from the time at which it was due) in windows that alternate between an
idle session, one that publishes and one that learns; ratios are those of the medians and of the 99th percentiles.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import report
import train_networks
from sardonyx import Session
from sardonyx.train import SGD
from sardonyx.train.online import Learner
from tables import Table
from train import models

WINDOW_SECONDS = 0.5
SERVING_GOAL, LEARNING_GOAL, PUBLICATION_GOAL = 1.5, 1.2, 10.0
PUBLICATIONS = 40

Weights = dict[str, np.ndarray]
Feeds = dict[str, np.ndarray]


def weights_of(session: Session) -> Weights:
    """Return the weights of a session that training may change."""
    tensors = {name: value.const_value for name, value in session.model.graph.initializers.items()}
    return {
        name: tensor.numpy()
        for name, tensor in tensors.items()
        if tensor is not None and tensor.dtype.name == "FLOAT" and tensor.size > 1
    }


def changed(weights: Weights, seed: int) -> Weights:
    """Return weights as training leaves them.

    Untrained scales are equal numbers, which would be part of the code.
    """
    rng = np.random.default_rng(seed)
    return {name: array + 1e-3 * rng.standard_normal(array.shape, np.float32) for name, array in weights.items()}


def publications(session: Session, sets: list[Weights], feeds: Feeds) -> list[tuple[float, float]]:
    """Return wall and processor milliseconds of publications, each followed by a call."""
    times = []
    for number in range(PUBLICATIONS):
        wall, own = time.perf_counter(), time.process_time()
        session.update_weights(sets[number % len(sets)])
        times.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - own)))
        session.run(None, feeds)
    return times


def open_loop(session: Session, feeds: Feeds, period: float, seconds: float) -> list[float]:
    """Call at a fixed rate and return the milliseconds from the due time of each call to its end."""
    times, begin = [], time.perf_counter()
    for number in range(int(seconds / period)):
        due = begin + number * period
        if (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        else:
            due = max(due, time.perf_counter() - period)  # A long stop counts once, not for all calls after it.
        session.run(None, feeds)
        times.append(1e3 * (time.perf_counter() - due))
    return times


@contextlib.contextmanager
def publishing(session: Session, sets: list[Weights], pause: float) -> Iterator[None]:
    """Publish in another thread for the duration of the context."""
    over = threading.Event()

    def publish() -> None:
        number = 0
        while not over.wait(pause):
            session.update_weights(sets[number % len(sets)])
            number += 1

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    over.set()
    thread.join()


@contextlib.contextmanager
def learning(learner: Learner, batch: train_networks.Batch) -> Iterator[None]:
    """Feed a learner in another thread for the duration of the context."""
    over = threading.Event()
    feeds = {name: array for name, array in batch.items() if name != "labels"}

    def feed() -> None:
        while not over.is_set():
            learner.learn(feeds, batch["labels"])

    thread = threading.Thread(target=feed)
    thread.start()
    yield
    over.set()
    thread.join()
    learner.flush()


def measured(name: str, model: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a network."""
    session = Session(str(model), compile="wait", threads=arguments.threads)
    batch = train_networks.NETWORKS[name].batches()[0]
    feeds = {key: array[: arguments.rows] for key, array in batch.items() if key != "labels"}
    weights = weights_of(session)
    sets = [changed(weights, seed) for seed in range(3)]
    for one in sets:
        session.update_weights(one)
        session.run(None, feeds)
    times = publications(session, sets, feeds)
    figures = {"million weights": sum(array.size for array in weights.values()) / 1e6}
    for clock, column in zip(("wall", "processor"), zip(*times, strict=True), strict=True):
        figures[f"{clock}, median"], figures[f"{clock}, least"] = statistics.median(column), min(column)
    call = statistics.median(open_loop(session, feeds, 0.002, 0.5))
    period = max(0.002, 3e-3 * call)
    with Learner(session, "cross-entropy", SGD(1e-4), publish_every=arguments.publish_every, queue_size=2) as learner:
        learner.learn({key: array for key, array in batch.items() if key != "labels"}, batch["labels"])
        learner.flush()
        kinds: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
            "idle": contextlib.nullcontext,
            "publishing": lambda: publishing(session, sets, arguments.pause),
            "learning": lambda: learning(learner, batch),
        }
        calls: dict[str, list[float]] = {kind: [] for kind in kinds}
        end = time.perf_counter() + arguments.seconds
        while time.perf_counter() < end:
            for kind, beside in kinds.items():
                with beside():
                    time.sleep(0.05)
                    calls[kind] += open_loop(session, feeds, period, WINDOW_SECONDS)
        figures["steps"], figures["published"] = float(learner.report.steps), float(learner.report.published)
    for kind, column in calls.items():
        figures[f"{kind}, p50"], figures[f"{kind}, p99"] = (float(np.percentile(column, q)) for q in (50, 99))
    return figures


def table(results: dict[str, dict[str, float]]) -> Table:
    """Return the table of all networks."""
    columns = list(next(iter(results.values())))
    rows = [[name, *(f"{figures[column]:.3g}" for column in columns)] for name, figures in results.items()]
    for row, figures in zip(rows, results.values(), strict=True):
        row += [
            f"{figures['publishing, p99'] / figures['idle, p99']:.2f}",
            f"{figures['learning, p50'] / figures['idle, p50']:.2f}",
        ]
    lead = (
        f"Milliseconds. Goals: a publication {PUBLICATION_GOAL:.0f} ms; p99 while publishing {SERVING_GOAL} x idle;"
        f" a call (p50) while learning {LEARNING_GOAL} x idle."
    )
    return Table(
        "A session that learns", lead, ["network", *columns, "p99 publishing : idle", "p50 learning : idle"], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=["mlp", "resnet18-64"])
    parser.add_argument("--threads", type=int, default=1, help="threads of the session")
    parser.add_argument("--rows", type=int, default=1, help="samples of a call")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of the windows of a network")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between publications")
    parser.add_argument("--publish-every", type=int, default=8, help="steps of the learner between publications")
    parser.add_argument("--models", type=Path, help="folder of the exported networks, reused by later runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = models(arguments.models or Path(temporary), arguments.networks)
        results = {name: measured(name, model, arguments) for name, model in files}
    report.show([table(results)])


if __name__ == "__main__":
    main()
