"""The parent's side of verification: keeps one child process, and asks it about candidates."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.rewrite import facts
from sardonyx.rewrite.verify.compare import Verdict

DECIDING = frozenset(
    {
        "ArgMax", "ArgMin", "TopK", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal", "NonMaxSuppression",
        "Round", "Ceil", "Floor", "Sign", "Cast", "QuantizeLinear", "DynamicQuantizeLinear", "NonZero",
    }
)  # fmt: skip
"""Operators that turn floats into decisions: a last-bit difference before them may be a whole step after."""


class Verifier:
    """Judges candidates against one original model.

    Use as a context manager; the child process and its files go with it.

    Args:
        original: The model as it was, or the path of the file that holds it unchanged.
        inputs: Real inputs by name; drawn from the graph when None.
        timeout: Seconds that one question may take.
    """

    def __init__(
        self,
        original: ir.Model | Path,
        *,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        timeout: float = 600.0,
    ) -> None:
        self._original = original
        self._inputs = inputs
        self._seed = seed
        self._timeout = timeout
        self._child: subprocess.Popen[str] | None = None
        self._decided: dict[str, list[str]] = {}
        self._reasons: list[str] = []
        self.samples = 0

    def __enter__(self) -> Self:
        """Start the child and let it prepare the original's answers."""
        self._folder = tempfile.TemporaryDirectory(prefix="sardonyx-verify-")
        folder = Path(self._folder.name)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        self._child = subprocess.Popen(
            [sys.executable, "-m", "sardonyx.rewrite.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        original = self._original if isinstance(self._original, ir.Model) else model_io.load(self._original)
        self._decided = decisions(original)
        if isinstance(self._original, Path) and not self._decided:
            path = self._original
        else:
            path = folder / "original.onnx"
            with _also_output(original, self._compared()):
                model_io.save(original, path)
        request: dict[str, Any] = {"do": "reference", "path": str(path), "seed": self._seed}
        if self._inputs is not None:
            np.savez(folder / "inputs.npz", **{k: np.asarray(v) for k, v in self._inputs.items()})
            request["inputs"] = str(folder / "inputs.npz")
        answer = self._ask(request)
        self.samples = int(answer.get("samples", 0))
        self._reasons = list(dict.fromkeys(answer.get("reasons", []))) or [answer.get("reason", "")]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the child and remove its files."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
        self._folder.cleanup()

    def judge(self, candidate: ir.Model, *, exact: bool) -> Verdict:
        """Compare a candidate with the original on every sample.

        Args:
            candidate: The rewritten model.
            exact: Whether equal bits are demanded; else 1e-4 of the largest element of each output.
        """
        if not self.samples:
            reason = "; ".join(r for r in self._reasons if r)[:600] or "the original runs on no inputs that were drawn"
            return Verdict("not proved", reason=reason)
        path = Path(self._folder.name) / "candidate.onnx"
        with _also_output(candidate, self._compared()):
            model_io.save(candidate, path)
        answer = self._ask({"do": "judge", "path": str(path), "exact": exact, "decided": self._decided})
        if answer.get("status") == "error":
            return Verdict(
                "different", reason=f"the result does not run: {answer['reason']}", exact=False, worst=float("inf")
            )
        return Verdict(
            status=answer["status"],
            samples=int(answer.get("samples", 0)),
            sizes=tuple(answer.get("sizes", ())),
            worst=float(answer.get("worst", 0.0)),
            exact=bool(answer.get("exact", False)),
            reason=answer.get("reason", ""),
            peak_bytes=int(answer.get("peak_bytes", 0)),
            notes=tuple(answer.get("notes", ())),
        )

    def _compared(self) -> list[str]:
        return list(dict.fromkeys(name for names in self._decided.values() for name in names))

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            return {"status": "error", "reason": f"the verifying process ended with code {child.wait()}"}
        deadline = time.monotonic() + self._timeout
        while not select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if time.monotonic() >= deadline:
                child.kill()
                return {"status": "error", "reason": f"running the models took more than {self._timeout:.0f} s"}
        line = child.stdout.readline()
        if not line:
            return {"status": "error", "reason": f"the verifying process ended with code {child.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


def decisions(model: ir.Model) -> dict[str, list[str]]:
    """For each graph output that decisions lead to: the floats compared, by name (those of the main graph)."""
    found: dict[str, list[str]] = {}
    for output in model.graph.outputs:
        compared = _compared_before(output, model.graph)
        if compared:
            found[str(output.name)] = compared
    return found


def _compared_before(output: ir.Value, graph: ir.Graph) -> list[str]:
    names: dict[str, None] = {}
    seen: set[ir.Value] = set()
    stack = [output]
    while stack:
        value = stack.pop()
        node = value.producer()
        if value in seen or node is None or node.graph is not graph:
            continue
        seen.add(value)
        floats = [
            v for v in node.inputs if v is not None and v.dtype is not None and v.dtype.is_floating_point()
        ]
        if node.op_type in DECIDING and floats:
            names.update((v.name, None) for v in floats if v.name and not facts.is_constant(v) and not v.is_graph_input())
        stack.extend(v for v in node.inputs if v is not None)
    return list(names)[:16]


@contextmanager
def _also_output(model: ir.Model, names: Sequence[str]) -> Iterator[None]:
    """Meanwhile the named values of the main graph are outputs too."""
    graph = model.graph
    wanted = set(names) - {v.name for v in graph.outputs}
    before = len(graph.outputs)
    if wanted:
        for node in graph:
            graph.outputs.extend(v for v in node.outputs if v.name in wanted and v.type is not None)
    try:
        yield
    finally:
        while len(graph.outputs) > before:
            graph.outputs.pop()
