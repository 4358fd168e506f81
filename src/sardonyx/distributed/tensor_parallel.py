"""Tensor-parallel parts of a model: every way has a share of the large weights; the ways are proved against the whole.

Rules on Core (:mod:`~sardonyx.distributed.axis_rules`) state which values ways can compute from blocks of others. Ways
exchange values between stages: partial sums are added, blocks joined end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.option_checks import require_count
from sardonyx.core.dim import Dim, linear_symbol
from sardonyx.core.eval.substitution import Substitution
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.export.export import to_model
from sardonyx.core.ir.graph import CLOSED, Function, Value, functions_of, symbols_in
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.language import slice_
from sardonyx.core.transform.simplify import simplify
from sardonyx.distributed.axis_rules import RULES, divide, is_narrow, local_params, moved_axis, shape_of, shared
from sardonyx.distributed.split import require_equal
from sardonyx.distributed.tensor_plan import PARTIAL, Plan, is_tensor, plan
from sardonyx.distributed.weightward import with_free_weights, with_shares
from sardonyx.errors import EvaluationError, SardonyxError, UnsupportedError, VerificationError
from sardonyx.model.copying import copy_model
from sardonyx.model.load import DECRYPTED, Loadable, load
from sardonyx.ops.nodes import kept_calls
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.pipeline import exact_passes
from sardonyx.rewrite.verify.search import Search
from sardonyx.runtime.session import Session
from sardonyx.train.step.forward import trace_graph

_MOST_WAYS = 64
_SAMPLES = 2
"""Random inputs of the proof, of several sizes where sizes are open."""


@dataclass(frozen=True)
class Join:
    """A value that the ways exchange after a stage.

    Attributes:
        name: The name of the whole value, an input of later stages.
        part: The output of the stage that has the part of each way.
        axis: The axis along which parts are joined; None if they are added, in the order of the ways.
    """

    name: str
    part: str
    axis: int | None

    def whole(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the value of the parts of all ways."""
        if self.axis is not None:
            return np.concatenate(parts, self.axis)
        total = parts[0]
        with np.errstate(all="ignore"):  # As engines add: infinities and NaN are values.
            for part in parts[1:]:
                total = total + part
        return total


@dataclass(frozen=True)
class Stage:
    """The models between two exchanges.

    Attributes:
        models: The model of each way. An input is one of the whole, an output of the same way in an earlier stage, or a
            joined value.
        joins: The values that are exchanged afterwards.
    """

    models: tuple[ir.Model, ...]
    joins: tuple[Join, ...]


@dataclass(frozen=True)
class TensorParallel:
    """A model as equal parts that compute each request together.

    Attributes:
        ways: The number of parts.
        stages: The models, in order.
        inputs: Names of the inputs of the whole.
        outputs: Names of the outputs of the whole, and the name of each among inputs, outputs and joined values.
        weight_bytes: Bytes of weights of each way.
        error: Largest difference from the whole that the proof measured, relative to an output's largest magnitude.
    """

    ways: int
    stages: tuple[Stage, ...]
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    weight_bytes: tuple[int, ...]
    error: float

    def sessions(self, way: int, **options: Any) -> list[Session]:
        """Return the sessions of the stages of a way; see :class:`.Session` for the options."""
        return [Session(stage.models[way], **options) for stage in self.stages]


