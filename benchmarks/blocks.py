"""Measure small networks of common building blocks, float32 and int8, next to peers.

    python benchmarks/blocks.py --networks LlamaLayer UNet --markdown docs/benchmarks.md

The peers are ONNX Runtime and OpenVINO. Each network of ``block_networks.py`` is converted from PyTorch by
``sardonyx.convert``, and quantized by ``sardonyx.quantize`` with samples of normal numbers. Every engine runs a file in
a process of its own; short blocks of runs alternate, and ratios are medians over the rounds. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import engines
import report
from int8_models import of_sardonyx, stored
from int8_speed import compared
from tables import Table, geomean, line

SAMPLES = 4
NOISE = 1.03
"""Ratio of times up to which two programs count as equally fast."""

Result = dict[str, Any]


def files(work: Path, name: str, is_open: bool) -> tuple[Path, Path | None, Path]:
    """Return the network in float32, in int8 (None if nothing in it can be quantized), and its samples."""
    import torch

    import block_networks
    import sardonyx

    path, small = work / f"{name}.onnx", work / f"{name}.int8.onnx"
    torch.manual_seed(0)
    module, inputs = block_networks.NETWORKS[name]()
    module.eval()
    with torch.no_grad():
        module(*inputs)  # sets the sizes of lazy layers
    converted = sardonyx.convert(module, inputs, dynamic="auto" if is_open else False)
    converted.save(path)
    names = [value.name for value in converted.model.graph.inputs]
    feeds = [
        {name: torch.randn_like(example).numpy() for name, example in zip(names, inputs, strict=True)}
        for _ in range(SAMPLES)
    ]
    samples = stored(work, f"blocks.{name}", feeds)
    try:
        of_sardonyx(path, feeds, small)
    except sardonyx.errors.UnsupportedError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return path, None, samples
    return path, small, samples


def measure(chosen: argparse.Namespace) -> Iterator[Result]:
    """Measure every network."""
    import block_networks

    for name in chosen.networks or block_networks.NETWORKS:
        path, small, samples = files(chosen.work, name, chosen.open)
        for threads in chosen.threads:
            sides = {engines.SUBJECT: (engines.SUBJECT, path)}
            sides |= {} if small is None else {"int8": (engines.SUBJECT, small)}
            sides |= {peer: (peer, path) for peer in engines.PEERS if peer in chosen.peers}
            yield {"name": name, "threads": threads, **compared(sides, samples, threads, chosen.seconds)}


def tables(results: Sequence[Result]) -> list[Table]:
    """Return the criteria and the table of all figures."""
    columns = ["Network", "Threads", "ms", *(f"× {peer}" for peer in engines.PEERS), "int8: × float32", "int8: dB"]
    rows, notes = [], []
    for result in results:
        seconds, ratios, errors = (result[key] for key in ("seconds", "ratios", "sqnr"))
        if engines.SUBJECT in seconds:
            rows.append([
                result["name"], f"{result['threads']}", f"{seconds[engines.SUBJECT] * 1e3:.3f}",
                *(f"{ratios[peer]:.2f}" if peer in ratios else "—" for peer in engines.PEERS),
                f"{1 / ratios['int8']:.2f}" if "int8" in ratios else "—",
                f"{errors['int8']:.0f}" if "int8" in errors else "—",
            ])  # fmt: skip
        notes += [f"{result['name']}: {side}: {reason}" for side, reason in result["failures"].items()]
    lead = "Median of alternating blocks. Ratios to a peer are its time over Sardonyx's, both in float32."
    return [
        Table("Building blocks: summary", "", ["Criterion", "Goal", "Measured", "Met"], criteria(results)),
        Table("Building blocks", lead, columns, rows, sorted(set(notes))),
    ]


def criteria(results: Sequence[Result]) -> list[list[str]]:
    lines = []
    for peer in engines.PEERS:
        ratios = {result["name"]: result["ratios"][peer] for result in results if peer in result["ratios"]}
        if ratios:
            slower = sorted(name for name, ratio in ratios.items() if ratio < 1 / NOISE)
            text = f"geometric mean {geomean(ratios.values()):.2f}, slower: {', '.join(slower) or 'none'}"
            lines.append(line(f"float32 beside {peer}", "none slower", text, not slower))
    slower = sorted(result["name"] for result in results if result["ratios"].get("int8", 0) > NOISE)
    lines.append(line("int8 beside float32", "none slower", f"slower: {', '.join(slower) or 'none'}", not slower))
    return lines


def plot(path: Path, results: Sequence[Result]) -> None:
    """Draw the ratios of all networks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 2 + 0.2 * len(results)))
    for peer, marker in zip(engines.PEERS, ("o", "s"), strict=True):
        axes.plot([r["ratios"].get(peer, np.nan) for r in results], range(len(results)), marker, label=f"over {peer}")
    axes.set_yticks(range(len(results)), [result["name"] for result in results], fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=[], metavar="NAME", help="names of block_networks.py")
    parser.add_argument("--open", action="store_true", help="leave sizes open where the network allows it")
    parser.add_argument("--peers", nargs="*", default=list(engines.PEERS), help=", ".join(engines.PEERS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1], help="numbers of threads of every engine")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of the rounds of a network")
    parser.add_argument("--json", type=Path, help="file for all figures, extended by each network")
    parser.add_argument("--plot", type=Path, help="file for a plot")
    parser.add_argument("--markdown", type=Path, help="page whose section blocks is rewritten")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "sardonyx-blocks", help="folder for files"
    )
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    facts = {**engines.versions(), **report.machine_and_date()}
    results: list[Result] = []
    for result in measure(chosen):
        results.append(result)
        print(json.dumps(result), file=sys.stderr)
        if chosen.json:
            chosen.json.write_text(json.dumps({"surroundings": facts, "results": results}, indent=1))
    report.deliver(tables(results), facts, "blocks", lambda path: plot(path, results), chosen)


if __name__ == "__main__":
    main()
