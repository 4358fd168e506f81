"""The rule language: patterns and replacements that read like the mathematics they state.

A *pattern rule* is a function. Its parameters are pattern variables (``V`` any value, ``C`` a constant, ``Maybe`` an
optional operand, ``A`` an attribute); its body states the pattern, after ``>>`` the replacement, and after
``| where(…)`` the conditions::

    @rule("fuse_matmul_add_bias_into_gemm", exactness=REASSOCIATES, opset=7)
    def matmul_add(x: V, w: V, b: V) -> Rewrite:
        "x @ w + b is Gemm(x, w, b) for matrices."
        return x @ w + b >> Gemm(x, w, b) | where(rank(x) == 2, rank(w) == 2, rank(b) <= 1, unshared)

A *node rule* states in Python what a pattern cannot: it names its root operators and receives the ``Site``::

    @rule("eliminate_nop_transpose", on="Transpose", exactness=EXACT)
    def identity_transpose(s: Site) -> Result:
        "Transpose with the identity permutation."
        return s.input(0) if s.attr("perm") == list(range(s.rank(0))) else None

Both give a ``Result``: None (no match), ``Refusal("why")`` (a near match; shown by ``--explain``), an existing value,
an expression of new nodes (``Gemm(x, w, b)``), a tuple of these (one for each output of the root), or a ``Patch``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sardonyx.errors import RuleError
from sardonyx.rewrite.guards import (
    Fact,
    constant,
    guard,
    has_type,
    is_float,
    number,
    rank,
    same_shape,
    unshared,
)
from sardonyx.rewrite.patterns import (
    APPROXIMATES,
    COMMUTATIVE,
    EXACT,
    REASSOCIATES,
    SILENT,
    A,
    AnyOf,
    C,
    Exactness,
    Expr,
    Guard,
    Match,
    Maybe,
    Op,
    Operand,
    Patch,
    Refusal,
    Replacement,
    Result,
    Rewrite,
    V,
    microsoft,
    where,
)
from sardonyx.rewrite.site import Site

__all__ = [
    "APPROXIMATES",
    "COMMUTATIVE",
    "CONSTANT",
    "EXACT",
    "REASSOCIATES",
    "REGISTRY",
    "SILENT",
    "A",
    "AnyOf",
    "C",
    "Exactness",
    "Expr",
    "Fact",
    "Guard",
    "Match",
    "Maybe",
    "Op",
    "Operand",
    "Patch",
    "Refusal",
    "Replacement",
    "Result",
    "Rewrite",
    "Rule",
    "V",
    "constant",
    "guard",
    "has_type",
    "is_float",
    "microsoft",
    "number",
    "rank",
    "rule",
    "same_shape",
    "unshared",
    "where",
]


@dataclass(frozen=True, eq=False)
class Rule:
    """One rewrite of a Model: tried at root nodes, applied as one labelled patch.

    Attributes:
        name: Name of the pass; several rules may make up one pass.
        function: Name of the rule itself.
        roots: Operator types at whose nodes the rule is tried; ``"*"`` for every node.
        apply: The rewrite, from a site to a result.
        exactness: The promise about the outputs.
        emits: Domains of the operators that the rule may emit.
        opset: The lowest operator set that has the emitted operators; below, a match is a refusal.
        default: True if a run without a list of passes includes the rule.
        targets: Targets of the rule; empty for all.
        description: First line of the docstring.
        after: Sets of operators; of each set, one must produce an input of the root (``CONSTANT``: a weight).
        among: Sets of operators; of each set, the model must have one.
        module: The module that defines the rule.
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
        """``pass/rule``, or just the pass where both have the same name."""
        return self.name if self.name == self.function else f"{self.name}/{self.function}"


CONSTANT = "Constant"
"""In a rule's ``after``: a constant input, either a weight or the output of a ``Constant`` node."""

