"""Equal random numbers in the original and in a candidate, so that nodes which draw numbers can be compared.

Random nodes of the original are numbered before any rewrite; the number follows a node through copies, inlining and
renaming (``ir.Node.meta``). For a comparison, both models are written with a name and a seed from that number at each
random node, and an engine loads the model again for each run: engines advance their generators from run to run.
Distinct seeds reveal a rewrite that merges or exchanges random nodes. A seed in the model is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import facts

NUMBER = "sardonyx.random_number"
"""Key of the number of a random node in its ``meta``."""

SEED_STEP, SEED_LIMIT = 7_368_787, 1 << 24
"""Seeds are multiples of a prime modulo a limit up to which float32, the type of the attribute, is exact. Generators
of engines begin with small numbers if seeds are small."""


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that draw random numbers, in order; those of model functions last."""
    roots = (model.graph, *(function.graph for function in model.functions.values()))
    return [
        node
        for root in roots
        for node in facts.nodes_of(root)
        if facts.is_random(node, root.opset_imports.get("", model.opset_imports.get("")))
    ]


def number_random_nodes(model: ir.Model) -> None:
    """Number the random nodes of an original."""
    for number, node in enumerate(random_nodes(model)):
        node.meta[NUMBER] = number


@contextmanager
def seeded(model: ir.Model) -> Iterator[bool]:
    """Give random nodes names and seeds within the context; yield True if there are random nodes.

    If no node has a number, the model was not rewritten, and numbers are by order. Otherwise a rewrite created the
    nodes without a number, which therefore have seeds of their own.
    """
    nodes = random_nodes(model)
    before = [(node.name, node.attributes.get("seed")) for node in nodes]
    unnumbered = SEED_LIMIT // 2 if any(NUMBER in node.meta for node in nodes) else 0
    for position, node in enumerate(nodes):
        number = node.meta.get(NUMBER, unnumbered + position)
        node.name = f"random_{number}"
        if node.attributes.get("seed") is None and _accepts_seed(node):
            seed = (number + 1) * SEED_STEP % SEED_LIMIT
            node.attributes["seed"] = (
                ir.AttrInt64("seed", seed) if node.op_type == "Dropout" else ir.AttrFloat32("seed", float(seed))
            )
    try:
        yield bool(nodes)
    finally:
        for node, (name, seed_attribute) in zip(nodes, before, strict=True):
            node.name = name
            if seed_attribute is None:
                node.attributes.pop("seed", None)


def _accepts_seed(node: ir.Node) -> bool:
    """Return True for a standard operator with a seed: a Dropout with a mode as input, or any other."""
    return node.domain in facts.STANDARD and (node.op_type != "Dropout" or len(node.inputs) > 2)


class FreshRunner:
    """Runner that loads the model for each run, so that each run draws the same numbers."""

    name = "fresh"

    def __init__(self, path: Path) -> None:
        self._path = path

    def run(self, feeds: evaluate.Feeds, outputs: Sequence[str] | None = None) -> evaluate.Answers:
        """Run once; see ``evaluate.Runner.run``."""
        return evaluate.runner(self._path).run(feeds, outputs)


def runner_of(path: Path, *, is_random: bool) -> evaluate.Runner:
    """Return a runner of a model, with the same numbers in each run if the model is random."""
    return FreshRunner(path) if is_random else evaluate.runner(path)
