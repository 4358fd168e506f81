"""Fuzzer of the whole toolkit on drawn models: chains of nodes of all operators, with control flow and functions.

A node comes from an operator's generator. Some of its inputs are replaced by results of earlier nodes: of the same type
and sizes as they are, others by way of Cast, Gather and Reshape. A node, with a copy of the constants it needs, may be
in a branch, in a loop, or in a function of the model, and its result may pass through a sequence or an optional.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from sardonyx import Session
from sardonyx.errors import SardonyxError
from tests.fuzz.hostile_cases import CASES, value_info
from tests.fuzz.native_fuzzer import Finding, StorePosition, Tally
from tests.fuzz.toolkit_fuzzer import LIMITS, OPSETS, TARGETS, model_problems, run_drawn
from tests.ops import microsoft_cases
from tests.ops.generators import GENERATORS
from tests.ops.generators.draw import Case, Draw

CHAINS = ("chains",)
"""The names of the generators, for :func:`.native_fuzzer.fuzz`."""

MODEL_OPSETS = (9, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24)
LOCAL = "local"
MOST_ELEMENTS = 4096
_TRIES = 20
_CONTRIBUTED = tuple(f"com.microsoft.{case.name}" for case in microsoft_cases.CASES)
_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators with other results in each call."""


def run_chain(label: str, seed: int, runs: int, store_position: StorePosition) -> Tally:
    """Run drawn models and return the counts; see :data:`.native_fuzzer.RunVariant`."""

    def findings(one: int) -> Iterator[Finding]:
        draw = Draw(f"chain {one}")
        model, feeds = ChainDraft(draw).model()
        target, opset = draw.pick(*TARGETS), draw.pick(*OPSETS)
        words = f"{label} seed {one} to {target}, {opset}: {' '.join(node.op_type for node in model.graph.node)}"
        return (Finding(words, problem) for problem in model_problems(model, feeds, target, opset))

    return run_drawn(findings, seed, runs, store_position)


