"""The rule language: patterns and replacements that read like the mathematics they state.

A rule is a function. Its parameters are pattern variables, with guards as default values; its
body writes what to find and, after ``>>``, what to put there::

    @rule("fuse_matmul_add_bias_into_gemm", exactness=REASSOCIATES)
    def matmul_add(x: V = Rank(2), w: V = Rank(2), b: V = BroadcastsInto(1)) -> Rewrite:
        "MatMul(x, w) + b of matrices is one Gemm."
        return Add(MatMul(x, w).once, b) >> Gemm(x, w, b)

What a pattern cannot say, a *node rule* says in Python: it names its root operators and gets the
``Site`` at hand::

    @rule("eliminate_nop_transpose", on="Transpose", exactness=EXACT)
    def identity_transpose(s: Site) -> Result:
        "Transpose with the identity permutation."
        return s.input(0) if s.attr("perm") == list(range(s.rank(0))) else None

Both give a ``Result``: None (the pattern is not there), ``Refusal("why")`` (a near match; shown
by ``--explain``), an existing value, an expression of new nodes (``Gemm(x, w, b)``), a tuple of
these (one for each output of the root), or a ``Patch`` for anything else.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuleError
from sardonyx.rewrite import facts
from sardonyx.rewrite.site import Site


class Exactness(enum.Enum):
    """What a rule promises of the outputs."""

    EXACT = "exact"
    """Equal bits."""
    REASSOCIATES = "reassociates"
    """Equal in real arithmetic; sums or products are taken in another order."""
    APPROXIMATES = "approximates"
    """Close, within the tolerance that the rule's description states."""


EXACT, REASSOCIATES, APPROXIMATES = Exactness.EXACT, Exactness.REASSOCIATES, Exactness.APPROXIMATES


@dataclass(frozen=True)
class Refusal:
    """A near match that does not fire, with the reason shown by ``--explain``."""

    reason: str


Operand: TypeAlias = "Expr | V | ir.Value | np.ndarray | ir.TensorProtocol | int | float | bool | EllipsisType | None"
Replacement: TypeAlias = "Expr | ir.Value"


@dataclass(eq=False)
class Patch:
    """Any edit that an expression cannot say: nodes put in, values replaced, nodes taken out.

    Attributes:
        replace: Old value → the expression or existing value that takes its place everywhere.
        nodes: Ready-made nodes to insert, in order, before ``before`` (bodies spliced in, for example).
        before: Where new nodes go; the root of the rule when None.
        after: Where new nodes go instead: right after the producer of this value (or at the start of its graph).
        remove: Nodes to take out although something else is not yet dead; they must have no readers left.
        edit: A last step run after the rest, for what is neither node nor value (graph inputs, opsets);
            returns the nodes whose neighbourhood it touched.
        build: Makes the patch when it is sure to be applied: for whatever must take the model apart to be
            said (moving the nodes of a body). A rule itself never changes the model.
        exactness: What this patch promises, where that is not what its rule does.
    """

    replace: Mapping[ir.Value, Replacement] = field(default_factory=dict)
    nodes: Sequence[ir.Node] = ()
    before: ir.Node | None = None
    after: ir.Value | None = None
    remove: Sequence[ir.Node] = ()
    edit: Callable[[], Iterable[ir.Node]] | None = None
    build: Callable[[], Patch] | None = None
    exactness: Exactness | None = None


Result: TypeAlias = "Refusal | Replacement | tuple[Replacement | None, ...] | Patch | None"


class Expr:
    """An operator applied to operands: a pattern when its leaves are variables, new nodes when they are values."""

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
        """The application this output belongs to: ``out`` views share it."""

    @property
    def once(self) -> Expr:
        """In a pattern: matches only where nothing else reads this value."""
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
        """State the rewrite: a template over the same variables, or a function of the match."""
        return Rewrite(self, replacement)

    def __repr__(self) -> str:
        parts = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.attrs.items()]
        return f"{'|'.join(self.op_types)}({', '.join(parts)})"


