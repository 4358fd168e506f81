"""Gradients of every operator equal central differences in float64; products with Jacobians and Hessians too."""

from __future__ import annotations

import pytest

from tests.ops.differential import WITHOUT_GENERATOR
from tests.train.operator_gradients import GENERATORS, check_operator

FLAT = [
    "And", "ArgMax", "ArgMin", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "BlackmanWindow", "Constant", "ConstantOfShape", "ConvInteger", "Equal", "Greater", "GreaterOrEqual",
    "HammingWindow", "HannWindow", "IsInf", "IsNaN", "Less", "LessOrEqual", "MatMulInteger",
    "MelWeightMatrix", "NonMaxSuppression", "NonZero", "Not", "Or", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear", "Range", "RegexFullMatch", "Shape", "Size", "StringConcat", "StringNormalizer",
    "StringSplit", "TfIdfVectorizer", "Xor",
]  # fmt: skip
"""Operators without a floating-point operand or result, and constant ones: the gradient is zero by definition."""

ELSEWHERE = {
    "Cast": "rounding and saturation are taken for the identity; tests/core/transform/test_gradients.py",
    "If": "branches have float32 constants; tests/core/transform/test_gradients.py",
    "Loop": "bodies have float32 constants; tests/core/transform/test_gradients.py",
    **dict.fromkeys(
        ("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
         "SequenceLength", "SplitToSequence"),
        "sequences of known tensors are replaced by the tensors; tests/train/test_gradient.py",
    ),
    "Unique": "a host function: the count of results is a value of the run",
}  # fmt: skip
"""Operators that this test leaves out, with the reason."""

CHECKED = sorted(set(GENERATORS) - set(FLAT) - set(ELSEWHERE))


def test_every_operator_is_checked_flat_or_left_out_for_a_reason() -> None:
    assert set(FLAT) | set(ELSEWHERE) <= set(GENERATORS)
    assert not set(CHECKED) & set(WITHOUT_GENERATOR)


@pytest.mark.parametrize("name", CHECKED)
def test_the_gradient_of_an_operator_equals_differences(name: str) -> None:
    seed = 0
    while True:  # Cases of integers and empty tensors compare nothing.
        tally = check_operator(name, [seed])
        assert tally.failures == []
        if tally.checked:
            return
        seed += 1
        assert seed < 60, f"no case of {name} has a gradient"


@pytest.mark.long
@pytest.mark.parametrize("name", CHECKED)
def test_first_and_second_derivatives_equal_differences(name: str) -> None:
    first = 0
    while True:  # Cases of integers compare nothing, and some operators have few others.
        tally = check_operator(name, range(first, first + 15), second=True)
        assert tally.failures == []
        assert tally.checked >= tally.kinks // 2
        if tally.checked:
            return
        first += 15
        assert first < 60, f"no case of {name} has a gradient"


def test_second_derivatives_of_a_loop_over_rows_equal_differences() -> None:
    tally = check_operator("Scan", range(2), second=True)
    assert tally.failures == []
    assert tally.checked > 0
