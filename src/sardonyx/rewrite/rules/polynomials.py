"""Sums and products expanded to polynomials, so that one rule matches every way to write a formula.

``0.5·x·(1 + t)``, ``x·(t/2 + 0.5)`` and ``(x·t + x)/2`` are the same polynomial in x and t. This module has no rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.site import Site

Polynomial = dict[tuple[int, ...], float]
"""Coefficient by the powers of the atoms, in order."""

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Pow", "Sum")

_HIGHEST = 4
_MOST_NODES = 16

TOLERANCE = 2e-3
"""Relative tolerance of coefficients: exporters write 0.7979 for √(2/π), and float16 rounds."""


@dataclass
class Expansion:
    """A value as a polynomial in atoms, with the nodes in between."""

    terms: Polynomial
    nodes: dict[ir.Node, None] = field(default_factory=dict)

    def is_close_to(self, expected: Mapping[tuple[int, ...], float]) -> bool:
        """Return True if the nonzero terms are these, up to ``TOLERANCE``."""
        terms = {powers: c for powers, c in self.terms.items() if c != 0}
        return terms.keys() == expected.keys() and all(is_close(terms[p], c) for p, c in expected.items())


def is_close(actual: float, expected: float) -> bool:
    """Return True if a coefficient is the expected one, up to ``TOLERANCE``."""
    return math.isclose(actual, expected, rel_tol=TOLERANCE)


def expand(s: Site, value: ir.Value | None, atoms: Sequence[ir.Value]) -> Expansion | None:
    """Return ``value`` as a polynomial of low degree in ``atoms`` with numbers as coefficients, or None."""
    nodes: dict[ir.Node, None] = {}
    terms = _expanded(s, value, {atom: i for i, atom in enumerate(atoms)}, nodes)
    return None if terms is None else Expansion(terms, nodes)


def _expanded(
    s: Site, value: ir.Value | None, atoms: Mapping[ir.Value, int], nodes: dict[ir.Node, None]
) -> Polynomial | None:
    if value is None:
        return None
    at = atoms.get(value)
    if at is not None:
        return {tuple(int(i == at) for i in range(len(atoms))): 1.0}
    number = number_of(value)
    if number is not None:
        return {(0,) * len(atoms): number}
    node = value.producer()
    if node is None or node.graph is not s.node.graph or not facts.is_op(node, *ARITHMETIC) or len(nodes) > _MOST_NODES:
        return None
    nodes[node] = None
    parts: list[Polynomial] = []
    for operand in node.inputs:
        part = _expanded(s, operand, atoms, nodes)
        if part is None:
            return None
        parts.append(part)
    return _combined(node.op_type, parts)


def _combined(op_type: str, parts: Sequence[Polynomial]) -> Polynomial | None:
    first = parts[0]
    if op_type == "Neg":
        return _scaled(first, -1.0)
    if op_type in ("Add", "Sum"):
        total = first
        for part in parts[1:]:
            total = _sum(total, part)
        return total
    second = parts[1]
    if op_type == "Sub":
        return _sum(first, _scaled(second, -1.0))
    if op_type == "Mul":
        return _product(first, second)
    constant = _as_number(second)
    if constant is None:
        return None
    if op_type == "Div":
        return None if constant == 0 else _scaled(first, 1 / constant)
    if constant not in (1, 2, 3):
        return None
    power: Polynomial | None = first
    for _ in range(int(constant) - 1):
        power = None if power is None else _product(power, first)
    return power


def _as_number(terms: Polynomial) -> float | None:
    return next(iter(terms.values())) if len(terms) == 1 and not any(next(iter(terms))) else None


def _scaled(terms: Polynomial, by: float) -> Polynomial:
    return {powers: c * by for powers, c in terms.items()}


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return {powers: a.get(powers, 0.0) + b.get(powers, 0.0) for powers in {**a, **b}}


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    terms: Polynomial = {}
    for left, c in a.items():
        for right, d in b.items():
            powers = tuple(i + j for i, j in zip(left, right, strict=True))
            if sum(powers) > _HIGHEST:
                return None
            terms[powers] = terms.get(powers, 0.0) + c * d
    return terms


def number_of(value: ir.Value | None) -> float | None:
    """Return the finite number in a constant of one element and rank at most 1, as a float."""
    tensor = facts.constant_tensor(value)
    if tensor is None or len(tensor.shape) > 1 or facts.count(tensor) != 1:
        return None
    number = facts.scalar(value)
    return float(number) if type(number) in (int, float) and math.isfinite(number) else None


def iterate_arguments(s: Site, value: ir.Value | None) -> Iterator[ir.Value]:
    """Yield ``value`` and the sources of its arithmetic with numbers, nearest first."""
    seen: dict[ir.Value, None] = {}
    queue = [value]
    while queue and len(seen) <= _MOST_NODES:
        at = queue.pop(0)
        if at is None or at in seen or facts.is_constant(at):
            continue
        seen[at] = None
        yield at
        node = at.producer()
        if node is not None and node.graph is s.node.graph and facts.is_op(node, *ARITHMETIC):
            queue.extend(node.inputs)


def iterate_inner_nodes(s: Site, op_types: Sequence[str]) -> Iterator[ir.Node]:
    """Yield the nodes of these operators before the root's arithmetic."""
    seen: set[ir.Node] = {s.node}
    queue, graph = list(s.node.inputs), s.node.graph
    for value in queue:  # The loop appends to the queue.
        node = None if value is None else value.producer()
        if node is None or node in seen or node.graph is not graph:
            continue
        if len(seen) > _MOST_NODES:
            return
        seen.add(node)
        name = node.op_type if node.domain in facts.STANDARD else ""
        if name in op_types:
            yield node
        elif name in ARITHMETIC:
            queue.extend(node.inputs)


def find_shared_value(nodes: Mapping[ir.Node, None], root: ir.Node) -> str | None:
    """Return the name of an intermediate value that other nodes or the graph's outputs read, else None."""
    for node in nodes:
        if node is root:
            continue
        for value in node.outputs:
            if value.is_graph_output() or any(use.node is not root and use.node not in nodes for use in value.uses()):
                return str(value.name)
    return None
