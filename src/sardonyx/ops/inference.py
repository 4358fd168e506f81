"""Types and sizes of every value of a model, inferred by tracing its operators on types.

A node is traced once for each combination of facts about its inputs: their types, and the elements of small integer
tensors (so that shape arithmetic stays symbolic). The file's declaration of a value is used where tracing yields
nothing; if the two contradict each other, the traced type wins and the conflict is recorded.

Core needs every rank and every axis, and a model may leave them open: if the branches of an ``If`` differ in rank, the
nodes after it are traced at every rank, and axes computed from data are traced at every choice. The result is the
common part of all cases that the operator accepts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.tensor import FOLDED_ELEMENTS, function_input, size_tensor, sizes_of
from sardonyx.core.eval.trace import nested
from sardonyx.core.ir.graph import DEFINED, Value, fresh_symbol, symbols_in
from sardonyx.core.ir.types import OptionalType, SequenceType, TensorType, Type
from sardonyx.core.rules.assumed_sizes import same_type
from sardonyx.errors import (
    InvalidModelError,
    NeedsValueError,
    SardonyxError,
    ShapeError,
    SizeLimitError,
    UnsupportedError,
)
from sardonyx.ops.core_values import array_constant
from sardonyx.ops.file_facts import Known, initializer_facts, may_affect_sizes, symbolic_type
from sardonyx.ops.graph import Frame, PreparedGraph, Preparer, Step, apply_operator, attributes_in, node_label
from sardonyx.ops.registry import canonical
from sardonyx.ops.trace_cache import TraceCache

UNNAMED = ("?", "unk__")
"""Prefixes of names that inference, here or in other tools, gives to unknown sizes."""

_positions = itertools.count(1 << 16)
"""Positions of traced operands: unique for each value, and disjoint from the inputs of bodies.

