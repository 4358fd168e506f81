"""Measure conversions: source by way, failures by cause, open sizes, nodes and time.

    python benchmarks/convert.py --sources torch-small,torchvision,timm,transformers --json out.jsonl
    python benchmarks/convert.py --sources torch-small,onnx-files --ways round-trip --json back.jsonl
    python benchmarks/convert.py --json out.jsonl --table

The way ``round-trip`` converts a source to a model and the model to torch: the result is proved against the model, and
captured by ``torch.export`` with open sizes. A way ``to-TARGET`` (``to-tflite``, ``to-openvino``, …) converts the model
to a target of ``convert-to`` and proves that. ``onnx-files`` are the public models beside ``SARDONYX_SUITES``.

``torch-architectures`` are networks as papers have them, ``torch-functions`` unusual combinations of torch's functions,
``torch-difficult`` programs on storage and on data, ``torch-everyday`` programs as users write them, ``torch-methods``
layers and algorithms of further fields, and modules by their interfaces, ``transformers-towers`` further families and
parts of models of several towers.

``jax`` are programs of JAX and networks of Flax, ``jax-programs`` further ones and networks of equinox, haiku and
linen, ``tabular`` are estimators, ``pipelines`` those with other options, ``tables`` those over mixed tables and of
boosting packages, ``estimators`` every class of scikit-learn and unusual options; ``geometric`` are layers of
torch-geometric, ``diffusion`` networks of diffusers, ``torchaudio`` networks, transforms and filters; ``checkpoints``
are folders with ``config.json`` and safetensors, ``tflite`` the files of the folder that ``SARDONYX_TFLITE`` names, and
``tflite-programs`` files that an installed TensorFlow writes there.
Sources are the modules of ``convert_sources``. The cases of a source run one after another in a process of its own; a
case that exceeds the limit of processor time, or ten times as much by the clock, ends the process, and a new one
continues. Results are JSON lines; cases that the file holds are not run again. ``--times`` converts each case once more
without its proof, for the processor time of the conversion alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib
import io
import json
import math
import os
import re
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

SOURCES = ("torch-small", "torchvision", "timm", "transformers", "keras")
WAYS = ("sardonyx", "torch.onnx")
PEER = "torch.onnx"
GOOD = "proved"
NOT_JUDGED = "not judged"
"""Status of a model whose source no program here runs, which nothing can prove."""

WITHOUT_WITNESS = re.compile(r"no (?:installed )?interpreter .*runs|operators of TensorFlow")
PATIENCE = 10
"""Time of day that a case may take, as a multiple of its processor time: the machine may be shared."""


def source_cases(source: str) -> dict[str, Any]:
    """Return the cases of a source."""
    module = importlib.import_module(f"convert_sources.{source.replace('-', '_')}")
    return module.cases()  # type: ignore[no-any-return]


def cause_of(reason: str) -> str:
    """Return the cause of a failure: the operator, or the class of the error."""
    operators = re.findall(
        r"((?:aten|prims|torchvision|quantized_decomposed|python)\.\w+(?:\.\w+)?) (?:has|\()", reason
    )
    if operators:
        return str(operators[0])
    named = re.search(r"(GuardOnDataDependentSymNode|UserError|\w+Error)\b", reason)
    return named.group(1) if named else reason[:60]


def convert_case(source: str, case: str, way: str, *, times: bool = False) -> dict[str, Any]:
    """Convert one case; return the row of the result.

    Args:
        source: Name of the source.
        case: Name of the case.
        way: The way, of ``--ways``.
        times: Measure the processor time of the conversion without its proof.
    """
    import sardonyx

    if way == "round-trip" or way.startswith("to-"):
        return round_trip(source, case, way)
    began = time.perf_counter()
    row: dict[str, Any] = {"source": source, "case": case, "way": way}
    try:
        module, inputs = source_cases(source)[case]()
    except Exception as error:  # A source that cannot be built is no failure of the conversion.
        return {**row, "status": "no source", "reason": f"{type(error).__name__}: {error}"[:300]}

    def converted() -> dict[str, Any]:
        options: dict[str, Any] = {"exporter": way, "simplify": way == "sardonyx"}
        options |= {"framework": "jax"} if source.startswith("jax") else {}
        try:
            result = sardonyx.convert(module, inputs or None, **options)
        except sardonyx.errors.ConversionError as error:
            if way != "sardonyx" or "data-dependent" not in str(error):
                raise
            # The second of our own ways, which records the branches of the examples.
            result = sardonyx.convert(module, inputs or None, exporter="recorded")
        report = result.report
        by = {"by": report.way, "where": report.attempts[-1].where[:300], "nodes": report.nodes}
        if times and report.verdict.status == GOOD:
            began = time.process_time()
            sardonyx.convert(module, inputs or None, **options, verify=False)
            by["processor"] = round(time.process_time() - began, 3)
        return {**_reported(report), **by}

    return _measured(row, began, converted)


def _reported(report: Any) -> dict[str, Any]:
    """Return the columns that reports of both directions have."""
    reason = report.verdict.reason or ""
    has_no_witness = report.verdict.status == "not proved" and WITHOUT_WITNESS.search(reason) is not None
    return {
        "status": NOT_JUDGED if has_no_witness else report.verdict.status,
        "reason": reason[:500],
        "open": {name: list(values) for name, values in report.sizes.items()},
        "seconds": dict(report.seconds),
        "notes": list(report.notes),
    }


def _measured(row: dict[str, Any], began: float, convert: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a row with the columns of a conversion, or with its error, and with time and cause."""
    from sardonyx.errors import SardonyxError

    try:
        row |= convert()
    except SardonyxError as error:
        row |= {"status": "refused", "reason": str(error)[:700], "where": error.where[:300]}
    except Exception as error:
        row |= {"status": "error", "reason": f"{type(error).__name__}: {error}"[:500]}
    row["wall"] = round(time.perf_counter() - began, 2)
    if row["status"] != GOOD:
        row["cause"] = cause_of(row["reason"])
    return row