def drawn_model(seed: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the model of a seed, and its feeds."""
    return ChainDraft(Draw(f"chain {seed}")).model()


class ChainDraft:
    """A model while its nodes are drawn.

    Args:
        draw: The source of choices.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._opset = draw.pick(*MODEL_OPSETS)
        self._nodes: list[NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._functions: list[onnx.FunctionProto] = []
        self._fed: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._read: set[str] = set()
        self._count = 0

    def model(self) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """Return the model and its feeds."""
        draw = self._draw
        for _ in range(draw.integer(3, 10)):
            self._add_node()
        results = [name for name in self._values if name not in self._read and name not in self._fed]
        results += [name for name in self._values if name in self._read and draw.chance(0.1) and name not in self._fed]
        sizes = {size: f"s{size}" for x in self._fed.values() if isinstance(x, np.ndarray) for size in x.shape}
        declared = draw.pick("open", "declared", "named")
        inputs = [value_info(draw, name, x, declared, sizes) for name, x in self._fed.items()]
        graph = helper.make_graph(
            self._nodes, "chain", inputs, [onnx.ValueInfoProto(name=name) for name in results], self._initializers
        )
        domains = ("com.microsoft", LOCAL)
        imports = [helper.make_opsetid("", self._opset), helper.make_opsetid("ai.onnx.ml", 3)]
        imports += [helper.make_opsetid(domain, 1) for domain in domains]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=self._functions)
        return model, dict(self._fed)

    def _add_node(self) -> None:
        for _ in range(_TRIES):
            case = self._draw_case()
            if case is None:
                continue
            names, before = self._operands(case)
            answers = self._answers(case, names)
            if answers is None:
                continue
            self._nodes += before
            results = [self._new() for _ in range(case.outputs)]
            node = helper.make_node(case.name, names, results, domain=case.domain, **case.attributes)
            self._nodes += self._wrapped(node, answers)
            self._read.update(names)
            self._values.update(zip(results, answers, strict=True))
            return

    def _draw_case(self) -> Case | None:
        """Return a case that is valid in the operator set of the model; None if the drawn one is not."""
        draw = self._draw
        name = draw.pick(*_CONTRIBUTED) if draw.chance(0.1) else draw.pick(*GENERATORS)
        case = CASES[name](draw)
        if case.name in _RANDOM or any(isinstance(x, np.ndarray) and x.size > MOST_ELEMENTS for x in case.inputs):
            return None
        if case.domain == "com.microsoft":
            return case
        if case.domain:
            return case if case.opset <= 3 else None
        try:
            versions = [onnx.defs.get_schema(case.name, opset).since_version for opset in (case.opset, self._opset)]
        except onnx.defs.SchemaError:
            return None
        return case if versions[0] == versions[1] else None

    def _operands(self, case: Case) -> tuple[list[str], list[NodeProto]]:
        """Return the names of a node's inputs, and the nodes that convert results of earlier ones to them."""
        draw = self._draw
        before: list[NodeProto] = []
        names: list[str] = []
        for x in case.inputs:
            if x is None:
                names.append("")
                continue
            name = self._same(x) if draw.chance(0.7) else None
            if name is None and isinstance(x, np.ndarray) and x.dtype.kind == "f" and draw.chance(0.3):
                name = self._converted(x, before)
            names.append(name or self._source(x))
        return names, before

    def _same(self, x: Any) -> str | None:
        """Return a value of the same type and sizes, if there is one; shapes and indices are seldom replaced."""
        if not isinstance(x, np.ndarray) or (x.dtype.kind in "iu" and x.ndim < 2 and self._draw.chance(0.8)):
            return None
        names = [
            name
            for name, y in self._values.items()
            if isinstance(y, np.ndarray) and y.dtype == x.dtype and y.shape == x.shape
        ]
        return self._draw.pick(*names) if names else None

    def _converted(self, x: np.ndarray, before: list[NodeProto]) -> str | None:
        """Return a value with the sizes of ``x`` that nodes make of another one; None without one."""
        names = [
            name for name, y in self._values.items() if isinstance(y, np.ndarray) and y.dtype.kind in "fiub" and y.size
        ]
        if not names:
            return None
        name = self._draw.pick(*names)
        y = self._values[name]
        self._read.add(name)
        if y.dtype != x.dtype:
            name = self._node(before, "Cast", [name], to=helper.np_dtype_to_tensor_dtype(x.dtype))
        flat = self._node(before, "Reshape", [name, self._constant(np.array([-1]))])
        indices = self._constant(np.arange(x.size) % y.size)
        picked = self._node(before, "Gather", [flat, indices])
        return self._node(before, "Reshape", [picked, self._constant(np.array(x.shape, np.int64))])

    def _node(self, nodes: list[NodeProto], name: str, inputs: list[str], **attributes: Any) -> str:
        result = self._new()
        nodes.append(helper.make_node(name, inputs, [result], **attributes))
        return result

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _constant(self, x: np.ndarray) -> str:
        name = self._new()
        self._initializers.append(numpy_helper.from_array(x, name))
        return name

    def _source(self, x: Any) -> str:
        """Return a new input or constant with a value."""
        if isinstance(x, np.ndarray) and x.dtype != object and self._draw.chance(0.5):
            return self._constant(x)
        name = self._new()
        self._fed[name] = self._values[name] = x
        return name

    def _answers(self, case: Case, names: list[str]) -> list[Any] | None:
        """Return the results of a node from the interpreter; None if it has none, or large ones."""
        constants = {tensor.name: tensor for tensor in self._initializers}
        values = [
            x
            if not name
            else numpy_helper.to_array(constants[name])
            if name in constants
            else self._values.get(name, x)
            for name, x in zip(names, case.inputs, strict=True)
        ]
        try:
            one = Case(case.name, case.opset, values, case.attributes, case.outputs, case.domain)
            answers = Session(one.model(), compile="off", log_severity=4, **LIMITS).run(None, one.feeds())
        except (SardonyxError, TypeError, ValueError):
            return None
        small = all(not isinstance(y, np.ndarray) or y.size <= MOST_ELEMENTS for y in answers)
        return answers if small and all(isinstance(y, (np.ndarray, list)) for y in answers) else None

    # Wrapping.

    def _wrapped(self, node: NodeProto, answers: list[Any]) -> list[NodeProto]:
        """Return the node as it is, or inside of control flow or a function, or before a sequence or an optional."""
        draw = self._draw
        is_tensor = all(isinstance(y, np.ndarray) for y in answers)
        ways = [self._as_function, *([self._as_branch, self._as_loop] if is_tensor else [])]
        if is_tensor and len(answers) == 1 and self._opset >= 15:
            ways += [self._through_sequence, self._through_optional]
        return draw.pick(*ways)(node, answers) if draw.chance(0.3) else [node]

    def _as_function(self, node: NodeProto, answers: list[Any]) -> list[NodeProto]:
        name = f"f{len(self._functions)}"
        inputs = [x for x in dict.fromkeys(node.input) if x]
        if any(attribute.type == AttributeProto.GRAPH for attribute in node.attribute):
            return [node]
        domains = {"": self._opset, "ai.onnx.ml": 3, "com.microsoft": 1}
        imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        self._functions.append(helper.make_function(LOCAL, name, inputs, list(node.output), [node], imports))
        return [helper.make_node(name, inputs, list(node.output), domain=LOCAL)]

    def _as_branch(self, node: NodeProto, answers: list[Any]) -> list[NodeProto]:
        if any(y.dtype == object for y in answers):
            return [node]
        condition = self._source(np.array(self._draw.chance(0.7)))
        inner = [f"{name}_in" for name in node.output]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.output[:]
        copy.output.extend(inner)
        other = [self._constant_node(y, name) for y, name in zip(answers, inner, strict=True)]
        branches = {"then_branch": [copy], "else_branch": other}
        graphs = {
            key: helper.make_graph(nodes, key, [], [onnx.ValueInfoProto(name=name) for name in inner])
            for key, nodes in branches.items()
        }
        then, other_graph = graphs["then_branch"], graphs["else_branch"]
        return [helper.make_node("If", [condition], list(node.output), then_branch=then, else_branch=other_graph)]

    @staticmethod
    def _constant_node(y: np.ndarray, name: str) -> NodeProto:
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(y), name))

    def _as_loop(self, node: NodeProto, answers: list[Any]) -> list[NodeProto]:
        """Return a loop of some iterations that returns the result of the last one, and the rows of all."""
        values = {name: self._values.get(name) for name in node.input if name}
        carried = [
            name for name, x in values.items()
            if isinstance(x, np.ndarray) and x.dtype == answers[0].dtype and x.shape == answers[0].shape
        ]  # fmt: skip
        if not carried or len(answers) > 1 or answers[0].dtype == object:
            return [node]
        start = self._draw.pick(*carried)
        count = self._source(np.array(self._draw.integer(1, 3)))
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.output[0] = "state_out"
        names = ["state" if name == start else name for name in node.input]
        del copy.input[:]
        copy.input.extend(names)
        kind = helper.np_dtype_to_tensor_dtype(answers[0].dtype)
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["go"], ["go_out"]), copy,
                helper.make_node("Identity", ["state_out"], ["row"]),
            ],
            "body",
            [helper.make_tensor_value_info("i", TensorProto.INT64, []),
             helper.make_tensor_value_info("go", TensorProto.BOOL, []),
             helper.make_tensor_value_info("state", kind, [None] * answers[0].ndim)],
            [onnx.ValueInfoProto(name=name) for name in ("go_out", "state_out", "row")],
        )  # fmt: skip
        return [helper.make_node("Loop", [count, "", start], [node.output[0], f"{node.output[0]}_rows"], body=body)]

    def _through_sequence(self, node: NodeProto, answers: list[Any]) -> list[NodeProto]:
        result = node.output[0]
        node.output[0] = first = f"{result}_first"
        index = self._constant(np.array(self._draw.integer(-2, 1)))
        return [
            node,
            helper.make_node("SequenceConstruct", [first, first], [f"{result}_list"]),
            helper.make_node("SequenceAt", [f"{result}_list", index], [result]),
        ]

    def _through_optional(self, node: NodeProto, answers: list[Any]) -> list[NodeProto]:
        result = node.output[0]
        node.output[0] = first = f"{result}_first"
        return [
            node,
            helper.make_node("Optional", [first], [f"{result}_option"]),
            helper.make_node("OptionalGetElement", [f"{result}_option"], [result]),
        ]


__all__ = ["CHAINS", "drawn_model", "run_chain"]
