"""Optimizers take the steps of the formulas in double precision, and of torch where torch is installed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from sardonyx import train
from sardonyx.errors import OptionError
from sardonyx.train.optimizers import OPTIMIZERS, optimizer_of
from tests.train.networks import points, regression

STEPS = 25
RATE = 0.01
SIZES = (5, 3)
"""Features and results: their product is no multiple of a vector."""


def adam(
    p: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int, *, decoupled: float = 0.0, decay: float = 0.0
) -> np.ndarray:
    g = g + decay * p
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    p = p * (1 - RATE * decoupled)
    m, v = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.999**t)
    return p - RATE * m / (np.sqrt(v) + 1e-8)


def momentum(p: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int, *, nesterov: bool = False) -> np.ndarray:
    s["v"] = 0.9 * s["v"] + g if "v" in s else g
    return p - RATE * (g + 0.9 * s["v"] if nesterov else s["v"])


def rmsprop(p: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
    return p - RATE * g / (np.sqrt(s["v"]) + 1e-8)


def adagrad(p: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
    s["v"] = s.get("v", 0) + g * g
    return p - RATE * g / (np.sqrt(s["v"]) + 1e-10)


def adadelta(p: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g * g
    d = np.sqrt(s.get("d", 0) + 1e-6) / np.sqrt(s["v"] + 1e-6) * g
    s["d"] = 0.9 * s.get("d", 0) + 0.1 * d * d
    return p - RATE * d


def lion(p: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
    m = s.get("m", 0)
    s["m"] = 0.99 * m + 0.01 * g
    return p * (1 - RATE * 0.1) - RATE * np.sign(0.9 * m + 0.1 * g)


def lamb(p: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    d = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-6) + 0.1 * p
    return p - RATE * np.linalg.norm(p) / np.linalg.norm(d) * d


FORMULAS: dict[str, tuple[train.Optimizer, Callable[..., np.ndarray]]] = {
    "sgd": (train.SGD(RATE), lambda p, g, s, t: p - RATE * g),
    "momentum": (train.SGD(RATE, momentum=0.9), momentum),
    "nesterov": (
        train.SGD(RATE, momentum=0.9, nesterov=True),
        lambda p, g, s, t: momentum(p, g, s, t, nesterov=True),
    ),
    "adam": (train.Adam(RATE, weight_decay=0.1), lambda p, g, s, t: adam(p, g, s, t, decay=0.1)),
    "adamw": (train.AdamW(RATE, weight_decay=0.1), lambda p, g, s, t: adam(p, g, s, t, decoupled=0.1)),
    "rmsprop": (train.RMSprop(RATE), rmsprop),
    "adagrad": (train.Adagrad(RATE), adagrad),
    "adadelta": (train.Adadelta(RATE), adadelta),
    "lion": (train.Lion(RATE, weight_decay=0.1), lion),
    "lamb": (train.LAMB(RATE, weight_decay=0.1), lamb),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_optimizer_takes_the_steps_of_its_formula(name: str) -> None:
    optimizer, formula = FORMULAS[name]
    trainer = train.Trainer(regression(TensorProto.FLOAT, *SIZES), "mse", optimizer)
    data = points(32, 0, *SIZES)
    x, y = data["x"].astype(np.float64), data["labels"].astype(np.float64)
    w = trainer.state()["parameter:w"].astype(np.float64)
    b = trainer.state()["parameter:b"].astype(np.float64)
    states: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for t in range(1, STEPS + 1):
        error = 2 * (x @ w + b - y) / y.size
        trainer.step(data)
        w, b = formula(w, x.T @ error, states[0], t), formula(b, error.sum(0), states[1], t)
    state = trainer.state()
    np.testing.assert_allclose(state["parameter:w"], w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["parameter:b"], b, rtol=1e-5, atol=1e-6)


TORCH: dict[str, tuple[train.Optimizer, str, dict[str, Any]]] = {
    "sgd": (train.SGD(RATE, weight_decay=0.1), "SGD", {"lr": RATE, "weight_decay": 0.1}),
    "momentum": (train.SGD(RATE, momentum=0.9), "SGD", {"lr": RATE, "momentum": 0.9}),
    "nesterov": (
        train.SGD(RATE, momentum=0.9, nesterov=True), "SGD", {"lr": RATE, "momentum": 0.9, "nesterov": True},
    ),
    "dampening": (
        train.SGD(RATE, momentum=0.9, dampening=0.5, weight_decay=0.1), "SGD",
        {"lr": RATE, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    ),
    "adam": (train.Adam(RATE, weight_decay=0.1), "Adam", {"lr": RATE, "weight_decay": 0.1}),
    "amsgrad": (train.Adam(RATE, amsgrad=True), "Adam", {"lr": RATE, "amsgrad": True}),
    "adamw": (train.AdamW(RATE, weight_decay=0.1), "AdamW", {"lr": RATE, "weight_decay": 0.1}),
    "adagrad": (train.Adagrad(RATE, rate_decay=0.1), "Adagrad", {"lr": RATE, "lr_decay": 0.1}),
    "rmsprop": (train.RMSprop(RATE), "RMSprop", {"lr": RATE}),
    "centered": (
        train.RMSprop(RATE, momentum=0.9, centered=True), "RMSprop", {"lr": RATE, "momentum": 0.9, "centered": True},
    ),
    "adadelta": (train.Adadelta(1.0), "Adadelta", {"lr": 1.0}),
    "adafactor": (train.Adafactor(RATE), "Adafactor", {"lr": RATE}),
}  # fmt: skip


def steps_of_torch(name: str, steps: int, dtype: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the parameters after some steps, and those of torch."""
    import torch

    optimizer, kind, options = TORCH[name]
    trainer = train.Trainer(regression(dtype, *SIZES), "mse", optimizer)
    state = trainer.state()
    parameters = {key: torch.tensor(state[f"parameter:{key}"], requires_grad=True) for key in ("w", "b")}
    theirs = getattr(torch.optim, kind)(list(parameters.values()), **options)
    data = {key: array.astype(state["parameter:w"].dtype) for key, array in points(32, 0, *SIZES).items()}
    x, y = torch.tensor(data["x"]), torch.tensor(data["labels"])
    for _ in range(steps):
        trainer.step(data)
        theirs.zero_grad()
        torch.nn.functional.mse_loss(x @ parameters["w"] + parameters["b"], y).backward()
        theirs.step()
    ours = {key: trainer.state()[f"parameter:{key}"] for key in parameters}
    return ours, {key: parameter.detach().numpy() for key, parameter in parameters.items()}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed")
