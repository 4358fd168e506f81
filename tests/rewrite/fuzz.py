"""Random graphs around the patterns of rules, and the law they must keep: outputs stay equal.

A generator is a function of a ``GraphMaker``; it builds a small graph that a rule matches, or
nearly matches, and registers under the rule's label::

    @generator("eliminate_nop_transpose")
    def transposes(g: GraphMaker) -> None:
        x = g.input(g.shape(rank=g.int(0, 4)))
        g.output(g.node("Transpose", x, perm=g.maybe(g.permutation(g.rank(x)))))

``check(label, make, seed)`` builds the graph, optimizes a copy with that pass alone and one with all
default passes together, and compares outputs on inputs that hold NaN, infinities, −0.0 and zeros; where
sizes of inputs are open, at other sizes as well.

``check_composed(makes, seed)`` puts several generators' graphs into one model, the later reading what
the earlier put out, and asks the same of the default passes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sardonyx import Session
from sardonyx import model as model_io
from sardonyx.errors import EvaluationError, InvalidModelError, SardonyxError
from sardonyx.rewrite import evaluate, pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT
from sardonyx.rewrite.rewrite_context import Settings
from tests.random_cases import cases

Generator = Callable[["GraphMaker"], None]
GENERATORS: dict[str, list[Generator]] = {}


class Unsuitable(Exception):
    """Raised by a generator for a draw that makes no legal graph: another seed is taken."""


def generator(*labels: str) -> Callable[[Generator], Generator]:
    """Register a generator for passes (``"eliminate_nop_cast"``) or single rules (``"pass/rule"``)."""

    def register(function: Generator) -> Generator:
        for label in labels:
            GENERATORS.setdefault(label, []).append(function)
        return function

    return register


class GraphMaker:
    """Builds one random model; every choice comes from ``rng``, so a seed names a graph."""

    def __init__(self, seed: int, opset: int | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset or int(self.rng.choice([13, 17, 18, 21]))
        self.special = bool(self.rng.random() < 0.4)
        """Whether inputs hold NaN, infinities and −0.0."""
        self.nan = True
        """Whether those special inputs may be NaN: off where a rule says that it keeps NaN in another place."""
        self.least = 1
        """The least that an open size becomes at other sizes; below, engines answer where operators are undefined."""
        self.empty = True
        """True if an open size becomes 0 too; ONNX Runtime refuses some empty axes, and not others."""
        self.domains: dict[str, int] = {}
        self.producer = ""
        self.functions: list[onnx.FunctionProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._feeds: dict[str, np.ndarray] = {}
        self._declared: dict[str, tuple[int | str | None, ...]] = {}
        self._named: dict[str, int] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._outputs: list[str] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._count = 0

    # -- choices
    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def int(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def maybe(self, value: Any, p: float = 0.7) -> Any:
        """The value, or None (an attribute given as None is left out)."""
        return value if self.chance(p) else None

    def permutation(self, n: int) -> list[int]:
        if self.chance(0.25):
            return list(range(n))
        return [int(i) for i in self.rng.permutation(n)]

    def axis(self, rank: int) -> int:
        """A legal axis, negative half of the time."""
        axis = self.int(0, max(rank - 1, 0))
        return axis - rank if self.chance() and rank else axis

    def shape(self, rank: int | None = None, *, low: int = 1, high: int = 4, zero: float = 0.03) -> tuple[int, ...]:
        """A small shape; sizes of 1 are frequent, of 0 rare."""
        rank = self.int(0, 4) if rank is None else rank
        return tuple(
            0 if self.chance(zero) else 1 if low <= 1 and self.chance(0.2) else self.int(low, high) for _ in range(rank)
        )

    # -- graph
    def fresh(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def array(self, shape: Sequence[int], dtype: str = "float32", *, special: bool | None = None) -> np.ndarray:
        kind = np.dtype(dtype)
        if kind.kind == "f":
            values = np.asarray(self.rng.standard_normal(tuple(shape)) * self.pick([0.5, 2.0]), kind)
            if (self.special if special is None else special) and values.size:
                flat = values.reshape(-1)
                for extra in (np.nan if self.nan else 0.0, np.inf, -np.inf, -0.0, 0.0, 0.0):
                    flat[self.int(0, flat.size - 1)] = extra
                values = flat.reshape(values.shape)
            return values
        if kind.kind == "b":
            return np.asarray(self.rng.random(tuple(shape)) < 0.5)
        low = 0 if kind.kind == "u" else -5
        return np.asarray(self.rng.integers(low, 6, tuple(shape)), kind)

    def input(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        *,
        dynamic: bool | None = None,
        values: np.ndarray | None = None,
        dims: Sequence[int | str | None] | None = None,
    ) -> str:
        """A graph input. ``dynamic`` (drawn when None) hides sizes behind names; ``dims`` declares them instead.

        Raises:
            Unsuitable: a name in ``dims`` stands for another size already.
        """
        name = self.fresh("x")
        array = np.asarray(self.array(shape, dtype) if values is None else values)
        if dims is None:
            dims = list(array.shape)
            if self.chance(0.35) if dynamic is None else dynamic:
                dims = [f"{name}_d{i}" if d and self.chance(0.6) else d for i, d in enumerate(dims)]
        for dim, size in zip(dims, array.shape, strict=True):
            if isinstance(dim, str) and self._named.setdefault(dim, size) != size:
                raise Unsuitable(f"{dim} is {self._named[dim]} already")
        self._inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims))
        self._declared[name] = tuple(dims)
        self._feeds[name] = array
        self._shapes[name] = array.shape
        return name

    def const(self, array: Any, dtype: str | None = None) -> str:
        """A constant: an initializer, or a Constant node."""
        array = np.asarray(array, dtype=dtype)
        name = self.fresh("c")
        tensor = onnx.numpy_helper.from_array(array, name)
        if self.chance(0.2):
            self._nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self._initializers.append(tensor)
        self._shapes[name] = array.shape
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def weight(self, shape: Sequence[int], dtype: str = "float32") -> str:
        return self.const(self.array(shape, dtype, special=False))

    def node(self, op: str, *inputs: str | None, n_outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        """Add a node; returns its output name, or a tuple of names. An attribute given as None is left out."""
        outputs = [self.fresh() for _ in range(n_outputs)]
        names = [i or "" for i in inputs]
        while names and not names[-1]:
            names.pop()
        present = {k: v for k, v in attrs.items() if v is not None}
        empty = [k for k, v in present.items() if isinstance(v, (list, tuple)) and not v]
        node = helper.make_node(
            op,
            names,
            outputs,
            name=self.fresh("n"),
            domain=domain,
            **{k: v for k, v in present.items() if k not in empty},
        )
        node.attribute.extend(helper.make_attribute(k, [], attr_type=onnx.AttributeProto.INTS) for k in empty)
        self._nodes.append(node)
        if domain and domain not in self.domains:
            self.domains[domain] = 1
        return outputs[0] if n_outputs == 1 else tuple(outputs)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def rank(self, name: str) -> int:
        return len(self._shapes[name])

    def feed(self, name: str, array: np.ndarray) -> None:
        """Feed an input with this array, not with the drawn one."""
        self._feeds[name] = array

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def overridable(self, array: np.ndarray) -> str:
        """An initializer that is a graph input too: a default that callers may override, fed with other values."""
        # Never an earlier output, which a `Composer` would take.
        name = GraphMaker.input(self, array.shape, str(array.dtype), dynamic=False)
        self._initializers.append(onnx.numpy_helper.from_array(array, name))
        return name

    def loose(self, array: np.ndarray) -> str:
        """An initializer, never a Constant node."""
        name = self.fresh("c")
        self._initializers.append(onnx.numpy_helper.from_array(array, name))
        self._shapes[name] = array.shape
        return name

    def output(self, *names: str) -> None:
        """Mark graph outputs."""
        self._outputs.extend(n for n in names if n not in self._outputs)

    def read_again(self, name: str, p: float = 0.2) -> None:
        """Sometimes give a value another reader, or make it a graph output: rules must notice."""
        if self.chance(p):
            self.output(name if self.chance() else self.node("Identity", name))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            "fuzz",
            self._inputs,
            [helper.make_empty_tensor_value_info(n) for n in self._outputs],
            self._initializers,
        )
        imports = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid(d, v) for d, v in self.domains.items()]
        proto = helper.make_model(
            graph, opset_imports=imports, ir_version=10, functions=self.functions, producer_name=self.producer
        )
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        known = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input)}
        for i, name in enumerate(self._outputs):
            info = known.get(name)
            if info is None or not info.type.WhichOneof("value"):
                raise Unsuitable(f"the type of {name} is not inferred")
            if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"):
                raise Unsuitable(f"the rank of {name} is not inferred, and the checker asks for it")
            proto.graph.output[i].CopyFrom(info)
        return proto

    def feeds(self) -> list[dict[str, np.ndarray]]:
        """Inputs at the sizes drawn, then, where any is open, at four other assignments of the open ones.

        Sizes that were drawn equal stay equal, so that what fitted together mostly still fits. In the second
        many are 1, where a constant beside them broadcasts them; in the third each name by itself may be 1, in the
        fourth 0.
        """
        drawn = {symbol: size for name in self._feeds for symbol, size in self._open_sizes(name)}
        feeds = [self._feeds]
        for together, alone in ((0.0, 0.0), (0.6, 0.0), (0.0, 0.4)) if drawn else ():
            sizes = {n: 1 if n == 1 or self.chance(together) else self.int(2, 6) for n in sorted(set(drawn.values()))}
            changed = {symbol: 1 if self.chance(alone) else sizes[size] for symbol, size in drawn.items()}
            changed = {symbol: max(size, self.least) for symbol, size in changed.items()}
            feeds.append({name: self._resized(name, changed) for name in self._feeds})
        if drawn and self.empty and self.least <= 1 and self.chance(0.3):
            changed = {symbol: 0 if self.chance(0.5) else size for symbol, size in drawn.items()}
            feeds.append({name: self._resized(name, changed) for name in self._feeds})
        return feeds

    def _open_sizes(self, name: str) -> list[tuple[str, int]]:
        """The open sizes of an input: the name of each, or its place where it has none, and the size drawn."""
        declared = zip(self._declared[name], self._feeds[name].shape, strict=True)
        return [(dim or f"{name}:{axis}", n) for axis, (dim, n) in enumerate(declared) if not isinstance(dim, int)]

    def _resized(self, name: str, sizes: dict[str, int]) -> np.ndarray:
        array = self._feeds[name]
        shape = [
            dim if isinstance(dim, int) else sizes[dim or f"{name}:{i}"] for i, dim in enumerate(self._declared[name])
        ]
        return np.resize(array, shape) if array.size else array


ENGINE = evaluate.OnnxRuntimeRunner.name
"""The engine whose results are compared bit by bit."""


@dataclass
class Law:
    """A model with what it answers, which every rewriting of it must answer too."""

    proto: onnx.ModelProto
    answers: list[tuple[dict[str, np.ndarray], dict[str, Any]]]
    """Feeds and outputs: at the sizes drawn, and at the other sizes that the model runs at."""
    engine: str
    """The evaluator's name: another one, or what another one folded, is rounded in another way."""

    @classmethod
    def of(cls, maker: GraphMaker) -> Law:
        """Run the maker's model.

        Raises:
            Unsuitable: it makes no graph that the evaluators run.
        """
        proto = maker.model()
        first, *others = maker.feeds()
        try:
            run = evaluate.runner(proto)
            answers = [(first, run.run(first))]
        except EvaluationError as error:
            raise Unsuitable(str(error)) from error
        for output in proto.graph.output:
            if not _declared_rightly(output, answers[0][1][output.name]):
                raise Unsuitable(f"inference is wrong about {output.name}")
        for feeds in others:
            # What the model itself refuses at other sizes, or answers in shapes it did not declare, nothing is
            # promised of.
            with contextlib.suppress(EvaluationError):
                answer = run.run(feeds)
                if any(not array.size for array in feeds.values()) and not _is_defined(proto, feeds, answer):
                    continue
                if all(_declared_rightly(output, answer[output.name]) for output in proto.graph.output):
                    answers.append((feeds, answer))
        return cls(proto, answers, run.name)

    def kept_by(
        self, selection: pipeline.Selection, settings: Settings, context: str, *, thorough: bool = True
    ) -> Engine:
        """Rewrite a copy with these passes; fails if any output changed.

        Raises:
            AssertionError: the result is no valid model, or an output differs, with both graphs in the message.
        """
        model = model_io.from_proto(self.proto)
        engine = pipeline.transform(model, selection, settings)
        if not engine.applied and not engine.failed and not thorough:
            return engine  # Nothing was rewritten: what is left to see are load and save.
        result = model_io.to_proto(model)
        try:
            assert not engine.failed, engine.failed
            self._require_kept(result, [applied.exactness for applied in engine.applied], thorough=thorough)
        except (AssertionError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            fired = [applied.rule for applied in engine.applied]
            details = f"{context}: {fired}\n{_text(self.proto)}\n→\n{_text(result)}"
            raise AssertionError(f"{error}\n{details}") from error
        return engine

    def _require_kept(self, result: onnx.ModelProto, exactness: Sequence[str], *, thorough: bool) -> None:
        onnx.checker.check_model(result, full_check=thorough)
        assert [o.name for o in result.graph.output] == [o.name for o in self.proto.graph.output]
        run = evaluate.runner(result)
        exact = run.name == self.engine == ENGINE and all(promise == "exact" for promise in exactness)
        left = {value.name for value in result.graph.input}
        for feeds, expected in self.answers:
            actual = run.run({name: array for name, array in feeds.items() if name in left})
            assert_equal(expected, actual, exact=exact, context=str({n: array.shape for n, array in feeds.items()}))


def _is_defined(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], answer: dict[str, Any]) -> bool:
    """Return True if the interpreter answers in the same shapes: ONNX Runtime joins empty parts of any width."""
    try:
        expected = Session(proto, compile="off").run(list(answer), feeds)
    except SardonyxError:
        return False
    return [np.shape(x) for x in expected] == [np.shape(x) for x in answer.values()]


