from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from sardonyx.serve.protocol.limits import Limits
from tests.serve.models import session

if TYPE_CHECKING:
    from sardonyx.serve import Server

SMALL = Limits(body_bytes=1 << 20, head_bytes=8192)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Plain requests of HTTP, each on a connection of its own."""

    def __init__(self, server: Server) -> None:
        self.address = server.url.split("//")[1]

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection(self.address, timeout=120)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.request("POST", path, body, headers)

    def infer(self, model: str, inputs: list[dict[str, Any]], **fields: Any) -> Reply:
        return self.post(f"/v2/models/{model}/infer", {"inputs": inputs, **fields})


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """A server of all models that tests read only."""
    from sardonyx.serve import Server

    names = ("net", "add_sub", "strings", "half", "ragged", "gather", "huge", "batch_mean", "batch_sort", "fixed")
    with Server({name: session(name) for name in names}, http="127.0.0.1:0", limits=SMALL) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)