class V:
    """A pattern variable: stands for any value that its guard accepts; the same value wherever it is repeated."""

    __slots__ = ("accepts", "name", "wanted")

    def __init__(self, accepts: Callable[[ir.Value], bool] | None = None, wanted: str = "") -> None:
        self.name = ""
        self.accepts = accepts
        self.wanted = wanted

    def __and__(self, other: V) -> V:
        """Both guards."""
        mine, its = self.accepts, other.accepts
        if mine is None or its is None:
            return V(mine or its, self.wanted or other.wanted)
        return V(lambda v: mine(v) and its(v), f"{self.wanted} and {other.wanted}")

    def __rshift__(self, replacement: object) -> Rewrite:
        """Refused: a pattern has at least one operator."""
        raise RuleError("a pattern needs an operator", where=self.name)

    def __repr__(self) -> str:
        return self.name or f"V[{self.wanted}]"


class A:
    """An attribute variable: captures the attribute's value (schema default included)."""

    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name = ""

    def __repr__(self) -> str:
        return self.name


def Rank(*ranks: int) -> V:
    """Guard: the rank is known and one of these."""
    return V(lambda v: facts.rank(v) in ranks, f"rank {' or '.join(map(str, ranks))}")


def Const() -> V:
    """Guard: a constant."""
    return V(facts.is_constant, "a constant")


def Scalar() -> V:
    """Guard: a constant of one element."""
    return V(lambda v: facts.scalar(v) is not None, "a constant of one element")


def Float() -> V:
    """Guard: a floating-point type."""
    return V(lambda v: (t := facts.dtype(v)) is not None and t.is_floating_point(), "floating point")


def Static() -> V:
    """Guard: every dimension is a number."""
    return V(lambda v: facts.static_shape(v) is not None, "a static shape")


def BroadcastsInto(rank: int) -> V:
    """Guard: the rank is known and at most ``rank``."""
    return V(lambda v: (r := facts.rank(v)) is not None and r <= rank, f"rank at most {rank}")