@pytest.mark.parametrize("name", ["amsgrad", "centered", "adafactor"])
def test_optimizer_takes_the_steps_of_torch(name: str) -> None:
    for ours, theirs in zip(*map(dict.values, steps_of_torch(name, STEPS, TensorProto.FLOAT)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed")
@pytest.mark.parametrize("name", TORCH)
def test_a_hundred_steps_in_float64_are_those_of_torch(name: str) -> None:
    for ours, theirs in zip(*map(dict.values, steps_of_torch(name, 100, TensorProto.DOUBLE)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())


def test_decays_without_warm_up_are_those_of_torch() -> None:
    for step in range(1, 11):
        share = (step - 1) / 10  # Of CosineAnnealingLR(T_max=10), and of LinearLR(total_iters=10).
        cosine = 0.02 + 0.5 * (0.2 - 0.02) * (1 + math.cos(math.pi * share))
        assert train.CosineDecay(0.2, steps=10, final=0.1).at(step) == pytest.approx(cosine, rel=1e-12)
        line = 0.2 * (1 + (0.1 - 1) * share)
        assert train.Linear(0.2, steps=10, final=0.1).at(step) == pytest.approx(line, rel=1e-12)
    assert [train.Linear(1.0, steps=6, warmup=2).at(step) for step in range(1, 8)] == [0.5, 1, 1, 0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize("name", [*OPTIMIZERS, "sam"])
def test_every_optimizer_lowers_the_loss(name: str) -> None:
    optimizer = train.SAM(train.SGD(0.05)) if name == "sam" else type(optimizer_of(name))(rate=0.02)  # type: ignore[call-arg, arg-type]
    trainer = train.Trainer(regression(), "mse", optimizer)
    losses = [trainer.step(points(64, seed)) for seed in range(60)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: train.SGD(-1.0),
        lambda: train.SGD(0.1, nesterov=True),
        lambda: train.Adam(beta1=1.0),
        lambda: train.AdamW(weight_decay=-0.1),
        lambda: train.SAM(rho=0.0),
        lambda: optimizer_of("adamm"),
    ],
)
def test_impossible_options_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(OptionError):
        make()


def test_groups_change_options_and_rates_of_parameters() -> None:
    data = points(32)
    plain = train.Trainer(regression(), "mse", train.SGD(0.1))
    grouped = train.Trainer(regression(), "mse", train.SGD(0.1), groups={"b": {"rate": 0.5}})
    start = plain.state()["parameter:b"]
    plain.step(data), grouped.step(data)
    np.testing.assert_allclose(
        grouped.state()["parameter:b"] - start, (plain.state()["parameter:b"] - start) / 2, rtol=1e-5
    )
    with pytest.raises(OptionError, match="no parameter matches"):
        train.Trainer(regression(), "mse", train.SGD(0.1), groups={"c*": {"rate": 0.5}})
    with pytest.raises(OptionError, match="no option"):
        train.Trainer(regression(), "mse", train.SGD(0.1), groups={"b": {"beta": 0.5}})
