"""The measured models with inputs and reference outputs: `real` (26 trained) and `models` (26 graphs).

The models are in the folder SARDONYX_SUITES, outside of the project.
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from doubles import in_doubles

Feeds = dict[str, np.ndarray]
Sample = tuple[Feeds, list[Any]]
"""Inputs, and the reference outputs in the model's order."""

EVALUATION_SIZES = {"batch": 2, "seq": 19, "h": 3, "w": 4}
LATENCY_SIZES = {"batch": 1, "seq": 64, "h": 7, "w": 7}
PIXEL_SIZES = {"super_resolution.dyn": {"h": 120, "w": 96}}
"""Sizes of symbols of models whose `h` and `w` count pixels instead of blocks of 32 pixels."""
SMALLEST_VOCABULARY = 1000
"""Limit of random token indices: every embedding of the suites is larger."""


class MaterialMissing(Exception):
    """The folder of the suites is missing; the message names the variable."""


@dataclass(frozen=True)
class Case:
    """One model file of one suite."""

    name: str
    suite: str
    path: Path

    def feeds(self, sizes: Mapping[str, int] = EVALUATION_SIZES) -> Feeds:
        """Return the inputs of the model's `.npz` file, or seeded inputs with the symbols bound to `sizes`."""
        stored = self.path.with_suffix(".npz")
        if stored.exists():
            with np.load(stored) as arrays:
                return {key.removeprefix("in::"): arrays[key] for key in arrays.files if key.startswith("in::")}
        return drawn_feeds(self.path, {**sizes, **PIXEL_SIZES.get(self.name, {})})

    def reference(self, feeds: Feeds) -> list[Any]:
        """Return the outputs in the model's order: stored outputs, else ONNX Runtime's."""
        names, outputs = unoptimized_outputs(self.path, feeds)
        stored = self.path.with_suffix(".npz")
        if not stored.exists():
            return outputs
        with np.load(stored) as arrays:
            return [
                arrays[f"out::{name}"] if f"out::{name}" in arrays.files else computed
                for name, computed in zip(names, outputs, strict=True)
            ]


def cases(cache: Path, patterns: Sequence[str] = ()) -> list[Case]:
    """Return every model of both suites whose name, or `suite/name`, matches one of `patterns`.

    The graphs of `models` are built into `cache` once.

    Raises:
        MaterialMissing: SARDONYX_SUITES is unset, or its folder has no `real`.
    """
    root = suites_folder()
    real = [Case(path.stem, "real", path) for path in sorted((root / "real").glob("*.onnx"))]
    skeletons = sorted((root.parent / "models").glob("*.onnx"))
    built = [Case(path.stem, "models", cache / path.name) for path in skeletons]
    chosen = [case for case in real + built if matches(case, patterns)]
    materialize(root, cache, [case for case in chosen if not case.path.exists()])
    return chosen


def suites_folder() -> Path:
    named = os.environ.get("SARDONYX_SUITES")
    if not named:
        raise MaterialMissing("SARDONYX_SUITES is not set: set it to the folder that contains real/*.onnx")
    root = Path(named).resolve()
    if not (root / "real").is_dir():
        raise MaterialMissing(f"SARDONYX_SUITES is {root}: expected a folder `real` in it")
    return root


def matches(case: Case, patterns: Sequence[str]) -> bool:
    return not patterns or any(
        fnmatch.fnmatch(case.name, pattern) or fnmatch.fnmatch(f"{case.suite}/{case.name}", pattern)
        for pattern in patterns
    )


def materialize(root: Path, cache: Path, missing: Sequence[Case]) -> None:
    """Build the models of `missing` from their skeletons, each under a temporary name until complete."""
    if not missing:
        return
    partial = cache / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    script = root.parent / "models" / "materialize.py"
    names = [case.path.stem for case in missing]
    subprocess.run([sys.executable, script, partial, *names], check=True, stdout=subprocess.DEVNULL)
    for case in missing:
        (partial / case.path.name).rename(case.path)


def session(path: Path, level: str = "ORT_DISABLE_ALL", threads: int = 2) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session on the CPU at the named optimization level."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def samples(case: Case) -> list[Sample]:
    """Return inputs with reference outputs: the model's own, and a second size if possible."""
    feeds = case.feeds()
    pairs = [(feeds, case.reference(feeds))]
    other = repeated_along_symbols(case.path, feeds)
    if other is not None:
        try:
            pairs.append((other, unoptimized_outputs(case.path, other)[1]))
        except Exception as refusal:  # onnxruntime's errors have no base class of their own
            print(f"{case.name}: no second size ({str(refusal).splitlines()[0][:120]})", file=sys.stderr)
    return pairs


def repeated_along_symbols(path: Path, feeds: Feeds) -> Feeds | None:
    """Return the inputs, repeated twice along every open axis; None if all axes are fixed."""
    changed = False
    larger = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        if value.name not in feeds:
            continue
        open_axes = [0 if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim]
        larger[value.name] = np.tile(feeds[value.name], [1 + axis for axis in open_axes])
        changed |= any(open_axes)
    return larger if changed else None


def unoptimized_outputs(path: Path, feeds: Feeds) -> tuple[list[str], list[Any]]:
    """Return names and values of the outputs, computed by ONNX Runtime without optimizations."""
    plain = session(path)
    return [output.name for output in plain.get_outputs()], plain.run(None, feeds)


def double_outputs(path: Path, feeds: Feeds) -> list[Any] | None:
    """Return the outputs of the model in double precision, rounded to single precision at the end.

    None if an operator of the model has no double type in the standard.
    """
    import sardonyx

    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in feeds.items()}
    try:
        outputs = sardonyx.Session(in_doubles(onnx.load(path)), providers=["reference"]).run(None, wide)
    except sardonyx.SardonyxError as error:
        print(f"{path.name}: no double precision: {error.problem[:120]}", file=sys.stderr)
        return None
    return [output.astype(np.float32) if output.dtype == np.float64 else output for output in outputs]


def drawn_feeds(path: Path, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Return seeded inputs for every graph input: normal floats, token indices for integers."""
    random = np.random.default_rng(seed)
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    feeds = {}
    for value in graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [bound(dim.dim_param, sizes) if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if np.issubdtype(dtype, np.integer):
            feeds[value.name] = random.integers(0, SMALLEST_VOCABULARY, shape).astype(dtype)
        else:
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
    return feeds


def bound(symbol: str, sizes: Mapping[str, int]) -> int:
    """Return the value of `symbol` or of `factor*symbol`."""
    factor, name = re.fullmatch(r"(?:(\d+)\*)?(\w+)", symbol).groups()
    return int(factor or 1) * sizes[name]
