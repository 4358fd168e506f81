"""The wires of the server against each other: equal answers, and refusals of one kind, for generated requests.

JSON, binary tensors, and both servers of gRPC answer the same requests, good and bad, through the stock client.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")
pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")
pytest.importorskip("grpc", reason="grpcio is not installed (extra: grpc)")
pytest.importorskip("geventhttpclient", reason="geventhttpclient is not installed (extra: test)")
pytest.importorskip("tritonclient", reason="tritonclient is not installed (extra: test)")

from sardonyx.serve import Server
from sardonyx.serve.protocol.refusals import REFUSALS
from tests.random_cases import cases
from tests.serve.models import session

INPUTS = {
    "net": [("x", "FP32", 4)], "add_sub": [("INPUT0", "INT32", 16), ("INPUT1", "INT32", 16)],
    "strings": [("x", "BYTES", 2)], "gather": [("x", "FP32", 4), ("i", "INT64", 1)],
}  # fmt: skip
TYPES = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64, "FP64": np.float64, "BYTES": np.object_}
CODES = {REFUSALS[kind].grpc: REFUSALS[kind].http for kind in ("invalid", "not_found", "no_result", "unsupported")}


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Any]]:
    models = {name: session(name) for name in INPUTS}
    http, grpc = (importlib.import_module(f"tritonclient.{wire}") for wire in ("http", "grpc"))
    with (
        Server(models, http="127.0.0.1:0", grpc="127.0.0.1:0") as own,
        Server(models, http=None, grpc="127.0.0.1:0", grpc_engine="grpcio") as other,
    ):
        opened = {
            "json": http.InferenceServerClient(own.url.split("//")[1]),
            "binary": http.InferenceServerClient(own.url.split("//")[1]),
            "grpc": grpc.InferenceServerClient(f"127.0.0.1:{own.grpc_port}"),
            "grpcio": grpc.InferenceServerClient(f"127.0.0.1:{other.grpc_port}"),
        }
        yield opened
        for client in opened.values():
            client.close()


def request(rng: random.Random) -> tuple[str, list[tuple[str, str, np.ndarray]]]:
    """Return a model and its inputs; some requests have a wrong name, type, rank, size or value."""
    model = rng.choice([*INPUTS, "net", "none"] if rng.random() < 0.1 else list(INPUTS))
    rows, wrong = rng.randrange(1, 5), rng.random() < 0.4
    inputs = []
    for name, datatype, width in INPUTS.get(model, INPUTS["net"]):
        kind = rng.randrange(6) if wrong else -1
        name = f"{name}_" if kind == 0 else name
        datatype = rng.choice(list(TYPES)) if kind == 1 else datatype
        shape = (rows, width + (kind == 2)) if kind != 3 else (rows, width, 1)
        values = np.random.default_rng(rng.randrange(99)).integers(0, 9 if kind == 4 else 1 if width == 1 else 9, shape)
        array = values.astype(str).astype(np.object_) if datatype == "BYTES" else values.astype(TYPES[datatype])
        if kind != 5:
            inputs.append((name, datatype, array))
    return model, inputs


def ask(wire: str, client: Any, model: str, inputs: list[tuple[str, str, np.ndarray]]) -> Any:
    """Return outputs by name, or the status of HTTP of the refusal."""
    module = importlib.import_module("tritonclient.grpc" if wire.startswith("grpc") else "tritonclient.http")
    tensors = []
    for name, datatype, array in inputs:
        tensor = module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **({} if wire.startswith("grpc") else {"binary_data": wire == "binary"}))
        tensors.append(tensor)
    error_class = importlib.import_module("tritonclient.utils").InferenceServerException
    try:
        result = client.infer(model, tensors)
    except error_class as error:
        status = str(error.status())
        if not wire.startswith("grpc"):
            return int(status)
        codes = importlib.import_module("grpc").StatusCode
        return CODES[codes[status.removeprefix("StatusCode.")].value[0]]
    response = result.get_response()
    names = (
        [o["name"] for o in response["outputs"]] if isinstance(response, dict) else [o.name for o in response.outputs]
    )
    return {name: result.as_numpy(name).astype(str if model == "strings" else np.float64).tolist() for name in names}


def test_all_wires_answer_and_refuse_alike(clients: dict[str, Any]) -> None:
    answered = 0
    for number in range(cases(600)):
        model, inputs = request(random.Random(number))
        outcomes = {wire: ask(wire, client, model, inputs) for wire, client in clients.items()}
        first = outcomes["json"]
        assert all(outcome == first for outcome in outcomes.values()), (number, outcomes)
        answered += isinstance(first, dict)
        assert isinstance(first, dict) or first in (400, 404, 422), (number, first)
    assert cases(600) // 3 < answered < cases(600)
