"""Types and sizes of every value of a model, by tracing its operators on types.

A node is traced once for each combination of what is known of its inputs: their types, and the elements of small
integer tensors (so that shape arithmetic stays an expression). What the file claims of a value is used where tracing
cannot tell; where the two contradict each other, tracing is right and the conflict is kept.

Core knows every rank and every axis, and a model may not: where the branches of an ``If`` give tensors of different
rank, what comes after is traced at every rank, and where axes are computed from data at every choice of them; what
holds in all cases that the operator takes is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.core.dim import Dim, Size, as_dim, equal
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.tensor import FOLDED_ELEMENTS, function_input, size_tensor, sizes_of
from sardonyx.core.eval.trace import nested
from sardonyx.core.ir.graph import DEFINED, Value, fresh_symbol, symbols_in
from sardonyx.core.ir.types import DType, OptionalType, SequenceType, TensorType, Type, is_float
from sardonyx.core.rules.type_rules import same_type
from sardonyx.errors import (
    InvalidModelError,
    ModelFileError,
    NeedsValueError,
    SardonyxError,
    ShapeError,
    UnsupportedError,
)
from sardonyx.ops.graph import (
    Frame,
    PreparedGraph,
    Preparer,
    Step,
    apply_operator,
    array_constant,
    attributes_in,
    core_type,
    node_label,
    tensor_constant,
)
from sardonyx.ops.registry import canonical

UNNAMED = ("?", "unk__")
"""How names begin that inference, here or elsewhere, gives to sizes that nothing tells."""

Known: TypeAlias = "Value | Type | None"
"""What is known of a value: itself (a small constant, sizes), its type, or nothing."""

_positions = itertools.count(1 << 16)
"""Positions of traced operands: apart from those of a body's inputs, and one for each value of a model.

