"""`as_strided` counts elements in the memory of views, and operators on lists are those on their elements."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sardonyx.errors import ConversionError  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402


def of_transposed_rows(x: Any) -> Any:
    y = x.clone().t()[1:4]
    return y.as_strided((2, 3), (6, 2)), y.as_strided((3,), (1,), 2) * 2


def at_the_offset_of_a_slice(x: Any) -> Any:
    return x.narrow(1, 1, 3).as_strided((4, 3), (6, 1)), x.unbind(0)[1].as_strided((2, 2), (3, 1))


def with_strides_of_a_view(x: Any) -> Any:
    y = x[:, ::2]
    return torch.as_strided(y, (2, 2), (y.stride(0), y.stride(1)), 1)


def written_in_the_order_of_memory(x: Any) -> Any:
    y = x.transpose(0, 1).clone()
    y.as_strided((3,), (1,), 2).mul_(5)
    return y


@pytest.mark.parametrize(
    "function",
    [of_transposed_rows, at_the_offset_of_a_slice, with_strides_of_a_view, written_in_the_order_of_memory],
)
def test_strided_views_read_and_write_memory(function: Any) -> None:
    assert converted(function, drawn(4, 6)).report.verdict.status == "proved"


def test_writes_to_strided_views_of_views_are_refused_by_name() -> None:
    def written(x: Any) -> Any:
        y = x.clone()
        y.t()[1:4].as_strided((2, 3), (6, 2)).fill_(0)
        return y

    with pytest.raises(ConversionError, match="as_strided"):
        converted(written, drawn(4, 6))


def of_lists(name: str, *args: Any, **options: Any) -> Any:
    return getattr(torch, f"_foreach_{name}")(*args, **options)


def lists(x: Any, y: Any) -> Any:
    both = of_lists("mul", [x, y], 2.0)
    both = of_lists("add", both, [y, x], alpha=0.5)
    of_lists("sub_", both, [0.25, 1.0])
    both = of_lists("addcmul", both, [x, x], [y, y], value=-1)
    return of_lists("maximum", both, 0.5), of_lists("norm", both), of_lists("lerp", both, [x, y], 0.5)


def test_operators_on_lists_are_those_on_their_elements() -> None:
    assert converted(lists, drawn(4, 6), drawn(4, 6, seed=1)).report.verdict.status == "proved"
