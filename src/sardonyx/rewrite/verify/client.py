"""The parent's side of verification: owns one child process and sends it candidates.

A model with user-defined operators is judged in this process, which knows their definitions; no
foreign engine runs these operators.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.rewrite.verify import random_nodes
from sardonyx.rewrite.verify.child import Child, uses_own_operators
from sardonyx.rewrite.verify.compare import Verdict
from sardonyx.rewrite.verify.worker import Judge

SLOWER = 20.0
"""Time limit of a candidate, as a multiple of the original's time, plus one minute."""

IN_THIS_PROCESS = "user-defined operators ran by their definitions, in this process"


class Verifier:
    """Judge of candidates against one original model.

    Use as a context manager; on exit its files are removed and the child process is released for reuse.

    Args:
        original: The unmodified model, or the path of its file.
        inputs: Real inputs by name; drawn from the graph when None.
        seed: Seed of the drawn inputs.
        timeout: Seconds that preparing the original may take.

    Attributes:
        child: The child process; None if it ended or the model is judged here.
        samples: Number of samples on which the original ran.
    """

    def __init__(
        self,
        original: ir.Model | Path,
        *,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        timeout: float = 300.0,
    ) -> None:
        self._original = original
        self._inputs = inputs
        self._seed = seed
        self._timeout = timeout
        self.child: Child | None = None
        self._here: Judge | None = None
        self._reason = ""
        self._seconds = 0.0
        self._peak = 0
        self._is_random = False
        self._interface: list[tuple[str, ...]] = []
        self.samples = 0

    def __enter__(self) -> Self:
        """Start a child and let it compute the original's answers."""
        self._folder = tempfile.TemporaryDirectory(prefix="sardonyx-verify-")
        folder = Path(self._folder.name)
        model = self._original if isinstance(self._original, ir.Model) else model_io.load(self._original)
        with random_nodes.seeded(model) as self._is_random:
            if isinstance(self._original, ir.Model) or self._is_random:
                self._path = folder / "original.onnx"
                model_io.save(model, self._path)
            else:
                self._path = self._original.absolute()
        # If all weights are inputs, as required up to IR version 3, the file does not mean any to be overridden.
        self._overridable = not all(v.is_graph_input() for v in model.graph.initializers.values())
        self._interface = _interface(model, self._overridable)
        if uses_own_operators(model):
            self._here = Judge(lambda model: None)
        if self._inputs is not None:
            (folder / "inputs.pickle").write_bytes(pickle.dumps(dict(self._inputs)))
        self._prepare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the child, and remove the files."""
        if self.child is not None:
            self.child.release()
            self.child = None
        self._folder.cleanup()

    def judge(self, candidate: ir.Model, *, exact: bool) -> Verdict:
        """Compare a candidate with the original on every sample.

        Args:
            candidate: The rewritten model.
            exact: Require equal bits; otherwise errors up to 1e-4 of the largest element of each output pass.
        """
        if not _keeps(self._interface, _interface(candidate, self._overridable)):
            reason = "names, order, types or declared shapes of inputs or outputs differ from the original's"
            return Verdict("different", worst=float("inf"), exact=False, reason=reason)
        if not self.samples:
            return Verdict("not proved", reason=self._reason, peak_bytes=self._peak)
        path = Path(self._folder.name) / "candidate.onnx"
        with random_nodes.seeded(candidate):
            model_io.save(candidate, path)
        request = {"do": "judge", "path": str(path), "exact": exact}
        answer = self.ask(request, 60.0 + SLOWER * self._seconds * self.samples)
        if answer["status"] == "ended":
            # Only a second end, after the original ran again, is caused by the candidate.
            self._prepare()
            if not self.samples:
                return Verdict("not proved", reason=self._reason, peak_bytes=self._peak)
            answer = self.ask(request, 60.0 + SLOWER * self._seconds * self.samples)
        if answer["status"] in ("ended", "error"):
            if answer["status"] == "ended":
                self._prepare()
            reason = f"the result does not run: {answer['reason']}"
            return Verdict("different", reason=reason, exact=False, worst=float("inf"), peak_bytes=self._peak)
        return Verdict(
            status=answer["status"],
            samples=int(answer.get("samples", 0)),
            sizes=tuple(answer.get("sizes", ())),
            worst=float(answer.get("worst", 0.0)),
            exact=bool(answer.get("exact", False)),
            reason=answer.get("reason", ""),
            peak_bytes=self._peak,
            notes=(*answer.get("notes", ()), *[IN_THIS_PROCESS][: self._here is not None]),
        )

    def _prepare(self) -> None:
        """Let a child run the original; retry with another seed if the child ends over the drawn inputs."""
        folder = Path(self._folder.name)
        request: dict[str, Any] = {"do": "reference", "path": str(self._path), "folder": str(folder)}
        request["random"] = self._is_random
        if self._inputs is not None:
            request["inputs"] = str(folder / "inputs.pickle")
        self.samples = 0
        for seed in (self._seed,) if self._inputs is not None else (self._seed, self._seed + 1001):
            if self._here is None and self.child is None:
                self.child = Child.acquire()
            answer = self.ask({**request, "seed": seed}, self._timeout)
            self.samples = int(answer.get("samples", 0))
            self._seconds = float(answer.get("seconds", 0.0))
            reasons = [r for r in answer.get("reasons", ()) if r] or [answer.get("reason", "")]
            self._reason = "; ".join(dict.fromkeys(reasons))[:800] or "no inputs were found on which the original runs"
            if answer["status"] != "ended":
                return

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the child's answer to a request; status ``ended`` if no child is left."""
        if self._here is not None:
            return {"status": "ready", **self._here.answer(request)}
        if self.child is None:
            return {"status": "ended", "reason": "the verifying process has ended"}
        answer = self.child.ask(request, seconds)
        if answer["status"] == "ended":
            self.child = None
        self._peak = max(self._peak, int(answer.get("peak_bytes", 0)))
        return answer


def _interface(model: ir.Model, overridable: bool) -> list[tuple[str, ...]]:
    """Describe inputs and outputs in order: declared names, types, shapes and overridable weights.

    A type or shape that an output does not declare is empty.
    """
    described: list[tuple[str, ...]] = [
        ("input", str(v.name), str(v.type), str(v.shape), str(v.is_initializer()))
        for v in model.graph.inputs
        if overridable or not v.is_initializer()
    ]
    for v in model.graph.outputs:
        described.append(("output", str(v.name), str(v.type or ""), "" if v.shape is None else str(v.shape)))
    return described


def _keeps(before: list[tuple[str, ...]], after: list[tuple[str, ...]]) -> bool:
    """Return True if interfaces are equal but for what the original does not declare."""
    return len(before) == len(after) and all(
        len(old) == len(new) and all(a in ("", b) for a, b in zip(old, new, strict=True))
        for old, new in zip(before, after, strict=True)
    )
