"""Models with a privacy policy: noisy answers, a budget for each client, over every wire."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.privacy import Budget, Ledger, Noise, PrivateAnswers
from sardonyx.serve import Model, Server
from sardonyx.serve.security.tokens import Tokens, new_token
from tests.serve.conftest import Client, tensor
from tests.serve.models import session

TOKENS = [new_token(["infer"]) for _ in range(2)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    policy = PrivateAnswers({"y": Noise(0.0, 100.0, 1.0)}, Budget(3.0), Ledger(tmp_path / "ledger"))
    models = {"weighted": Model(session("weighted"), cached=True), "plain": session("weighted")}
    tokens = Tokens([(line.split()[0], ["infer", "read"]) for _, line in TOKENS])
    grpc = "127.0.0.1:0" if importlib.util.find_spec("hpack") else None
    with Server(
        models, http="127.0.0.1:0", grpc=grpc, privacy={"weighted": policy}, tokens=tokens, allow_inner=True
    ) as running:
        yield running


def bearer(client: int = 0) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[client][0]}"}


def body(rows: int = 1, **fields: object) -> dict[str, object]:
    return {"inputs": [tensor("x", "FP32", [rows, 2], [1.0, 2.0] * rows)], **fields}


def test_answers_are_noisy_and_other_outputs_are_withheld(server: Server) -> None:
    client = Client(server)
    replies = [client.post("/v2/models/weighted/infer", body(), **bearer()).json() for _ in range(3)]
    assert [[output["name"] for output in reply["outputs"]] for reply in replies] == [["y"]] * 3
    assert len({tuple(reply["outputs"][0]["data"]) for reply in replies}) == 3, "an answer was repeated from memory"
    plain = client.post("/v2/models/plain/infer", body(), **bearer()).json()
    assert plain["outputs"][0]["data"] == [1.0, 2.0]


def test_a_client_over_its_budget_gets_429_and_others_do_not(server: Server) -> None:
    client = Client(server)
    assert client.post("/v2/models/weighted/infer", body(rows=3), **bearer()).status == 200
    refused = client.post("/v2/models/weighted/infer", body(), **bearer())
    assert refused.status == 429
    assert "retry-after" not in refused.headers
    assert "the privacy budget of the client is used up" in refused.json()["error"]
    assert client.post("/v2/models/weighted/infer", body(), **bearer(1)).status == 200


def test_refused_requests_cost_no_privacy(server: Server) -> None:
    client = Client(server)
    for fields in ({"outputs": [{"name": "z"}]}, {"outputs": [{"name": "a"}]}):
        assert client.post("/v2/models/weighted/infer", body(**fields), **bearer()).status == 400
    wrong = {"inputs": [tensor("x", "FP32", [1, 3], [1, 2, 3])]}
    assert client.post("/v2/models/weighted/infer", wrong, **bearer()).status == 400
    for rows in (0, 4097):
        refused = client.post("/v2/models/weighted/infer", body(rows=rows), **bearer())
        assert refused.status == 400, refused.body
        assert "expected 1 to 4096 rows" in refused.json()["error"]
    assert client.post("/v2/models/weighted/infer", body(rows=3), **bearer()).status == 200


def test_no_more_rows_are_computed_than_are_charged(tmp_path: Path) -> None:
    stated = {"y": Noise(0.0, 100.0, 1.0, sensitivity=1.0)}
    policy = PrivateAnswers(stated, Budget(3.0), Ledger(tmp_path / "ledger"))
    models = {name: session(name) for name in ("gather", "huge", "batch_mean")}
    with Server(models, http="127.0.0.1:0", grpc=None, privacy=dict.fromkeys(models, policy)) as running:
        client = Client(running)
        inputs = [tensor("x", "FP32", [3, 4], [1.0] * 12), tensor("i", "INT64", [1, 1], [0])]
        reply = client.post("/v2/models/gather/infer", {"inputs": inputs})
        assert reply.status == 400
        assert "expected one number of rows, got [1, 3]" in reply.json()["error"]
        inputs = [tensor("x", "FP32", [1, 1], [1.0]), tensor("s", "INT64", [2], [1000, 1])]
        reply = client.post("/v2/models/huge/infer", {"inputs": inputs})
        assert reply.status == 501
        assert "does not bound the answer" in reply.json()["error"]
        assert client.post("/v2/models/batch_mean/infer", body(rows=3)).status == 200
    assert [policy.ledger.spent("", name, 0.0) for name in models] == [0.0, 0.0, 3.0]


def test_the_metadata_state_the_policy(server: Server) -> None:
    metadata = Client(server).get("/v2/models/weighted", **bearer()).json()
    assert metadata["parameters"]["sardonyx_privacy"] == (
        "y: laplace, epsilon 1 a row; each client: epsilon 3, delta 0"
    )


def test_grpc_refuses_with_resource_exhausted(server: Server) -> None:
    pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed (extra: test)")
    from tritonclient.utils import InferenceServerException

    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        x = grpc.InferInput("x", [3, 2], "FP32")
        x.set_data_from_numpy(np.ones((3, 2), np.float32))
        assert client.infer("weighted", [x], headers=bearer()).as_numpy("y").shape == (3, 2)
        with pytest.raises(InferenceServerException, match="privacy budget") as caught:
            client.infer("weighted", [x], headers=bearer())
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
