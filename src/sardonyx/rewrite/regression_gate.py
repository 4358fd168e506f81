"""Regression gate of a target: never slower, never larger, by counts or by measured latency.

By default the decision is deterministic. For ONNX Runtime, if installed, original and result are optimized by the
engine in a child process: no kind of fusion may have fewer nodes, and the result may not have more nodes in total. For
other engines, the fusions known to engines are counted in both models. ``portable`` and ``native``: only the size is
checked.

With ``gate="latency"``, original and result run alternately in the engine instead. The result is slower if the median
ratio of the pairs exceeds ``SLOWER`` in a short measurement and the confidence interval of a longer one lies above
``SLOWER``: noise alone rejects no result, but two runs of the optimizer may decide differently. If nothing can be
measured, the counts decide.

A rejected result is computed again without the responsible passes, found by bisection; if every subset fails, the
original is returned.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.rewrite.analysis.fusion_census import census, lost_fusions
from sardonyx.rewrite.engine.engine import Applied
from sardonyx.rewrite.measure import ENGINES, Latency
from sardonyx.rewrite.record import Count
from sardonyx.rewrite.targets import Profile

SLOWER = 1.02
"""Latency ratio above which a result is slower; memory placement alone changes latency this much."""

SHORT, LONG = 1.0, 4.0
"""Seconds of counted runs in the first measurement, and in the confirming one."""

LARGER = 64 << 10
"""Bytes by which the result may exceed the original: the growth of one patch (``Settings.growth``)."""

FOLDINGS = 4
"""Foldings of the largest size (``Profile.folding``) by which the result may exceed the original."""

GATES = ("counts", "latency")
"""The criterion: deterministic counts, or a measurement."""

MOST_GUILTY = 3
"""Passes dropped one by one before all passes but eliminations are dropped."""

NOTHING_CHANGED = "nothing was changed"
"""The outcome for an attempt without patches."""

TIMEOUT = 600.0


class Attempt(Protocol):
    """An optimization that can be repeated without some passes."""

    @property
    def model(self) -> ir.Model:
        """The current result."""
        ...

    @property
    def applied(self) -> Sequence[Applied]:
        """The patches applied to the current result."""
        ...

    def retry_without(self, passes: frozenset[str]) -> None:
        """Compute the result again without these passes."""
        ...

    def give_up(self) -> None:
        """Make the original the result."""
        ...


@dataclass(frozen=True)
class Outcome:
    """Result of the gate.

    Attributes:
        text: For the report: the measurement or the counts, and the dropped passes.
        changed: True if the result changed and needs a new proof.
    """

    text: str
    changed: bool


def apply_gate(
    profile: Profile,
    original: Callable[[], ir.Model | Path],
    before: Count,
    attempt: Attempt,
    inputs: Mapping[str, Any] | None = None,
    *,
    by: str = "counts",
) -> Outcome:
    """Make ``attempt`` pass the gate of its target, without some passes if necessary.

    Args:
        profile: The target.
        original: Returns the model before any rewrite, or its file; called only if needed.
        before: Size of the original.
        attempt: The result, which may be computed again.
        inputs: Real inputs to measure on; drawn when None.
        by: One of ``GATES``.
    """
    if not attempt.applied:
        return Outcome(NOTHING_CHANGED, changed=False)
    with Gate(profile, original, before, inputs, by=by) as gate:
        fault = gate.fault(attempt.model)
        if fault is None:
            return Outcome(gate.text, changed=False)
        dropped = drop_responsible(gate, attempt)
        if dropped is not None:
            action = (
                f"passes dropped: {', '.join(sorted(dropped))}"
                if dropped
                else "result retained: caused by eliminations alone"
            )
            return Outcome(f"{gate.text} ({fault}; {action})", changed=True)
    attempt.give_up()
    return Outcome(f"original returned: {fault}", changed=True)


def drop_responsible(gate: Gate, attempt: Attempt) -> frozenset[str] | None:
    """Return the passes without which the result passes the gate; None if there is no such set."""
    suspects = list(dict.fromkeys(name for patch in attempt.applied if _is_suspect(name := patch.rule.split("/")[0])))
    everything = frozenset(suspects)

    def passes_without(names: frozenset[str]) -> bool:
        attempt.retry_without(names)
        return gate.fault(attempt.model) is None

    if not passes_without(everything):
        if gate.only_counts and gate.larger(attempt.model) is None:
            # Eliminations remove only unused computation, so no fusion is lost.
            attempt.retry_without(frozenset())
            return frozenset()
        return None
    guilty: frozenset[str] = frozenset()
    for _ in range(min(MOST_GUILTY, len(suspects))):
        rest = [name for name in suspects if name not in guilty]
        good, bad = 0, len(rest)
        while bad - good > 1:
            middle = (good + bad) // 2
            if passes_without(guilty.union(rest[middle:])):
                good = middle
            else:
                bad = middle
        guilty |= {rest[bad - 1]}
        if passes_without(guilty):
            return guilty
    attempt.retry_without(everything)
    return everything


def _is_suspect(name: str) -> bool:
    """Return True unless a pass only removes nodes, which makes no engine slower."""
    return not name.startswith(("eliminate_", "extract_"))


class Gate:
    """Judge of results against one original for one target.

    Use as a context manager; leaving the context removes its files.

    Attributes:
        text: Measurement or counts of the last judgement; empty for a target without an engine.
        only_counts: True if counts decide, by default or because nothing can be measured.
        reason: The reason why nothing can be measured, if a measurement was requested.
    """

    def __init__(
        self,
        profile: Profile,
        original: Callable[[], ir.Model | Path],
        before: Count,
        inputs: Mapping[str, Any] | None = None,
        *,
        by: str = "counts",
    ) -> None:
        self._profile = profile
        self._witness = original
        self._before = before
        self._inputs = inputs
        self.reason = ""
        self._fusions: Counter[str] | None = None
        self._bytes: int | None = None
        self.text = ""
        self.only_counts = by == "counts"
        if not self.only_counts and not (profile.installed and profile.engine in ENGINES):
            absent = "not installed" if not profile.installed else "not supported by the measurement"
            self.only_counts, self.reason = True, f"{profile.engine} is {absent}"

    def __enter__(self) -> Self:
        """Enter the context; files are created on demand."""
        self._folders = ExitStack()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the files."""
        self._folders.close()

    @cached_property
    def _folder(self) -> Path:
        return Path(self._folders.enter_context(tempfile.TemporaryDirectory(prefix="sardonyx-gate-")))

    @cached_property
    def _original(self) -> ir.Model | Path:
        return self._witness()

    def fault(self, result: ir.Model) -> str | None:
        """Return the reason why the result does not pass, else None."""
        self.text = ""
        return self.larger(result) or self._slower(result) or self._loses_fusions(result)

    # -- larger --------------------------------------------------------------------------------

    def larger(self, result: ir.Model) -> str | None:
        """Return a message if the result is too large, else None."""
        count = Count.of(result)
        # Without more nodes and with at most slightly more weights, the byte count cannot exceed the limit.
        if count.nodes <= self._before.nodes and count.weight_bytes <= self._before.weight_bytes + LARGER // 2:
            return None
        if self._bytes is None:
            self._bytes = stored_bytes(self._model())
        after = stored_bytes(result)
        if after <= self._bytes + LARGER + FOLDINGS * self._profile.folding:
            return None
        return f"larger: {after:,} bytes for {self._bytes:,}"

    def _model(self) -> ir.Model:
        return model_io.load(self._original) if isinstance(self._original, Path) else self._original

    # -- slower --------------------------------------------------------------------------------

    def _slower(self, result: ir.Model) -> str | None:
        engine = self._profile.engine
        if self.only_counts or engine is None:
            return None
        paths = [self._original_path(), self._folder / "result.onnx"]
        model_io.save(result, paths[1])
        try:
            latency = self._measured(engine, paths, SHORT)
            if confirm := latency.ratio > SLOWER:
                latency = self._measured(engine, paths, LONG)
        except EvaluationError as error:
            self.only_counts, self.reason = True, str(error)
            return None
        self.text = _sentence(latency)
        return f"slower: {self.text}" if confirm and is_slower(latency) else None

    def _measured(self, engine: str, paths: Sequence[Path], budget: float) -> Latency:
        feeds = self._folder / "feeds.pickle"
        if self._inputs is not None and not feeds.exists():
            feeds.write_bytes(pickle.dumps(dict(self._inputs)))
        request = {"do": "measure", "paths": list(map(str, paths)), "engine": engine, "feeds": str(feeds)}
        return Latency.read(ask({**request, "budget": budget}))

    def _original_path(self) -> Path:
        if isinstance(self._original, Path):
            return self._original
        path = self._folder / "original.onnx"
        if not path.exists():
            model_io.save(self._original, path)
        return path

    # -- fusions -------------------------------------------------------------------------------

    def _loses_fusions(self, result: ir.Model) -> str | None:
        if not self.only_counts or self._profile.engine is None:
            return None
        if self._profile.name == "onnxruntime" and self._profile.installed:
            try:
                before, after = self._before_optimized, self._optimized(self._saved(result))
            except EvaluationError as error:
                self.text = f"not counted: {error}"
                return None
            kinds = {operator: kind for kind, operators in self._profile.protected.items() for operator in operators}
            fewer = lost_fusions(_by_kind(before, kinds), _by_kind(after, kinds))
            self.text = self._counted(_by_kind(before, kinds), _by_kind(after, kinds)) + (
                f"; nodes as optimized by onnxruntime: {before.total()} → {after.total()}"
            )
            if not fewer and after.total() > before.total():
                return f"more nodes as optimized by onnxruntime: {before.total()} → {after.total()}"
        else:
            if self._fusions is None:
                self._fusions = census(self._model())
            fusions = census(result)
            fewer = lost_fusions(self._fusions, fusions)
            self.text = self._counted(self._fusions, fusions)
        if not fewer:
            return None
        return "fusions lost: " + ", ".join(f"{name} {old} → {new}" for name, (old, new) in fewer.items())

    def _counted(self, before: Counter[str], after: Counter[str]) -> str:
        why = f"not measured ({self.reason}); " if self.reason else ""
        return f"{why}fusions before and after: {_describe_counts(before, after)}"

    def _saved(self, result: ir.Model) -> Path:
        path = self._folder / "result.onnx"
        model_io.save(result, path)
        return path

    @cached_property
    def _before_optimized(self) -> Counter[str]:
        return self._optimized(self._original_path())

    def _optimized(self, path: Path) -> Counter[str]:
        """Count the operators of a model as the engine itself optimizes the model."""
        return Counter(ask({"do": "census", "path": str(path), "folder": str(self._folder)})["operators"])


