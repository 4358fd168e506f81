"""From a model to what is compiled of it: rewritten, and traced to one Core function; and that over other weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from sardonyx.core.eval.assumptions import assuming
from sardonyx.core.eval.tensor import function_input
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir.graph import Function, Value, function, symbols_in
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import NeedsValueError, ShapeError, UnsupportedError
from sardonyx.ops.graph import declared_type, prepare
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.pipeline import Selection, exact_passes, select
from sardonyx.rewrite.weight_update import Rewriting, watched
from sardonyx.runtime.editing.fingerprint import Structure, structure
from sardonyx.runtime.providers.protocol import OptimizationLevel

_TARGET = "native"


class Undecided(UnsupportedError):
    """A model cannot be traced before a value is known that each call tells.

    Args:
        error: What tracing said.
        question: Computes the value from the model's inputs.
        model: The model, rewritten.
    """

    def __init__(self, error: NeedsValueError, question: Function, model: ir.Model) -> None:
        super().__init__(error.problem, where=error.where, remedy=error.remedy)
        self.question = question
        self.model = model
        self.inputs = [str(value.name) for value in model.graph.inputs]


def traced(model: ir.Model, given: Sequence[np.ndarray] = ()) -> Function:
    """A model as one Core function of its inputs, simplified.

    Args:
        model: The model, rewritten.
        given: What values are that must be known, in the order in which they are asked for.

    Raises:
        Undecided: One more must be known, and calls tell it.
        UnsupportedError: It cannot be traced before data are known, or an input has no declared type. Shapes that do
            not fit may be those of a branch that no call takes: numpy says so where one does.
    """
    prepared = prepare(model)
    types = []
    for value in prepared.inputs:
        declared = declared_type(value)
        if declared is None or (isinstance(declared, TensorType) and declared.shape is None):
            raise UnsupportedError("the input has no declared type and rank.", where=str(value.name))
        types.append(declared)
    with assuming(given) as assumptions:
        try:
            found = trace(model.graph.name or "model", lambda *inputs: list(prepared.call(list(inputs))), types)
        except NeedsValueError as error:
            question = _question(assumptions.unanswered, types)
            if question is None:
                raise
            raise Undecided(error, question, model) from error
        except ShapeError as error:
            raise UnsupportedError(error.problem, where=error.where, remedy=error.remedy) from error
    return simplify(found)


def _question(asked: Value | None, types: Sequence[Type]) -> Function | None:
    """What computes a value from inputs of these types alone; None where they do not tell it."""
    if asked is None:
        return None
    found = function("question", [function_input(0, i, type) for i, type in enumerate(types)], [asked], 0)
    return simplify(found) if found.free_symbols <= {*symbols_in(tuple(types))} else None


class Front(NamedTuple):
    """What is compiled of a model.

    Attributes:
        function: What it computes.
        inputs: The names of its inputs.
        source: What it was made of, without weights; None where models of other weights are rewritten anew.
    """

    function: Function
    inputs: list[str]
    source: Source | None


class Source(NamedTuple):
    """A model that was rewritten, for others that differ in weights alone.

    Attributes:
        structure: The model's; of the weights it holds none.
        rewriting: What became of it.
        selection: The rules there were.
    """

    structure: Structure
    rewriting: Rewriting
    selection: Selection

    def over(self, model: ir.Model, optimization: OptimizationLevel) -> Function | None:
        """What is compiled of a model; None where it is to be rewritten for that.

        Args:
            model: The model.
            optimization: Which rewrites there are.

        Raises:
            UnsupportedError: See :func:`traced`.
        """
        found = structure(model)
        if found is None or found.form != self.structure.form:
            return None
        if select(_TARGET, _passes(optimization)) != self.selection:  # Rules were registered since.
            return None
        with self.rewriting.over(found.weights) as rewritten:
            return None if rewritten is None else traced(rewritten)


def _passes(optimization: OptimizationLevel) -> list[str] | None:
    return {"none": ["eliminate_initializer_from_inputs"], "basic": exact_passes(), "all": None}[optimization]


def front(model: ir.Model, optimization: OptimizationLevel) -> Front:
    """Rewrite and trace a model.

    Args:
        model: The model; it is left as it is.
        optimization: Which rewrites there are.

    Raises:
        UnsupportedError: It cannot be traced before data are known.
    """
    initializers = set(model.graph.initializers.values())
    fed = [value for value in model.graph.inputs if value not in initializers]
    passes = _passes(optimization)
    selection = select(_TARGET, passes)
    found = structure(model)
    given, record = (model, None) if found is None else watched(model, found.weights)
    seen = None if record is None else structure(given)
    rewritten = optimize(given, target=_TARGET, passes=passes, verify=False).model
    source = None
    if seen is not None and record is not None:
        source = Source(seen, Rewriting(rewritten, seen.weights, record), selection)
    function = traced(rewritten)
    inputs = [str(value.name) for value in rewritten.graph.inputs]
    missing = [str(value.name) for value in fed if value.name not in inputs]
    if missing:
        raise UnsupportedError(f"inputs went away in the rewriting: {', '.join(missing)}.")
    if source is not None:
        source.rewriting.release()
    return Front(function, inputs, source)