def _declared_rightly(output: onnx.ValueInfoProto, value: Any) -> bool:
    if not isinstance(value, np.ndarray) or not output.type.HasField("tensor_type"):
        return True
    dims = output.type.tensor_type.shape.dim
    return len(dims) == value.ndim and all(
        not dim.HasField("dim_value") or dim.dim_value == size for dim, size in zip(dims, value.shape, strict=True)
    )


def check(label: str, make: Generator, seed: int, target: str = "portable", *, together: bool = True) -> bool:
    """Whether the rule fired on graph ``seed``, optimized for ``target``; fails if any output changed.

    Rules of one pass share its graphs: what was found of one is known of all.

    Args:
        label: The pass, or a single rule of it.
        make: What builds the graph.
        seed: Names the graph.
        target: What it is optimized for.
        together: Whether by all default passes together too.

    Raises:
        AssertionError: an output differs, with the graph in the message.
        Unsuitable: the seed makes no graph that the evaluators run.
    """
    fired = _fired(label.split("/")[0], make, seed, target, together)
    if fired is None:
        raise Unsuitable(f"seed {seed} of {make.__name__}")
    return any(label in (rule, rule.split("/")[0]) for rule in fired)


@functools.lru_cache(maxsize=4096)
def _fired(name: str, make: Generator, seed: int, target: str, together: bool) -> frozenset[str] | None:
    """The rules that fired on graph ``seed`` under a pass; None where the seed makes none that the evaluators run."""
    maker = GraphMaker(seed)
    try:
        make(maker)
        law = Law.of(maker)
    except Unsuitable:
        return None
    alone = pipeline.select(target, passes=[name, "eliminate_deadend", "extract_constant_to_initializer"])
    settings = Settings(target=target)
    fired: set[str] = set()
    for selection in (alone, pipeline.select(target)) if together else (alone,):
        engine = law.kept_by(selection, settings, f"seed {seed}, {make.__name__}", thorough=seed % 10 == 0)
        fired.update(applied.rule for applied in engine.applied)
    return frozenset(fired)


