"""Walks a model whose inputs have new sizes, and puts right what still says the old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.errors import ShapeError
from sardonyx.rewrite import facts, inference
from sardonyx.rewrite.baked.arithmetic import Arithmetic
from sardonyx.rewrite.baked.factors import Factors
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.sizes import Sizes, equal

MOST_ROUNDS = 400
"""Inferences of the whole model; each round repairs all that does not depend on another repair."""


def forget_shapes(model: ir.Model) -> None:
    """Forgets every shape that follows from the inputs', declared ones of outputs and of bodies' inputs included."""
    for node in facts.nodes_of(model.graph):
        for output in node.outputs:
            output.shape = None
        for body in facts.bodies(node):
            for value in body.inputs:
                value.shape = None


class Walk:
    """One model on its way to new sizes.

    Args:
        model: The model, annotated with the old sizes.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.sizes = Sizes(model.graph.opset_imports.get("", 1))
        self.before: dict[ir.Value, tuple[Size, ...]] = {}
        for value in (*model.graph.inputs, *(v for node in facts.nodes_of(model.graph) for v in node.outputs)):
            dims = self.sizes.dims(value)
            if dims is not None:
                self.before[value] = dims
        self.arithmetic = Arithmetic(model)
        self.merged: dict[Size, Factors] = {}
        self.operands: list[tuple[ir.Node, int]] = []

    def run(self, repairs: Repairs) -> None:
        """Repairs until nothing contradicts the new sizes.

        Args:
            repairs: What to look for at each operator.
        """
        for _ in range(MOST_ROUNDS):
            inference.infer_shapes(self.model, strict=False)
            self.sizes = Sizes(self.sizes.opset)
            self.merged.clear()
            self.arithmetic.forget()
            for value in self.model.graph.inputs:
                self.arithmetic.know(value, self.sizes.dims(value))
            if not self._round(repairs):
                return
            self._sort()
            forget_shapes(self.model)
        raise ShapeError(f"what is baked from its sizes is not repaired after {MOST_ROUNDS} rounds", where="model")

    def _round(self, repairs: Repairs) -> bool:
        stale: set[ir.Value] = set()
        changed = False
        for top in list(self.model.graph):
            self.arithmetic.place = top
            inner = [node for body in facts.bodies(top) for node in facts.nodes_of(body)]
            touched = False
            for node in (top, *inner):
                found = repairs.get(node.op_type) if node.domain in ("", "ai.onnx") else None
                if any(v in stale for v in node.inputs):
                    touched = True
                elif found is not None and found(self, node):
                    touched = changed = True
                    stale.update(node.outputs)
                if touched:
                    stale.update(node.outputs)
            if touched:
                stale.update(top.outputs)
                continue
            for output in top.outputs:
                self.arithmetic.know(output, self.sizes.dims(output))
        return changed

    def _sort(self) -> None:
        """Arithmetic stands in front of the node that asked for it; what it was written for may come earlier."""
        try:
            self.model.graph.sort()
        except ValueError as error:
            raise ShapeError("a size would have to be known before it is computed", where="model") from error

    def settle(self) -> None:
        """With the new sizes in force: what was written for them becomes constants where they are numbers."""
        inference.infer_shapes(self.model, strict=False)
        self.sizes = Sizes(self.sizes.opset)
        for node, index in self.operands:
            if node.graph is None:
                continue
            numbers = self.sizes.constant(node.inputs[index])
            if numbers is not None and not facts.is_constant(node.inputs[index]):
                node.replace_input_with(index, self.arithmetic.vector(numbers))
        for made in reversed(self.arithmetic.made):
            if not any(output.uses() for output in made.outputs) and made.graph is not None:
                made.graph.remove(made, safe=True)
        graph = self.model.graph
        for name in [n for n, v in graph.initializers.items() if n.startswith("size") and not v.uses()]:
            if not graph.initializers[name].is_graph_output():
                del graph.initializers[name]

    # -- questions and changes ---------------------------------------------------------------------

    def now(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """The sizes of a value now."""
        return self.sizes.dims(value)

    def then(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The sizes of a value as the model was written, where all were numbers."""
        if value is None:
            return None
        dims = self.before.get(value)
        if dims is None:
            static = facts.static_shape(value)
            return static if facts.is_constant(value) else None
        return tuple(d for d in dims if isinstance(d, int)) if all(isinstance(d, int) for d in dims) else None

    def differs(self, value: ir.Value | None) -> bool:
        """Whether a value has other sizes than it had."""
        then, now = self.then(value), self.now(value)
        return then is not None and now is not None and then != now

    def write(self, node: ir.Node, index: int, sizes: Sequence[Size]) -> None:
        """Lets an operand that holds sizes say ``sizes``.

        Raises:
            ShapeError: one of them cannot be computed here.
        """
        try:
            value = self.arithmetic.vector(sizes)
        except ShapeError as error:
            raise self.refusal(node, error.problem) from error
        node.replace_input_with(index, value)
        self.operands.append((node, index))

    def refusal(self, node: ir.Node, problem: str) -> ShapeError:
        """The error that says a node stands in the way."""
        return ShapeError(
            problem, where=f"node '{node_label(node)}' ({node.op_type})", remedy="Export the model with this size open."
        )

    def told(self, left: Sequence[Size] | None, right: Sequence[Size]) -> bool:
        """Whether two lists of sizes are surely equal."""
        return (
            left is not None
            and len(left) == len(right)
            and all(equal(a, b) is True for a, b in zip(left, right, strict=True))
        )


Repairs = Mapping[str, Callable[[Walk, ir.Node], bool]]
"""Operator → (walk, node) → whether something was put right."""