def round_trip(source: str, case: str, way: str) -> dict[str, Any]:
    """Convert one case to a model and that to torch or to a target; return the row of the way out."""
    import sardonyx

    began = time.perf_counter()
    row: dict[str, Any] = {"source": source, "case": case, "way": way}
    try:
        program, inputs = source_cases(source)[case]()
        is_file = source == "onnx-files"
        model = sardonyx.load(program) if is_file else sardonyx.convert(program, inputs).model
        feeds = inputs if is_file else _named(model, inputs)
    except Exception as error:  # A source without a model is no failure of the way back.
        return {**row, "status": "no source", "reason": f"{type(error).__name__}: {error}"[:300]}

    def converted() -> dict[str, Any]:
        target = "torch" if way == "round-trip" else way.removeprefix("to-")
        result = sardonyx.convert_to(model, target, inputs=feeds, sizes=_fixed_sizes(model, target, feeds))
        report = result.report
        return {
            **_reported(report),
            "where": report.guilty[:300],
            "nodes": sum(report.forms.values()),
            "definitions": {form: count for form, count in report.forms.items() if form.endswith("definition")},
            "captured": _captured(result.artifact, model, feeds) if target == "torch" else "",
        }

    return _measured(row, began, converted)


SIZES = {"batch": 1, "N": 1}
"""Sizes for targets without open sizes where no inputs tell one; all others are 64."""


def _fixed_sizes(model: Any, target: str, feeds: Any) -> dict[str, int]:
    """Return numbers for the open sizes of a model, if the target needs them and no inputs have them."""
    from sardonyx.export.targets import target_of
    from sardonyx.rewrite.verify.inputs import open_sizes

    if feeds is not None or target_of(target).opens_sizes:
        return {}
    return {name: 1 if is_leading else SIZES.get(name, 64) for name, is_leading in open_sizes(model).items()}