class Composer(GraphMaker):
    """Puts several generators' graphs into one model: a later one may read what an earlier one put out."""

    def __init__(self, seed: int, *, connected: bool) -> None:
        super().__init__(seed)
        self.connected = connected
        self._known: dict[str, np.ndarray] = {}

    def then(self, make: Generator) -> None:
        """Add a generator's graph.

        Raises:
            Unsuitable: it needs another operator set, or makes no graph that the evaluators run.
        """
        opset = self.opset
        make(self)
        if self.opset != opset:
            raise Unsuitable("another operator set is needed")
        if len({(function.domain, function.name) for function in self.functions}) != len(self.functions):
            raise Unsuitable("two functions have one name")
        if self.connected:
            try:
                self._known = evaluate.evaluate(self.model(), self._feeds)
            except EvaluationError as error:
                raise Unsuitable(str(error)) from error

    def input(self, shape: Sequence[int], dtype: str = "float32", **kwargs: Any) -> str:
        """A graph input, or elements of an earlier output in the shape asked for."""
        fitting = [n for n, v in self._known.items() if isinstance(v, np.ndarray) and v.dtype == dtype and v.size]
        if not fitting or kwargs.get("values") is not None or not self.chance(0.7):
            return super().input(shape, dtype, **kwargs)
        name: str = self.pick(fitting)
        if self._known[name].shape == tuple(shape):
            self._shapes[name] = tuple(shape)
            return name
        indices = self.rng.integers(0, self._known[name].size, tuple(shape))
        gathered: str = self.node("Gather", self.node("Reshape", name, self.ints(-1)), self.const(indices))
        self._shapes[gathered] = tuple(shape)
        return gathered


