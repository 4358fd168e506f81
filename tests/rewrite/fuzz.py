"""Random graphs around the patterns of rules, and the law they must keep: outputs stay equal.

A generator is a function of a ``GraphMaker``; it builds a small graph that a rule matches, or
nearly matches, and registers under the rule's label::

    @generator("eliminate_nop_transpose")
    def transposes(g: GraphMaker) -> None:
        x = g.input(g.shape(rank=g.int(0, 4)))
        g.output(g.node("Transpose", x, perm=g.maybe(g.permutation(g.rank(x)))))

``check(label, seed)`` builds the graph, optimizes a copy with that pass alone and then with all
default passes, and compares outputs on inputs that hold NaN, infinities, −0.0 and zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.rewrite import evaluate, pipeline
from sardonyx.rewrite.engine import Settings

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
        self.domains: dict[str, int] = {}
        self.functions: list[onnx.FunctionProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._feeds: dict[str, np.ndarray] = {}
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
                for extra in (np.nan, np.inf, -np.inf, -0.0, 0.0, 0.0):
                    flat[self.int(0, flat.size - 1)] = extra
                values = flat.reshape(values.shape)
            return values
        if kind.kind == "b":
            return np.asarray(self.rng.random(tuple(shape)) < 0.5)
        low = 0 if kind.kind == "u" else -5
        return np.asarray(self.rng.integers(low, 6, tuple(shape)), kind)

    def input(
        self, shape: Sequence[int], dtype: str = "float32", *, dynamic: bool | None = None, values: np.ndarray | None = None
    ) -> str:
        """A graph input. ``dynamic`` (drawn when None) hides some sizes behind names, or all of the shape."""
        name = self.fresh("x")
        array = np.asarray(self.array(shape, dtype) if values is None else values)
        dims: list[int | str | None] | None = list(array.shape)
        if self.chance(0.35) if dynamic is None else dynamic:
            assert dims is not None
            dims = [f"{name}_d{i}" if d and self.chance(0.6) else d for i, d in enumerate(dims)]
        self._inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims))
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
        given = {k: v for k, v in attrs.items() if v is not None}
        empty = [k for k, v in given.items() if isinstance(v, (list, tuple)) and not v]
        node = helper.make_node(
            op, names, outputs, name=self.fresh("n"), domain=domain, **{k: v for k, v in given.items() if k not in empty}
        )
        node.attribute.extend(helper.make_attribute(k, [], attr_type=onnx.AttributeProto.INTS) for k in empty)
        self._nodes.append(node)
        if domain and domain not in self.domains:
            self.domains[domain] = 1
        return outputs[0] if n_outputs == 1 else tuple(outputs)

    def rank(self, name: str) -> int:
        return len(self._shapes[name])

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
        proto = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=self.functions)
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


def check(label: str, make: Generator, seed: int, target: str = "portable") -> bool:
    """Whether the rule fired on graph ``seed``, optimized for ``target``; fails if any output changed.

    Raises:
        AssertionError: an output differs, with the graph in the message.
        Unsuitable: the seed makes no graph that the evaluators run.
    """
    maker = GraphMaker(seed)
    make(maker)
    proto = maker.model()
    feeds = maker._feeds
    try:
        expected = evaluate.evaluate(proto, feeds)
    except EvaluationError as error:
        raise Unsuitable(str(error)) from error
    name = label.split("/")[0]
    alone = pipeline.select(target, passes=[name, "eliminate_deadend", "extract_constant_to_initializer"])
    fired = False
    for selection in (alone, pipeline.select(target)):
        model = model_io.from_proto(proto)
        engine = pipeline.transform(model, selection, Settings(target=target))
        result = model_io.to_proto(model)
        exact = all(a.exactness == "exact" for a in engine.applied)
        fired = fired or any(a.rule == label or a.rule.split("/")[0] == label for a in engine.applied)
        context = f"seed {seed}, {make.__name__}: {[a.rule for a in engine.applied]}\n{_text(proto)}\n→\n{_text(result)}"
        onnx.checker.check_model(result, full_check=True)
        assert [o.name for o in result.graph.output] == [o.name for o in proto.graph.output], context
        assert_equal(expected, evaluate.evaluate(result, feeds), exact=exact, context=context)
    return fired


def assert_equal(expected: dict[str, Any], found: dict[str, Any], *, exact: bool, context: str = "") -> None:
    """Equal types and shapes, and equal bits but for the sign of NaN.

    What is not exact may differ by 1e-4 of the largest output, or by four roundings of a type that is coarser.
    """
    for name, want in expected.items():
        got = found[name]
        assert type(want) is type(got), f"{name}: {type(got)} for {type(want)}\n{context}"
        if not isinstance(want, np.ndarray):
            assert repr(want) == repr(got), f"{name}: {got} for {want}\n{context}"
            continue
        assert want.dtype == got.dtype and want.shape == got.shape, f"{name}: {got.dtype}{got.shape} for {want.dtype}{want.shape}\n{context}"
        if exact or want.dtype.kind not in "fcV":
            same = want.tobytes() == got.tobytes() or np.array_equal(
                want, got, equal_nan=want.dtype.kind in "fc"
            ) and np.array_equal(np.signbit(want) & ~np.isnan(want), np.signbit(got) & ~np.isnan(got))
            assert same, f"{name}: {got} for {want}\n{context}"
        else:
            finite = np.abs(want[np.isfinite(want)].astype(np.float64))
            scale = float(finite.max()) if finite.size else 1.0
            near = max(1e-4, 4 * float(np.finfo(want.dtype).eps)) if want.dtype.kind == "f" else 1e-4
            wide = got.astype(np.float64), want.astype(np.float64)
            close = np.isclose(*wide, rtol=near, atol=near * scale + 1e-6, equal_nan=True)
            assert close.all(), f"{name}: {got} for {want}\n{context}"


def _text(proto: onnx.ModelProto) -> str:
    return onnx.printer.to_text(proto)


def run_many(label: str, graphs: int, first_seed: int = 0, target: str = "portable") -> tuple[int, int]:
    """Check ``graphs`` random graphs of every generator of ``label``; returns (checked, fired)."""
    checked = fired = 0
    for make in GENERATORS[label]:
        seed, unsuitable = first_seed, 0
        done = 0
        while done < graphs:
            try:
                fired += check(label, make, seed, target)
                done += 1
            except Unsuitable:
                unsuitable += 1
                assert unsuitable < 20 + 3 * graphs, f"{make.__name__} hardly ever makes a legal graph"
            seed += 1
        checked += done
    assert fired, f"no graph made {label} fire"
    return checked, fired


