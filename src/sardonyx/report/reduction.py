"""The smallest part of a failing model that still fails, with the inputs on which it does.

Delta debugging on the graph: outputs move towards the inputs as long as it fails, then inputs towards the outputs, as
tensors that are fed what the interpreter computed for them; then nodes go one by one.
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
from sardonyx.errors import EvaluationError, OptionError, SardonyxError
from sardonyx.report.accuracy import Side
from sardonyx.report.match import bodies_of
from sardonyx.rewrite.surgery.extraction import extract
from sardonyx.rewrite.verify import compare as measure

Feeds = Mapping[str, Any]
Fails = Callable[[ir.Model, Feeds], str]
"""Says of a model how it fails on inputs; an empty text where it does not."""


@dataclass(frozen=True)
class Reduced:
    """The smallest part that was found.

    Attributes:
        model: It.
        feeds: Inputs on which it fails.
        failure: How it fails.
        before: Nodes of the model.
        after: Nodes of the part.
        trials: How many parts were tried.
    """

    model: ir.Model
    feeds: Feeds
    failure: str
    before: int
    after: int
    trials: int


def differing(right: str, wrong: str, tolerance: float) -> Fails:
    """Whether two providers differ, or the second refuses what the first computes.

    Args:
        right: The provider that is taken to be right.
        wrong: The other.
        tolerance: Largest difference relative to an output's largest element.
    """

    def fails(model: ir.Model, feeds: Feeds) -> str:
        try:
            want = Side(model, right).run(model, feeds)
        except SardonyxError:
            return ""
        try:
            got = Side(model, wrong).run(model, feeds)
        except Exception as error:  # the engines' errors have no base class of their own
            return type(error).__name__
        apart = any(measure.difference(name, want[name], got[name]).error > tolerance for name in want)
        return "other outputs" if apart else ""

    return fails


def refused_by(command: str, timeout: float) -> Fails:
    """Whether a command ends with another exit code than 0.

    Args:
        command: What to run; ``{model}`` and ``{inputs}`` stand for files (.onnx, .npz).
        timeout: Most seconds of it; one that takes longer has failed.
    """
    if "{model}" not in command:
        raise OptionError("does not say where the model goes", where="command", remedy="Write {model} into it.")

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
                return "no end in time"
            except OSError as error:
                raise OptionError(f"cannot be run: {error}", where="command") from error
        return f"exit code {code}" if code else ""

    return fails


def reduce(model: ir.Model, feeds: Feeds, fails: Fails) -> Reduced:
    """Shrink a failing model.

    Args:
        model: The model; it is left as it is.
        feeds: Inputs on which it fails.
        fails: Says how a model fails.

    Raises:
        EvaluationError: It does not fail.
    """
    failure = fails(model, feeds)
    if not failure:
        raise EvaluationError("the model does not fail on these inputs: there is nothing to reduce.")
    search = _Search(model, dict(feeds), failure, fails)
    before, left = search.nodes, -1
    while search.nodes != left:
        left = search.nodes
        search.narrow_outputs()
        search.narrow_inputs()
        search.drop_nodes()
    return Reduced(search.model, search.feeds, failure, before, search.nodes, search.trials)


Part = tuple[ir.Model, dict[str, Any]]


class _Search:
    """The part that fails so far."""

    def __init__(self, model: ir.Model, feeds: dict[str, Any], failure: str, fails: Fails) -> None:
        self.model, self.feeds, self.failure = model, feeds, failure
        self._fails = fails
        self.trials = 0

    @property
    def nodes(self) -> int:
        """How many nodes the part has."""
        return sum(1 for _ in self.model.graph)

    def _trial(self, outputs: Sequence[str], inputs: Sequence[str] | None = None) -> Part | None:
        """A part with its inputs, if it fails in the same way."""
        self.trials += 1
        try:
            part = extract(self.model, outputs, inputs)
            feeds = dict(self._fed(part))
            found = self._fails(part, feeds)
        except SardonyxError:
            # What cannot be cut out, or computed as far as that, is no smaller case.
            return None
        return (part, feeds) if found == self.failure else None

    def _take(self, part: Part | None) -> bool:
        if part is not None:
            self.model, self.feeds = part
        return part is not None

    def _fed(self, part: ir.Model) -> Iterator[tuple[str, Any]]:
        """The inputs of a part: as they are fed, or as the interpreter computes them."""
        names = [str(value.name) for value in part.graph.inputs if not value.is_initializer()]
        missing = [name for name in names if name not in self.feeds]
        computed = Side(self.model, "reference").run(extract(self.model, missing), self.feeds) if missing else {}
        for name in names:
            yield name, self.feeds[name] if name in self.feeds else computed[name]

    def _outputs(self) -> list[str]:
        return [str(value.name) for value in self.model.graph.outputs]

    def narrow_outputs(self) -> None:
        """One output, as early as it fails."""
        for name in self._outputs() if len(self._outputs()) > 1 else ():
            if self._take(self._trial([name])):
                break
        names = [str(v.name) for node in self.model.graph for v in node.outputs if v.name and not v.is_graph_output()]
        best, low, high = None, 0, len(names)
        while low < high:
            middle = (low + high) // 2
            found = self._trial([names[middle]])
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        self._take(best)

    def narrow_inputs(self) -> None:
        """As many of the first nodes as possible are replaced by what they compute."""
        best, low, high = None, 0, self.nodes - 1
        while low < high:
            middle = (low + high + 1) // 2
            found = self._trial(self._outputs(), self._frontier(middle))
            if found is None:
                high = middle - 1
            else:
                best, low = found, middle
        self._take(best)

    def _frontier(self, count: int) -> list[str]:
        """What nodes after the first ``count`` read of these, and of the inputs."""
        rest = list(self.model.graph)[count:]
        made = {value for node in rest for value in node.outputs}
        names = [str(value.name) for node in rest for value in self._read(node) if value not in made]
        return list(dict.fromkeys(names))

    def _read(self, node: ir.Node) -> Iterator[ir.Value]:
        """The tensors of the main graph that a node and its bodies read, weights left out."""
        for value in node.inputs:
            if value is not None and value.graph is self.model.graph and not value.is_initializer():
                yield value
        for attribute in node.attributes.values():
            for body in bodies_of(attribute):
                for inner in body:
                    yield from self._read(inner)

    def drop_nodes(self) -> None:
        """Each node that is left goes, if it may."""
        while any(self._take(self._without(node)) for node in list(self.model.graph)):
            pass

    def _without(self, node: ir.Node) -> Part | None:
        """The part that is fed the results of a node."""
        if any(value.is_graph_output() for value in node.outputs):
            return None
        rest = [other for other in self.model.graph if other is not node]
        own = {value for other in rest for value in other.outputs}
        names = [str(value.name) for other in rest for value in self._read(other) if value not in own]
        return self._trial(self._outputs(), list(dict.fromkeys(names)))