def check_composed(makes: Sequence[Generator], seed: int, *, connected: bool) -> int:
    """Graphs of several generators in one model, under the default passes; returns how many patches were applied.

    Where the graphs are connected, only exact rules run: what one rounds, the next may compare or floor.

    Raises:
        AssertionError: an output differs.
        Unsuitable: the generators make no model together.
    """
    maker = Composer(seed, connected=connected)
    for make in makes:
        maker.then(make)
    selection = pipeline.select()
    if connected:
        selection = pipeline.Selection(
            tuple(r for r in selection.rules if r.exactness is EXACT),
            tuple(s for s in selection.sweeps if s.rule.exactness is EXACT),
        )
    context = f"seed {seed}, {' + '.join(make.__name__ for make in makes)}"
    law = Law.of(maker)
    if law.engine != ENGINE:
        raise Unsuitable(f"{ENGINE} runs it not, and the reference errs here and there: of an empty optional")
    try:
        model_io.from_proto(law.proto)
    except InvalidModelError as error:
        raise Unsuitable(str(error)) from error  # bodies of one generator hide names of another
    return len(law.kept_by(selection, Settings(), context, thorough=seed % 10 == 0).applied)


def assert_equal(expected: dict[str, Any], actual: dict[str, Any], *, exact: bool, context: str = "") -> None:
    """Equal types and shapes, and equal bits but for those of NaN (or within the type's tolerance)."""
    for name, want in expected.items():
        got = actual[name]
        assert type(want) is type(got), f"{name}: {type(got)} for {type(want)}\n{context}"
        if not isinstance(want, np.ndarray):
            assert repr(want) == repr(got), f"{name}: {got} for {want}\n{context}"
            continue
        assert want.dtype == got.dtype and want.shape == got.shape, (
            f"{name}: {got.dtype}{got.shape} for {want.dtype}{want.shape}\n{context}"
        )
        if exact or want.dtype.kind not in "fcV":
            assert _same_bits(want, got), f"{name}: {got} for {want}\n{context}"
        else:
            tolerance = TOLERANCES[str(want.dtype)]
            finite = np.abs(want[np.isfinite(want)].astype(np.float64))
            atol = tolerance * (float(finite.max()) if finite.size else 1.0) + 1e-6
            wide, reference = got.astype(np.float64), want.astype(np.float64)
            close = np.isclose(wide, reference, rtol=tolerance, atol=atol, equal_nan=True)
            assert close.all(), f"{name}: {got} for {want}\n{context}"


