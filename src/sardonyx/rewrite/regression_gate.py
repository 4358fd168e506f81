"""The gate of a target: never slower, never larger, and no fusion lost where nothing can be measured.

Where the engine of the target is installed, the result runs there beside the original, in turn, in a child process;
it is slower when the median of the pairs is more than ``SLOWER`` times the original's in a short measurement, and in a
longer one by all that chance leaves open: noise slows no result. Where it is absent the fusions that engines make are
counted in both. ``portable`` has no engine and promises size alone. A result that does not pass is made again without
the passes that did it, found by bisection; if that does not help either, the original is given back.
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
from sardonyx.rewrite.engine import Applied
from sardonyx.rewrite.fusion_census import census, lost
from sardonyx.rewrite.measure import ENGINES, Latency
from sardonyx.rewrite.record import Count
from sardonyx.rewrite.targets import Profile

SLOWER = 1.02
"""Ratio of latencies above which a result is slower: where memory happens to lie is worth as much."""

SHORT, LONG = 1.0, 4.0
"""Seconds of counted runs in the first measurement, and in the one that must confirm it."""

LARGER = 64 << 10
"""Bytes by which the result may be larger than the original: what one patch may add (``Settings.growth``)."""

MOST_GUILTY = 3
"""Passes given up one by one before all that are no eliminations are."""

TIMEOUT = 600.0


class Attempt(Protocol):
    """An optimization that can be made again without some passes."""

    @property
    def model(self) -> ir.Model:
        """The result at hand."""
        ...

    @property
    def applied(self) -> Sequence[Applied]:
        """The patches that made it."""
        ...

    def retry_without(self, passes: frozenset[str]) -> None:
        """Make the result again without these passes."""
        ...

    def give_up(self) -> None:
        """Take the original as the result."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What the gate found.

    Attributes:
        text: For the report: what was measured or counted, and what was given up.
        changed: Whether the result is another than before, and has to be proved again.
    """

    text: str
    changed: bool


def hold(
    profile: Profile,
    original: Callable[[], ir.Model | Path],
    before: Count,
    attempt: Attempt,
    inputs: Mapping[str, Any] | None = None,
) -> Outcome:
    """Make ``attempt`` pass the gate of its target, at the price of passes if need be.

    Args:
        profile: The target.
        original: Gives the model before any rewrite, or the file that holds it; asked where it has to be looked at.
        before: Its size.
        attempt: The result, which may be made again.
        inputs: Real inputs to measure on; drawn when None.
    """
    if not attempt.applied:
        return Outcome("nothing was changed", changed=False)
    with Gate(profile, original, before, inputs) as gate:
        fault = gate.fault(attempt.model)
        if fault is None:
            return Outcome(gate.text, changed=False)
        given_up = _without_the_guilty(gate, attempt)
        if given_up is not None:
            what = (
                f"given up: {', '.join(sorted(given_up))}"
                if given_up
                else "it comes with eliminations alone, and stays"
            )
            return Outcome(f"{gate.text} ({fault}; {what})", changed=True)
    attempt.give_up()
    return Outcome(f"returned as it was: {fault}", changed=True)


def _without_the_guilty(gate: Gate, attempt: Attempt) -> frozenset[str] | None:
    """The passes without which the result passes the gate; None where there are no such passes."""
    suspects = list(dict.fromkeys(name for patch in attempt.applied if _is_suspect(name := patch.rule.split("/")[0])))
    everything = frozenset(suspects)

    def passes_without(names: frozenset[str]) -> bool:
        attempt.retry_without(names)
        return gate.fault(attempt.model) is None

    if not passes_without(everything):
        if gate.only_counts and gate.larger(attempt.model) is None:
            # What eliminations take away was computed for nobody: no fusion is lost by it.
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
    """Whether a pass does more than take away: what only removes nodes makes no engine slower."""
    return not name.startswith(("eliminate_", "extract_"))


class Gate:
    """Judges results against one original for one target.

    Use as a context manager; its files go with it.

    Attributes:
        text: What the last judgement measured or counted.
        only_counts: Whether fusions are counted because nothing can be measured.
    """

    def __init__(
        self,
        profile: Profile,
        original: Callable[[], ir.Model | Path],
        before: Count,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self._profile = profile
        self._witness = original
        self._before = before
        self._inputs = inputs
        self._reason = ""
        self._fusions: Counter[str] | None = None
        self._bytes: int | None = None
        self.text = ""
        self.only_counts = not (profile.installed and profile.engine in ENGINES)

    def __enter__(self) -> Self:
        """Begin; files are made where something has to be measured."""
        self._folders = ExitStack()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the files."""
        self._folders.close()

    @cached_property
    def _place(self) -> Path:
        return Path(self._folders.enter_context(tempfile.TemporaryDirectory(prefix="sardonyx-gate-")))

    @cached_property
    def _original(self) -> ir.Model | Path:
        return self._witness()

    def fault(self, result: ir.Model) -> str | None:
        """Why the result does not pass; None where it does."""
        self.text = (
            f"not measured: {self._profile.name} names no engine; not larger" if self._profile.engine is None else ""
        )
        return self.larger(result) or self._slower(result) or self._loses_fusions(result)

    # -- larger --------------------------------------------------------------------------------

    def larger(self, result: ir.Model) -> str | None:
        """Why the result is too large; None where it is not."""
        count = Count.of(result)
        # Without more nodes or more than a little more weights there is no need to count every byte.
        if count.nodes <= self._before.nodes and count.weight_bytes <= self._before.weight_bytes + LARGER // 2:
            return None
        if self._bytes is None:
            self._bytes = stored_bytes(self._model())
        after = stored_bytes(result)
        if after <= self._bytes + LARGER:
            return None
        return f"larger: {after:,} bytes for {self._bytes:,}"

    def _model(self) -> ir.Model:
        return model_io.load(self._original) if isinstance(self._original, Path) else self._original

    # -- slower --------------------------------------------------------------------------------

    def _slower(self, result: ir.Model) -> str | None:
        engine = self._profile.engine
        if self.only_counts or engine is None:
            return None
        paths = [self._original_path(), self._place / "result.onnx"]
        model_io.save(result, paths[1])
        try:
            found = self._measured(engine, paths, SHORT)
            if confirm := found.ratio > SLOWER:
                found = self._measured(engine, paths, LONG)
        except EvaluationError as error:
            self.only_counts, self._reason = True, str(error)
            return None
        self.text = _sentence(found)
        return f"slower: {self.text}" if confirm and is_slower(found) else None

    def _measured(self, engine: str, paths: Sequence[Path], budget: float) -> Latency:
        feeds = self._place / "feeds.pickle"
        if self._inputs is not None and not feeds.exists():
            feeds.write_bytes(pickle.dumps(dict(self._inputs)))
        request = {"do": "measure", "paths": list(map(str, paths)), "engine": engine, "feeds": str(feeds)}
        return Latency.read(ask({**request, "budget": budget}))

    def _original_path(self) -> Path:
        if isinstance(self._original, Path):
            return self._original
        path = self._place / "original.onnx"
        if not path.exists():
            model_io.save(self._original, path)
        return path

    # -- fusions -------------------------------------------------------------------------------

    def _loses_fusions(self, result: ir.Model) -> str | None:
        if not self.only_counts or self._profile.engine is None:
            return None
        absent = "not installed" if not self._profile.installed else "not one that is measured here"
        why = self._reason or f"{self._profile.engine} is {absent}"
        if self._profile.name == "onnxruntime" and self._profile.installed:
            try:
                before, after = self._optimized(self._original_path()), self._optimized(self._saved(result))
            except EvaluationError as error:
                self.text = f"not measured: {error}"
                return None
        else:
            if self._fusions is None:
                self._fusions = census(self._model())
            before, after = self._fusions, census(result)
        self.text = f"not measured ({why}); fusions before and after: {_told(before, after)}"
        fewer = lost(before, after)
        if not fewer:
            return None
        return "fusions lost: " + ", ".join(f"{name} {old} → {new}" for name, (old, new) in fewer.items())

    def _saved(self, result: ir.Model) -> Path:
        path = self._place / "result.onnx"
        model_io.save(result, path)
        return path

    def _optimized(self, path: Path) -> Counter[str]:
        """The engine's own fusions in what it makes of a model."""
        answer = ask({"do": "census", "path": str(path), "folder": str(self._place)})
        return Counter({name: n for name, n in answer["operators"].items() if name in self._profile.protected})