What a definition reads off an operand at run time (a size) is thereby told apart from what it reads off another.
"""
_REMEMBERED = 1 << 15

_FEW = 16
"""Most floats that are looked at: eight scales of a ``Resize`` and as many again."""

_RANKS = range(7)
"""Ranks at which a node is traced where that of an input is open."""
_MOST_CHOICES = 64
"""Most choices of axes that are tried."""

_ASSUMED = tuple(tuple(Dim.symbol(f"{DEFINED}{mark}{axis}") for axis in _RANKS) for mark in "ab")
"""Sizes of inputs of open rank: of as many inputs as are tried at all ranks."""

_traced: dict[tuple[Any, ...], tuple[tuple[Known, ...], frozenset[str]]] = {}
"""Results of nodes, and the sizes in them that only the run tells, by operator, attributes and what was known of the
inputs; shared by all models."""


class Conflict(NamedTuple):
    """A value whose type the file claims otherwise than its node gives it."""

    value: ir.Value
    inferred: Type
    claimed: Type

    def error(self) -> ShapeError:
        """The conflict as an error that names both places."""
        producer = self.value.producer()
        place = node_label(producer) if producer is not None else "the graph's inputs"
        return ShapeError(
            f"{place} gives {self.inferred}, and the file declares {self.claimed}.",
            where=f"value {self.value.name}",
            remedy="Correct the declaration, or leave it out.",
        )


class Inference:
    """What is known of values: made by :func:`infer`.

    Attributes:
        known: What is known of each value, by the value.
        conflicts: Claims of the file that are wrong.
        refusals: Nodes that could not be traced, with the reason.
    """

    def __init__(self, known: dict[ir.Value, Known]) -> None:
        self.known = known
        self.conflicts: list[Conflict] = []
        self.refusals: dict[ir.Node, SardonyxError] = {}
        self._operands: dict[ir.Value | None, int] = {}
        self._opened = itertools.count()
        self._names: dict[str, Size] = {}
        self._in_bodies = 0

    def type(self, value: ir.Value) -> Type | None:
        """The type of a value; None where it is not known."""
        found = self.known.get(value)
        return found.type if isinstance(found, Value) else found

    def sizes(self, value: ir.Value) -> tuple[Size, ...] | None:
        """The elements of a small integer tensor, where they are numbers or expressions; else None."""
        found = self.known.get(value)
        return sizes_of(found) if isinstance(found, Value) else None

    def require_consistency(self, graph: ir.Graph) -> None:
        """Refuse a model that contradicts itself.

        Args:
            graph: The main graph. What a node in a body refuses is no fault: the body may be one that never runs.

        Raises:
            ShapeError: The file declares a value otherwise than its node gives it.
            SardonyxError: A node of the main graph does not take its inputs.
        """
        for conflict in self.conflicts:
            raise conflict.error()
        for node, refusal in self.refusals.items():
            if node.graph is graph and not isinstance(refusal, UnsupportedError):
                raise type(refusal)(refusal.problem, where=node_label(node), remedy=refusal.remedy)

    def graph(self, graph: PreparedGraph, frame: Frame, level: int) -> None:
        """Infer all values of a graph whose inputs are known, while tracing at ``level``."""
        for value in graph.initializers:
            if value not in self.known:
                self.known[value] = initial(value)
        for step in graph.steps:
            results = self.step(step, frame, level)
            for position, output in enumerate(step.node.outputs):
                if output.name:
                    found = results[position] if position < len(results) else None
                    self.known[output] = self._merged(output, found)

    def step(self, step: Step, frame: Frame, level: int) -> Sequence[Known]:
        """What is known of a node's outputs; where it cannot be traced, what the standard says of their types."""
        if step.operator is None and step.function is None:
            return ()
        given = step.node.inputs
        known = self.known
        inputs = [None if value is None else known.get(value) for value in given]
        missing = None in inputs and any(
            value is not None and found is None for value, found in zip(given, inputs, strict=True)
        )
        try:
            if "then_branch" in step.bodies and not step.node.domain:
                return self._named_alike(self._branches(step, inputs[0], frame))
            if missing:
                return _types_by_signature(step, inputs)
            if step.function is not None:
                return self._call(step, step.function, inputs, frame)
            if step.bodies or step.references:
                return self._named_alike(self._apply(step, inputs, frame, level))
            return self._remembered(step, inputs, frame, level)
        except SardonyxError as error:
            self.refusals[step.node] = error
            return _types_by_signature(step, inputs)

    def _traced(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        cases = _ranks(inputs)
        try:
            if cases is None:
                return self._apply(step, inputs, frame, level)
            return self._in_all(step, inputs, cases, frame, level)
        except NeedsValueError:
            cases = _axes(step, inputs)
            if cases is None:
                raise
            return self._in_all(step, inputs, cases, frame, level)

    def _in_all(
        self, step: Step, inputs: Sequence[Known], cases: Iterable[Sequence[Known]], frame: Frame, level: int
    ) -> Sequence[Known]:
        """What holds in every case that the operator takes; a case is what may be assumed of the inputs."""
        found: Sequence[Known] | None = None
        refusal: SardonyxError | None = None
        for assumed in cases:
            try:
                results = self._apply(step, assumed, frame, level)
            except UnsupportedError:
                results = _types_by_signature(step, inputs)
            except SardonyxError as error:
                refusal = error
                continue
            found = results if found is None else [self._joined(a, b) for a, b in zip(found, results, strict=False)]
        if found is None:
            raise refusal or UnsupportedError("too many ranks or axes are open.", where=node_label(step.node))
        return found

    def _branches(self, step: Step, condition: Known, frame: Frame) -> Sequence[Known]:
        """What both branches of an ``If`` give, or the one that its condition chooses; they may differ in rank."""
        found = []
        for name in ("then_branch", "else_branch"):
            graph = step.bodies[name]
            assert isinstance(graph, PreparedGraph)
            with nested() as deeper:
                self.graph(graph, Frame(frame), deeper - 1)
            found.append([self.known.get(value) for value in graph.outputs])
        if isinstance(condition, Value) and condition.is_constant:
            return found[0 if condition.known.all() else 1]
        return [self._joined(a, b) for a, b in zip(*found, strict=False)]

    def _remembered(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        if not inputs and any(map(_is_large, step.attributes.values())):
            return self._traced(step, inputs, frame, level)  # What remembers a weight holds it.
        attributes = tuple(step.attributes.items())
        key = (step.operator, step.opset, step.outputs, attributes, *inputs)
        try:
            found = _traced.get(key)
        except TypeError:  # An attribute that has no hash, such as a list of tensors.
            return self._named_alike(self._traced(step, inputs, frame, level))
        if found is None:
            results = tuple(self._traced(step, inputs, frame, level))
            new = _new_symbols(results, inputs)
            # What is read off a value is the same whoever reads it: the next node is to find these very symbols.
            if new and _ranks(inputs) is None:
                return self._named_alike(results)
            if len(_traced) >= _REMEMBERED:
                _traced.clear()
            found = _traced[key] = results, new
        results, new = found
        return _renamed(results, {symbol: self._open_size() for symbol in sorted(new)}) if new else results

    def _apply(self, step: Step, inputs: Sequence[Known], frame: Frame, level: int) -> Sequence[Known]:
        operands = [
            known if known is None or isinstance(known, Value) else self._operand(value, known, level)
            for value, known in zip(step.node.inputs, inputs, strict=True)
        ]
        attributes = attributes_in(step, frame, self._body)
        try:
            return [_abstract(result) for result in apply_operator(step, operands, attributes)]
        except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
            # What a definition trips over in a model that is wrong is told of the node, as in a run.
            raise InvalidModelError(f"{error.__class__.__name__}: {error}", where=node_label(step.node)) from error

    def _operand(self, value: ir.Value | None, known: Type, level: int) -> Value:
        """The value as a traced operand: of its type, and like no other."""
        if value not in self._operands:
            self._operands[value] = next(_positions)
        return function_input(level, self._operands[value], known)

    def _body(self, graph: PreparedGraph, arguments: Sequence[Value | None], around: Frame) -> tuple[Value, ...]:
        """Call a body: what it gives, as traced values of the function that is being traced."""
        with nested() as deeper:
            level = deeper - 1
        for value, argument in zip(graph.inputs, arguments, strict=True):
            self.known[value] = _abstract(argument)
        self._in_bodies += 1
        try:
            self.graph(graph, Frame(around), level)
        finally:
            self._in_bodies -= 1
        results = []
        for value in graph.outputs:
            known = self.known.get(value)
            if known is None:
                raise UnsupportedError("the type of a body's output is not known.", where=value.name or "")
            results.append(known if isinstance(known, Value) else self._operand(value, known, level))
        return tuple(results)

    def _call(self, step: Step, function: PreparedGraph, inputs: Sequence[Known], frame: Frame) -> Sequence[Known]:
        """Call a function of the model. Its values are told apart by call; what stays is what the last one gave."""
        attributes = {**function.defaults, **attributes_in(step, frame, self._body)}
        before = {output: self.known.get(output) for each in function.steps for output in each.node.outputs}
        for value in (*function.inputs, *before):
            self._operands.pop(value, None)  # In every call they are other values.
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
        """A size that only the run tells; named alike each time that a model is inferred, so that it is remembered."""
        return Dim.symbol(f"{DEFINED}n{next(self._opened)}")

    def _named_alike(self, found: Sequence[Known]) -> Sequence[Known]:
        """The same with such names for the symbols that Core made up, so that what comes after is remembered too.

        What was read off a value before keeps its name. In a body, Core tells what is defined there by its own names.
        """
        if self._in_bodies:
            return found
        made_up = [symbol for symbol in _spoken(found) if symbol[len(DEFINED) :].isdigit()]
        for symbol in sorted(made_up, key=lambda symbol: (len(symbol), symbol)):
            if symbol not in self._names:
                self._names[symbol] = self._open_size()
        return _renamed(found, self._names) if made_up else found

    def _joined(self, a: Known, b: Known) -> Known:
        """What is known of a value that is one of two."""
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

    def _merged(self, value: ir.Value, found: Known) -> Known:
        """What tracing found, completed by what the file claims."""
        claimed = claimed_type(value) if value.type is not None else None
        if found is None or claimed is None:
            return found if found is not None else claimed
        inferred = _type_of(found)
        assert inferred is not None
        if not isinstance(claimed, TensorType) or not isinstance(inferred, TensorType):
            return found
        if inferred.shape is None:
            return claimed if claimed.dtype == inferred.dtype else found
        if claimed.dtype != inferred.dtype or (claimed.shape is not None and _contradict(inferred, claimed)):
            self.conflicts.append(Conflict(value, inferred, claimed))
            return found
        if claimed.shape is None or isinstance(found, Value):
            return found
        sizes = tuple(map(_more_telling, inferred.shape, claimed.shape))
        return found if sizes == inferred.shape else TensorType(inferred.dtype, sizes)


def infer(model: ir.Model, input_types: Mapping[str, Type] | None = None) -> Inference:
    """Infer all values of a model, which is not changed.

    Args:
        model: The model.
        input_types: Types to take for graph inputs in place of those declared, by name.
    """
    given = dict(input_types or {})
    imports = {canonical(domain): version for domain, version in model.graph.opset_imports.items()}
    with collector_paused(), tracing(), nested() as level:
        prepared = Preparer(model.functions).graph(model.graph, imports)
        initializers = set(prepared.initializers)
        inputs = [value for value in prepared.inputs if value not in initializers]
        found = Inference({value: given.get(value.name or "") or claimed_type(value) for value in inputs})
        found.graph(prepared, Frame(None), level)
    return found


def _contradict(inferred: TensorType, claimed: TensorType) -> bool:
    a, b = inferred.shape or (), claimed.shape or ()
    return len(a) != len(b) or any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)
    )


