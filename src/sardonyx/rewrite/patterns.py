"""Patterns, matches and the results of rules.

A pattern is an expression of operators over variables: ``x * Sigmoid(x)``. A replacement is an expression over the same
variables; over values of the model, an expression stands for new nodes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuleError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.site import Site


class Exactness(enum.Enum):
    """The promise of a rule about the outputs."""

    EXACT = "exact"
    """Equal bits."""
    REASSOCIATES = "reassociates"
    """Equal in real arithmetic; sums or products are computed in another order."""
    APPROXIMATES = "approximates"
    """Close, within the tolerance that the rule's description states."""


EXACT, REASSOCIATES, APPROXIMATES = Exactness.EXACT, Exactness.REASSOCIATES, Exactness.APPROXIMATES


@dataclass(frozen=True)
class Refusal:
    """A near match that does not fire, with the reason shown by ``--explain``."""

    reason: str


SILENT = Refusal("")
"""The refusal of a match that is not worth a report, because another rule covers the match."""

Operand: TypeAlias = (
    "Expr | V | ir.Value | np.ndarray | ir.TensorProtocol | int | float | bool | EllipsisType | Computed | None"
)
Factor: TypeAlias = "Expr | V | int | float | Computed"
"""An operand of an arithmetic operator (``x + 1``) in a pattern or replacement."""
Computed: TypeAlias = "Callable[[Match], Any]"
"""In a replacement: an operand or attribute that is computed from the match."""
Replacement: TypeAlias = "Expr | ir.Value"


@dataclass(eq=False)
class Patch:
    """An edit that no expression can state: nodes inserted, values replaced, nodes removed.

    Attributes:
        replace: Old value → the expression or existing value that replaces every use.
        nodes: Finished nodes to insert, in order, before ``before`` (an inlined body, for example).
        before: The node before which new nodes are inserted; the root of the rule when None.
        after: The value after whose producer new nodes are inserted instead (or at the start of its graph).
        remove: Nodes to remove although still alive; nothing may read their outputs any more.
        edit: A last step, executed after the others, for changes to neither nodes nor values (graph inputs, opsets);
            returns the nodes whose neighbourhood has changed.
        build: Makes the patch once the engine has accepted the match: for patches that can only be stated by taking the
            model apart (moving the nodes of a body). A rule itself never changes the model.
        exactness: The promise of this patch, if different from the rule's.
        growth: Bytes of weights that this patch may add, if more than ``Settings.growth``.
    """

    replace: Mapping[ir.Value, Replacement] = field(default_factory=dict)
    nodes: Sequence[ir.Node] = ()
    before: ir.Node | None = None
    after: ir.Value | None = None
    remove: Sequence[ir.Node] = ()
    edit: Callable[[], Iterable[ir.Node]] | None = None
    build: Callable[[], Patch] | None = None
    exactness: Exactness | None = None
    growth: int = 0


Result: TypeAlias = "Refusal | Replacement | tuple[Replacement | None, ...] | Patch | None"


class Term:
    """A variable or an operator application; arithmetic on terms makes the ONNX node of that arithmetic."""

    __slots__ = ()
    __array_ufunc__ = None

    def __add__(self, other: Factor) -> Expr:
        """``Add``."""
        return _node("Add", self, other)

    def __radd__(self, other: float) -> Expr:
        """``Add``."""
        return _node("Add", other, self)

    def __sub__(self, other: Factor) -> Expr:
        """``Sub``."""
        return _node("Sub", self, other)

    def __rsub__(self, other: float) -> Expr:
        """``Sub``."""
        return _node("Sub", other, self)

    def __mul__(self, other: Factor) -> Expr:
        """``Mul``."""
        return _node("Mul", self, other)

    def __rmul__(self, other: float) -> Expr:
        """``Mul``."""
        return _node("Mul", other, self)

    def __truediv__(self, other: Factor) -> Expr:
        """``Div``."""
        return _node("Div", self, other)

    def __rtruediv__(self, other: float) -> Expr:
        """``Div``."""
        return _node("Div", other, self)

    def __matmul__(self, other: Expr | V) -> Expr:
        """``MatMul``."""
        return _node("MatMul", self, other)

    def __pow__(self, other: Factor) -> Expr:
        """``Pow``."""
        return _node("Pow", self, other)

    def __rpow__(self, other: float) -> Expr:
        """``Pow``."""
        return _node("Pow", other, self)

    def __neg__(self) -> Expr:
        """``Neg``."""
        return _node("Neg", self)


