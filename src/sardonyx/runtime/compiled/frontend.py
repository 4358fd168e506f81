"""The compiler's frontend: rewrite a model, trace it to one Core function, and repeat both for other weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.analysis.shape_guards import collect_guards, select_known
from sardonyx.core.dim import Dim, Size, linear_symbol
from sardonyx.core.eval.assumptions import assuming
from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.eval.tensor import function_input
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir.graph import Function, Value, function, symbols_in
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.rules.assumed_sizes import recorded_assumptions
from sardonyx.core.transform.conditions import rewritten_with_conditions
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import NeedsValueError, SardonyxError, ShapeError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.graph import prepare
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.pipeline import Selection, exact_passes, select
from sardonyx.rewrite.weight_update import Rewriting, watch
from sardonyx.runtime.compiled.opened_weights import read_by_comparison, read_by_views
from sardonyx.runtime.editing.fingerprint import Structure, structure
from sardonyx.runtime.free_dimensions import with_sizes_of_defaults
from sardonyx.runtime.providers.protocol import OptimizationLevel

_TARGET = "native"


class Undecided(UnsupportedError):
    """A model cannot be traced before a value is known that depends on the inputs of a call.

    Args:
        error: The error of tracing.
        question: The function that computes the value from the model's inputs.
        model: The rewritten model.
    """

    def __init__(self, error: NeedsValueError, question: Function, model: ir.Model) -> None:
        super().__init__(error.problem, where=error.where, remedy=error.remedy)
        self.question = question
        self.model = model
        self.inputs = [str(value.name) for value in model.graph.inputs]


def trace_model(model: ir.Model, values: Sequence[np.ndarray] = ()) -> Function:
    """Return a model as one simplified Core function of its inputs.

    Args:
        model: The rewritten model.
        values: The values that tracing needs, in the order in which tracing needs them.

    Raises:
        Undecided: Tracing needs one more value, which depends on the inputs of a call.
        UnsupportedError: The model cannot be traced before its inputs are known, or an input has no declared type.
            Inconsistent shapes may be in a branch that no call executes: the interpreter decides.
    """
    prepared = prepare(model)
    types = []
    for value in prepared.inputs:
        declared = declared_type(value)
        if declared is None or (isinstance(declared, TensorType) and declared.shape is None):
            raise UnsupportedError("the input has no declared type and rank.", where=str(value.name))
        types.append(declared)
    types = name_unbound_sizes(types)
    assumed: dict[tuple[Size, Size], None] = {}
    with assuming(values) as assumptions, recorded_assumptions(assumed):
        try:
            result = trace(model.graph.name or "model", lambda *inputs: list(prepared.call(list(inputs))), types)
        except NeedsValueError as error:
            question = _question(assumptions.unanswered, types)
            if question is None:
                raise
            raise Undecided(error, question, model) from error
        except ShapeError as error:
            raise UnsupportedError(error.problem, where=error.where, remedy=error.remedy) from error
    return _simplified(result, assumed)


def name_unbound_sizes(types: Sequence[Type]) -> list[Type]:
    """Return the types of inputs with a symbol for each size that no call can bind.

    A part of a model may declare ``(height + 1)//2`` without an input of size ``height``: the size of an array does not
    determine ``height``.
    """
    sizes = [size for type in types if isinstance(type, TensorType) for size in type.shape or ()]
    dims = [size for size in sizes if isinstance(size, Dim)]
    linear = [linear_symbol(dim) for dim in dims]
    bound = {solution[0] for solution in linear if solution is not None}
    symbols = {dim: unknown_size() for dim in dict.fromkeys(dims) if not dim.symbols() <= bound}

    def named(type: Type) -> Type:
        if not symbols or not isinstance(type, TensorType) or type.shape is None:
            return type
        shape = tuple(symbols.get(size, size) if isinstance(size, Dim) else size for size in type.shape)
        return TensorType(type.dtype, shape)

    return [named(type) for type in types]


def _simplified(traced: Function, assumed: Collection[tuple[Size, Size]]) -> Function:
    """Return the simplified function, with the conditions of values that no result needs after simplification."""
    inputs = symbols_in(tuple(value.type for value in traced.inputs))
    pairs = select_known([*assumed], frozenset({*inputs, *traced.defined_symbols}))
    simplified = rewritten_with_conditions(traced, pairs, simplify)
    known = frozenset({*inputs, *simplified.defined_symbols})
    required = set(collect_guards(simplified)) if pairs else ()
    rest = [pair for pair in simplified.conditions if pair not in required]
    simplified.conditions = tuple(select_known(rest, known))
    return simplified


def _question(value: Value | None, types: Sequence[Type]) -> Function | None:
    """Return the function that computes a value from inputs of these types; None if it needs more than the inputs."""
    if value is None:
        return None
    question = function("question", [function_input(0, i, type) for i, type in enumerate(types)], [value], 0)
    return simplify(question) if question.free_symbols <= {*symbols_in(tuple(types))} else None


class LoweredModel(NamedTuple):
    """A model as a Core function.

    Attributes:
        function: The function.
        inputs: The names of its inputs.
        source: The rewritten model without weights; None if models with other weights are rewritten anew.
    """

    function: Function
    inputs: list[str]
    source: Source | None


class Source(NamedTuple):
    """A rewritten model, reusable for models with other weights.

    Attributes:
        structure: The structure of the model, without weights.
        rewriting: The record of the rewriting.
        selection: The rules at the time of the rewriting.
    """

    structure: Structure
    rewriting: Rewriting
    selection: Selection

    def over(self, model: ir.Model, optimization: OptimizationLevel) -> Function | None:
        """Return the Core function of a model with other weights; None if the model must be rewritten anew.

        Args:
            model: The model.
            optimization: The rewrites to apply.

        Raises:
            UnsupportedError: See :func:`trace_model`.
        """
        traced = self.traced(model, optimization)
        return None if traced is None else traced[0]

    def traced(
        self, model: ir.Model, optimization: OptimizationLevel
    ) -> tuple[Function, list[ir.TensorProtocol]] | None:
        """Return the result of :meth:`over`, and the tensors of the rewritten model in the order of :meth:`tensors`."""
        fingerprint = structure(model)
        if fingerprint is None or fingerprint.form != self.structure.form:
            return None
        if select(_TARGET, _passes(optimization)) != self.selection:  # Rules were registered since.
            return None
        with self.rewriting.over(fingerprint.weights) as rewritten:
            return None if rewritten is None else (trace_model(rewritten), self.rewriting.elements())

    def tensors(self, model: Structure, optimization: OptimizationLevel) -> list[ir.TensorProtocol] | None:
        """Return the tensors of the rewritten model for a model with other weights; None: see :meth:`over`."""
        if model.form != self.structure.form or select(_TARGET, _passes(optimization)) != self.selection:
            return None
        return self.rewriting.tensors(model.weights)

    def read(self, model: ir.Model, indices: Collection[int], traced: Function | None = None) -> frozenset[int] | None:
        """Return which of some tensors tracing reads; None if its result may depend on their elements otherwise.

        Every constant that tracing leaves of these tensors is then a view of one, whatever the elements are.

        Args:
            model: A model with the weights of :meth:`tensors`.
            indices: Indices of the tensors in :meth:`tensors`.
            traced: The function of the model; without it, functions that compute more than views from the tensors
                alone are not compared.
        """
        fingerprint = structure(model)
        if fingerprint is None:
            return None
        with self.rewriting.over(fingerprint.weights) as rewritten:
            if rewritten is None:
                return None
            return _read(rewritten, dict(zip(indices, self.rewriting.held(indices), strict=True)), traced)


def _read(model: ir.Model, tensors: Mapping[int, ir.TensorProtocol], traced: Function | None) -> frozenset[int] | None:
    """Return which weights the function of a model reads; None if it may depend on their elements otherwise."""
    twin, chosen, opened = copy_model(model), {id(tensor): i for i, tensor in tensors.items()}, dict[str, int]()
    for name, value in list(twin.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and id(tensor) in chosen:
            del twin.graph.initializers[name]
            value.const_value, value.type, value.shape = None, ir.TensorType(tensor.dtype), tensor.shape  # type: ignore[assignment]
            if value not in twin.graph.inputs:
                twin.graph.inputs.append(value)
            opened[name] = chosen[id(tensor)]
    if len(opened) != len(tensors):
        return None  # An attribute of a node, or one tensor of two names.
    try:
        function = trace_model(twin)
    except SardonyxError:
        return None
    names = [value.name for value in twin.graph.inputs]
    weights = {value: opened[name] for name, value in zip(names, function.inputs, strict=True) if name in opened}
    read = read_by_views(function, weights)
    return read if read is not None or traced is None else read_by_comparison(function, weights, traced)


def _passes(optimization: OptimizationLevel) -> list[str] | None:
    if optimization == "basic":
        return exact_passes()
    return ["eliminate_initializer_from_inputs"] if optimization == "none" else None


def lower_model(model: ir.Model, optimization: OptimizationLevel) -> LoweredModel:
    """Rewrite and trace a model; default values of inputs become constants.

    Args:
        model: The model, which is not changed.
        optimization: The rewrites to apply.

    Raises:
        UnsupportedError: The model cannot be traced before its inputs are known.
    """
    initializers = set(model.graph.initializers.values())
    fed = [value for value in model.graph.inputs if value not in initializers]
    passes = _passes(optimization)
    selection = select(_TARGET, passes)
    model = with_sizes_of_defaults(model)
    fingerprint = structure(model)
    watched_model, record = (model, None) if fingerprint is None else watch(model, fingerprint.weights)
    watched_structure = None if record is None else structure(watched_model)
    rewritten = optimize(watched_model, target=_TARGET, passes=passes, verify=False, freeze_defaults=True).model
    source = None
    if watched_structure is not None and record is not None:
        source = Source(watched_structure, Rewriting(rewritten, watched_structure.weights, record), selection)
    function = trace_model(rewritten)
    inputs = [str(value.name) for value in rewritten.graph.inputs]
    missing = [str(value.name) for value in fed if value.name not in inputs]
    if missing:
        raise UnsupportedError(f"internal: rewriting removed inputs: {', '.join(missing)}.")
    if source is not None:
        source.rewriting.release()
    return LoweredModel(function, inputs, source)
