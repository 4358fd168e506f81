"""Measure servers beside each other: requests a second, latency, and processor time of a request.

    python benchmarks/serve.py --proto json binary grpc --clients 1 8 64 --peers fastapi grpcio triton mlserver floor
    python benchmarks/serve.py --model resnet18.onnx --proto binary grpc --json serve.json --check 1.0
    python benchmarks/serve.py --ragged --model resnet18.onnx --images 1000 --peers triton
    python benchmarks/serve.py --rate 0.5 --proto json binary --peers triton
    python benchmarks/serve.py --model resnet18.onnx --session --proto json binary --clients 1 8 --rounds 9
    python benchmarks/serve.py --ensemble --peers triton
    python benchmarks/serve.py --many --peers triton
    python benchmarks/serve.py --parse

Every server is started here, one at a time, on one processor; the load comes from `wrk` (HTTP) and `h2load` (gRPC) on
another. Servers alternate over the rounds; figures are medians, and ratios are medians of the ratios of a round. The
processor time of a request is that of all processes of a server over the number of its answers: it is the figure that
other work on the machine disturbs least.

Peers: `fastapi` (with uvicorn), `litserve`, `bentoml`, `ray` (Ray Serve) and `mlserver`, all with ONNX Runtime and JSON
(FASTAPI_PYTHON and so on name the interpreter of a peer's environment), `grpcio` (this server with the gRPC of
`grpcio`), `triton` (a Triton server whose command the variable TRITON_COMMAND holds, with `{repository}`, `{http}` and
`{grpc}` in place of the folder and ports), and `floor` (an event loop that answers fixed bytes without reading a
request: the limit of the sockets). Ray Serve has both processors: on one it does not become ready in its own time
limit. A peer that is not installed, or does not start, is named and left out. `--check` fails below a ratio of
requests a second to every peer.

`--rate 0.5` measures latency over HTTP at a half of the requests a second that the server answers to 64 clients:
requests are due at random times, and latency counts from then. `--session` compares this server, over HTTP, with
`session.run` in a process without a server, in turns of equal requests. `--ragged` sends images of up to 64 sizes from
16 clients: as they are, and to Triton padded to the largest size too.
`--ensemble` serves three models as one, in Triton's layout: the model between a Relu and a Softmax.
`--many` measures start-up: time, processor time and memory until ready with 1 and 50 models, and the memory
of 4 workers. `--parse` measures the JSON parser alone, in this process.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import rich.console
import rich.table

import serve_open_loop
import serve_ragged
import serve_session
import serve_start
from serve_load import Load, LoadError, parse_speed
from serve_peers import PEERS, free_port
from serve_servers import StartError, command, processor_seconds, running, small_model, write_ensemble

PROTOCOLS = {
    **dict.fromkeys(("bentoml", "fastapi", "floor", "litserve", "ray"), ("json",)),
    "mlserver": ("json", "grpc"),
}
"""Protocols of a peer; all for others."""

LONGER = (1, 4, 16)
"""Times of --seconds of a measurement whose server gave no answer in the time before."""


class Served(NamedTuple):
    """A running server with a load for its model, in one round; ``group`` marks its processes."""

    number: int
    server: str
    model: Path
    load: Load
    http: int
    grpc: int
    group: str


def served(arguments: argparse.Namespace, console: rich.console.Console) -> Iterator[Served]:
    """Start every installed server in turn, in each round; it ends when the next one is asked for."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = folder / "model.onnx"
        shutil.copy(arguments.model, model) if arguments.model else small_model(model)
        load = Load(model, folder)
        if arguments.ensemble:
            write_ensemble(folder / "repository", model)
        for number in range(arguments.rounds):
            for server in ("sardonyx", *arguments.peers):
                http, grpc = free_port(), free_port()
                source = folder / "repository" if arguments.ensemble and server == "sardonyx" else model
                words = command(server, source, folder, http, grpc)
                if words is None:
                    if number == 0:
                        console.print(f"{server} is not installed: left out")
                    continue
                try:
                    with running(words, http, processors="0,1" if server == "ray" else "0") as started:
                        yield Served(number, server, model, load, http, grpc, started.group)
                except StartError as error:
                    if server == "sardonyx":
                        raise
                    console.print(f"{server} did not start: {str(error).splitlines()[-1:]}", markup=False)