class Expr(Term):
    """An operator applied to operands: a pattern over variables, new nodes over values."""

    __slots__ = ("args", "attrs", "domain", "index", "n_outputs", "op_types", "source", "used_once")

    def __init__(
        self,
        op_types: tuple[str, ...],
        args: tuple[Operand, ...],
        attrs: Mapping[str, Any],
        *,
        domain: str = "",
        n_outputs: int = 1,
    ) -> None:
        self.op_types = op_types
        self.args = args
        self.attrs = attrs
        self.domain = domain
        self.n_outputs = n_outputs
        self.index = 0
        self.used_once = False
        self.source: Expr = self
        """The application of this output, shared by its ``out`` views."""

    @property
    def once(self) -> Expr:
        """In a pattern: matches only a value that has no other reader."""
        view = self._view(self.index)
        view.used_once = True
        return view

    def out(self, index: int) -> Expr:
        """Output ``index`` of the same application."""
        return self._view(index)

    def _view(self, index: int) -> Expr:
        view = Expr(self.op_types, self.args, self.attrs, domain=self.domain, n_outputs=self.n_outputs)
        view.index, view.used_once, view.source = index, self.used_once, self.source
        self.source.n_outputs = view.n_outputs = max(self.source.n_outputs, index + 1)
        return view

    def __rshift__(self, replacement: Expr | V | Callable[[Match], Result]) -> Rewrite:
        """State the rewrite: a template over the same variables, or a function of the match.

        A subexpression of the pattern in the template is the matched value, not a new node.
        """
        return Rewrite(self, replacement)

    def __repr__(self) -> str:
        parts = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.attrs.items()]
        return f"{'|'.join(self.op_types)}({', '.join(parts)})"


class V(Term):
    """A pattern variable: stands for any value, and for the same value wherever it is repeated."""

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        self.name = name

    def accepts(self, value: ir.Value | None) -> bool:
        """Return True if the variable may stand for this operand; None is an absent one."""
        return value is not None

    def __rshift__(self, replacement: object) -> Rewrite:
        """Refused: a pattern has at least one operator."""
        raise RuleError("expected an operator on the left of >>, got a variable", where=self.name)

    def __repr__(self) -> str:
        return self.name or "V"


class C(V):
    """A pattern variable that stands for constants only: weights and results of ``Constant``."""

    __slots__ = ()

    def accepts(self, value: ir.Value | None) -> bool:
        """Return True if the operand is a constant."""
        return facts.is_constant(value)


class Maybe(V):
    """A pattern variable for an optional operand: it also stands for an absent one, as None."""

    __slots__ = ()

    def accepts(self, value: ir.Value | None) -> bool:
        """Return True: a value or an absent operand."""
        return True


class A:
    """An attribute variable: captures the attribute's value (schema default included)."""

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Op:
    """An operator's name, ready to be applied: ``Op("Gemm")(x, w, b, transB=1)``."""

    op_types: tuple[str, ...]
    domain: str = ""

    def __call__(self, *args: Operand, n_outputs: int = 1, **attrs: Any) -> Expr:
        """Apply to operands; in a new node, an attribute whose value is None is omitted."""
        return Expr(self.op_types, args, attrs, domain=self.domain, n_outputs=n_outputs)


def AnyOf(*op_types: str) -> Op:
    """In a pattern: any one of these operators."""
    return Op(op_types)


def microsoft(op_type: str) -> Op:
    """Return an operator of the ``com.microsoft`` domain."""
    return Op((op_type,), "com.microsoft")


def _node(op_type: str, *args: Any) -> Expr:
    return Expr((op_type,), args, {})


class Match:
    """A match of a pattern: ``m.x`` is the value (or attribute) bound to the parameter ``x``.

    Attributes:
        site: The node at which the pattern's outermost operator matched.
        bound: Values and attributes by the names of their variables.
        nodes: The matched nodes, in the order in which the pattern names their operators; the root first.
        values: The matched values between operators, by the pattern's subexpression and its output index.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.bound: dict[str, Any] = {}
        self.nodes: list[ir.Node] = []
        self.values: dict[tuple[Expr, int], ir.Value] = {}
        self.near: str | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["bound"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def root(self) -> ir.Node:
        """The node that the pattern's outermost operator matched."""
        return self.site.node

    def node(self, *op_types: str) -> ir.Node:
        """Return the first matched node of one of these operators."""
        return next(node for node in self.nodes if node.op_type in op_types)


Guard: TypeAlias = Callable[[Match], Refusal | None]
"""A condition on a complete match: None where it holds, else the reason why the match must not fire."""


@dataclass(frozen=True)
class Guards:
    """The right-hand side of ``rewrite | where(…)``."""

    guards: tuple[Guard, ...]


def where(*guards: Guard) -> Guards:
    """State the conditions of a rewrite.

    Usage: ``x @ w + b >> Gemm(x, w, b) | where(rank(x) == 2, unshared)``.

    The guards are tested in order on a complete match; the first that does not hold refuses the match with its reason.
    """
    return Guards(guards)