Quantities that a definition reads from an operand at run time, such as a size, are thereby distinct for each operand.
"""

_RANKS = range(7)
"""Ranks at which a node is traced if the rank of an input is open."""
_MAX_AXIS_CHOICES = 64
"""Most choices of axes to try."""

MAX_SIZE = (1 << 63) - 1
"""Greatest size that a file can hold."""

_ASSUMED_SIZES = tuple(tuple(Dim.symbol(f"{DEFINED}{mark}{axis}") for axis in _RANKS) for mark in "ab")
"""Symbolic sizes of inputs of open rank, for as many inputs as are traced at all ranks."""

_trace_cache: TraceCache[tuple[tuple[Known, ...], frozenset[str]]] = TraceCache(1 << 11, 1 << 23)
"""Results of nodes and their run-time sizes, by operator, attributes and input facts, for all models."""


class Conflict(NamedTuple):
    """A value whose declared type contradicts the type that its node gives."""

    value: ir.Value
    inferred: Type
    declared: Type

    def error(self) -> ShapeError:
        """Return the conflict as an error that names the value and its producer."""
        producer = self.value.producer()
        source = node_label(producer) if producer is not None else "the graph's inputs"
        return ShapeError(
            f"{source} gives {self.inferred}, and the file declares {self.declared}.",
            where=f"value {self.value.name}",
            remedy="Correct the declaration, or leave it out.",
        )


class Inference:
    """Facts about the values of a model, as returned by :func:`infer`.

    Attributes:
        known: The facts about each value.
        conflicts: Wrong declarations of the file.
        refusals: Nodes that could not be traced, with the reason.
    """

    def __init__(self, known: dict[ir.Value, Known]) -> None:
        self.known = known
        self.conflicts: list[Conflict] = []
        self.refusals: dict[ir.Node, SardonyxError] = {}
        self._operands: dict[ir.Value | None, int] = {}
        self._symbol_numbers = itertools.count()
        self._names: dict[str, Size] = {}
        self._declared_names: dict[str, Size] = {}
        self._input_symbols = frozenset(symbols_in(tuple(map(_type_and_sizes, known.values()))))
        self._in_bodies = 0

    def type(self, value: ir.Value) -> Type | None:
        """Return the type of a value; None if unknown."""
        known = self.known.get(value)
        return known.type if isinstance(known, Value) else known

    def sizes(self, value: ir.Value) -> tuple[Size, ...] | None:
        """Return the elements of a small integer tensor if they are numbers or expressions; else None."""
        known = self.known.get(value)
        return sizes_of(known) if isinstance(known, Value) else None

    def require_consistency(self, graph: ir.Graph) -> None:
        """Refuse a model that contradicts itself.

        Args:
            graph: The main graph. Errors of nodes in bodies are ignored: a body may never run.

        Raises:
            ShapeError: A declared type contradicts the inferred one.
            SardonyxError: A node of the main graph does not accept its inputs.
        """
        for conflict in self.conflicts:
            raise conflict.error()
        require_runnable(self.refusals, graph)

    def graph(self, graph: PreparedGraph, frame: Frame, level: int) -> None:
        """Infer all values of a graph whose inputs are known, while tracing at ``level``."""
        for value in graph.initializers:
            if value not in self.known:
                self.known[value] = initializer_facts(value)
        for step in graph.steps:
            results = self.step(step, frame, level)
            is_opaque = step.operator is None and step.function is None
            for position, output in enumerate(step.node.outputs):
                if output.name:
                    result = results[position] if position < len(results) else None
                    self.known[output] = self._merge_declared(output, result, is_opaque)

    def step(self, step: Step, frame: Frame, level: int) -> Sequence[Known]:
        """Return the facts about a node's outputs; if tracing fails, the types that the signature determines."""
        if step.operator is None and step.function is None:
            return ()
        operands = step.node.inputs
        inputs = [None if value is None else self.known.get(value) for value in operands]
        missing = None in inputs and any(
            value is not None and known is None for value, known in zip(operands, inputs, strict=True)
        )
        try:
            if "then_branch" in step.bodies and not step.node.domain:
                return self._rename_generated(self._infer_branches(step, inputs[0], frame))
            if missing:
                return _types_by_signature(step, inputs)
            if step.function is not None:
                return self._call(step, step.function, inputs, frame)
            if step.bodies or step.references:
                return self._rename_generated(self._apply(step, inputs, frame, level))
            return self._trace_cached(step, inputs, frame, level)
        except SardonyxError as error:
            self.refusals[step.node] = error
            return _types_by_signature(step, inputs)

    def _trace_cases(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        cases = _rank_cases(inputs)
        try:
            if cases is None:
                return self._apply(step, inputs, frame, level)
            return self._trace_all(step, inputs, cases, frame, level)
        except NeedsValueError:
            cases = _axis_cases(step, inputs)
            if cases is None:
                raise
            return self._trace_all(step, inputs, cases, frame, level)

    def _trace_all(
        self, step: Step, inputs: Sequence[Known], cases: Iterable[Sequence[Known]], frame: Frame, level: int
    ) -> Sequence[Known]:
        """Return the common facts of all accepted cases; a case is a list of assumed input facts."""
        common: Sequence[Known] | None = None
        refusal: SardonyxError | None = None
        for assumed in cases:
            try:
                results = self._apply(step, assumed, frame, level)
            except UnsupportedError:
                results = _types_by_signature(step, inputs)
            except SardonyxError as error:
                refusal = error
                continue
            common = results if common is None else [self._join(a, b) for a, b in zip(common, results, strict=False)]
        if common is None:
            raise refusal or UnsupportedError("too many ranks or axes are open.", where=node_label(step.node))
        return common

    def _infer_branches(self, step: Step, condition: Known, frame: Frame) -> Sequence[Known]:
        """Return the facts of the selected branch of an ``If``, or the common facts of both branches."""
        branches = []
        for name in ("then_branch", "else_branch"):
            graph = step.bodies[name]
            assert isinstance(graph, PreparedGraph)
            with nested() as deeper:
                self.graph(graph, Frame(frame), deeper - 1)
            branches.append([self.known.get(value) for value in graph.outputs])
        if isinstance(condition, Value) and condition.is_constant:
            return branches[0 if condition.known.all() else 1]
        return [self._join(a, b) for a, b in zip(*branches, strict=False)]

    def _trace_cached(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        if not inputs and any(map(_is_large, step.attributes.values())):
            return self._trace_cases(step, inputs, frame, level)  # A cache entry would keep the weight alive.
        attributes = tuple(step.attributes.items())
        key = (step.operator, step.opset, step.outputs, attributes, *inputs)
        try:
            entry = _trace_cache.get(key)
        except TypeError:  # An unhashable attribute, such as a list of tensors.
            return self._rename_generated(self._trace_cases(step, inputs, frame, level))
        if entry is None:
            results = tuple(self._trace_cases(step, inputs, frame, level))
            new = _new_symbols(results, inputs)
            # A quantity read from a value has one symbol for all readers: the next node must get these very symbols.
            if new and _rank_cases(inputs) is None:
                return self._rename_generated(results)
            entry = results, new
            _trace_cache.put(key, entry, (*inputs, *results))
        results, new = entry
        return _substitute(results, {symbol: self._open_size() for symbol in sorted(new)}) if new else results

    def _apply(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        operands = [
            known if known is None or isinstance(known, Value) else self._operand(value, known, level)
            for value, known in zip(step.node.inputs, inputs, strict=True)
        ]
        attributes = attributes_in(step, frame, self._body)
        try:
            return [_storable(_abstract(result)) for result in apply_operator(step, operands, attributes)]
        except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
            # An exception of a definition on an invalid model is attributed to the node, as in a run.
            raise InvalidModelError(f"{error.__class__.__name__}: {error}", where=node_label(step.node)) from error

    def _operand(self, value: ir.Value | None, known: Type, level: int) -> Value:
        """Return the value as a traced operand of its type, distinct from every other operand."""
        if value not in self._operands:
            self._operands[value] = next(_positions)
        return function_input(level, self._operands[value], known)

    def _body(self, graph: PreparedGraph, arguments: Sequence[Value | None], parent: Frame) -> tuple[Value, ...]:
        """Infer a body and return its results as traced values of the function being traced."""
        with nested() as deeper:
            level = deeper - 1
        for value, argument in zip(graph.inputs, arguments, strict=True):
            self.known[value] = _abstract(argument)
        self._in_bodies += 1
        try:
            self.graph(graph, Frame(parent), level)
        finally:
            self._in_bodies -= 1
        results = []
        for value in graph.outputs:
            known = self.known.get(value)
            if known is None:
                raise UnsupportedError("the type of a body's output is unknown.", where=value.name or "")
            results.append(known if isinstance(known, Value) else self._operand(value, known, level))
        return tuple(results)

    def _call(self, step: Step, function: PreparedGraph, inputs: Sequence[Known], frame: Frame) -> Sequence[Known]:
        """Infer a call of a model function; facts about inner values that differ between calls are dropped."""
        attributes = {**function.defaults, **attributes_in(step, frame, self._body)}
        before = {output: self.known.get(output) for inner in function.steps for output in inner.node.outputs}
        for value in (*function.inputs, *before):
            self._operands.pop(value, None)  # Each call computes different values.
        self.known.update(zip(function.inputs, [*inputs, *[None] * len(function.inputs)], strict=False))
        with nested() as deeper:
            level = deeper - 1
        self.graph(function, Frame(None, attributes), level)
        results = [self.known.get(output) for output in function.outputs]
        for output, earlier in before.items():
            if earlier is not None and _type_of(earlier) != _type_of(self.known.get(output)):
                self.known[output] = None
        return results

    def _open_size(self) -> Dim:
        """Return a symbol for a run-time size, numbered so that repeated inference of a model hits the cache."""
        return Dim.symbol(f"{DEFINED}n{next(self._symbol_numbers)}")

    def _rename_generated(self, results: Sequence[Known]) -> Sequence[Known]:
        """Replace symbols made by Core by numbered ones, so that later nodes hit the cache.

        Symbols renamed before keep their name. In a body the symbols stay: Core identifies the body's
        definitions by these symbols.
        """
        if self._in_bodies:
            return results
        generated = [symbol for symbol in _runtime_symbols(results) if symbol[len(DEFINED) :].isdigit()]
        for symbol in sorted(generated, key=lambda symbol: (len(symbol), symbol)):
            if symbol not in self._names:
                self._names[symbol] = self._open_size()
        return _substitute(results, self._names) if generated else results

    def _join(self, a: Known, b: Known) -> Known:
        """Return the common facts of two alternatives for one value."""
        if a is b or a is None or b is None:
            return a if b is not None else None
        first, second = _type_of(a), _type_of(b)
        if not isinstance(first, TensorType) or not isinstance(second, TensorType):
            return first if first is not None and second is not None and same_type(first, second) else None
        if first.dtype != second.dtype:
            return None
        if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
            return TensorType(first.dtype, None)
        return TensorType(
            first.dtype,
            tuple(
                [x if x == y else Dim.symbol(fresh_symbol()) for x, y in zip(first.shape, second.shape, strict=True)]
            ),
        )

    def _merge_declared(self, value: ir.Value, traced: Known, is_opaque: bool) -> Known:
        """Return the traced facts about a value, completed by the declared type.

        The declared type is all that is known about a result of an opaque operator, and about a result that is no
        tensor. Else it only names sizes that depend on data, and never gives a rank or a number: exporters declare
        the sizes of one example.
        """
        declared = symbolic_type(value) if value.type is not None else None
        if declared is None:
            return traced
        if traced is None:
            if is_opaque or not isinstance(declared, TensorType):
                return self._without_clashes(declared)
            traced = TensorType(declared.dtype, None)
        inferred = _type_of(traced)
        if not isinstance(declared, TensorType) or not isinstance(inferred, TensorType):
            return traced
        if declared.dtype != inferred.dtype or _contradict(inferred, declared):
            self.conflicts.append(Conflict(value, inferred, declared))
            return traced
        if declared.shape is None or inferred.shape is None or isinstance(traced, Value):
            return traced
        named = tuple(map(self._name, inferred.shape, declared.shape))
        return traced if named == inferred.shape else TensorType(inferred.dtype, named)

    def _without_clashes(self, declared: Type) -> Type:
        """Return the declared type of an opaque result; names of computed sizes are replaced."""
        if not isinstance(declared, TensorType) or declared.shape is None:
            return declared
        sizes = [
            self._open_size() if self._declared_names.setdefault(str(size), size) != size else size
            for size in declared.shape
        ]
        return TensorType(declared.dtype, tuple(sizes))

    def _name(self, inferred: Size, declared: Size) -> Size:
        """Return the declared name of a size that depends on data, unless it is the name of another size."""
        if not isinstance(declared, Dim) or not isinstance(inferred, Dim):
            return inferred
        name = str(declared)
        if name in self._input_symbols or declared.symbols() != {name} or name.startswith((DEFINED, *UNNAMED)):
            return inferred
        if not any(symbol.startswith(DEFINED) for symbol in inferred.symbols()):
            return inferred
        return declared if self._declared_names.setdefault(name, inferred) == inferred else inferred


def infer(model: ir.Model, input_types: Mapping[str, Type] | None = None) -> Inference:
    """Infer all values of a model; the model is not changed.

    Args:
        model: The model.
        input_types: Types of graph inputs, by name, that replace the declared ones.
    """
    overrides = dict(input_types or {})
    imports = {canonical(domain): version for domain, version in model.graph.opset_imports.items()}
    with collector_paused(), tracing(), nested() as level:
        prepared = Preparer(model.functions).graph(model.graph, imports)
        initializers = set(prepared.initializers)
        inputs = [value for value in prepared.inputs if value not in initializers]
        inference = Inference({value: overrides.get(value.name or "") or symbolic_type(value) for value in inputs})
        inference.graph(prepared, Frame(None), level)
    return inference


def _contradict(inferred: TensorType, declared: TensorType) -> bool:
    a, b = inferred.shape, declared.shape
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)
    )


def _new_symbols(results: Sequence[Known], inputs: Sequence[Known]) -> frozenset[str]:
    """Return the symbols of run-time sizes that no input has."""
    symbols = _runtime_symbols(results)
    return frozenset(symbols.difference(symbols_in(tuple(map(_type_and_sizes, inputs))))) if symbols else frozenset()


def _runtime_symbols(results: Sequence[Known]) -> set[str]:
    """Return the symbols of run-time sizes."""
    return {symbol for symbol in symbols_in(tuple(map(_type_and_sizes, results))) if symbol.startswith(DEFINED)}


def _substitute(results: Sequence[Known], names: Mapping[str, Size]) -> tuple[Known, ...]:
    """Substitute symbols in facts."""

    def sizes(shape: Iterable[Size]) -> tuple[Size, ...]:
        return tuple([size if isinstance(size, int) else size.substitute(names) for size in shape])

    def rename_type(type: Type) -> Type:
        match type:
            case TensorType() if type.shape is not None:
                return TensorType(type.dtype, sizes(type.shape))
            case SequenceType() | OptionalType():
                return type._replace(element=rename_type(type.element))
        return type

    def rename(known: Known) -> Known:
        if isinstance(known, Value):
            if known.op != "dims":
                return known
            return size_tensor(sizes(known.params["sizes"]), known.params["shape"], known.params["dtype"])
        return None if known is None else rename_type(known)

    return tuple(map(rename, results))


def _type_and_sizes(known: Known) -> tuple[Any, ...]:
    return (known.type, sizes_of(known) if known.op == "dims" else ()) if isinstance(known, Value) else (known,)


def _rank_cases(inputs: Sequence[Known]) -> Iterable[Sequence[Known]] | None:
    """Return the inputs at every choice of open ranks; None without any, no cases for too many."""
    positions = [i for i, known in enumerate(inputs) if isinstance(known, TensorType) and known.shape is None]
    if not positions:
        return None
    if len(positions) > len(_ASSUMED_SIZES):
        return ()

    def with_ranks(ranks: Sequence[int]) -> Sequence[Known]:
        assumed = list(inputs)
        for position, rank, sizes in zip(positions, ranks, _ASSUMED_SIZES, strict=False):
            type = inputs[position]
            assert isinstance(type, TensorType)
            assumed[position] = TensorType(type.dtype, sizes[:rank])
        return assumed

    return map(with_ranks, itertools.product(_RANKS, repeat=len(positions)))


def _axis_cases(step: Step, inputs: Sequence[Known]) -> Iterable[Sequence[Known]] | None:
    """Return the inputs at every choice of axes computed from data; None for no such axes or too many."""
    names = step.operator.inputs if step.operator is not None else ()
    position = next((i for i, name in enumerate(names[: len(inputs)]) if name in ("axis", "axes")), None)
    type = None if position is None else inputs[position]
    if position is None or not isinstance(type, TensorType) or type.shape is None:
        return None
    shape = tuple([size for size in type.shape if isinstance(size, int)])
    count = math.prod(shape)
    rank = max(len(one.shape) for one in map(_type_of, inputs) if isinstance(one, TensorType) and one.shape is not None)
    rank += count if step.node.op_type == "Unsqueeze" else 0
    if len(shape) < len(type.shape) or count > rank or math.perm(rank, count) > _MAX_AXIS_CHOICES:
        return None
    return (
        [
            *inputs[:position],
            array_constant(np.array(axes, np.int64).reshape(shape), type.dtype, ""),
            *inputs[position + 1 :],
        ]
        for axes in itertools.permutations(range(rank), count)
    )


def require_runnable(refusals: Mapping[ir.Node, SardonyxError], graph: ir.Graph) -> None:
    """Refuse a model of which a node of the main graph does not accept its inputs.

    Raises:
        SardonyxError: The reason of the first such node.
    """
    for node, refusal in refusals.items():
        if node.graph is graph and not isinstance(refusal, UnsupportedError):
            raise type(refusal)(refusal.problem, where=node_label(node), remedy=refusal.remedy)


def _storable(known: Known) -> Known:
    """Return facts whose sizes a file can hold.

    Raises:
        SizeLimitError: a size is beyond the integers of 64 bits.
    """
    type = _type_of(known)
    if isinstance(type, TensorType) and type.shape is not None:
        for size in type.shape:
            if isinstance(size, int) and size > MAX_SIZE:
                raise SizeLimitError(f"expected sizes below 2^63, got {size}.")
    return known


def _types_by_signature(step: Step, inputs: Sequence[Known]) -> Sequence[Known]:
    """Return the result types determined by the operator's signature, for nodes not traced."""
    return () if step.signature is None else step.signature.results([_type_of(known) for known in inputs])


def _type_of(known: Known) -> Type | None:
    return known.type if isinstance(known, Value) else known


def _abstract(result: Value | None) -> Known:
    """Return the facts about a traced result: a small constant or sizes themselves, otherwise the type."""
    if result is None:
        return None
    if result.op == "dims":
        return result
    if (
        result.op == "constant"
        and isinstance(result.type, TensorType)
        and may_affect_sizes(result.type.dtype, result.known.size)
    ):
        return result
    return result.type


def _is_large(attribute: Any) -> bool:
    return isinstance(attribute, Value) and attribute.is_constant and attribute.known.size > FOLDED_ELEMENTS


def infer_node(node: ir.Node, imports: Mapping[str, int], known: Callable[[ir.Value], Known]) -> Sequence[Type | None]:
    """Return the types of one node's outputs; None for an unknown type.

    Args:
        node: The node; its bodies may not read values of an outer scope.
        imports: Versions of operator sets by domain, ``ai.onnx`` as the empty string.
        known: Returns the facts about an input.
    """
    inference = Inference({value: known(value) for value in node.inputs if value is not None})
    step = Preparer({}).step(node, imports)
    with tracing(), nested() as level:
        return [_type_of(result) for result in inference.step(step, Frame(None), level)]