TOLERANCES = {"float16": 8e-3, "float32": 1e-4, "float64": 1e-9}
"""Of the largest output: what sums taken in another order may differ by, in each type."""


def _same_bits(want: np.ndarray, got: np.ndarray) -> bool:
    """Equal bits, but for those of a NaN."""
    if want.tobytes() == got.tobytes():
        return True
    if want.dtype.kind not in "fc":
        return np.array_equal(want, got)
    nan = np.isnan(want)
    return np.array_equal(want, got, equal_nan=True) and np.array_equal(np.signbit(want) & ~nan, np.signbit(got) & ~nan)


def _text(proto: onnx.ModelProto) -> str:
    return onnx.printer.to_text(proto)


def run_many(
    label: str, graphs: int, first_seed: int = 0, target: str = "portable", *, together: int = 4
) -> tuple[int, int]:
    """Check ``cases(graphs)`` random graphs of every generator of ``label``; returns (checked, fired).

    If no rule fires on these graphs, further graphs are drawn, ``graphs`` in all. Every graph goes through the pass
    alone; one of ``together``, and all up to the first at which the rule fires, through all default passes too. A label
    names a pass or a single rule of the pass; a single rule without generators of its own uses those of its pass.
    """
    checked = fired = 0
    least = cases(graphs)
    for make in generators_of(label):
        seed, unsuitable = first_seed, 0
        done = 0
        while done < (least if fired else graphs):
            try:
                fired += check(label, make, seed, target, together=seed % together == 0 or not fired)
                done += 1
            except Unsuitable:
                unsuitable += 1
                assert unsuitable < 20 + 3 * graphs, f"{make.__name__} hardly ever makes a legal graph"
            seed += 1
        checked += done
    assert fired, f"no graph made {label} fire"
    return checked, fired


def generators_of(label: str) -> list[Generator]:
    """The generators of a pass, or of a single rule ``pass/rule``: those of its own and those of its pass."""
    generators = GENERATORS.get(label, [])
    return generators + [make for make in GENERATORS.get(label.split("/")[0], []) if make not in generators]
