"""The Dim algebra: laws over random expressions, then the forms, texts, limits and equalities by name."""

from __future__ import annotations

import copy
import doctest
import gc
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.random_cases import cases

from sardonyx.core.dim import (
    POSITIVE,
    Assumptions,
    Bounds,
    Dim,
    DimSystem,
    Size,
    as_dim,
    at_least,
    bounds,
    broadcast,
    ceil_div,
    dim_max,
    dim_min,
    divides,
    equal,
    evaluate,
    floor_div,
    is_constant,
    simplify,
    substitute,
    symbols,
)
from sardonyx.core.dim.parse import MAX_LENGTH, MAX_NESTING
from sardonyx.core.dim.polynomial import MAX_COEFFICIENT, MAX_DEPTH, MAX_NAME, MAX_OPERANDS, MAX_TERMS, expression
from sardonyx.errors import ShapeError, SizeLimitError

NAMES = ("a", "b", "batch size", "N+1")
a, b, c, H, N = map(Dim.symbol, ("a", "b", "c", "H", "N"))

Tree = Any
"""An int, a name, or (operation, operands): what was written, before anything is simplified."""


class Undefined(Exception):
    """The written expression has no value at this point."""


def tree_value(tree: Tree, values: Mapping[str, int]) -> int:
    """Return the value of the expression by Python's own arithmetic."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return values[tree]
    operation, *operands = tree
    args = [tree_value(operand, values) for operand in operands]
    if operation in ("//", "%", "ceil") and args[1] == 0:
        raise Undefined
    match operation:
        case "+":
            return args[0] + args[1]
        case "-":
            return args[0] - args[1]
        case "*":
            return args[0] * args[1]
        case "//":
            return args[0] // args[1]
        case "%":
            return args[0] % args[1]
        case "ceil":
            return -(-args[0] // args[1])
        case "min":
            return min(args)
        case "max":
            return max(args)
        case _:
            decided = {arg for arg in args if arg != 1} or {1}
            if len(decided) > 1:
                raise Undefined
            return decided.pop()


def build(tree: Tree, assumptions: Assumptions = None) -> Size:
    """Build the expression through the algebra; every operation receives ``assumptions``."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return Dim.symbol(tree)
    operation, *operands = tree
    args = [build(operand, assumptions) for operand in operands]
    match operation:
        case "+":
            return args[0] + args[1]
        case "-":
            return args[0] - args[1]
        case "*":
            return args[0] * args[1]
        case "//":
            return floor_div(args[0], args[1], assumptions)
        case "%":
            return args[0] - args[1] * floor_div(args[0], args[1], assumptions)
        case "ceil":
            return ceil_div(args[0], args[1], assumptions)
        case "min":
            return dim_min(*args, assumptions=assumptions)
        case "max":
            return dim_max(*args, assumptions=assumptions)
        case _:
            return broadcast(*args, assumptions=assumptions)


def operations(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    divisors = st.one_of(st.integers(1, 9), inner)
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max", "broadcast"]), inner, inner),
        st.tuples(st.sampled_from(["+", "*", "-"]), inner, st.integers(-6, 6)),
        st.tuples(st.sampled_from(["//", "%", "ceil"]), inner, divisors),
        st.tuples(st.sampled_from(["min", "max", "broadcast"]), inner, inner, inner),
    )