def measure(arguments: argparse.Namespace, console: rich.console.Console) -> list[dict[str, Any]]:
    rows = []
    for one in served(arguments, console):
        for proto in arguments.proto:
            if proto not in PROTOCOLS.get(one.server, ("json", "binary", "grpc")):
                continue
            for clients in arguments.clients:
                try:
                    rows.append(point(one, proto, clients, arguments.seconds))
                except LoadError as error:
                    if one.server == "sardonyx":
                        raise
                    console.print(f"{one.server}: {error}", markup=False)
    return rows


def point(one: Served, proto: str, clients: int, seconds: float) -> dict[str, Any]:
    """Measure a server under a number of clients, for longer if no answer comes in time.

    Raises:
        LoadError: An answer failed, or no answer came.
    """
    port = one.grpc if proto == "grpc" else one.http
    if proto == "grpc":
        one.load.check_grpc(port)
    for longer in LONGER:
        try:
            one.load.run(proto, "model", port, clients, max(1, longer * seconds / 2))
            before = processor_seconds(one.group)
            good, rate, latency = one.load.run(proto, "model", port, clients, longer * seconds)
            used = processor_seconds(one.group) - before
            break
        except LoadError:
            if longer == LONGER[-1]:
                raise
    # The time of a process that ended meanwhile is lost.
    cpu = used / max(good, 1) * 1e6 if used >= 0 else math.nan
    return {"round": one.number, "server": one.server, "proto": proto, "clients": clients,
            "requests_per_second": rate, "p50_ms": latency, "cpu_us": cpu}  # fmt: skip


def latencies(arguments: argparse.Namespace, console: rich.console.Console) -> list[dict[str, Any]]:
    """Measure latency at a fraction of the rate that each server answers to 64 clients."""
    rows = []
    for one in served(arguments, console):
        for proto in arguments.proto:
            if proto == "grpc" or proto not in PROTOCOLS.get(one.server, ("json", "binary")):
                continue
            one.load.run(proto, "model", one.http, 64, 1)
            capacity = one.load.run(proto, "model", one.http, 64, arguments.seconds)[1]
            rate = capacity * arguments.rate
            point = serve_open_loop.measure(one.http, one.load.request(proto), rate, arguments.seconds)
            rows.append({"round": one.number, "server": one.server, "proto": proto, "capacity": capacity,
                         "rate": rate, "p50 ms": point["p50_ms"], "p99 ms": point["p99_ms"],
                         "p99 / p50": point["p99_ms"] / point["p50_ms"]})  # fmt: skip
    return rows


