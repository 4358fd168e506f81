"""Every operator of ONNX in torch equals its definition, as torch's function and as primitives of Core."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from sardonyx.export.torch import exporter
from sardonyx.export.torch.operators import OPERATOR_FORMS
from tests.export.agreement import disagreement
from tests.ops.differential import GENERATORS
from tests.random_cases import cases


@pytest.mark.parametrize("operator", sorted(GENERATORS))
def test_an_operator_in_torch_equals_its_definition(operator: str) -> None:
    for seed in range(cases(3)):
        assert disagreement(exporter, operator, seed) is None


@pytest.mark.long
@pytest.mark.parametrize("forms", [True, False], ids=["functions", "definitions"])
@pytest.mark.parametrize("operator", sorted(GENERATORS))
def test_an_operator_in_torch_equals_its_definition_at_length(operator: str, forms: bool) -> None:
    for seed in range(3, 40):
        assert disagreement(exporter, operator, seed, None if forms else OPERATOR_FORMS) is None
