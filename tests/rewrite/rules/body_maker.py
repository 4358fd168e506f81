"""Random bodies for If, Loop and Scan: elementwise nodes over values of one shape, captured and own, nested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.rewrite.fuzz import GraphMaker

UNARY = ["Relu", "Neg", "Abs", "Sigmoid", "Floor"]
BINARY = ["Add", "Mul", "Sub", "Max"]


class BodyMaker:
    """One body. Sibling bodies use the same names for different values; nested ones have names of their own.

    Args:
        g: The graph around it, which draws.
        pool: Values of the outer graphs that the body may read, all of one shape.
        conditions: Truth values of the outer graphs.
        depth: How many bodies it is within.
    """

    def __init__(self, g: GraphMaker, pool: Sequence[str], conditions: Sequence[str] = (), depth: int = 1) -> None:
        self.g = g
        self.depth = depth
        self.pool = list(pool)
        self.conditions = list(conditions)
        self.inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._own: list[str] = []

    def fresh(self) -> str:
        name = f"d{self.depth}_{len(self._own)}"
        self._own.append(name)
        return name

    def parameter(self, elem: int = onnx.TensorProto.FLOAT, shape: Sequence[int | str] | None = None) -> str:
        name = self.fresh()
        self.inputs.append(helper.make_tensor_value_info(name, elem, shape))
        return name

    def const(self, array: Any, dtype: str | None = None) -> str:
        name = self.fresh()
        self._weights.append(onnx.numpy_helper.from_array(np.asarray(array, dtype=dtype), name))
        return name

    def node(self, op: str, *inputs: str, n_outputs: int = 1, **attrs: Any) -> Any:
        outputs = [self.fresh() for _ in range(n_outputs)]
        self._nodes.append(helper.make_node(op, inputs, outputs, name=f"n{outputs[0]}", **attrs))
        return outputs[0] if n_outputs == 1 else tuple(outputs)

    def step(self) -> str:
        """Add a random node over the pool, and its result to the pool."""
        g = self.g
        if self.conditions and self.depth < 3 and g.chance(0.2):
            result: str = self.choice()
        elif g.chance():
            result = self.node(g.pick(UNARY), g.pick(self.pool))
        elif g.chance(0.2):
            result = self.node("Add", g.pick(self.pool), self.const(2.0, "float32"))
        else:
            result = self.node(g.pick(BINARY), g.pick(self.pool), g.pick(self.pool))
        self.pool.append(result)
        return result

    def choice(self) -> str:
        """Add a nested If on one of the known conditions, or its negation."""
        condition = self.g.pick(self.conditions)
        if self.g.chance(0.3):
            condition = self.node("Not", condition)
        branches = [BodyMaker(self.g, self.pool, self.conditions, self.depth + 1) for _ in range(2)]
        for body in branches:
            body.some(1, 2)
            body.output(body.pool[-1])
        result: str = self.node("If", condition, then_branch=branches[0].graph(), else_branch=branches[1].graph())
        return result

    def some(self, low: int, high: int) -> None:
        for _ in range(self.g.int(low, high)):
            self.step()

    def output(self, name: str, elem: int = onnx.TensorProto.FLOAT, shape: Sequence[int] | None = None) -> None:
        """Add an output; a value of an outer graph, or one that is an output already, passes through an Identity."""
        if name not in self._own or any(name == info.name for info in (*self._outputs, *self.inputs)):
            name = self.node("Identity", name)
        self._outputs.append(helper.make_tensor_value_info(name, elem, shape))

    def graph(self) -> onnx.GraphProto:
        return helper.make_graph(self._nodes, f"body{self.depth}", self.inputs, self._outputs, self._weights)


def condition(g: GraphMaker, *, known: bool = False) -> str:
    """Return a truth value of the main graph, of rank 0 or 1: constant if ``known``, else an input."""
    shape = () if g.chance(0.7) else (1,)
    value = np.full(shape, g.chance())
    if known:
        return g.const(value)
    return g.input(shape, "bool", values=value, dynamic=False)


def choose(g: GraphMaker, on: str, branches: Sequence[BodyMaker], n_outputs: int = 1) -> tuple[str, ...]:
    """Add an If to the main graph."""
    results = g.node("If", on, n_outputs=n_outputs, then_branch=branches[0].graph(), else_branch=branches[1].graph())
    return (results,) if n_outputs == 1 else results