TREES = st.recursive(st.one_of(st.sampled_from(NAMES), st.integers(-9, 9)), operations, max_leaves=10)
VALUES = st.fixed_dictionaries({name: st.one_of(st.integers(0, 5), st.integers(0, 40)) for name in NAMES})
LAW = settings(max_examples=cases(200), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def built(tree: Tree, assumptions: Assumptions = None) -> Size:
    """The size, for laws about those that exist."""
    try:
        return build(tree, assumptions)
    except ShapeError:
        assume(False)
        raise


def value(tree: Tree, values: Mapping[str, int]) -> int:
    try:
        return tree_value(tree, values)
    except Undefined:
        assume(False)
        raise


def bounded(values: Mapping[str, int], least: int) -> dict[str, int]:
    return {name: max(number, least) for name, number in values.items()}


@LAW
@given(TREES, VALUES)
def test_canonical_form_preserves_the_value(tree: Tree, values: dict[str, int]) -> None:
    try:
        size = build(tree)
    except ShapeError as error:
        assume("limits" not in str(error))
        with pytest.raises(Undefined):  # A constant divisor of 0, or sizes proven not to broadcast.
            tree_value(tree, values)
        return
    expected = value(tree, values)
    assert evaluate(size, values) == expected


@LAW
@given(TREES, VALUES)
def test_assumptions_are_used_soundly(tree: Tree, values: dict[str, int]) -> None:
    values = bounded(values, 1)
    expected = value(tree, values)
    assert evaluate(built(tree, POSITIVE), values) == expected
    assert evaluate(simplify(built(tree), POSITIVE), values) == expected


@LAW
@given(TREES, VALUES)
def test_bounds_hold_every_value(tree: Tree, values: dict[str, int]) -> None:
    few = dict.fromkeys(NAMES, (2, 7))
    for assumptions, point in ((None, values), (few, {k: 2 + v % 6 for k, v in values.items()})):
        least, greatest = bounds(built(tree), assumptions)
        number = value(tree, point)
        assert least is None or least <= number
        assert greatest is None or number <= greatest


@LAW
@given(TREES, TREES, VALUES)
def test_proofs_hold_for_every_value(left: Tree, right: Tree, values: dict[str, int]) -> None:
    x, y = built(left), built(right)
    u, v = value(left, values), value(right, values)
    assert equal(x, y) in (None, u == v)
    assert at_least(x, y) in (None, u >= v)
    if v != 0 and y != 0:
        assert divides(y, x) in (None, u % v == 0)


@LAW
@given(TREES)
def test_text_parses_back_to_the_same_size(tree: Tree) -> None:
    for assumptions in (None, POSITIVE):
        size = built(tree, assumptions)
        assert as_dim(str(size)) is size or as_dim(str(size)) == size
        if isinstance(size, Dim):
            assert Dim.parse(expression(size)) is size


@LAW
@given(TREES, st.dictionaries(st.sampled_from(NAMES), TREES, max_size=2), VALUES)
def test_substitution_commutes_with_evaluation(tree: Tree, parts: dict[str, Tree], values: dict[str, int]) -> None:
    inner = values | {name: value(part, values) for name, part in parts.items()}
    assume(all(number >= 0 for number in inner.values()))
    expected = value(tree, inner)
    try:
        replaced = substitute(built(tree), {name: built(part) for name, part in parts.items()})
    except ShapeError as error:
        assume("limits" not in str(error))
        raise
    assert evaluate(replaced, values) == expected


@LAW
@given(TREES, TREES, TREES)
def test_ring_laws_hold_by_identity(left: Tree, middle: Tree, right: Tree) -> None:
    x, y, z = built(left), built(middle), built(right)
    try:
        assert same(x + y, y + x) and same((x + y) + z, x + (y + z))
        assert same(x * y, y * x) and same(x * (y + z), x * y + x * z) and same(x - y, -(y - x))
        assert same((x + y) - y, x)
    except ShapeError as error:
        assert "limits" in str(error)


def same(x: Size, y: Size) -> bool:
    return x is y or (isinstance(x, int) and x == y)


@given(st.text(max_size=30))
@settings(max_examples=cases(300), deadline=None)
def test_any_text_is_a_size_whose_text_is_a_fixed_point(text: str) -> None:
    try:
        size = Dim.parse(text)
    except ShapeError:
        assert not text.strip()
        return
    assert as_dim(str(size)) is size or as_dim(str(size)) == size


@given(st.text(min_size=1, max_size=30))
@settings(max_examples=cases(300), deadline=None)
def test_any_name_is_a_symbol_that_prints_unambiguously(name: str) -> None:
    symbol = Dim.symbol(name)
    assert symbol.symbols() == {name}
    assert Dim.parse(str(symbol)) is symbol
    assert Dim.parse(str(2 * symbol + a)) is 2 * symbol + a


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("batch", "batch"),
        ("N*2+1", "2*N + 1"),
        ("(H-1)//2+1", "(H + 1)//2"),
        ("floor(H/2)", "H//2"),
        ("floor(H/2 - 1/2) + 1", "(H + 1)//2"),
        ("ceil(a/b)", "-(-a//b)"),
        ("ceiling(a/2)", "(a + 1)//2"),
        ("Min(a,b)", "min(a, b)"),
        ("max(a, b)", "max(a, b)"),
        ("Max(a, b, a, 0)", "max(a, b)"),
        ("Mod(a, 8)", "a - 8*(a//8)"),
        ("FloorDiv(a, 2)", "a//2"),
        ("ceil_div(a, 2)", "(a + 1)//2"),
        ("broadcast(a, b, 1)", "broadcast(a, b)"),
        ("4*H/2", "2*H"),
        ("s0**2", "s0*s0"),
        ("7*a//8", "7*a//8"),
        ("1 - N", "1 - N"),
        ("-N", "-N"),
        ("-(N//2)", "-(N//2)"),
        ("H - N//2 - 1", "H - N//2 - 1"),
        ("-3*(N//2) - H", "-3*(N//2) - H"),
        ("2 - 3*(N//2) - H", "2 - 3*(N//2) - H"),
        ("b - a", "b - a"),
        ("unk__12", "unk__12"),
        ("dim.0", "dim.0"),
        ("Addsequence_dim_0", "Addsequence_dim_0"),
        (" H + 1 ", "H + 1"),
    ],
)
def test_expressions_parse(text: str, printed: str) -> None:
    assert str(Dim.parse(text)) == printed