def _more_telling(inferred: Size, claimed: Size) -> Size:
    """A claim is taken for a size that only the run tells."""
    if not isinstance(inferred, Dim) or not any(name.startswith(DEFINED) for name in inferred.symbols()):
        return inferred
    if isinstance(claimed, Dim) and any(name.startswith((DEFINED, *UNNAMED)) for name in claimed.symbols()):
        return inferred
    return inferred if equal(inferred, claimed) is False else claimed


def _new_symbols(found: Sequence[Known], inputs: Sequence[Known]) -> frozenset[str]:
    """The symbols of sizes that only the run tells, and that none of the inputs has."""
    spoken = _spoken(found)
    return frozenset(spoken.difference(symbols_in(tuple(map(_type_and_sizes, inputs))))) if spoken else frozenset()


def _spoken(found: Sequence[Known]) -> set[str]:
    """The symbols of sizes that only the run tells."""
    return {symbol for symbol in symbols_in(tuple(map(_type_and_sizes, found))) if symbol.startswith(DEFINED)}


def _renamed(found: Sequence[Known], names: Mapping[str, Size]) -> tuple[Known, ...]:
    """The same with other symbols in place of these."""

    def sizes(shape: Iterable[Size]) -> tuple[Size, ...]:
        return tuple([size if isinstance(size, int) else size.substitute(names) for size in shape])

    def renamed(type: Type) -> Type:
        match type:
            case TensorType() if type.shape is not None:
                return TensorType(type.dtype, sizes(type.shape))
            case SequenceType() | OptionalType():
                return type._replace(element=renamed(type.element))
        return type

    def each(known: Known) -> Known:
        if isinstance(known, Value):
            if known.op != "dims":
                return known
            return size_tensor(sizes(known.params["sizes"]), known.params["shape"], known.params["dtype"])
        return None if known is None else renamed(known)

    return tuple(map(each, found))