def session_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as text:
        model = Path(text) / "model.onnx"
        shutil.copy(arguments.model, model) if arguments.model else small_model(model)
        protocols = [proto for proto in arguments.proto if proto != "grpc"]
        return serve_session.measure(model, protocols, arguments.clients, arguments.seconds, arguments.rounds)


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return medians, and ratios to this server within a round."""
    own = {(r["round"], r["proto"], r["clients"]): r for r in rows if r["server"] == "sardonyx"}
    summary = []
    for key in dict.fromkeys((r["proto"], r["clients"], r["server"]) for r in rows):
        part = [r for r in rows if (r["proto"], r["clients"], r["server"]) == key]
        pairs = [(own[r["round"], r["proto"], r["clients"]], r) for r in part]
        summary.append({
            "proto": key[0], "clients": key[1], "server": key[2],
            **{name: statistics.median(r[name] for r in part) for name in ("requests_per_second", "p50_ms", "cpu_us")},
            "rate_ratio": statistics.median(a["requests_per_second"] / b["requests_per_second"] for a, b in pairs),
            "cpu_ratio": statistics.median(b["cpu_us"] / max(a["cpu_us"], 1e-9) for a, b in pairs),
        })  # fmt: skip
    return sorted(summary, key=lambda row: (row["proto"], row["clients"], -row["requests_per_second"]))


def table_of(summary: list[dict[str, Any]]) -> rich.table.Table:
    table = rich.table.Table(
        "protocol", "clients", "server", "requests/s", "p50 ms", "CPU µs", "rate, ours/its", "CPU, its/ours"
    )
    for row in summary:
        table.add_row(
            row["proto"], str(row["clients"]), row["server"], f"{row['requests_per_second']:,.0f}",
            f"{row['p50_ms']:.2f}", f"{row['cpu_us']:.1f}", f"{row['rate_ratio']:.2f}", f"{row['cpu_ratio']:.2f}",
        )  # fmt: skip
    return table


def plot(summary: list[dict[str, Any]], path: Path) -> None:
    """Draw requests a second of all servers by protocol and number of clients."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    protocols = list(dict.fromkeys(row["proto"] for row in summary))
    servers = list(dict.fromkeys(row["server"] for row in summary))
    figure, axes = pyplot.subplots(1, len(protocols), figsize=(5 * len(protocols), 4), squeeze=False)
    for axis, protocol in zip(axes[0], protocols, strict=True):
        rows = [row for row in summary if row["proto"] == protocol]
        clients = sorted({row["clients"] for row in rows})
        for index, server in enumerate(servers):
            part = {row["clients"]: row["requests_per_second"] for row in rows if row["server"] == server}
            offsets = [offset + index / (len(servers) + 1) for offset in range(len(clients))]
            axis.bar(offsets, [part.get(count, 0) for count in clients], 0.9 / (len(servers) + 1), label=server)
        axis.set_xticks([offset + 0.4 for offset in range(len(clients))], [f"{count} clients" for count in clients])
        axis.set_title(protocol)
        axis.set_ylabel("requests a second")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model with one float input and an open batch; small by default")
    parser.add_argument("--proto", nargs="+", choices=("json", "binary", "grpc"), default=["json", "binary", "grpc"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ensemble", action="store_true", help="serve the model between two others, as an ensemble")
    parser.add_argument("--rate", type=float, help="measure latency at this fraction of the capacity")
    parser.add_argument("--session", action="store_true", help="compare with session.run without a server")
    parser.add_argument("--ragged", action="store_true", help="measure images of mixed sizes")
    parser.add_argument("--images", type=int, default=1000, help="number of images of --ragged")
    parser.add_argument("--many", action="store_true", help="measure start-up and memory")
    parser.add_argument("--parse", action="store_true", help="measure the JSON parser")
    parser.add_argument("--check", type=float, help="fail below this ratio of requests a second")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    console = rich.console.Console()
    if arguments.parse:
        return report(parse_speed(), arguments, console)
    if shutil.which("taskset") is None:
        parser.error("taskset is not installed")
    if arguments.ragged:
        return report(serve_ragged.measure(arguments.model, arguments.images, arguments.peers), arguments, console)
    if arguments.session:
        return report(session_rows(arguments), arguments, console)
    if arguments.many:
        return report(serve_start.measure(arguments.peers, arguments.rounds), arguments, console)
    if arguments.ensemble and not {"triton"}.issuperset(arguments.peers):
        parser.error("an ensemble has one peer: expected --peers triton, or --peers alone")
    for program in ("wrk", *(("h2load",) if "grpc" in arguments.proto else ())):
        if shutil.which(program) is None:
            parser.error(f"{program} is not installed")
    if arguments.rate is not None:
        return report(latencies(arguments, console), arguments, console)
    rows = measure(arguments, console)
    summary = summarize(rows)
    console.print(table_of(summary))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=1))
    if arguments.plot:
        plot(summary, arguments.plot)
    peers = [row for row in summary if row["server"] not in ("sardonyx", "floor")]
    return int(arguments.check is not None and any(row["rate_ratio"] < arguments.check for row in peers))


def report(rows: list[dict[str, Any]], arguments: argparse.Namespace, console: rich.console.Console) -> int:
    """Print rows of equal keys as a table, and write the JSON file."""
    table = rich.table.Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:,.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