def is_slower(found: Latency) -> bool:
    """Whether the last model is slower than the first by more than chance: the lower end of the interval tells."""
    interval = found.interval
    return interval is not None and interval[0] > SLOWER


def _sentence(found: Latency) -> str:
    before, after = found.seconds
    sure = "" if (interval := found.interval) is None else f", {interval[0]:.3f} to {interval[1]:.3f} with 95 %"
    times = f"{before * 1e3:.3f} → {after * 1e3:.3f} ms, {found.runs} pairs"
    return f"{found.ratio:.3f} × the original's latency in {found.engine} ({times}{sure})"


def _told(before: Counter[str], after: Counter[str]) -> str:
    names = sorted({*before, *after})
    return ", ".join(f"{name} {before[name]} → {after[name]}" for name in names) or "none"


def stored_bytes(model: ir.Model) -> int:
    """Bytes that a model takes in files: its message without the weights, and these."""
    skeleton: int = model_io.to_proto(model, weights=False).ByteSize()
    weights = Count.of(model).weights
    return skeleton + sum(t.nbytes for t in weights if t.dtype != ir.DataType.STRING and t.nbytes >= 1024)


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a child process that measures; see ``sardonyx.rewrite.measure``.

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


__all__ = ["Attempt", "Gate", "Outcome", "hold", "is_slower", "stored_bytes"]