def _type_and_sizes(known: Known) -> tuple[Any, ...]:
    return (known.type, sizes_of(known) if known.op == "dims" else ()) if isinstance(known, Value) else (known,)


def _ranks(inputs: Sequence[Known]) -> Iterable[Sequence[Known]] | None:
    """The inputs with every rank of those that leave it open; no cases where these are too many, None without any."""
    positions = [i for i, known in enumerate(inputs) if isinstance(known, TensorType) and known.shape is None]
    if not positions:
        return None
    if len(positions) > len(_ASSUMED):
        return ()

    def with_ranks(ranks: Sequence[int]) -> Sequence[Known]:
        assumed = list(inputs)
        for position, rank, sizes in zip(positions, ranks, _ASSUMED, strict=False):
            type = inputs[position]
            assert isinstance(type, TensorType)
            assumed[position] = TensorType(type.dtype, sizes[:rank])
        return assumed

    return map(with_ranks, itertools.product(_RANKS, repeat=len(positions)))


def _axes(step: Step, inputs: Sequence[Known]) -> Iterable[Sequence[Known]] | None:
    """The inputs with every choice of axes that are computed from data; None where there are none, or too many."""
    names = step.operator.inputs if step.operator is not None else ()
    position = next((i for i, name in enumerate(names[: len(inputs)]) if name in ("axis", "axes")), None)
    type = None if position is None else inputs[position]
    if position is None or not isinstance(type, TensorType) or type.shape is None:
        return None
    shape = tuple([size for size in type.shape if isinstance(size, int)])
    count = math.prod(shape)
    rank = max(len(one.shape) for one in map(_type_of, inputs) if isinstance(one, TensorType) and one.shape is not None)
    rank += count if step.node.op_type == "Unsqueeze" else 0
    if len(shape) < len(type.shape) or math.perm(rank, count) > _MOST_CHOICES:
        return None
    return (
        [
            *inputs[:position],
            array_constant(np.array(axes, np.int64).reshape(shape), type.dtype, ""),
            *inputs[position + 1 :],
        ]
        for axes in itertools.permutations(range(rank), count)
    )


