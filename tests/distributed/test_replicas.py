"""A replica of a Ray deployment without Ray: answers, live edits, and named refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest

from sardonyx import Session
from sardonyx.distributed.ray import Replica, ServerReplica
from sardonyx.errors import EditError, FeedError, OptionError, SardonyxError
from tests.distributed.networks import layers

X = np.ones((2, 64), np.float32)


class Request(Mapping[str, Any]):
    """A request of HTTP, as Starlette passes it: also a mapping of what the connection is."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    async def json(self) -> Any:
        return json.loads(self._body)


@pytest.fixture(scope="module")
def replica() -> Replica:
    return Replica(layers(2).SerializeToString())


def ask(replica: Replica, request: Any) -> Any:
    return asyncio.run(replica(request))


def test_a_configuration_edits_the_replica() -> None:
    replica = Replica(layers(2).SerializeToString())
    before = ask(replica, {"inputs": {"x": X.tolist()}})
    assert ask(replica, Request(json.dumps({"inputs": {"x": X.tolist()}}).encode())) == before
    replica.reconfigure(None)
    replica.reconfigure({"weights": {"w0": np.zeros((64, 64)).tolist()}})
    after = ask(replica, {"inputs": {"x": X.tolist()}})
    assert np.any(before["outputs"]["y"]) and not np.any(after["outputs"]["y"])
    assert (before["revision"], after["revision"]) == (0, 1)


ZEROS = np.zeros((64, 64)).tolist()


def test_a_weight_without_an_entry_is_that_of_the_model() -> None:
    replica = Replica(layers(2).SerializeToString())
    before = ask(replica, {"inputs": {"x": X.tolist()}})["outputs"]
    configs: list[Any] = [None, {"weights": {}}, {"weights": {"w1": np.eye(64).tolist()}}]
    for config in configs:
        replica.reconfigure({"weights": {"w0": ZEROS}})
        replica.reconfigure(config)
        fresh = Replica(layers(2).SerializeToString())
        fresh.reconfigure(config)
        after = ask(replica, {"inputs": {"x": X.tolist()}})["outputs"]
        assert after == ask(fresh, {"inputs": {"x": X.tolist()}})["outputs"]
        assert (after == before) == (not (config or {}).get("weights"))


def test_a_constant_of_a_node_is_a_weight() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        net (float[1] x) => (float[1] y) { c = Constant <value = float[1] {2}> ()  y = Mul (x, c) }""")
    replica = Replica(model.SerializeToString())
    results = []
    for config in ({"weights": {"c": [5.0]}}, None):
        replica.reconfigure(config)
        results.append(ask(replica, {"inputs": {"x": [3.0]}})["outputs"]["y"])
    assert results == [[15.0], [6.0]]
    with pytest.raises(EditError):
        replica.reconfigure({"weights": {"y": [1.0]}})


@pytest.mark.parametrize("wrong", [{"nope": [1.0]}, {"w0": "text"}, {"w0": [1.0, 2.0]}, 1])
def test_a_wrong_configuration_of_one_model_changes_no_other(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[Session] = []

    def recorded(content: bytes, **options: Any) -> Session:
        models.append(Session(content, **options))
        return models[-1]

    monkeypatch.setattr("sardonyx.runtime.Session", recorded)
    replica = ServerReplica({"a": layers(2).SerializeToString(), "b": layers(2).SerializeToString()}, {})
    before = [session.run(None, {"x": X})[0] for session in models]
    good = {"a": {"w0": ZEROS}}
    replica.reconfigure({"weights": good})
    with pytest.raises(SardonyxError):
        replica.reconfigure({"weights": {"a": {"w0": np.eye(64).tolist()}, "b": wrong}})
    assert not np.any(models[0].run(None, {"x": X})[0]), "the configuration in force remains"
    assert np.array_equal(models[1].run(None, {"x": X})[0], before[1])
    replica.reconfigure(None)
    assert np.array_equal(models[0].run(None, {"x": X})[0], before[0])


@pytest.mark.parametrize(
    ("config", "error"),
    [({"weights": {"none": [1.0]}}, EditError), ({"weights": [1]}, OptionError), ({"weight": {}}, OptionError),
     ({"weights": {"w0": [[1], [1, 2]]}}, OptionError), ({"weights": {"w0": "text"}}, OptionError),
     ({"weights": {"w0": None}}, OptionError), ([1], OptionError), ("abc", OptionError), (5, OptionError)],
)  # fmt: skip
def test_a_wrong_configuration_changes_nothing(replica: Replica, config: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        replica.reconfigure(config)
    assert ask(replica, {"inputs": {"x": X.tolist()}})["revision"] == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[]", b"{}", b'{"inputs": 1}', b'{"inputs": {"z": [1]}}', b'{"inputs": {"x": [[1], [1, 2]]}}',
     b'{"inputs": {"x": "text"}}', b'{"inputs": {"x": [[1, 2]]}}', b'{"inputs": {"x": null}}'],
)  # fmt: skip
def test_a_malformed_request_is_answered_400(replica: Replica, body: bytes) -> None:
    pytest.importorskip("starlette", reason="starlette is not installed (Ray Serve)")
    answer = ask(replica, Request(body))
    assert answer.status_code == 400 and json.loads(answer.body)["error"]


def test_a_request_of_starlette_is_answered(replica: Replica) -> None:
    requests = pytest.importorskip("starlette.requests", reason="starlette is not installed (Ray Serve)")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"inputs": {"x": X.tolist()}}).encode()}

    request = requests.Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    assert ask(replica, request)["revision"] == 0


def test_a_malformed_call_is_a_named_error(replica: Replica) -> None:
    with pytest.raises(FeedError, match="expected"):
        ask(replica, {"input": {}})