@dataclass(frozen=True)
class Rewrite:
    """A pattern, the replacement of a match, and the guards under which the rewrite holds."""

    pattern: Expr
    replacement: Expr | V | Callable[[Match], Result]
    guards: tuple[Guard, ...] = ()

    def __or__(self, guards: Guards) -> Rewrite:
        """Add guards."""
        return replace(self, guards=self.guards + guards.guards)

    def apply(self, site: Site) -> Result:
        """Try the rewrite with ``site.node`` as root."""
        match = Match(site)
        for _ in _match_node(self.pattern, site.node, match):
            result = self._result(match)
            if isinstance(result, Refusal):
                match.near = result.reason or match.near
            elif result is not None:
                return result
        return Refusal(match.near) if match.near else None

    def _result(self, match: Match) -> Result:
        for guard in self.guards:
            refusal = guard(match)
            if refusal is not None:
                return refusal
        if isinstance(self.replacement, V):
            return match.bound[self.replacement.name]  # type: ignore[no-any-return]
        if isinstance(self.replacement, Expr):
            return _instantiate(self.replacement, match, {})  # type: ignore[no-any-return]
        return self.replacement(match)


COMMUTATIVE = frozenset(
    {"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
)


def _match_value(pattern: Operand, value: ir.Value | None, match: Match) -> Iterator[None]:
    """Yield once for each way in which ``pattern`` matches ``value``, with ``match.bound`` set meanwhile."""
    if isinstance(pattern, V):
        if pattern.name in match.bound:
            if match.bound[pattern.name] is value:
                yield
        elif pattern.accepts(value):
            match.bound[pattern.name] = value
            yield
            match.bound.pop(pattern.name, None)
    elif isinstance(pattern, Expr):
        node = None if value is None else value.producer()
        if node is None or value is None or value.index() != pattern.index:
            return
        if node.graph is not match.site.node.graph:
            return
        if pattern.used_once and not facts.used_once(value):
            if node.op_type in pattern.op_types:
                match.near = f"{node.op_type} '{value.name}' has other readers"
            return
        match.values[pattern.source, pattern.index] = value
        yield from _match_node(pattern, node, match)
    elif pattern is None:
        if value is None:
            yield
    elif isinstance(pattern, (bool, int, float)):
        if value is not None and holds_number(value, pattern):
            yield
    else:
        raise RuleError("expected variables, operators, numbers or None as operands of a pattern")


def holds_number(value: ir.Value, number: float) -> bool:
    """Return True if the value is a constant of one element equal to ``number`` in the value's type."""
    element = facts.scalar(value)
    if element is None or isinstance(element, complex):
        return False
    kind = facts.dtype(value)
    if kind is None or not kind.is_floating_point():
        return bool(element == number)
    # Rounded: 0.044715 is another number in float16, and the constant of the formula all the same.
    return bool(element == np.array(number).astype(kind.numpy()).item())


def _match_node(pattern: Expr, node: ir.Node, match: Match) -> Iterator[None]:
    if node.op_type not in pattern.op_types or (node.domain or "") not in (pattern.domain, pattern.domain or "ai.onnx"):
        return
    bound_here: list[str] = []
    for name, expected in pattern.attrs.items():
        actual = match.site.attr(name, node=node)
        if isinstance(expected, A):
            match.bound[expected.name] = actual
            bound_here.append(expected.name)
        elif actual != expected:
            match.near = f"{node.op_type} has {name}={actual!r}, expected {expected!r}"
            return
    args, values = pattern.args, tuple(node.inputs)
    if args and args[-1] is Ellipsis:
        args = args[:-1]
        values = values[: len(args)]
    while len(values) > len(args) and values[-1] is None:
        values = values[:-1]
    if len(values) < len(args):
        values += (None,) * (len(args) - len(values))
    if len(values) != len(args):
        return
    match.nodes.append(node)
    orders = [values]
    if len(values) == 2 and node.op_type in COMMUTATIVE and values[0] is not values[1]:
        orders.append((values[1], values[0]))
    for order in orders:
        yield from _match_all(args, order, match)
    match.nodes.pop()
    for name in bound_here:
        match.bound.pop(name, None)


def _match_all(args: Sequence[Operand], values: Sequence[ir.Value | None], match: Match) -> Iterator[None]:
    if not args:
        yield
        return
    for _ in _match_value(args[0], values[0], match):
        yield from _match_all(args[1:], values[1:], match)


def _instantiate(template: Operand, match: Match, done: dict[Expr, Expr]) -> Any:
    if isinstance(template, V):
        return match.bound[template.name]
    if not isinstance(template, Expr):
        return template(match) if callable(template) else template
    matched = match.values.get((template.source, template.index))
    if matched is not None:
        return matched
    source = done.get(template.source)
    if source is None:
        attrs = {
            k: match.bound[a.name] if isinstance(a, A) else a(match) if callable(a) else a
            for k, a in template.attrs.items()
        }
        args = tuple(_instantiate(a, match, done) for a in template.args)
        source = done[template.source] = Expr(
            template.op_types, args, attrs, domain=template.domain, n_outputs=template.source.n_outputs
        )
    return source if template.index == 0 else source.out(template.index)
