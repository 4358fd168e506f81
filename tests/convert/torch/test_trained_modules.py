"""Modules that are trained on after their conversion, and modules whose models are trained."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx import train  # noqa: E402


class Scaled(torch.nn.Module):  # type: ignore[misc]
    """A product with a learned temperature, a fixed basis, and one norm that two places share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.temperature = torch.nn.Parameter(torch.tensor(0.7))
        self.register_buffer("basis", torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x) @ self.basis)
        return self.norm(self.second(hidden)) * self.temperature


def test_a_module_that_is_trained_on_leaves_its_model() -> None:
    module, x = Scaled(), torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    model = sardonyx.convert(module, (x,), simplify=False).model
    session = sardonyx.Session(model, compile="wait")
    (before,) = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    for one in (session, sardonyx.Session(model, compile="wait")):
        np.testing.assert_array_equal(one.run(None, {"x": x.numpy()})[0], before)


@pytest.mark.parametrize("frozen", ["", "first.weight", "all"])
def test_exactly_the_parameters_of_a_module_are_trained(frozen: str) -> None:
    module = Scaled()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(frozen not in (name, "all"))
    names = {name for name, _ in module.named_parameters()}
    model = sardonyx.convert(module, (torch.randn(2, 4),), simplify=False).model
    trainer = train.Trainer(model, "mse", train.SGD(0.01))
    assert set(trainer.parameters) == names - {frozen}
    assert not trainer.notes or "basis" in trainer.notes[0]


class Homogeneous(torch.nn.Module):  # type: ignore[misc]
    """Coordinates with a column of ones, and polynomials that begin with ones: numbers that no one trains."""

    def __init__(self) -> None:
        super().__init__()
        self.map = torch.nn.Linear(3, 3)
        self.factors = torch.nn.Parameter(torch.randn(3, 3, generator=torch.Generator().manual_seed(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones_like(x[:, :1])
        mapped = torch.cat([x, ones], 1) @ self.map.weight
        powers = torch.stack([torch.ones_like(mapped), mapped, 2 * mapped * mapped - 1])
        return torch.einsum("kbi,ki->bi", powers, self.factors) + self.map.bias


def test_numbers_that_operators_are_written_with_are_not_trained() -> None:
    model = sardonyx.convert(Homogeneous(), (torch.randn(5, 2),), simplify=False).model
    assert set(train.Trainer(model, "mse", train.SGD(0.01)).parameters) == {"map.weight", "map.bias", "factors"}


def test_steps_after_a_conversion_are_those_of_torch() -> None:
    """One training of a module in the process of another, whose constants equal its first weights."""
    module = Scaled()
    x, y = (np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32) for seed in (0, 1))
    trainer = train.Trainer(
        sardonyx.convert(module, (torch.from_numpy(x),), simplify=False).model, "mse", train.AdamW(0.01)
    )
    optimizer = torch.optim.AdamW(module.parameters(), 0.01, weight_decay=0.01)
    for _ in range(20):
        loss = torch.nn.functional.mse_loss(module(torch.from_numpy(x)), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.step([x, y]) == pytest.approx(loss.item(), rel=1e-5)