def _named(model: Any, inputs: Any) -> dict[str, Any] | None:
    """Return the tensors among examples by names of a model's inputs; None if the number differs."""
    import torch
    from torch.utils import _pytree

    names = [str(value.name) for value in model.graph.inputs]
    leaves = [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if len(leaves) != len(names) or any(leaf.dtype == torch.bfloat16 for leaf in leaves):
        return None
    return {name: leaf.numpy() for name, leaf in zip(names, leaves, strict=True)}


def _captured(module: Any, model: Any, feeds: Any) -> str:
    """Return "open" or "fixed", the sizes with which ``torch.export`` captures a module, or the error."""
    import torch

    if not feeds:
        return "no examples"
    # Other inputs are weights that may be overridden.
    inputs = [value for value in model.graph.inputs if str(value.name) in feeds]
    tensors = tuple(torch.from_numpy(feeds[str(value.name)].copy()) for value in inputs)
    shapes = [
        {axis: torch.export.Dim.AUTO for axis, size in enumerate(value.shape or ()) if not isinstance(size, int)}
        for value in inputs
    ]
    errors = []
    for kind, dynamic in (("open", shapes), ("fixed", None)):
        try:
            torch.export.export(module, tensors, dynamic_shapes=dynamic)
        except Exception as error:  # torch.export raises many unrelated classes
            errors.append(f"{type(error).__name__}: {error}"[:200])
        else:
            return kind
    return errors[-1]


def serve(source: str, way: str, *, times: bool) -> None:
    """Answer names of cases from the standard input with rows, one a line."""
    sys.path.insert(0, str(Path(__file__).parent))
    out = sys.stdout
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            row = convert_case(source, line.strip(), way, times=times)
        print(json.dumps(row), file=out, flush=True)


class Worker:
    """A process that converts cases of one source by one way."""

    def __init__(self, source: str, way: str, *, times: bool) -> None:
        self.source, self.way = source, way
        command = [sys.executable, __file__, "--serve", source, "--ways", way, *(["--times"] if times else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def row(self, case: str, limit: float) -> dict[str, Any] | None:
        """Return the row of a case; None if the process ended or its processor time is over."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(case + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        end, latest = self._seconds() + limit, time.monotonic() + PATIENCE * limit
        ready: list[Any] = []
        while not ready and self._process.poll() is None and self._seconds() < end and time.monotonic() < latest:
            ready, _, _ = select.select([self._process.stdout], [], [], 1.0)
        line = self._process.stdout.readline() if ready else ""
        if ready and not line:
            self._process.wait()  # The process ended: `close` tells a crash from the end of the time by its code.
        return json.loads(line) if line else None

    def _seconds(self) -> float:
        """Return the processor time of the process; the time of day where the system does not tell."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return time.monotonic()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> int | None:
        """End the process; return its exit code if it ended by itself."""
        code = self._process.poll()
        self._process.kill()
        self._process.wait()
        return code


def sweep(
    source: str, ways: Sequence[str], names: Sequence[str], path: Path, limit: float, *, times: bool = False
) -> None:
    """Convert cases and append their rows."""
    done = {(row["source"], row["case"], row["way"]) for row in rows_of(path)}
    for way in ways:
        worker: Worker | None = None
        for name in names:
            if (source, name, way) in done:
                continue
            worker = worker or Worker(source, way, times=times)
            row = worker.row(name, limit)
            if row is None:
                code = worker.close()
                status = "timeout" if code is None else "crash"
                row = {
                    "source": source,
                    "case": name,
                    "way": way,
                    "status": status,
                    "cause": status,
                    "reason": f"exit {code}",
                }
                worker = None
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{source} {name} {way}: {row['status']} {row.get('cause', '')}", flush=True)
        if worker is not None:
            worker.close()


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, the last of each case."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        rows[row["source"], row["case"], row["way"]] = row
    yield from rows.values()


def table(path: Path) -> str:
    """Return the results as Markdown: counts, ratios of nodes and time, failures by cause."""
    rows = [row for row in rows_of(path) if row["status"] != "no source"]
    lines = [
        "| source | way | judged | proved | open sizes | other | nodes × torch.onnx | time × torch.onnx |",
        "|---|---|--:|--:|--:|---|--:|--:|",
    ]
    both: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["status"] == GOOD:
            both.setdefault((row["source"], row["case"]), {})[row["way"]] = row
    for source, way in dict.fromkeys((row["source"], row["way"]) for row in rows):
        own = [row for row in rows if (row["source"], row["way"]) == (source, way)]
        proved = [row for row in own if row["status"] == GOOD]
        opened = sum(any(len(values) > 1 for values in row["open"].values()) for row in proved)
        other = Counter(row["status"] for row in own if row["status"] != GOOD)
        text = ", ".join(f"{count} {status}" for status, count in other.most_common())
        pairs = [item for (name, _), item in both.items() if name == source and {way, PEER} <= set(item)]
        ratios = "| |"
        if pairs and way != PEER:
            nodes = _mean([item[way]["nodes"] / max(item[PEER]["nodes"], 1) for item in pairs])
            times = _mean([_seconds(item[way]) / _seconds(item[PEER]) for item in pairs])
            ratios = f"{nodes:.2f} ({len(pairs)}) | {times:.2f} |"
        judged = len(own) - other[NOT_JUDGED]
        lines.append(f"| {source} | {way} | {judged} | {len(proved)} | {opened} | {text} | {ratios}")
    causes: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] != GOOD:
            causes.setdefault((row["way"], row.get("cause", "")), []).append(f"{row['source']}/{row['case']}")
    lines += ["", "| way | cause | cases |", "|---|---|---|"]
    for (way, cause), names in sorted(causes.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {way} | {cause} | {len(names)}: {', '.join(names[:8])} |")
    return "\n".join(lines)


def _seconds(row: dict[str, Any]) -> float:
    """Return the time of a conversion without its proof; the peer's import has its own optimizer."""
    if "processor" in row:
        return float(row["processor"])
    return float(row["seconds"]["import"] + row["seconds"]["simplify"])


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(math.log(max(ratio, 1e-6)) for ratio in ratios) / len(ratios))


def main() -> None:
    """Run or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--cases", default="*", help="patterns of names, by comma")
    parser.add_argument("--json", type=Path, default=Path("convert.jsonl"))
    parser.add_argument("--limit", type=float, default=180.0, help="processor seconds for a case")
    parser.add_argument("--times", action="store_true", help="measure the processor time of conversions without proof")
    parser.add_argument("--table", action="store_true", help="print the results without running")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.ways, times=options.times)
        return
    if not options.table:
        sys.path.insert(0, str(Path(__file__).parent))
        for source in options.sources.split(","):
            patterns = options.cases.split(",")
            names = [name for name in source_cases(source) if any(fnmatch.fnmatch(name, p) for p in patterns)]
            sweep(source, options.ways.split(","), names, options.json, options.limit, times=options.times)
    print(table(options.json))


if __name__ == "__main__":
    main()