class Match:
    """What a pattern found: ``m.x`` is the value (or attribute) bound to the parameter ``x``."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.bound: dict[str, Any] = {}
        self.nodes: list[ir.Node] = []
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


@dataclass(frozen=True)
class Rewrite:
    """A pattern and what takes its place."""

    pattern: Expr
    replacement: Expr | V | Callable[[Match], Result]

    def apply(self, site: Site) -> Result:
        """Try the rewrite with ``site.node`` as root."""
        match = Match(site)
        for _ in _match_node(self.pattern, site.node, match):
            found = self.replacement
            if isinstance(found, V):
                return match.bound[found.name]  # type: ignore[no-any-return]
            if isinstance(found, Expr):
                built: Result = _instantiate(found, match, {})
                return built
            result: Result = found(match)
            if result is not None and not isinstance(result, Refusal):
                return result
            if isinstance(result, Refusal):
                match.near = result.reason
        return Refusal(match.near) if match.near else None


COMMUTATIVE = frozenset(
    {"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
)


def _match_value(pattern: Operand, value: ir.Value | None, match: Match) -> Iterator[None]:
    """Yield once for each way ``value`` can be what ``pattern`` says, with ``match.bound`` set meanwhile."""
    if isinstance(pattern, V):
        if value is None:
            return
        if pattern.name in match.bound:
            if match.bound[pattern.name] is value:
                yield
            return
        if pattern.accepts is not None and not pattern.accepts(value):
            match.near = f"{pattern.name} is not {pattern.wanted}"
            return
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
        yield from _match_node(pattern, node, match)
    elif pattern is None:
        if value is None:
            yield
    elif isinstance(pattern, (bool, int, float)):
        if value is not None and _equals_number(value, pattern):
            yield
    else:
        raise RuleError("a pattern's operands are variables, operators, numbers or None")


def _equals_number(value: ir.Value, number: float) -> bool:
    found = facts.scalar(value)
    if found is None or isinstance(found, complex):
        return False
    kind = facts.dtype(value)
    if kind is None or not kind.is_floating_point():
        return bool(found == number)
    # The number as this type holds it: 0.044715 in float16 is another number, and the one meant.
    return bool(found == np.array(number).astype(kind.numpy()).item())


def _match_node(pattern: Expr, node: ir.Node, match: Match) -> Iterator[None]:
    if node.op_type not in pattern.op_types or (node.domain or "") not in (pattern.domain, pattern.domain or "ai.onnx"):
        return
    bound_here: list[str] = []
    for name, wanted in pattern.attrs.items():
        found = match.site.attr(name, node=node)
        if isinstance(wanted, A):
            match.bound[wanted.name] = found
            bound_here.append(wanted.name)
        elif found != wanted:
            match.near = f"{node.op_type} has {name}={found!r}, and {wanted!r} is needed"
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


def _instantiate(template: Operand, match: Match, made: dict[Expr, Expr]) -> Any:
    if isinstance(template, V):
        return match.bound[template.name]
    if not isinstance(template, Expr):
        return template
    source = made.get(template.source)
    if source is None:
        attrs = {k: match.bound[a.name] if isinstance(a, A) else a for k, a in template.attrs.items()}
        args = tuple(_instantiate(a, match, made) for a in template.args)
        source = made[template.source] = Expr(
            template.op_types, args, attrs, domain=template.domain, n_outputs=template.source.n_outputs
        )
    return source if template.index == 0 else source.out(template.index)


@dataclass(frozen=True, eq=False)
class Rule:
    """One rewrite of a Model: found at a root node, applied as one labelled patch.

    Attributes:
        name: The pass it belongs to; several rules may make up one pass.
        function: The name of the rule itself.
        roots: Operator types at whose nodes it is tried; ``"*"`` for every node.
        apply: From a site to a result.
        exactness: What it promises of the outputs.
        emits: Domains of the operators it may make.
        opset: The lowest operator set at which what it emits exists; below it, a match is a refusal.
        default: Whether a run without a list of passes includes it.
        targets: Targets it is meant for; empty for all.
        description: First line of its docstring.
        after: Sets of operators, each of which must have made an input of the root; ``CONSTANT`` for a weight.
        among: Sets of operators, of each of which the model must have one.
        module: Where it was written.
    """

    name: str
    function: str
    roots: frozenset[str]
    apply: Callable[[Site], Result]
    exactness: Exactness
    emits: tuple[str, ...]
    opset: int
    default: bool
    targets: frozenset[str]
    description: str
    after: tuple[frozenset[str], ...] = ()
    among: tuple[frozenset[str], ...] = ()
    module: str = ""

    @cached_property
    def label(self) -> str:
        """``pass/rule``, or just the pass where both are named alike."""
        return self.name if self.name == self.function else f"{self.name}/{self.function}"


CONSTANT = "Constant"
"""In a rule's ``after``: an input that is constant, be it a weight or made by a ``Constant`` node."""

REGISTRY: dict[str, list[Rule]] = {}
"""Every rule loaded so far, by pass name, in order of definition."""


