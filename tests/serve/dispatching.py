"""Requests to endpoints without a server, and models whose runs are held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from sardonyx.serve import Batching, Limits, Model
from sardonyx.serve.dispatch.endpoint import Endpoint
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.protocol.requests import InferRequest
from tests.serve.models import session


def served(name: str, **batching: Any) -> ServedModel:
    return ServedModel(name, Model(session(name), Batching(**batching)))


class Gate:
    """Holds the run of a model until it is opened, and counts rows of runs."""

    def __init__(self, model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.started = threading.Event()
        self.rows: list[tuple[int, ...]] = []
        revision = model.revision
        run = revision.run

        def held(feeds: Any) -> list[Any]:
            self.started.set()
            self.opened.wait(120)
            self.rows.append(next(iter(feeds.values())).shape)
            return run(feeds)

        monkeypatch.setattr(revision, "run", held)

    async def begun(self) -> None:
        while not self.started.is_set():
            await asyncio.sleep(0.001)


def request(rows: int = 1, width: int = 4, **fields: Any) -> InferRequest:
    x = np.full((rows, width), float(rows), np.float32)
    return InferRequest("net", inputs={"x": x}, size=x.nbytes, **fields)


def submit(endpoint: Endpoint, item: InferRequest) -> tuple[asyncio.Future[Any], Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    entry = endpoint.infer(item, lambda result: future.done() or future.set_result(result))
    return future, entry


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 120))


def endpoint_of(model: ServedModel, **limits: Any) -> Endpoint:
    return Endpoint(model, Limits(**limits), asyncio.get_running_loop(), allow_inner=False)
