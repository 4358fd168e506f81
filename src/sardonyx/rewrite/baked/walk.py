"""Walk of a model whose inputs have new sizes, repairing constants baked from the old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.errors import ShapeError
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.analysis.sizes import Sizes, equal
from sardonyx.rewrite.baked.arithmetic import Arithmetic
from sardonyx.rewrite.baked.factors import Factors

MOST_ROUNDS = 400
"""Maximum inferences of the whole model; each round performs all repairs independent of each other."""


def forget_shapes(model: ir.Model) -> None:
    """Clear every shape derived from the inputs, including declared shapes of outputs and body inputs."""
    for node in facts.nodes_of(model.graph):
        for output in node.outputs:
            output.shape = None
        for body in facts.bodies(node):
            for value in body.inputs:
                value.shape = None


class Walk:
    """One model in transition to new sizes.

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
        """Repair until nothing contradicts the new sizes.

        Args:
            repairs: The repair of each operator.
        """
        for _ in range(MOST_ROUNDS):
            inference.infer_shapes(self.model, strict=False)
            self.sizes = Sizes(self.sizes.opset)
            self.merged.clear()
            self.arithmetic.forget()
            for value in self.model.graph.inputs:
                self.arithmetic.register(value, self.sizes.dims(value))
            if not self._round(repairs):
                return
            self._sort()
            forget_shapes(self.model)
        raise ShapeError(f"baked sizes remain after {MOST_ROUNDS} rounds of repairs", where="model")

    def _round(self, repairs: Repairs) -> bool:
        stale: set[ir.Value] = set()
        changed = False
        for top in list(self.model.graph):
            self.arithmetic.anchor = top
            inner = [node for body in facts.bodies(top) for node in facts.nodes_of(body)]
            touched = False
            for node in (top, *inner):
                repair = repairs.get(node.op_type) if node.domain in ("", "ai.onnx") else None
                if any(v in stale for v in node.inputs):
                    touched = True
                elif repair is not None and repair(self, node):
                    touched = changed = True
                    stale.update(node.outputs)
                if touched:
                    stale.update(node.outputs)
            if touched:
                stale.update(top.outputs)
                continue
            for output in top.outputs:
                self.arithmetic.register(output, self.sizes.dims(output))
        return changed

    def _sort(self) -> None:
        """Sort the graph: a reused arithmetic node may be inserted after one of its readers."""
        try:
            self.model.graph.sort()
        except ValueError as error:
            raise ShapeError("a repair needs a size before the node that computes it", where="model") from error

    def fold_sizes(self) -> None:
        """Replace written shape arithmetic by constants as far as the final sizes are numbers."""
        inference.infer_shapes(self.model, strict=False)
        self.sizes = Sizes(self.sizes.opset)
        for node, index in self.operands:
            if node.graph is None:
                continue
            numbers = self.sizes.constant(node.inputs[index])
            if numbers is not None and not facts.is_constant(node.inputs[index]):
                node.replace_input_with(index, self.arithmetic.vector(numbers))
        for node in reversed(self.arithmetic.nodes):
            if not any(output.uses() for output in node.outputs) and node.graph is not None:
                node.graph.remove(node, safe=True)
        graph = self.model.graph
        for name in [n for n, v in graph.initializers.items() if n.startswith("size") and not v.uses()]:
            if not graph.initializers[name].is_graph_output():
                del graph.initializers[name]

    # -- queries and changes -----------------------------------------------------------------------

    def current(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Return the current sizes of a value."""
        return self.sizes.dims(value)

    def original(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the sizes of a value in the original model if all were numbers, else None."""
        if value is None:
            return None
        dims = self.before.get(value)
        if dims is None:
            static = facts.static_shape(value)
            return static if facts.is_constant(value) else None
        return tuple(d for d in dims if isinstance(d, int)) if all(isinstance(d, int) for d in dims) else None

    def has_changed(self, value: ir.Value | None) -> bool:
        """Return True if the sizes of a value differ from the original ones."""
        then, now = self.original(value), self.current(value)
        return then is not None and now is not None and then != now

    def write(self, node: ir.Node, index: int, sizes: Sequence[Size]) -> None:
        """Replace a shape operand by ``sizes``.

        Raises:
            ShapeError: a size cannot be computed here.
        """
        try:
            value = self.arithmetic.vector(sizes)
        except ShapeError as error:
            raise self.refusal(node, error.problem) from error
        node.replace_input_with(index, value)
        self.operands.append((node, index))

    def refusal(self, node: ir.Node, problem: str) -> ShapeError:
        """Return the error for a node that prevents the new sizes."""
        return ShapeError(
            problem, where=f"node '{node_label(node)}' ({node.op_type})", remedy="Export the model with this size open."
        )

    def are_equal(self, left: Sequence[Size] | None, right: Sequence[Size]) -> bool:
        """Return True if two lists of sizes are provably equal."""
        return (
            left is not None
            and len(left) == len(right)
            and all(equal(a, b) is True for a, b in zip(left, right, strict=True))
        )


Repairs = Mapping[str, Callable[[Walk, ir.Node], bool]]
"""Operator → function of (walk, node) that returns True after a repair."""