def _types_by_signature(step: Step, inputs: Sequence[Known]) -> Sequence[Known]:
    """The element types that the standard gives the results, where tracing needs to know more than there is."""
    return () if step.signature is None else step.signature.results([_type_of(known) for known in inputs])


def _type_of(known: Known) -> Type | None:
    return known.type if isinstance(known, Value) else known


def _abstract(result: Value | None) -> Known:
    """What to keep of a traced result: a small constant or sizes as they are, and of the rest the type."""
    if result is None:
        return None
    if result.op == "dims":
        return result
    if (
        result.op == "constant"
        and isinstance(result.type, TensorType)
        and _may_tell(result.type.dtype, result.known.size)
    ):
        return result
    return result.type


def _may_tell(dtype: DType, elements: int) -> bool:
    """Whether a constant may matter to sizes: so do integers, and few floats, as the scales of a ``Resize``."""
    return elements <= (_FEW if is_float(dtype) else FOLDED_ELEMENTS)


_LAYERS = frozenset(
    {
        "BatchNormalization", "Conv", "ConvTranspose", "GRU", "Gemm", "GroupNormalization", "InstanceNormalization",
        "LSTM", "LayerNormalization", "PRelu", "RMSNormalization", "RNN",
    }
)  # fmt: skip
"""Operators whose floats but for the first input are weights, be they as few as they may."""


def _is_of_layers(value: ir.Value) -> bool:
    """Whether a value is read as a weight of layers alone."""
    uses = value.uses()
    return bool(uses) and all(use.idx > 0 and use.node.op_type in _LAYERS for use in uses)


def _is_large(attribute: Any) -> bool:
    return isinstance(attribute, Value) and attribute.is_constant and attribute.known.size > FOLDED_ELEMENTS


def initial(value: ir.Value) -> Known:
    """What is known of an initializer: itself where it may matter to sizes, else its type; no weights are read."""
    tensor = value.const_value
    if tensor is None:
        return claimed_type(value)
    shape = tuple(tensor.shape.numpy())
    dtype = tensor.dtype
    if _may_tell(dtype, math.prod(shape)) and not (is_float(dtype) and _is_of_layers(value)):
        try:
            return tensor_constant(tensor)
        except ModelFileError:
            pass  # Its contents were taken out of the model, or lie in a file that is not here: the type is known.
    return TensorType(dtype, shape)


def claimed_type(value: ir.Value) -> Type | None:
    """The type that the file declares, with a name of its own for every size that is left open."""
    if value.type is None:
        return None
    if not isinstance(value.type, ir.TensorType):
        return core_type(value.type, value.shape)
    if value.shape is None:
        return TensorType(value.type.dtype, None)
    sizes: list[Size] = []
    for axis, size in enumerate(value.shape):
        known = size if isinstance(size, int) else as_dim(size.value) if size.value else -1
        # Some exporters write -1 for a size that is open.
        sizes.append(Dim.symbol(f"?{value.name}.{axis}") if isinstance(known, int) and known < 0 else known)
    return TensorType(value.type.dtype, tuple(sizes))


def infer_node(node: ir.Node, imports: Mapping[str, int], known: Callable[[ir.Value], Known]) -> Sequence[Type | None]:
    """The types of one node's outputs; None for those that cannot be told.

    Args:
        node: The node; its bodies may not read values from around them.
        imports: Versions of operator sets by domain, ``ai.onnx`` as the empty text.
        known: What is known of each of its inputs.
    """
    found = Inference({value: known(value) for value in node.inputs if value is not None})
    step = Preparer({}).step(node, imports)
    with tracing(), nested() as level:
        return [_type_of(each) for each in found.step(step, Frame(None), level)]
