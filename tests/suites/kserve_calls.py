"""Calls of KServe's clients; run by ``test_other_clients.py`` with the interpreter of their environment.

python kserve_calls.py URL GRPC_ADDRESS
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Y = X @ np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)


def request(binary: bool, name: str | None) -> InferRequest:
    tensor = InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return InferRequest(model_name="net", infer_inputs=[tensor], request_id=name)


async def rest(url: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=1))
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, "net")
    for number in range(8):
        name = f"request {number}" if number % 2 else None
        answer = await client.infer(url, request(number % 4 < 2, name), model_name="net")
        assert np.array_equal(answer.outputs[0].as_numpy().reshape(2, 2), Y)
        assert name is None or answer.id == name
    half = InferInput("x", [2, 2], "FP16")
    half.set_data_from_numpy(np.ones((2, 2), np.float16), binary_data=True)
    output = RequestedOutput("y", {"binary_data": True})
    call = InferRequest(model_name="half", infer_inputs=[half], request_outputs=[output])
    answer = await client.infer(url, call, model_name="half")
    assert np.array_equal(answer.outputs[0].as_numpy().reshape(2, 2), np.full((2, 2), 2, np.float16))
    await client.close()


async def grpc(address: str) -> None:
    client = InferenceGRPCClient(url=address)
    assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready("net")
    for number in range(8):
        answer = await client.infer(request(number % 4 < 2, "a" if number % 2 else None))
        assert np.array_equal(answer.outputs[0].as_numpy().reshape(2, 2), Y)
    await client.close()


async def main() -> None:
    await rest(sys.argv[1])
    await grpc(sys.argv[2])


asyncio.run(main())
