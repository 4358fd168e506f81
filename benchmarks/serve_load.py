"""Requests of `benchmarks/serve.py`, and the programs that send them."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx


class LoadError(RuntimeError):
    """A server that gave no answer, or another one than 200."""


class Load:
    """The bodies of requests for one row, and the programs that send them.

    Args:
        model: The model; its first input has floats.
        folder: A folder for the files of the programs.

    Attributes:
        row: The row of all requests.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        value = onnx.load(model, load_external_data=False).graph.input[0]
        shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        data = self.row = np.random.default_rng(0).random(shape, np.float32).round(4)
        tensor = {"name": value.name, "datatype": "FP32", "shape": shape}
        plain = json.dumps({"inputs": [{**tensor, "data": data.ravel().tolist()}]}).encode()
        part = {**tensor, "parameters": {"binary_data_size": data.nbytes}}
        head = json.dumps({"inputs": [part], "parameters": {"binary_data_output": True}}).encode()
        self._json = self._script(folder / "json.lua", plain, {"Content-Type": "application/json"})
        fields = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        self._binary = self._script(folder / "binary.lua", head + data.tobytes(), fields)
        from sardonyx.serve.protocol.messages import message_class

        message = message_class("ModelInferRequest")(model_name=model.stem, raw_input_contents=[data.tobytes()])
        message.inputs.add(**tensor)
        self._grpc = folder / "grpc.bin"
        text = message.SerializeToString()
        self._grpc.write_bytes(struct.pack(">BI", 0, len(text)) + text)

    @staticmethod
    def _script(path: Path, body: bytes, headers: dict[str, str]) -> Path:
        path.with_suffix(".body").write_bytes(body)
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST /v2/models/model/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
        path.with_suffix(".request").write_bytes(head.encode() + body)
        lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
        path.write_text("\n".join([
            'wrk.method = "POST"', *lines, f'wrk.body = io.open("{path.with_suffix(".body")}", "rb"):read("*a")',
        ]))  # fmt: skip
        return path

    def request(self, proto: str) -> Path:
        """Return a file with the bytes of one HTTP request to the model ``model``."""
        return (self._json if proto == "json" else self._binary).with_suffix(".request")

    def check_grpc(self, port: int) -> None:
        """Send one call and require an answer: `h2load` counts answers without looking at their status.

        Raises:
            LoadError: The call has no answer.
        """
        import grpc

        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            try:
                call(self._grpc.read_bytes()[5:], timeout=60)
            except grpc.RpcError as error:
                raise LoadError(f"a call over gRPC failed: {error}") from error

    def run(self, proto: str, name: str, port: int, clients: int, seconds: float) -> tuple[int, float, float]:
        """Send requests; return the number of good answers, requests a second, and the median latency in ms.

        Raises:
            LoadError: An answer failed, or no answer came within the time.
        """
        pin = ["taskset", "-c", "1"]
        if proto == "grpc":
            url = f"http://127.0.0.1:{port}/inference.GRPCInferenceService/ModelInfer"
            words = [*pin, "h2load", "-t1", "-m1", f"-c{clients}", f"-D{max(1, round(seconds))}", "-d", str(self._grpc),
                     "-H", "content-type: application/grpc", "-H", "te: trailers", url]  # fmt: skip
            text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            good = int(re.search(r"(\d+) succeeded", text)[1])  # type: ignore[index]
            _require_answers(good, proto, clients, seconds)
            latency = re.search(r"time for request:\s+\S+\s+\S+\s+(\S+)", text)
            return good, good / max(1, round(seconds)), milliseconds(latency[1]) if latency else 0.0
        script = self._json if proto == "json" else self._binary
        url = f"http://127.0.0.1:{port}/v2/models/{name}/infer"
        words = [
            *pin,
            "wrk",
            "-t1",
            f"-c{clients}",
            f"-d{max(1, round(seconds))}s",
            "--latency",
            "-s",
            str(script),
            url,
        ]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        good = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
        if bad := re.search(r"Non-2xx or 3xx responses: (\d+)", text):
            raise LoadError(f"{bad[1]} of {good} answers failed")
        _require_answers(good, proto, clients, seconds)
        rate = float(re.search(r"Requests/sec:\s+(\S+)", text)[1])  # type: ignore[index]
        return good, rate, milliseconds(re.search(r"\n\s+50%\s+(\S+)", text)[1])  # type: ignore[index]


def _require_answers(good: int, proto: str, clients: int, seconds: float) -> None:
    """Refuse a measurement without an answer: every ratio to its rate would be a division by zero."""
    if good == 0:
        raise LoadError(f"no answer to {clients} clients over {proto} within {seconds} s: raise --seconds")


def milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def parse_speed() -> list[dict[str, Any]]:
    """Measure the parse of an image of 3 x 224 x 224 in JSON, beside the json module."""
    from sardonyx.serve.protocol import json_codec
    from sardonyx.serve.protocol.datatypes import DATATYPES
    from sardonyx.serve.protocol.number_lists import parse_float32

    image = np.random.default_rng(0).standard_normal(3 * 224 * 224).astype(np.float32)
    rows = []
    for name, values in (("17 digits", image.tolist()), ("4 digits", [round(x, 4) for x in image.tolist()])):
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3, 224, 224], "data": values}
        text = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()

        def ours(text: bytes = text) -> None:
            part = json_codec.parse_head(text, False).inputs[0]
            json_codec.parse_data(part.data, DATATYPES["FP32"], part.shape, "x", False)

        begin = text.index(b"[", text.index(b'"data"'))
        numbers = lambda text=text, begin=begin: parse_float32(text, begin)  # noqa: E731
        plain = lambda text=text: np.array(json.loads(text)["inputs"][0]["data"], np.float32)  # noqa: E731
        for kind, function in (("numbers", numbers), ("request", ours), ("json and numpy", plain)):
            seconds = min(_seconds(function) for _ in range(15))
            rows.append({"numbers": name, "parser": kind, "MB": len(text) / 1e6, "ms": seconds * 1e3,
                         "GB/s": len(text) / seconds / 1e9})  # fmt: skip
    return rows


def _seconds(function: Any) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