def rule(
    name: str,
    *,
    exactness: Exactness,
    on: str | Iterable[str] | None = None,
    after: str | Iterable[str] = (),
    among: str | Iterable[str] = (),
    emits: str | Iterable[str] = "ai.onnx",
    opset: int = 1,
    default: bool = True,
    targets: Iterable[str] = (),
) -> Callable[[Callable[..., Any]], Rule]:
    """Make a rule of a function and register it under the pass ``name``.

    Args:
        name: The pass that the rule belongs to.
        exactness: What the rule promises of the outputs.
        on: For a node rule, its root operators (``"*"``: every node). Without it the function
            is a pattern rule: it is called once, with variables, and gives a ``Rewrite``.
        after: For a node rule that fires only behind certain operators: one of them must have made an input of the
            root (``CONSTANT``: an input is constant). What a pattern asks for is read off the pattern.
        among: For a node rule whose root says little: operators of which the model must have one.
        emits: Domain or domains of the operators it may make.
        opset: The lowest opset of the default domain at which the rule may fire.
        default: Whether it runs when no passes are named.
        targets: Targets it is restricted to.

    Raises:
        RuleError: the function is not a rule (no docstring, wrong parameters, no operator).
    """

    def register(function: Callable[..., Any]) -> Rule:
        where = getattr(function, "__name__", "rule")
        lines = (inspect.getdoc(function) or "").strip().splitlines()
        if not lines:
            raise RuleError("a rule needs a docstring: it is its description", where=where)
        if on is None:
            rewrite = _trace(function)
            roots = frozenset(rewrite.pattern.op_types)
            apply: Callable[[Site], Result] = rewrite.apply
            behind, needed = _makers(rewrite.pattern), _operators(rewrite.pattern)
        else:
            roots = _names(on)
            apply = function
            behind, needed = (tuple(names for names in (_names(those),) if names) for those in (after, among))
        made = Rule(
            name=name,
            function=where,
            roots=roots,
            apply=apply,
            exactness=exactness,
            emits=(emits,) if isinstance(emits, str) else tuple(emits),
            opset=opset,
            default=default,
            targets=frozenset(targets),
            description=lines[0],
            after=behind,
            among=needed,
            module=function.__module__,
        )
        known = REGISTRY.setdefault(name, [])
        known[:] = [old for old in known if old.function != where] + [made]
        return made

    return register


def _names(given: str | Iterable[str]) -> frozenset[str]:
    return frozenset((given,) if isinstance(given, str) else given)


def _makers(pattern: Expr) -> tuple[frozenset[str], ...]:
    """What must have made the inputs of a pattern's root."""
    sets = [frozenset(arg.op_types) for arg in pattern.args if isinstance(arg, Expr)]
    if any(isinstance(arg, (int, float)) for arg in pattern.args):
        sets.append(frozenset({CONSTANT}))
    return tuple(dict.fromkeys(sets))


def _operators(pattern: Expr) -> tuple[frozenset[str], ...]:
    """The operators of a pattern, root excepted: one of each set must be there for it to match."""
    inner = [arg for arg in pattern.args if isinstance(arg, Expr)]
    return tuple(dict.fromkeys(names for arg in inner for names in (frozenset(arg.op_types), *_operators(arg))))


def _trace(function: Callable[..., Any]) -> Rewrite:
    """Call a pattern rule once with its variables."""
    variables: dict[str, V | A] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if isinstance(default, V):
            # A guard may be shared as a default between rules: each parameter gets its own variable.
            variable: V | A = V(default.accepts, default.wanted)
        elif default is not inspect.Parameter.empty:
            raise RuleError(f"parameter '{name}' has a default that is no guard", where=function.__name__)
        else:
            variable = A() if str(parameter.annotation).rsplit(".", 1)[-1] in ("A", "<class 'A'>") else V()
        variable.name = name
        variables[name] = variable
    rewrite = function(**variables)
    if not isinstance(rewrite, Rewrite):
        raise RuleError("a pattern rule returns `pattern >> replacement`", where=function.__name__)
    return rewrite


@dataclass(frozen=True)
class Op:
    """An operator's name, ready to be applied: ``Op("Gemm")(x, w, b, transB=1)``."""

    op_types: tuple[str, ...]
    domain: str = ""

    def __call__(self, *args: Operand, n_outputs: int = 1, **attrs: Any) -> Expr:
        """Apply to operands; in a new node, an attribute given as None is left out."""
        return Expr(self.op_types, args, attrs, domain=self.domain, n_outputs=n_outputs)


def AnyOf(*op_types: str) -> Op:
    """In a pattern: any one of these operators."""
    return Op(op_types)


def microsoft(op_type: str) -> Op:
    """An operator of the ``com.microsoft`` domain."""
    return Op((op_type,), "com.microsoft")
