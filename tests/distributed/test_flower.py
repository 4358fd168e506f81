"""Federated rounds: weights of the server replace those of the trainer, and two clients learn what one alone cannot."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.distributed.flower import flower_client, set_weights, weights
from sardonyx.errors import FeedError
from sardonyx.train import Trainer
from tests.distributed.networks import layers


def trainer(rate: float = 1e-2) -> Trainer:
    from sardonyx.train import AdamW

    return Trainer(layers(2), loss="mse", optimizer=AdamW(rate), threads=1)


def data(seed: int, columns: slice) -> dict[str, np.ndarray]:
    x = np.zeros((64, 64), np.float32)
    x[:, columns] = np.random.default_rng(seed).standard_normal(x[:, columns].shape)
    return {"x": x, "labels": np.tanh(x)}


def test_weights_are_those_of_the_state_and_come_back() -> None:
    first, second = trainer(), trainer()
    first.fit(data(0, slice(None)), epochs=1, batch_size=32, progress=False)
    set_weights(second, weights(first))
    batch = data(1, slice(None))
    assert second.evaluate(batch) == first.evaluate(batch)
    assert [array.shape for array in weights(first)] == [(64, 64)] * 2


@pytest.mark.parametrize(
    "arrays",
    [[], [np.zeros((64, 64), np.float32)], [np.zeros((64, 63), np.float32)] * 2, [np.zeros((64, 64))] * 2,
     [np.full((64, 64), np.nan, np.float32)] * 2],
)  # fmt: skip
def test_wrong_weights_of_a_server_are_refused(arrays: list[np.ndarray]) -> None:
    with pytest.raises(FeedError, match="expected"):
        set_weights(trainer(), arrays)


def test_two_clients_learn_together() -> None:
    pytest.importorskip("flwr", reason="flwr is not installed (extra: flower)")
    parts = [data(0, slice(0, 32)), data(1, slice(32, 64))]
    clients = [flower_client(trainer(), part, epochs=2, batch_size=32) for part in parts]
    shared = clients[0].get_parameters({})
    before = [client.evaluate(shared, {})[0] for client in clients]
    for _ in range(5):
        results = [client.fit(shared, {"epochs": 1}) for client in clients]
        total = sum(count for _, count, _ in results)
        assert total == 128
        shared = [
            sum(arrays[index] * (count / total) for arrays, count, _ in results).astype(np.float32)
            for index in range(len(shared))
        ]
    after = [client.evaluate(shared, {})[0] for client in clients]
    assert all(later < 0.7 * earlier for later, earlier in zip(after, before, strict=True))


@pytest.mark.long
def test_flower_runs_rounds_in_its_simulation() -> None:
    flwr = pytest.importorskip("flwr", reason="flwr is not installed (extra: flower)")
    pytest.importorskip("ray", reason="ray is not installed (extra: ray)")
    from flwr.client import ClientApp
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    losses: list[float] = []

    def client_fn(context: object) -> object:
        return flower_client(trainer(), data(0, slice(0, 64)), batch_size=32).to_client()

    def average(metrics: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
        losses.append(float(np.mean([values["loss"] for _, values in metrics])))
        return {"loss": losses[-1]}

    def server_fn(context: object) -> object:
        strategy = FedAvg(min_available_clients=2, fit_metrics_aggregation_fn=average)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    run_simulation(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), num_supernodes=2)
    assert flwr.__version__ and len(losses) == 2 and losses[1] < losses[0]
