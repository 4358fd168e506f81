"""Functions inside of ``vmap`` and gradients: sizes remain open, and a refused conversion leaves no transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.convert.torch.conversions import converted, drawn  # noqa: E402

AT = torch.tensor([0, 2, 2])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "concatenation": lambda row: torch.cat([row, row.sin()]).square(),
    "gathering": lambda row: row.gather(0, AT).square(),
    "selection": lambda row: row.index_select(0, AT).sin(),
    "layer norm": lambda row: F.layer_norm(row, (4,), torch.tensor([0.5, 1.0, 2.0, 3.0])).sin(),
}

TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: vmap(vmap(f)),
    "grad": lambda f: vmap(vmap(grad(lambda row: f(row).sum()))),
    "jacrev": lambda f: vmap(vmap(jacrev(f))),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sizes_remain_open_inside_of_transforms(function: str, transform: str) -> None:
    result = converted(TRANSFORMS[transform](FUNCTIONS[function]), drawn(3, 5, 4))
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    assert sum(len(values) > 1 for values in result.report.sizes.values()) >= 2


def test_sizes_remain_open_in_forward_gradients() -> None:
    def along(x: Any) -> Any:
        return jvp(lambda y: (y.tanh() @ y.mT).sum(-1), (x,), (torch.ones_like(x),))

    for function, example in ((along, drawn(4, 3)), (lambda x: jacfwd(lambda row: row.sin() * row.sum())(x), drawn(6))):
        result = converted(function, example)
        assert result.report.verdict.status == "proved", result.report.verdict.reason
        assert all(len(values) > 1 for values in result.report.sizes.values())
        assert len(result.report.sizes) == example.ndim


def test_second_gradients_are_converted() -> None:
    result = converted(lambda x: vmap(hessian(lambda row: FUNCTIONS["concatenation"](row).sum()))(x), drawn(5, 4))
    assert result.report.verdict.status == "proved", result.report.verdict.reason


def test_plain_functions_are_those_of_torch_after_a_conversion() -> None:
    before = torch.cat, torch.gather, F.layer_norm
    converted(lambda x: torch.cat([x, x]), drawn(3, 4))
    assert (torch.cat, torch.gather, F.layer_norm) == before
