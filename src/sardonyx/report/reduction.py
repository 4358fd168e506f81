"""Delta debugging on the graph: reduce a failing model to its smallest failing part, with inputs.

While the failure persists, outputs move towards the inputs; then inputs move towards the outputs, as tensors computed
by the interpreter; then single nodes are removed.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.base.option_checks import require_number
from sardonyx.errors import EvaluationError, OptionError, SardonyxError
from sardonyx.report.accuracy import Side, require_tolerance
from sardonyx.report.node_matching import bodies_of
from sardonyx.rewrite.surgery.extraction import extract
from sardonyx.rewrite.verify import compare as measure

Feeds = Mapping[str, Any]
Fails = Callable[[ir.Model, Feeds], str]
"""Predicate with a reason: describe the failure of a model on inputs, or return an empty text."""


@dataclass(frozen=True)
class Reduced:
    """The smallest failing part.

    Attributes:
        model: The part.
        feeds: Inputs on which the part fails.
        failure: Description of the failure.
        before: Number of nodes of the original model.
        after: Number of nodes of the part.
        trials: Number of parts that were tried.
    """

    model: ir.Model
    feeds: Feeds
    failure: str
    before: int
    after: int
    trials: int


def differs_between(right: str, wrong: str, tolerance: float) -> Fails:
    """Return a predicate: two providers differ, or only the first computes the model.

    Args:
        right: The provider assumed to be right.
        wrong: The other provider.
        tolerance: Largest difference relative to an output's largest element.

    Raises:
        OptionError: The tolerance is negative or NaN.
    """
    require_tolerance(tolerance)

    def fails(model: ir.Model, feeds: Feeds) -> str:
        try:
            expected = Side(model, right).run(model, feeds)
        except SardonyxError:
            return ""
        try:
            actual = Side(model, wrong).run(model, feeds)
        except Exception as error:  # The engines' errors have no common base class.
            return type(error).__name__
        errors = (measure.difference(name, expected[name], actual[name]).error for name in expected)
        return "other outputs" if any(error > tolerance for error in errors) else ""

    return fails


def fails_command(command: str, timeout: float) -> Fails:
    """Return a predicate: a command ends with an exit code other than 0.

    Args:
        command: The command; ``{model}`` and ``{inputs}`` are replaced by files (.onnx, .npz).
        timeout: Time limit in seconds; a longer run is a failure.

    Raises:
        OptionError: The command does not name the model, or the time limit is not above 0.
    """
    require_number(timeout, "timeout", above=0)
    if "{model}" not in command:
        raise OptionError(
            "expected {model} in the command", where="command", remedy="Insert {model}, the model's file."
        )

    def fails(model: ir.Model, feeds: Feeds) -> str:
        with tempfile.TemporaryDirectory(prefix="sardonyx-reduce-") as folder:
            path, inputs = Path(folder) / "model.onnx", Path(folder) / "inputs.npz"
            model_io.save(model, path)
            np.savez(inputs, **feeds)
            words = [
                word.replace("{model}", str(path)).replace("{inputs}", str(inputs)) for word in shlex.split(command)
            ]
            try:
                code = subprocess.run(words, capture_output=True, timeout=timeout, check=False).returncode
            except subprocess.TimeoutExpired:
                return "timeout"
            except OSError as error:
                raise OptionError(f"cannot be run: {error}", where="command") from error
        return f"exit code {code}" if code else ""

    return fails


def reduce(model: ir.Model, feeds: Feeds, fails: Fails) -> Reduced:
    """Shrink a failing model.

    Args:
        model: The model, which is not changed.
        feeds: Inputs on which the model fails.
        fails: Describes a model's failure.

    Raises:
        EvaluationError: The model does not fail.
    """
    failure = fails(model, feeds)
    if not failure:
        raise EvaluationError("the model does not fail on these inputs: there is nothing to reduce.")
    search = _Search(model, dict(feeds), failure, fails)
    before, previous = search.nodes, -1
    while search.nodes != previous:
        previous = search.nodes
        search.narrow_outputs()
        search.narrow_inputs()
        search.drop_nodes()
    return Reduced(search.model, search.feeds, failure, before, search.nodes, search.trials)


Part = tuple[ir.Model, dict[str, Any]]


class _Search:
    """The smallest failing part so far."""

    def __init__(self, model: ir.Model, feeds: dict[str, Any], failure: str, fails: Fails) -> None:
        self.model, self.feeds, self.failure = model, feeds, failure
        self._fails = fails
        self.trials = 0

    @property
    def nodes(self) -> int:
        """Number of nodes of the part."""
        return sum(1 for _ in self.model.graph)

    def _trial(self, outputs: Sequence[str], inputs: Sequence[str] | None = None) -> Part | None:
        """Return a part with its inputs if the part fails like the model."""
        self.trials += 1
        try:
            part = extract(self.model, outputs, inputs)
            feeds = dict(self._feeds_of(part))
            failure = self._fails(part, feeds)
        except SardonyxError:
            # A part that cannot be extracted, or whose inputs cannot be computed, is not a smaller case.
            return None
        return (part, feeds) if failure == self.failure else None

    def _accept(self, part: Part | None) -> bool:
        if part is not None:
            self.model, self.feeds = part
        return part is not None

    def _feeds_of(self, part: ir.Model) -> Iterator[tuple[str, Any]]:
        """Yield the inputs of a part: model inputs, or values that the interpreter computes."""
        names = [str(value.name) for value in part.graph.inputs if not value.is_initializer()]
        missing = [name for name in names if name not in self.feeds]
        computed = Side(self.model, "reference").run(extract(self.model, missing), self.feeds) if missing else {}
        for name in names:
            yield name, self.feeds[name] if name in self.feeds else computed[name]

    def _outputs(self) -> list[str]:
        return [str(value.name) for value in self.model.graph.outputs]

    def narrow_outputs(self) -> None:
        """Keep one output, the earliest that fails."""
        for name in self._outputs() if len(self._outputs()) > 1 else ():
            if self._accept(self._trial([name])):
                break
        names = [str(v.name) for node in self.model.graph for v in node.outputs if v.name and not v.is_graph_output()]
        best, low, high = None, 0, len(names)
        while low < high:
            middle = (low + high) // 2
            trial = self._trial([names[middle]])
            if trial is None:
                low = middle + 1
            else:
                best, high = trial, middle
        self._accept(best)

    def narrow_inputs(self) -> None:
        """Replace as many leading nodes as possible by their results."""
        best, low, high = None, 0, self.nodes - 1
        while low < high:
            middle = (low + high + 1) // 2
            trial = self._trial(self._outputs(), self._frontier(middle))
            if trial is None:
                high = middle - 1
            else:
                best, low = trial, middle
        self._accept(best)

    def _frontier(self, count: int) -> list[str]:
        """Return the tensors that nodes after the first ``count`` read from outside."""
        rest = list(self.model.graph)[count:]
        internal = {value for node in rest for value in node.outputs}
        names = [str(value.name) for node in rest for value in self._read(node) if value not in internal]
        return list(dict.fromkeys(names))

    def _read(self, node: ir.Node) -> Iterator[ir.Value]:
        """Yield the tensors of the main graph that a node and its bodies read, except weights."""
        for value in node.inputs:
            if value is not None and value.graph is self.model.graph and not value.is_initializer():
                yield value
        for attribute in node.attributes.values():
            for body in bodies_of(attribute):
                for inner in body:
                    yield from self._read(inner)

    def drop_nodes(self) -> None:
        """Remove single nodes as long as the failure persists."""
        while any(self._accept(self._without(node)) for node in list(self.model.graph)):
            pass

    def _without(self, node: ir.Node) -> Part | None:
        """Return the part in which the results of a node are inputs."""
        if any(value.is_graph_output() for value in node.outputs):
            return None
        rest = [other for other in self.model.graph if other is not node]
        own = {value for other in rest for value in other.outputs}
        names = [str(value.name) for other in rest for value in self._read(other) if value not in own]
        return self._trial(self._outputs(), list(dict.fromkeys(names)))