@pytest.mark.parametrize(
    "text",
    [
        *(
            "batch size",
            "?",
            "N/A",
            "2N",
            "H/2",
            "onnx::Shape_1",
            "a/b",
            "f(a)",
            "max()",
            "a b",
            "(a",
            "a)",
            "a//0",
            "a%0",
        ),
        *("a+", "`", "2**a", "a**99", "mod(a)", "floor(a, b)", "0x10", "1.5", "*", "min(H/2, a)"),
    ],
)
def test_other_texts_are_opaque_symbols(text: str) -> None:
    size = Dim.parse(text)
    assert size is Dim.symbol(text) and str(size) == text
    assert str(size + 1) == f"`{text.replace('`', '``')}` + 1"


def test_numbers_stay_numbers() -> None:
    assert as_dim("16") == 16 and as_dim("-3*2") == -6 and as_dim(5) == 5 and as_dim(np.int64(7)) == 7
    assert type(as_dim(np.int64(7))) is int
    assert is_constant(a - a) and not is_constant(a) and not a.is_constant
    assert a - a == 0 and a * 0 == 0 and (a + 2) - a == 2 and (3 * a) // a * 1 != 3
    assert symbols(4) == frozenset() and substitute(4, {"a": 1}) == 4 and bounds(4) == (4, 4) and evaluate(4, {}) == 4
    assert a + np.int64(1) is a + 1
    for operand in (1.5, "1", None):
        with pytest.raises(TypeError):
            a * operand  # type: ignore[operator]


