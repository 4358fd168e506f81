"""Measure training: our steps next to those of torch (eager, compiled, fused optimizers) and of JAX.

    python benchmarks/train.py --networks mlp cnn --threads 1 2 --plot train.png --markdown docs/benchmarks.md
    python benchmarks/train.py --networks mlp gpt resnet18-64 --threads 1 --precision bf16

Every engine trains the same network from the same weights on the same batches in a process of its own; short blocks of
steps alternate, ratios are medians over the rounds with an interval of 95 %, and the losses of the first steps are
compared with torch's. With one thread times are processor times, so that other work on the machine matters less.
JAX may have an interpreter of its own, named by the environment variable ``JAX_PYTHON``. Sections: ``speed`` (time of a
step, peak memory, losses), ``start`` (first step with an empty and with a filled program cache), ``publish`` (new
weights for a live session).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import report
import train_engines
import train_networks
from sardonyx.rewrite.measure import median_interval
from tables import Table, geomean
from train_engines import EAGER, PEERS, SUBJECT, Result, Worker

BLOCK_SECONDS = 0.1
FEWEST_ROUNDS = 5
WARM_STEPS = 8
"""Steps before the first block; their losses are compared."""

GOAL, BEST_GOAL = 2.0, 1.5
"""Smallest geometric mean of torch's time, and of the fastest peer's, over ours."""

SECTIONS = ("speed", "start", "publish")


def compared(network: str, model: Path, engines: Sequence[str], threads: int, seconds: float, precision: str) -> Result:
    """Return times, memory and losses of the engines on a network."""
    failures: dict[str, str] = {}
    rounds: dict[str, list[Result]] = {}
    losses: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for engine in engines:
            try:
                worker = stack.enter_context(Worker(engine, network, model, threads, precision=precision))
                warm = worker.steps(WARM_STEPS)
            except RuntimeError as error:
                failures[engine] = str(error)
                continue
            workers[engine], rounds[engine] = worker, [warm]
            losses[engine] = [worker.start["loss"], *warm["losses"]]
        # Blocks of whole periods: the sizes of the batches of a period may differ.
        period = len(train_networks.NETWORKS[network].batches())
        counts = {
            engine: max(1, round(BLOCK_SECONDS / statistics.fmean(blocks[0]["wall"]) / period)) * period
            for engine, blocks in rounds.items()
        }
        rounds = {engine: [] for engine in workers}
        order, deadline = list(workers), time.perf_counter() + seconds
        while order and (len(rounds[order[0]]) < FEWEST_ROUNDS or time.perf_counter() < deadline):
            for engine in order:
                rounds[engine].append(workers[engine].steps(counts[engine]))
            order = [*order[1:], order[0]]
    return {
        "failures": failures,
        "losses": losses,
        "peak": {engine: blocks[-1]["peak_bytes"] for engine, blocks in rounds.items()},
        **{
            clock: {engine: [statistics.fmean(block[clock]) for block in blocks] for engine, blocks in rounds.items()}
            for clock in ("processor", "wall")
        },
    }


def first_steps(network: str, model: Path, engines: Sequence[str], threads: int, precision: str) -> Result:
    """Return the seconds to the end of the first step of each engine, with empty and filled caches."""
    seconds: Result = {}
    for engine in engines:
        with tempfile.TemporaryDirectory() as cache:
            for state in ("empty", "filled"):
                try:
                    with Worker(engine, network, model, threads, Path(cache), precision) as worker:
                        seconds[f"{engine}, {state}"] = worker.start["seconds"]
                        if engine == SUBJECT and state == "filled":
                            steps = worker.steps(2 * len(train_networks.NETWORKS[network].batches()))
                            seconds["kernels compiled later"] = steps["compiled"]
                except RuntimeError as error:
                    seconds[f"{engine}, {state}"] = str(error)
    return seconds


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Return the median ratio of two engines over the rounds, and its interval of 95 %."""
    ratios = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    low, high = median_interval(ratios) or (ratios[0], ratios[-1])
    return statistics.median(ratios), low, high


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest relative difference of the losses of two engines."""
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, theirs, strict=False))


def speed_table(threads: int, results: Mapping[str, Result], engines: Sequence[str]) -> Table:
    """Return the table of one number of threads."""
    clock = "processor" if threads == 1 else "wall"
    peers = [engine for engine in engines if engine != SUBJECT]
    table = Table(
        f"Training: {clock} milliseconds of a step, {threads} thread{'s' * (threads > 1)}",
        "Ratios are times of the peer over ours, with an interval of 95 %; memory is the peak above that of the"
        " imports; the last column is the largest relative difference of a loss of the first steps to torch's.",
        ["network", *engines, *(f"{peer} : ours" for peer in peers), "MB", "loss"],
        [],
    )
    to_eager, to_best = [], []
    for name, result in results.items():
        times, failures, losses = result[clock], result["failures"], result["losses"]
        cells = [
            f"{statistics.median(times[e]) * 1e3:.3g}" if e in times else failures.get(e, "-")[:60] for e in engines
        ]
        fastest = []
        for peer in peers:
            own = times.get(SUBJECT)
            if peer not in times or own is None:
                cells.append("-")
                continue
            middle, low, high = ratio(times[peer], own)
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
            fastest.append(middle)
            if peer == EAGER and train_networks.NETWORKS[name].counted:
                to_eager.append(middle)
        if fastest and train_networks.NETWORKS[name].counted:
            to_best.append(min(fastest))
        cells.append(" / ".join(f"{result['peak'][e] / 1e6:.0f}" for e in engines if e in result["peak"]))
        both = SUBJECT in losses and EAGER in losses
        cells.append(f"{largest_difference(losses[SUBJECT], losses[EAGER]):.0e}" if both else "-")
        table.rows.append([name, *cells])
    if to_eager:
        table.notes.append(
            f"Geometric mean of {EAGER}'s time over ours: {geomean(to_eager):.2f} (goal {GOAL}); of the fastest peer's:"
            f" {geomean(to_best):.2f} (goal {BEST_GOAL}), least {min(to_best):.2f} (goal 1)."
        )
    return table


def start_table(results: Mapping[str, Result]) -> Table:
    """Return the table of first steps."""
    columns = list(dict.fromkeys(name for result in results.values() for name in result))
    rows = [
        [network, *(f"{value:.2f}" if isinstance(value := result.get(name, "-"), float) else str(value)[:60]
        for name in columns)] for network, result in results.items()
    ]  # fmt: skip
    lead = "Seconds from the model file to the end of the first step, after the imports, with empty and filled caches."
    return Table("Training: the first step", lead, ["network", *columns], rows)


def publish_table(results: Mapping[str, Result]) -> Table:
    """Return the table of publications."""
    rows = [
        [name, f"{result['weights'] / 1e6:.2f}", *(f"{result[key] * 1e3:.2f}" for key in ("first", "median", "undo"))]
        for name, result in results.items()
    ]
    lead = "Milliseconds of `Session.update_weights` with all weights of a live session, and of `undo`."
    columns = ["network", "million weights", "first update", "update", "undo"]
    return Table("Training: publication", lead, columns, rows)


def plot(path: Path, tables: Mapping[int, Mapping[str, Result]], engines: Sequence[str]) -> None:
    """Draw the times of the engines over ours, a panel for each number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(tables), 1, figsize=(11, 4 * len(tables)), squeeze=False, layout="constrained")
    for axis, (threads, results) in zip(axes[:, 0], tables.items(), strict=True):
        clock = "processor" if threads == 1 else "wall"
        peers = [engine for engine in engines if engine != SUBJECT]
        for number, peer in enumerate(peers):
            positions, heights = [], []
            for at, result in enumerate(results.values()):
                own = result[clock].get(SUBJECT)
                if own is not None and peer in result[clock]:
                    positions.append(at + 0.8 * (number - (len(peers) - 1) / 2) / len(peers))
                    heights.append(ratio(result[clock][peer], own)[0])
            axis.bar(positions, heights, 0.8 / len(peers), label=peer)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(results)), list(results))
        axis.set_ylabel("time over ours")
        axis.set_title(f"a training step, {threads} thread{'s' * (threads > 1)}")
        axis.legend()
    figure.savefig(path)