REGISTRY: dict[str, list[Rule]] = {}
"""All rules loaded so far, by pass name, in order of definition."""


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
    """Make a rule of a function and register the rule under the pass ``name``.

    Args:
        name: Name of the pass.
        exactness: The promise about the outputs.
        on: For a node rule, its root operators (``"*"``: every node). Without, the function is a pattern rule: called
            once, with variables, to return a ``Rewrite``.
        after: Operators of which one must produce an input of the root (``CONSTANT``: an input is constant). A pattern
            states its operators and constants by itself.
        among: For a node rule whose root says little: operators of which the model must have one.
        emits: Domain or domains of the operators that the rule may emit.
        opset: The lowest opset of the default domain at which the rule may fire.
        default: True if the rule runs when no passes are named.
        targets: Targets of the rule; none for all.

    Raises:
        RuleError: the function is not a rule (no docstring, wrong parameters, no operator).
    """

    def register(function: Callable[..., Any]) -> Rule:
        function_name = getattr(function, "__name__", "rule")
        lines = (inspect.getdoc(function) or "").strip().splitlines()
        if not lines:
            raise RuleError("expected a docstring, which is the rule's description", where=function_name)
        if on is None:
            rewrite = _trace(function)
            roots = frozenset(rewrite.pattern.op_types)
            apply: Callable[[Site], Result] = rewrite.apply
            producers, operators = _producers(rewrite.pattern), _operators(rewrite.pattern)
            producers += tuple(names for names in (_names(after),) if names)
        else:
            roots = _names(on)
            apply = function
            producers, operators = (tuple(names for names in (_names(option),) if names) for option in (after, among))
        registered = Rule(
            name=name,
            function=function_name,
            roots=roots,
            apply=apply,
            exactness=exactness,
            emits=(emits,) if isinstance(emits, str) else tuple(emits),
            opset=opset,
            default=default,
            targets=frozenset(targets),
            description=lines[0],
            after=producers,
            among=operators,
            module=function.__module__,
        )
        rules = REGISTRY.setdefault(name, [])
        rules[:] = [old for old in rules if old.function != function_name] + [registered]
        return registered

    return register


def _names(names: str | Iterable[str]) -> frozenset[str]:
    return frozenset((names,) if isinstance(names, str) else names)


def _producers(pattern: Expr) -> tuple[frozenset[str], ...]:
    """Return, for each operand of a pattern's root that fixes its producer, the possible producers."""
    sets = [frozenset(arg.op_types) for arg in pattern.args if isinstance(arg, Expr)]
    if any(isinstance(arg, (int, float, C)) for arg in pattern.args):
        sets.append(frozenset({CONSTANT}))
    return tuple(dict.fromkeys(sets))


def _operators(pattern: Expr) -> tuple[frozenset[str], ...]:
    """Return the operators of a pattern, root excepted: a model that lacks all of a set has no match."""
    inner = [arg for arg in pattern.args if isinstance(arg, Expr)]
    return tuple(dict.fromkeys(names for arg in inner for names in (frozenset(arg.op_types), *_operators(arg))))


_VARIABLES: dict[str, type[V | A]] = {"V": V, "C": C, "Maybe": Maybe, "A": A}


def _trace(function: Callable[..., Any]) -> Rewrite:
    """Call a pattern rule once with its variables."""
    variables: dict[str, V | A] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        kind = _VARIABLES.get(getattr(annotation, "__name__", str(annotation)).rsplit(".", 1)[-1])
        if kind is None or parameter.default is not inspect.Parameter.empty:
            raise RuleError(
                f"expected parameter '{name}' to be annotated V, C, Maybe or A and to have no default",
                where=function.__name__,
                remedy="State conditions after the rewrite: `pattern >> replacement | where(rank(x) == 2)`.",
            )
        variables[name] = kind(name)
    rewrite = function(**variables)
    if not isinstance(rewrite, Rewrite):
        raise RuleError("a pattern rule returns `pattern >> replacement`", where=function.__name__)
    return rewrite