def test_equal_expressions_are_one_object() -> None:
    assert (a + b) * 2 is 2 * b + a + a
    assert hash((a + b) // 3) == hash((b + a) // 3)
    assert a != b and a + 1 != a
    assert (a * 6) // 3 is 2 * a and (a * 4) // 6 is (2 * a) // 3
    assert ceil_div(a, 3) is -((-a) // 3) is (a + 2) // 3
    assert ((a + 1) // 2 + 1) // 2 is (a + 3) // 4
    assert (8 * a + 3) % 8 == 3 and a // 8 * 8 + a % 8 is a and (a % 8) // 8 == 0 and (a % 8) % 8 is a % 8
    assert a // -2 is -a // 2 and a // 1 is a
    assert dim_max(a + 1, b + 1) is dim_max(a, b) + 1
    assert dim_max(a, dim_max(b, 0)) is dim_max(b, a) and dim_min(a, a + 1) is a and dim_min(a, dim_max(a, b)) is a


def test_parts_above_and_below_zero_add_up_to_the_size() -> None:
    for size in (a - b, b - a, a - 2 * b + 3, 2 - a):
        assert dim_max(0, size) + dim_min(size, 0) is size
        above, below = dim_max(0, size), dim_max(0, -size)
        assert above - below is size and 3 * below - above is 2 * below - size and a * above - a * below is a * size
        assert at_least(above, 0) is True and at_least(above * a, 0) is True and at_least((above * a) // 2, 0) is True
        assert dim_max(0, above * a) is above * a and dim_max(above, 1) is dim_max(size, 1)
    assert str(dim_max(0, a - b)) == "max(0, a - b)" and str(dim_min(0, b - a)) == "-max(0, a - b)"


def test_a_possibly_zero_divisor_is_not_cancelled() -> None:
    for size in (a * b // b, b // b, (a + b * c) // b, (b - 1) // b):
        assert isinstance(size, Dim)
        with pytest.raises(ShapeError, match="divided by 0"):
            size.evaluate({"a": 1, "b": 0, "c": 1})


def test_a_positive_divisor_is_cancelled() -> None:
    assert floor_div(a * b, b, {"b": (1, None)}) is a
    assert simplify(a * b // b, POSITIVE) is a
    assert simplify((a + b * c) % c, POSITIVE) is simplify(a % c, POSITIVE)
    assert (a * (N + 1)) // (N + 1) is a and (a * N + a + N + 1) // (N + 1) is a + 1
    assert floor_div(6 * a * b, 4 * b, POSITIVE) is 3 * a // 2
    assert floor_div(a // b, c, POSITIVE) is floor_div(a, b * c, POSITIVE)
    assert floor_div(a, a + b, POSITIVE) == 0 and floor_div(a * b + b, b, POSITIVE) is a + 1


def test_bounds_follow_from_assumptions() -> None:
    assert bounds(a) == (0, None) and bounds(a, POSITIVE) == (1, None) and bounds(-a) == (None, 0)
    assert bounds(a * b + 1, {"a": (2, 3), "b": (1, 4)}) == (3, 13)
    assert bounds(a % 8) == (0, 7) and bounds(a - a // 2) == (0, None) and bounds(dim_min(a, 5)) == (0, 5)
    assert bounds((H + 1) // 2, {"H": (1, 224)}) == (1, 112)
    assert dim_max(a, 0) is a and dim_max(a, 1, assumptions=POSITIVE) is a
    assert dim_min(a, 9, assumptions={"a": (0, 9)}) is a
    assert simplify(dim_min(a, 512), Bounds({"a": (1, 512)})) is a


def test_proofs() -> None:
    assert equal(a // 2 + (a + 1) // 2, a) is True
    assert equal(a, a + 1) is False and equal(2 * a, 2 * b + 1) is False and equal(a, b) is None
    assert equal(a, 0) is None and equal(a, 0, POSITIVE) is False
    assert at_least(H, (H + 1) // 2) is True and at_least(a, b) is None and at_least(a, a + 1) is False
    assert at_least(dim_max(a, b), a) is True and at_least(a, dim_min(a, b)) is True
    assert at_least(b - 1, a % b, POSITIVE) is True
    assert divides(4, 8 * a + 4) is True and divides(4, 2 * a + 1) is False and divides(4, a) is None
    assert divides(b, a * b, POSITIVE) is True and divides(b, a * b) is None
    with pytest.raises(ShapeError, match="0 divides a"):
        divides(0, a)


def test_a_difference_beyond_the_limits_gives_no_proof() -> None:
    x, y = (sum((Dim.symbol(f"{letter}{i}") for i in range(MAX_TERMS - 1)), a) for letter in "xy")
    assert equal(x, y) is None and at_least(x, y) is None and divides(y, x * 3) is None
    assert isinstance(dim_max(x, b), Dim)


@pytest.mark.parametrize("text", ["min(512, a)", "min(2, a, b + 2)", "max(0, min(1, a) + a - 1)"])
def test_broadcasting_drops_operands_that_must_be_equal(text: str) -> None:
    assert broadcast(Dim.parse(text), a) is a


def test_broadcasting_of_sizes_undefined_at_zero() -> None:
    assert str(broadcast(a, floor_div(a, a))) == "broadcast(a//a, a)"


def test_broadcasting_keeps_operands_that_may_be_1() -> None:
    for text in ("min(1, a)", "min(b, a)", "max(1, a - 1)"):
        size = Dim.parse(text)
        result = broadcast(size, a)
        assert isinstance(result, Dim) and result.atom is not None and result.atom.kind == "broadcast"


def test_broadcasting_is_not_a_maximum() -> None:
    size = broadcast(a, b)
    assert [evaluate(size, {"a": x, "b": y}) for x, y in ((0, 1), (1, 0), (1, 1), (1, 7), (7, 7))] == [0, 0, 1, 7, 7]
    with pytest.raises(ShapeError, match="2 and 3 do not broadcast"):
        evaluate(size, {"a": 2, "b": 3})
    assert broadcast(a, 1) is a and broadcast(a, a) is a and broadcast(a, 3) == 3 and broadcast(0, a, 1) == 0
    assert broadcast(a, b + 2) is b + 2 and broadcast(a, broadcast(b, c)) is broadcast(c, b, a)
    for sizes in ((2, 3), (0, 5), (a, 4, 5), (a + 2, a + 3)):
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast(*sizes)


def test_substitution_is_simultaneous() -> None:
    assert substitute(a - 2 * b, {"a": b, "b": a}) is b - 2 * a
    assert substitute((H + 1) // 2 * N, {"H": 224, "N": 3}) == 336
    assert substitute(a * b // b, {"b": c + 1}) is a
    with pytest.raises(ShapeError, match="divided by 0"):
        substitute(a // b, {"b": 0})


def test_evaluation_refuses_missing_and_negative_sizes() -> None:
    with pytest.raises(ShapeError, match=r"b: the size has no value"):
        (a + b).evaluate({"a": 1})
    with pytest.raises(ShapeError, match=r"a: expected a size ≥ 0, got -1"):
        (a + b).evaluate({"a": -1, "b": 2})


@pytest.mark.parametrize("limits", [(-1, 3), (4, 3)])
def test_impossible_bounds_are_refused(limits: tuple[int, int]) -> None:
    with pytest.raises(ShapeError, match=r"^a: the bounds"):
        Bounds({"a": limits})
    with pytest.raises(ShapeError, match=r"^every size"):
        Bounds(default=limits)


def test_unbounded_growth_of_expressions_is_refused() -> None:
    def grown(size: Size, step: Any) -> None:
        for i in range(10_000):
            size = step(size, i)

    steps = {
        "terms": lambda size, i: size + Dim.symbol(f"v{i}"),
        "product": lambda size, i: size * (Dim.symbol(f"v{i}") + 1),
        "degree": lambda size, _: size * a,
        "coefficient": lambda size, _: size * 1000,
        "sum": lambda size, _: size + size,
        "constant": lambda size, i: size + 10**i,
        "doubling": lambda size, _: dim_max(size // 2, size // 3 + b),
        "depth": lambda size, i: dim_max(dim_min(size, 2 * a + i) + b, c + 3 * size),
        "operands": lambda size, i: dim_min(size, Dim.symbol(f"v{i}")),
        "remainders": lambda size, i: size * size % (7 + i),
    }
    for step in steps.values():
        with pytest.raises(SizeLimitError, match="exceeds the limits"):
            grown(a, step)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "(" * (MAX_NESTING + 1) + "a" + ")" * (MAX_NESTING + 1),
        "max(" * 5_000 + "a",
        "a" * (MAX_LENGTH + 1),
        "?" * (MAX_NAME + 1),
        "9" * 5_000,
        "*".join(["99999999999"] * 100),
        "((9**16)**16)**16",
        "*".join(["a"] * 5_000),
        "+".join(f"v{i}" for i in range(MAX_TERMS + 1)),
        "*".join(f"(v{i}+1)" for i in range(100)),
        f"max({','.join(f'v{i}' for i in range(MAX_OPERANDS + 1))})",
        str(MAX_COEFFICIENT) + "*a",
        "",
        "  ",
    ],
)
def test_hostile_texts_are_refused(text: str) -> None:
    with pytest.raises(ShapeError):
        Dim.parse(text)


def test_a_long_chain_of_signs_is_read() -> None:
    assert Dim.parse("-" * 10_000 + "a") is a


def test_the_largest_expressions_print_and_parse_back() -> None:
    deep: Size = a
    for i in range(MAX_DEPTH - 1):
        deep = dim_max(deep, i * b) if i % 2 else dim_min(deep + 1, c * i + 2) * b
    wide: Size = 0
    for i in range(MAX_TERMS):
        wide = wide + (MAX_COEFFICIENT - 1 - i) * Dim.symbol(f"v{i}")
    for size in (deep, wide):
        assert isinstance(size, Dim)
        assert Dim.parse(str(size)) is size
        assert len(str(size)) <= MAX_LENGTH


def test_examples_of_the_design_page_run() -> None:
    page = Path(__file__).parents[3] / "docs" / "design" / "dims.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0 and result.failed == 0


def test_copies_and_pickles_are_the_same_object() -> None:
    size = (a + 1) // 2 * Dim.symbol("N+1") + dim_max(a, b)
    assert copy.deepcopy(size) is size and pickle.loads(pickle.dumps(size)) is size


def test_threads_share_one_object() -> None:
    results: list[list[Size]] = []

    def work() -> None:
        results.append([dim_max((N + i) // 7 * H, Dim.symbol(f"thread {i}") * i) for i in range(300)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(x is y for other in results for x, y in zip(results[0], other, strict=True))


def test_identity_survives_collection_and_memo_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.core.dim.polynomial.MEMO_ENTRIES", 4)
    dim = a + 12345
    for i in range(100):
        _ = a + i
    gc.collect()
    assert a + 12345 is dim


LOCATIONS = {"left_location": "input x axis 0", "right_location": "weight w axis 1"}


def test_equal_sizes_unify() -> None:
    system = DimSystem()
    assert system.unify(a, b, **LOCATIONS) is a
    assert system.resolve(b + 1) is a + 1
    assert system.unify(N + 1, c, **LOCATIONS) is N + 1
    assert system.resolve(c) is N + 1
    assert system.unify(2 * H, 8, **LOCATIONS) == 8
    assert system.resolve(H + b) is a + 4
    assert system.solutions == {"b": a, "c": N + 1, "H": 4}
    assert system.unify(3, b) == 3 and system.resolve(a) == 3


def test_contradictions_name_both_locations() -> None:
    system = DimSystem()
    system.unify(a, 3, **LOCATIONS)
    with pytest.raises(ShapeError) as caught:
        system.unify(a, 4, left_location="node add", right_location="bias b axis 0")
    for location in ("node add", "bias b axis 0", "input x axis 0", "weight w axis 1"):
        assert location in caught.value.where
    assert "a (= 3) and 4" in caught.value.problem
    assert system.resolve(a) == 3
    for left, right in ((2 * b, 7), (b, b + 1), (b, -1), (3, 4)):
        with pytest.raises(ShapeError, match="input x axis 0 and weight w axis 1: sizes"):
            DimSystem().unify(left, right, **LOCATIONS)
    with pytest.raises(ShapeError):
        DimSystem(POSITIVE).unify(a, 0)


def test_unsolved_equalities_are_retried_after_each_solution() -> None:
    system = DimSystem()
    system.unify(a * b, 12, left_location="reshape r", right_location="input x")
    assert len(system.pending) == 1
    system.unify(a, 3, left_location="input y", right_location="input z")
    assert system.resolve(b) == 4 and not system.pending
    system.unify(broadcast(c, H), 5, left_location="node add", right_location="output o")
    with pytest.raises(ShapeError) as caught:
        system.unify(c, 6, left_location="input c", right_location="weight w")
    assert {"node add", "output o", "input c", "weight w"} <= set(caught.value.where.split(" and "))
    assert system.resolve(c) is c and len(system.pending) == 1


def test_a_failed_substitution_names_locations() -> None:
    system = DimSystem()
    system.unify(a // b, c, left_location="reshape r", right_location="output o")
    with pytest.raises(ShapeError, match="divided by 0") as caught:
        system.unify(b, 0, left_location="input y", right_location="input z")
    assert "input y" in caught.value.where and "reshape r" in caught.value.where


@LAW
@given(st.lists(st.tuples(TREES, TREES), max_size=4), VALUES)
def test_true_equalities_never_contradict(pairs: list[tuple[Tree, Tree]], values: dict[str, int]) -> None:
    """Equalities that hold at one point unify, and the solutions hold at this point."""
    system = DimSystem()
    for left, right in pairs:
        shift = value(left, values) - value(right, values)
        try:
            system.unify(built(left), built(right) + shift)
        except ShapeError as error:
            assume("limits" not in str(error))
            raise
    for name, solution in system.solutions.items():
        assert evaluate(solution, values) == values[name]