def models(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the networks with their files, exported where missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / f"{name}.onnx"
        if not path.exists():
            train_networks.export(train_networks.NETWORKS[name], path)
        yield name, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="*", default=["speed"], choices=SECTIONS)
    parser.add_argument("--networks", nargs="*", default=list(train_networks.NETWORKS))
    parser.add_argument("--engines", nargs="*", default=[SUBJECT, *PEERS], help=", ".join((SUBJECT, *PEERS)))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument(
        "--precision", default="float32", choices=("float32", "bf16"),
        help="the numbers of products, of torch's by autocast: `precision` of a Trainer",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of the rounds of a network")
    parser.add_argument("--models", type=Path, help="folder of the exported networks, reused by later runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--merge", nargs="*", type=Path, default=[], help="figures of earlier runs, shown as well")
    parser.add_argument("--plot", type=Path, help="file for a plot of the section speed")
    parser.add_argument("--markdown", type=Path, help="page whose section training is rewritten")
    chosen = parser.parse_args()
    speed: dict[int, dict[str, Result]] = {threads: {} for threads in chosen.threads}
    start: dict[str, Result] = {}
    publish: dict[str, Result] = {}
    for path in chosen.merge:
        earlier = json.loads(path.read_text())
        for threads, results in earlier["speed"].items():
            speed.setdefault(int(threads), {}).update(results)
        start |= earlier["start"]
        publish |= earlier["publish"]
    with tempfile.TemporaryDirectory() as temporary:
        for name, model in models(chosen.models or Path(temporary), chosen.networks):
            if "speed" in chosen.sections:
                for threads in chosen.threads:
                    speed[threads][name] = compared(
                        name, model, chosen.engines, threads, chosen.seconds, chosen.precision
                    )
                    print(json.dumps({"network": name, "threads": threads, **speed[threads][name]}), file=sys.stderr)
            if "start" in chosen.sections:
                start[name] = first_steps(name, model, chosen.engines, chosen.threads[0], chosen.precision)
            if "publish" in chosen.sections:
                publish[name] = train_engines.publication(name, model)
    tables = [speed_table(threads, results, chosen.engines) for threads, results in speed.items() if results]
    tables += [start_table(start)] * bool(start) + [publish_table(publish)] * bool(publish)
    facts = {**train_engines.versions(), **report.machine_and_date()}
    report.show(tables)
    if chosen.json:
        figures = {"surroundings": facts, "speed": speed, "start": start, "publish": publish}
        chosen.json.write_text(json.dumps(figures, indent=1))
    if chosen.plot:
        plot(chosen.plot, speed, chosen.engines)
    if chosen.markdown:
        report.rewrite_section(chosen.markdown, report.markdown(tables, facts), "training")


if __name__ == "__main__":
    main()