class Way:
    """One way during a request: its sessions, and the values that it has."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions
        self._values: dict[str, Any] = {}

    def start(self, feeds: Mapping[str, Any]) -> None:
        """Begin a request."""
        self._values = dict(feeds)

    def run(self, stage: int) -> dict[str, Any]:
        """Compute a stage, and return its outputs."""
        session = self._sessions[stage]
        names = [info.name for info in session.get_outputs()]
        results = session.run(names, {info.name: self._values[info.name] for info in session.get_inputs()})
        outputs = dict(zip(names, results, strict=True))
        self._values.update(outputs)
        return outputs

    def join(self, joins: Sequence[Join], parts: Sequence[Mapping[str, Any]]) -> None:
        """Take over the parts of all ways."""
        for one in joins:
            self._values[one.name] = one.whole([values[one.part] for values in parts])

    def results(self, outputs: Mapping[str, str]) -> list[Any]:
        """Return the outputs of the request."""
        return [self._values[name] for name in outputs.values()]


def run_ways(parallel: TensorParallel, ways: Sequence[Way], feeds: Mapping[str, Any]) -> list[Any]:
    """Run all ways in this process, one after another, and return the outputs of the whole."""
    for way in ways:
        way.start(feeds)
    for number, stage in enumerate(parallel.stages):
        parts = [way.run(number) for way in ways]
        for way in ways:
            way.join(stage.joins, parts)
    return ways[0].results(parallel.outputs)


def split_tensors(model: Loadable, ways: int) -> TensorParallel:
    """Split the large products of a model into equal parts, which compute each request together.

    Args:
        model: The model.
        ways: The number of parts: e.g. of processes, machines or sockets.

    Returns:
        The parts. Equal inputs give outputs within 1e-5 of those of the whole on seeded random inputs.

    Raises:
        OptionError: The number of ways is not from 2 to 64.
        UnsupportedError: No product has weights that the rules divide, a divided product has floats of fewer than 32
            bits, random numbers are drawn, a size or a value is computed from data by a function without rules, or two
            stages would exchange other values than tensors.
        VerificationError: The parts compute other outputs, or the model runs on none of the random inputs.

    Example:
        >>> parallel = sardonyx.split_tensors("model.onnx", 2)
        >>> ways = [Way(parallel.sessions(way)) for way in range(2)]
        >>> outputs = run_ways(parallel, ways, {"x": x})
    """
    require_count(ways, "ways", least=2, limit=_MOST_WAYS + 1)
    ways = int(ways)
    whole = load(model)
    optimized = optimize(whole, target="native", passes=exact_passes(), verify=False).model
    with kept_calls(()):
        function = with_free_weights(simplify(trace_graph(optimized)))
        function = with_shares(function, ways)
    _require_rules(function)
    layout = plan(function, ways)
    if not layout.divided_products:
        raise UnsupportedError(
            f"no product has weights that {ways} ways can share.",
            where="split",
            remedy="Choose ways that divide columns, heads or filters. Products of few weights stay whole.",
        )
    _require_wide(layout)
    inputs = tuple(str(value.name) for value in optimized.graph.inputs)
    parts = _Parts(layout, inputs)
    stages = tuple(parts.stage(number) for number in range(parts.count))
    if DECRYPTED in whole.meta:
        for stage in stages:
            for part in stage.models:
                part.meta[DECRYPTED] = whole.meta[DECRYPTED]
    names = [str(value.name) for value in optimized.graph.outputs]
    outputs = dict(zip(names, map(parts.result_name, function.results), strict=True))
    weights = tuple(sum(_weight_bytes(stage.models[way]) for stage in stages) for way in range(ways))
    unproved = TensorParallel(ways, stages, inputs, outputs, weights, 0.0)
    return replace(unproved, error=_proof(whole, unproved))


def _require_rules(function: Function) -> None:
    """Refuse values that ways would compute unlike each other, and sizes that a stage cannot know.

    Raises:
        UnsupportedError: There is such a value.
    """
    waiting = [function]
    while waiting:
        for value in waiting.pop().values:
            if value.op == "random":
                raise UnsupportedError("every way would draw other random numbers.", where=value.origin or "split")
            waiting += functions_of(value)
    for value in function.values:
        if value.op in ("host", "bind"):
            problem = "a size or a value is computed from data by a function without rules."
            raise UnsupportedError(problem, where=value.origin or "split")


def _require_wide(layout: Plan) -> None:
    """Refuse divided products of narrow floats: a sum in another order rounds to another number of 16 bits.

    Raises:
        UnsupportedError: There is such a product.
    """
    for value in layout.divided_products:
        if is_narrow(value):
            assert isinstance(value.type, TensorType)
            raise UnsupportedError(
                f"a product in {value.type.dtype.name.lower()} has no parts that are equal within 1e-5.",
                where=value.origin or "split",
                remedy="Split the model in float32.",
            )


def _weight_bytes(model: ir.Model) -> int:
    tensors = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _proof(whole: ir.Model, parallel: TensorParallel) -> float:
    """Return the largest relative difference of the ways from the whole on seeded random inputs."""
    session = Session(whole, compile="wait")
    names = list(parallel.outputs)

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(zip(names, session.run(names, feeds), strict=True))
        except SardonyxError as error:
            raise EvaluationError(error.problem, where=error.where) from error

    annotated = copy_model(whole)
    infer_shapes(annotated, strict=False)
    search = Search(annotated, run, seed=0, count=_SAMPLES)
    samples = search.samples() or search.uninformative
    if not samples:
        raise VerificationError("the model runs on none of the random inputs.", where="split")
    ways = [Way(parallel.sessions(way, compile="wait")) for way in range(parallel.ways)]
    return max(
        require_equal(names, [sample.answers[name] for name in names], run_ways(parallel, ways, sample.feeds))
        for sample in samples
    )


class _Parts:
    """The models of a plan.

    Attributes:
        count: The number of stages.
    """

    def __init__(self, layout: Plan, inputs: Sequence[str]) -> None:
        self.plan = layout
        function = layout.function
        self._names = dict(zip(function.inputs, inputs, strict=True))
        prefix = "value_"
        while any(name.startswith(prefix) for name in inputs):
            prefix = f"_{prefix}"
        for number, value in enumerate(value for value in function.values if value not in self._names):
            self._names[value] = f"{prefix}{number}"
        self.count = 1 + max(layout.stage[value] for value in function.values)
        self._reads: list[dict[tuple[Value, bool], None]] = [{} for _ in range(self.count)]
        """The values of earlier stages that each stage reads, and True for those that are joined."""
        self._joined: dict[Value, None] = {}
        self._stored: dict[Value, None] = {}
        for value in function.values:
            if value not in function.inputs and value.level != CLOSED:
                for operand, needed in zip(value.operands, layout.operands[value], strict=True):
                    self._read(layout.stage[value], operand, layout.is_joined(operand, needed))
        for value in function.results:
            joined = layout.is_joined(value, None)
            (self._joined if joined else self._stored)[value] = None

    def _read(self, stage: int, value: Value, joined: bool) -> None:
        if value.level == CLOSED:
            return
        if joined or value in self.plan.function.inputs or self.plan.stage[value] < stage:
            self._reads[stage][value, joined] = None
            if joined:
                self._joined[value] = None
            elif value not in self.plan.function.inputs:
                self._stored[value] = None

    def result_name(self, value: Value) -> str:
        """Return the name of a result of the function among the values of a way."""
        return self._name(value, self.plan.is_joined(value, None))

    def _name(self, value: Value, joined: bool) -> str:
        return f"{self._names[value]}_joined" if joined else self._names[value]

    def stage(self, number: int) -> Stage:
        """Return the models and the exchange of a stage."""
        own = [
            value for value in self.plan.function.values
            if self.plan.stage[value] == number and value not in self.plan.function.inputs
        ]  # fmt: skip
        outputs = [value for value in own if value in self._joined or value in self._stored]
        for value in outputs:
            if not is_tensor(value):
                raise UnsupportedError(
                    f"expected tensors between two stages, got a value of {value.type}.", where=value.origin or "split"
                )
        joins = tuple(self._join(value) for value in outputs if value in self._joined)
        models = tuple(self._model(number, way, own, outputs) for way in range(self.plan.ways))
        return Stage(models, joins)

    def _join(self, value: Value) -> Join:
        axis = self.plan.axis[value]
        return Join(self._name(value, True), self._names[value], None if axis == PARTIAL else axis)

    def _model(self, number: int, way: int, own: Sequence[Value], outputs: Sequence[Value]) -> ir.Model:
        reads = list(self._reads[number])
        types = [self._type(value, joined) for value, joined in reads]
        bound = {
            linear[0] for value, _ in reads for size in shape_of(value)
            if isinstance(size, Dim) and (linear := linear_symbol(size)) is not None
        }  # fmt: skip
        needed = set(symbols_in(tuple((value.params, value.type) for value in own))) - bound
        for value in self.plan.function.inputs:
            if needed & set(symbols_in(value.type)) and (value, False) not in reads:
                reads.append((value, False))
                types.append(value.type)

        def body(*inputs: Value) -> list[Value]:
            local = _Local(self.plan, way, dict(zip(reads, inputs, strict=True)))
            for value in own:
                local.compute(value)
            return [local.stored(value) for value in outputs]

        traced = simplify(trace(f"stage_{number}_way_{way}", body, types))
        return to_model(
            traced, input_names=[self._name(*read) for read in reads], output_names=[self._names[v] for v in outputs]
        )

    def _type(self, value: Value, joined: bool) -> Type:
        axis = self.plan.axis[value]
        if joined or axis is None or axis == PARTIAL or not isinstance(value.type, TensorType):
            return value.type
        return TensorType(value.type.dtype, shared(shape_of(value), axis, self.plan.ways))


class _Local:
    """The values of one way in one stage.

    Args:
        layout: The plan.
        way: The way.
        read_values: The values of earlier stages; True for joined ones.
    """

    def __init__(self, layout: Plan, way: int, read_values: Mapping[tuple[Value, bool], Value]) -> None:
        self.plan, self.way = layout, way
        self._read_values = read_values
        self._own: dict[Value, Value] = {}
        self._blocks: dict[tuple[Value, int], Value] = {}

    def compute(self, value: Value) -> None:
        """Compute a value of the stage from those before."""
        needed, axis = self.plan.operands[value], self.plan.axis[value]
        operands = [self.operand(one, need) for one, need in zip(value.operands, needed, strict=True)]
        if axis is None:
            whole = Substitution(dict(zip(value.operands, operands, strict=True)), {}, _level(operands), lambda _: True)
            self._own[value] = value if value.level == CLOSED else whole.rebuild(value)
        else:
            params = local_params(value, None if axis == PARTIAL else axis, self.plan.ways)
            self._own[value] = apply(value.op, *operands, **params)

    def stored(self, value: Value) -> Value:
        """Return a computed value as it is: whole, a block or a part of a sum."""
        return self._own[value]

    def operand(self, value: Value, axis: int | None) -> Value:
        """Return a value as it is needed: whole, or the block of this way along an axis."""
        if value.level == CLOSED:
            return value if axis is None else self.block(value, axis)
        joined = self.plan.is_joined(value, axis)
        present = self._read_values.get((value, joined)) if joined or value not in self._own else self._own[value]
        assert present is not None
        is_whole = joined or self.plan.axis[value] is None
        return present if axis is None or not is_whole else self._cut(present, axis)

    def _cut(self, value: Value, axis: int) -> Value:
        share = shared(shape_of(value), axis, self.plan.ways)[axis]
        assert isinstance(value, Tensor) and isinstance(share, int)
        return slice_(value, axis, self.way * share, (self.way + 1) * share)

    def block(self, value: Value, axis: int) -> Value:
        """Return the block of a value of constants and sizes; constants are cut, not the result at run time."""
        key = value, axis
        if key not in self._blocks:
            self._blocks[key] = self._divided(value, axis)
        return self._blocks[key]

    def _divided(self, value: Value, axis: int) -> Value:
        ways = self.plan.ways
        if value.is_constant:
            share = value.known.shape[axis] // ways
            index = (slice(None),) * axis + (slice(self.way * share, (self.way + 1) * share),)
            return constant(np.ascontiguousarray(value.known[index]), value.type.dtype)  # type: ignore[union-attr]
        if value.op == "broadcast" and shape_of(value.operands[0])[axis] == 1:
            return apply("broadcast", value.operands[0], **local_params(value, axis, ways))
        source = _source_axis(value, axis, ways)
        if source is not None:
            division = divide(value, source, ways)
            if division is not None and division.axis == axis:
                operands = [
                    one if need is None else self.block(one, need)
                    for one, need in zip(value.operands, division.operands, strict=True)
                ]
                return apply(value.op, *operands, **local_params(value, axis, ways))
        return self._cut(value, axis)


def _source_axis(value: Value, axis: int, ways: int) -> tuple[int | None, ...] | None:
    """Return axes of the operands whose division may divide a result along an axis."""
    if value.op not in RULES or not value.operands:
        return None
    if value.op == "permute":
        return (value.params["axes"][axis],)
    if value.op == "reshape":
        source = moved_axis(shape_of(value), axis, shape_of(value.operands[0]), ways)
        return None if source is None else (source,)
    if all(shape_of(operand) == shape_of(value) for operand in value.operands):
        return (axis,) * len(value.operands)
    return None


def _level(values: Sequence[Value]) -> int:
    return max((value.level for value in values), default=CLOSED)