def is_slower(latency: Latency) -> bool:
    """Return True if the last model is significantly slower: its confidence interval exceeds ``SLOWER``."""
    interval = latency.interval
    return interval is not None and interval[0] > SLOWER


def _sentence(latency: Latency) -> str:
    before, after = latency.seconds
    sure = "" if (interval := latency.interval) is None else f", {interval[0]:.3f} to {interval[1]:.3f} with 95 %"
    times = f"{before * 1e3:.3f} → {after * 1e3:.3f} ms, {latency.runs} pairs"
    return f"{latency.ratio:.3f} × the original's latency in {latency.engine} ({times}{sure})"


def _by_kind(operators: Counter[str], kinds: Mapping[str, str]) -> Counter[str]:
    """Count fusions by kind."""
    counts: Counter[str] = Counter()
    for operator, count in operators.items():
        if operator in kinds:
            counts[kinds[operator]] += count
    return counts


def _describe_counts(before: Counter[str], after: Counter[str]) -> str:
    names = sorted({*before, *after})
    return ", ".join(f"{name} {before[name]} → {after[name]}" for name in names) or "none"


def stored_bytes(model: ir.Model) -> int:
    """Return the size of a model in files: the message without weights, and the weights."""
    skeleton: int = model_io.to_proto(model, weights=False).ByteSize()
    weights = Count.of(model).weights
    return skeleton + sum(t.nbytes for t in weights if t.dtype != ir.DataType.STRING and t.nbytes >= 1024)


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a child process that measures; see ``sardonyx.rewrite.measure``.

    Raises:
        EvaluationError: the engine does not run the models, crashed, or took too long.
    """
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    command = [sys.executable, "-m", "sardonyx.rewrite.measure"]
    try:
        child = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, env=environment, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise EvaluationError(f"measuring took more than {TIMEOUT:.0f} s") from error
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise EvaluationError(f"the measuring process ended with code {child.returncode}: {last}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise EvaluationError(answer["error"])
    return answer


__all__ = ["NOTHING_CHANGED", "Attempt", "Gate", "Outcome", "apply_gate", "is_slower", "stored_bytes"]
