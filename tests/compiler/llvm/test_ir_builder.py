"""What is computed is written once where it is known, and never used where it is not."""

from __future__ import annotations

import ctypes
import random

import pytest

from sardonyx.compiler.llvm.ir_builder import Emitter, Variable
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.target.description import host


def test_what_is_computed_is_written_once() -> None:
    e = Emitter()
    first = e.add("%a", "%b")
    with e.loop(0, "%n"):
        assert e.add("%a", "%b") == first
    assert e.spread("%x", 4, "float") == e.spread("%x", 4, "float")
    assert e.text().count("add nsw i64 %a, %b") == 1
    assert e.text().count("shufflevector") == 1


def test_what_may_give_something_else_is_written_again() -> None:
    e = Emitter()
    variable = e.variable("i64", "1")
    assert variable.get() != variable.get()
    assert e.load("float", "%p", 4) != e.load("float", "%p", 4)
    assert e.opaque("i64", "%a") != e.opaque("i64", "%a")


def test_what_may_have_been_passed_by_is_not_known_behind() -> None:
    e = Emitter()
    actual = []
    with e.loop(0, "%n"):
        actual.append(e.add("%a", "%b"))
    with e.when("%c"):
        actual.append(e.add("%a", "%b"))
    with e.either("%c") as branches:
        for _ in branches:
            actual.append(e.add("%a", "%b"))
    e.label("anywhere")
    actual.append(e.add("%a", "%b"))
    assert len({*actual}) == 5


@pytest.mark.parametrize("seed", range(8))
def test_random_functions_compute_what_they_say(seed: int) -> None:
    draw = random.Random(seed)
    e = Emitter()
    total = e.variable("i64", "0")
    expected = _written(e, draw, total, {"%a": 5, "%b": 7}, depth=3)
    e.line(f"ret i64 {total.get()}")
    text = f"define i64 @f(i64 %a, i64 %b) {{\n{e.text()}\n}}"
    code = LoadedCode([compiled(module_text(host(), [text]), host())], host())
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(code.address("f"))
    assert function(5, 7) == expected


def _written(e: Emitter, draw: random.Random, total: Variable, names: dict[str, int], depth: int) -> int:
    """Write sums in random blocks that add to a total; returns what the total gains where all of it runs once."""
    gained = 0
    for _ in range(draw.randint(2, 5)):
        a, b = draw.choice([*names]), draw.choice([*names])
        name = str(e.add(a, b))
        names = {**names, name: names[a] + names[b]}
        total.set(str(e.add(total.get(), name)))
        gained += names[name]
        if not depth:
            continue
        kind = draw.choice(["loop", "when", "either"])
        if kind == "loop":
            rounds = draw.randint(0, 3)
            with e.loop(0, rounds):
                gained += rounds * _written(e, draw, total, names, depth - 1)
        elif kind == "when":
            holds = draw.random() < 0.5
            with e.when(e.let(f"icmp eq i64 %a, {5 if holds else 6}")):
                gained += holds * _written(e, draw, total, names, depth - 1)
        else:
            first = draw.random() < 0.5
            with e.either(e.let(f"icmp eq i64 %b, {7 if first else 8}")) as branches:
                actual = [_written(e, draw, total, names, depth - 1) for _ in branches]
            gained += actual[0 if first else 1]
    return gained
